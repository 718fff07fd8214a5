"""Masks of ids as packed words: which row of a step's masks belongs to which chunk, and which ids a row allows.

Plain Python and numpy's own methods, no torch: the fake runner uses it too. `penalties.py` applies a row to logits.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import TYPE_CHECKING, Any

from engine.step import Masks, Step

if TYPE_CHECKING:
    from numpy.typing import NDArray

WORD_BITS = 32


def mask_words(vocab: int) -> int:
    """Words of a row's mask."""
    return -(-vocab // WORD_BITS)


def sampling_rows(step: Step) -> dict[int, int]:
    """The row of `Masks.words` of each sampling chunk, by chunk index."""
    return {index: row for row, index in enumerate(i for i, chunk in enumerate(step.chunks) if chunk.sample)}


def check_masks(step: Step, masks: Masks, vocab: int) -> None:
    """Raises ValueError for words of another shape or type, or a skipped chunk that does not sample."""
    rows = sampling_rows(step)
    if not masks.skip <= rows.keys():
        raise ValueError("a chunk that does not sample cannot be skipped")
    expected = (len(rows), mask_words(vocab))
    if masks.words is not None and (masks.words.shape != expected or masks.words.dtype != "int32"):
        raise ValueError(f"masks are {masks.words.dtype} {masks.words.shape}, expected int32 {expected}")


def mask_rows(step: Step, masks: Masks, vocab: int) -> dict[int, NDArray[Any]]:
    """The masks, int32 [mask_words(vocab)], by chunk index, of sampling chunks that have a constraint and are not
    skipped. Empty without words. Raises ValueError as `check_masks`."""
    check_masks(step, masks, vocab)
    if masks.words is None:
        return {}
    rows = sampling_rows(step).items()
    return {index: masks.words[row] for index, row in rows if index not in masks.skip and row not in masks.free}


def is_allowed(row: NDArray[Any], index: int) -> bool:
    """Whether a row of words allows the id."""
    return bool(int(row[index // WORD_BITS]) >> index % WORD_BITS & 1)


def allowed_id(row: NDArray[Any] | None, drawn: int, words: Many[int], vocab: int) -> int:
    """`drawn` if the row allows it, else the first allowed id of `words`, else the lowest allowed id. Raises ValueError
    if the row allows no id."""
    if row is None or is_allowed(row, drawn):
        return drawn
    found = next((index for index in words if is_allowed(row, index)), None)
    if found is None:
        found = next((index for index in range(vocab) if is_allowed(row, index)), None)
    if found is None:
        raise ValueError("its mask allows no id")
    return found
