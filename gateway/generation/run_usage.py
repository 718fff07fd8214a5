"""Usage of the texts of a request: tokens by engine, the engines' usage and times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from engine.protocol import frames
from gateway.engines.engine import NO_USAGE, TokenStream
from gateway.log import TextTimes

if TYPE_CHECKING:
    from gateway.generation.text_runs import TextEnding, TextRun

NO_RECOMPUTE = frames.TierRecompute()


def token_usage(run: TextRun) -> frames.EngineUsage:
    """The usage that the engine reported: with the ending all of it, with the first token the cached tokens."""
    stream = run.stream
    if stream is None:
        return NO_USAGE
    if stream.final is not None and stream.final.usage is not None:
        return stream.final.usage
    return frames.EngineUsage(cached_tokens=stream.cached_tokens)


def times_of(run: TextRun, stream: TokenStream) -> TextTimes:
    usage = NO_USAGE if stream.final is None or stream.final.usage is None else stream.final.usage
    epochs = tuple(stream.attempts)
    is_known = len(epochs) == 1 and usage is not NO_USAGE  # of several engines, the usage is the last one's
    return TextTimes(
        submitted_s=run.submitted_s,
        ended_s=run.ended_s,
        queue_s=usage.queue_s if is_known else None,
        ttft_s=usage.ttft_s if is_known and usage.ttft_s else None,
        device_s=usage.device_s,
        preemptions=usage.preemptions,
        recomputed_tokens=usage.recomputed_tokens,
        epochs=epochs,
        finish_reason=None if run.end is None else run.end.finish_reason,
    )


def made_by(run: TextRun) -> dict[str, int]:
    """Completion tokens of one text by engine epoch, at least the tokens of its output."""
    if run.stream is None:
        return {}
    made = dict(run.stream.attempts)
    if (uncounted := run.output.tokens - sum(made.values())) > 0:
        newest = next(reversed(made), "")
        made[newest] = made.get(newest, 0) + uncounted
    return made


def made_by_all(ends: Sequence[TextEnding]) -> dict[str, int]:
    """Completion tokens of all texts by engine epoch; the newest attempt's epoch is the last key."""
    summed: dict[str, int] = {}
    for end in ends:
        for epoch, tokens in end.engines.items():
            summed[epoch] = summed.pop(epoch, 0) + tokens
    return summed


def summed(usages: Sequence[frames.EngineUsage]) -> frames.EngineUsage:
    return msgspec.structs.replace(
        usages[0],
        device_s=sum([usage.device_s for usage in usages]),
        preemptions=sum([usage.preemptions for usage in usages]),
        recomputed_tokens=sum([usage.recomputed_tokens for usage in usages]),
        recomputed=_by_cause(usages),
        swapped_tokens=sum([usage.swapped_tokens for usage in usages]),
    )


def _by_cause(usages: Sequence[frames.EngineUsage]) -> dict[str, frames.TierRecompute]:
    """The cost of preemption, summed, by the tier that caused it."""
    summed: dict[str, frames.TierRecompute] = {}
    for usage in usages:
        for tier, cost in usage.recomputed.items():
            before = summed.get(tier, NO_RECOMPUTE)
            summed[tier] = frames.TierRecompute(before.tokens + cost.tokens, before.device_s + cost.device_s)
    return summed
