"""Applies a completed chunk: charges its share, publishes full pages and fills in its id.

It counts the ids that were made, and the ids that no answer contains. It ends no request: the scheduler does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from typing import TYPE_CHECKING, Any

from engine.memory.prefix_cache import PrefixCache
from engine.protocol.frames import FinishReason
from engine.protocol.tiers import Tier
from engine.scheduler.entry import Entry
from engine.scheduler.queues import TierQueue
from engine.step import PENDING_ID, Chunk, Sequence, StepOutcome, StepResult

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A request ends with SKIPS_MESSAGE once MASK_SKIPS_MAX consecutive draws of it were skipped, and MASK_LATE_S after the
# first of them. Without MASK_LATE_S a small model's steps would end requests whose mask is a few milliseconds late.
MASK_SKIPS_MAX = 3
MASK_LATE_S = 1.0
SKIPS_MESSAGE = f"the mask of its grammar was not ready within {MASK_SKIPS_MAX} steps and {MASK_LATE_S:g} s"


class TierSeconds:
    """Seconds that completed steps took of the device, by the tier of the requests in them. The difference over the
    wait of a request shows which tiers' requests the device computed meanwhile. Of the step in which the request
    arrived, the part after the arrival counts. A step in flight when the request starts does not count, and steps of a
    deep pipeline overlap: the sum is limited to the wait."""

    def __init__(self, tiers: Ordered[Tier]) -> None:
        self._names = [tier.name for tier in tiers]
        self._seconds = [0.0] * len(tiers)
        self._before_step = tuple(self._seconds)  # as it was before the newest completed step
        self._completed_at, self._step_s = -math.inf, 0.0  # of the newest completed step

    def note_step(self, entries: Iterable[Entry], parts: Ordered[float], seconds: float, now: float) -> None:
        """A step is completed that took `seconds`; `parts`: the seconds of each entry in it."""
        self._before_step, self._completed_at, self._step_s = tuple(self._seconds), now, seconds
        for entry, part in zip(entries, parts, strict=True):
            self._seconds[entry.tier] += part

    def note_arrival(self, entry: Entry) -> None:
        """A request is queued. The newest completed step is part of its wait if the request arrived during the step."""
        late_s = max(0.0, self._completed_at - entry.sequence.arrived_at)
        part = min(1.0, late_s / self._step_s) if self._step_s > 0.0 else 0.0
        entry.tier_s_before = tuple(
            after - part * (after - before) for after, before in zip(self._seconds, self._before_step, strict=True)
        )

    def note_wait(self, entry: Entry, now: float) -> None:
        """A waiting request is about to run, or ends. Without effect if it ran before."""
        sequence, seconds = entry.sequence, self._seconds
        if sequence.started_at is not None:
            return
        device_s = {
            name: seconds[rank] - before
            for rank, (name, before) in enumerate(zip(self._names, entry.tier_s_before, strict=True))
            if seconds[rank] > before
        }
        if device_s:
            part = min(1.0, max(0.0, now - sequence.arrived_at) / sum(device_s.values()))
            sequence.queue_device_s = {name: part * own for name, own in device_s.items()}


class StepResults:
    def __init__(self, tiers: Ordered[Tier], queues: Ordered[TierQueue], prefix: PrefixCache) -> None:
        self.tokens_made = 0  # ids drawn, overrun included
        self.tokens_overrun = 0  # ids drawn for requests that had already ended, or for probes
        self.tier_seconds = TierSeconds(tiers)
        self.overrun_s = 0.0  # device-seconds of overrun: Σ of all steps = Σ of all requests + overrun_s
        self._queues = queues
        self._prefix = prefix

    def take_chunk(
        self,
        entry: Entry,
        chunk: Chunk,
        token: int | None,
        now: float,
        tokens: list[tuple[Sequence, int]],
        skipped: bool,
    ) -> FinishReason | None:
        """The chunk's KV is computed and it drew `token` (None: it does not sample), which is appended to `tokens`.
        `skipped`: its draw was skipped; the KV of its last token is written again. Returns why the request ends with
        it, or None."""
        sequence = entry.sequence
        computed = chunk.start + chunk.count
        if skipped:
            computed -= 1
        self._queues[entry.tier].charge(entry, computed)
        if entry.running:  # if it was preempted meanwhile, its pages have other owners
            self._publish_pages(entry, computed)
        if skipped:
            if not entry.skips:
                entry.skipped_since = now
            entry.skips += 1
            return "error" if entry.skips >= MASK_SKIPS_MAX and now - entry.skipped_since >= MASK_LATE_S else None
        if not chunk.sample:
            ends = not sequence.max_tokens and computed >= len(sequence.prompt_ids)
            return "length" if ends else None
        if entry.skips:
            entry.skips = 0
        assert token is not None, "a sampling chunk yields an id or an error"
        index = computed - len(sequence.prompt_ids)
        assert sequence.output_ids[index] == PENDING_ID
        sequence.output_ids[index] = token
        tokens.append((sequence, token))
        self.tokens_made += 1
        if sequence.first_token_at is None:
            sequence.first_token_at = now
        if token in sequence.stop_ids:
            return "stop"
        return "length" if index + 1 >= sequence.max_tokens else None

    def take_reports(self, entry: Entry, index: int, chunk: Chunk, result: StepResult, outcome: StepOutcome) -> None:
        """Add the chunk's log probabilities and pooled hidden states to the outcome. The log probabilities of prompt
        tokens are not reported again when the request is preempted and its prompt recomputed."""
        if index in result.logprobs:
            outcome.logprobs[chunk.sequence] = result.logprobs[index]
        if index in result.prompts:
            outcome.prompts.append((chunk.sequence, result.prompts[index]))
            entry.reported = chunk.reported().stop
        if (vector := result.vectors.get(index)) is not None:
            self._take_vector(entry, chunk, vector, outcome)

    def _take_vector(self, entry: Entry, chunk: Chunk, vector: NDArray[Any], outcome: StepOutcome) -> None:
        """Add the chunk's pooled hidden states to the request's. With the last token, the vector is whole and is added
        to the outcome. A token that was pooled is not pooled again when the request is preempted."""
        entry.vector = vector if entry.vector is None else entry.vector + vector
        entry.pooled = chunk.pooled().stop
        if entry.pooled == len(chunk.sequence.prompt_ids):
            outcome.vectors.append((chunk.sequence, unit_vector(entry.vector)))

    def count_overrun(self, chunk: Chunk, drew: bool, seconds: float) -> None:
        """Count the tokens that were computed for a request that had ended. `drew`: the chunk neither failed nor was
        skipped."""
        self.overrun_s += seconds
        if chunk.sample and drew:
            self.tokens_made += 1
            self.tokens_overrun += 1

    def count_lost_id(self, chunk: Chunk) -> None:
        """Count the chunk's id as overrun if `take_chunk` raised before it took the id: no answer contains it."""
        sequence = chunk.sequence
        index = chunk.start + chunk.count - len(sequence.prompt_ids)
        if chunk.sample and sequence.output_ids[index : index + 1] == [PENDING_ID]:
            self.tokens_made += 1
            self.tokens_overrun += 1

    def _publish_pages(self, entry: Entry, computed: int) -> None:
        sequence = entry.sequence
        while entry.published < computed // entry.chain.tokens_per_page:
            page = sequence.pages[entry.published]
            self._prefix.publish(entry.chain, sequence.tokens, entry.published, page)
            entry.published += 1


def unit_vector(vector: NDArray[Any]) -> bytes:
    """The float32 vector with length 1, as in frames.Vector. A vector of zeros stays as it is. The mean of hidden
    states has the direction of their sum, so the number of tokens does not count."""
    length = math.sqrt(float(vector.dot(vector)))
    return bytes((vector / length if length else vector).astype("<f4").tobytes())
