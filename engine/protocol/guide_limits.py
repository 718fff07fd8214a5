"""Limits of a Guide's fields, checked by gateway and engine. The grammar itself is checked where it is compiled."""

from __future__ import annotations

from collections.abc import Sequence

from engine.protocol.frames import Guide

GRAMMAR_CHARS_MAX = 256 * 1024
# Of a marker; a marker that is not a single token has some 2 to 8 ids.
MARKER_IDS_MAX = 32
REASONING_MAX = 2**31 - 1


def find_guide_fault(guide: Guide, vocab_size: int | None) -> str | None:
    """A sentence with the first field outside its limits; None if all fields are valid."""
    if guide.grammar is not None and not 1 <= len(guide.grammar) <= GRAMMAR_CHARS_MAX:
        return f"grammar has {len(guide.grammar)} characters; 1 to {GRAMMAR_CHARS_MAX} are possible"
    for name, ids in (
        ("reasoning_start_ids", guide.reasoning_start_ids),
        ("reasoning_end_ids", guide.reasoning_end_ids),
    ):
        if fault := _marker_fault(name, ids, vocab_size):
            return fault
    if guide.reasoning_max is not None and not 0 <= guide.reasoning_max <= REASONING_MAX:
        return f"reasoning_max is {guide.reasoning_max}; 0 to {REASONING_MAX} is needed"
    if not guide.reasoning_end_ids and (guide.reasoning_start_ids or guide.reasoning_open):
        return "reasoning needs reasoning_end_ids"
    if guide.reasoning_max is not None and not guide.reasoning_end_ids:
        return "reasoning_max needs reasoning_end_ids"
    return None


def _marker_fault(name: str, ids: Sequence[int], vocab_size: int | None) -> str | None:
    if len(ids) > MARKER_IDS_MAX:
        return f"{name} has {len(ids)} ids; {MARKER_IDS_MAX} at most are possible"
    if ids and (min(ids) < 0 or (vocab_size is not None and max(ids) >= vocab_size)):
        return f"{name} has an id outside the vocabulary"
    return None
