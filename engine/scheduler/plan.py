"""A step plan: which chunk of which request is computed in the next step, and which token and time budget is left.

The planner fills it, and may drop chunks until the step begins; then the plan belongs to the step in flight.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from engine.protocol.config import check_step_tokens
from engine.scheduler.costs import Costs, StepLoad
from engine.scheduler.entry import Entry
from engine.step import PENDING_ID, PROMPT_LOGPROB_ROWS_MAX, Chunk, Step


@dataclass(slots=True, frozen=True)
class StepLimits:
    """Limits of every step, of all models. `steps_ahead`: steps that may begin before the oldest is completed."""

    step_tokens_max: int
    prefill_tokens_min: int
    sequences_max: int
    steps_ahead: int

    def check_limits(self) -> None:
        """Raises ValueError if a step cannot hold one token of each sequence and the minimum of prefill."""
        if self.sequences_max < 1 or self.prefill_tokens_min < 1:
            raise ValueError("sequences_max and prefill_tokens_min must be at least 1")
        if fault := check_step_tokens(self.sequences_max, self.prefill_tokens_min, self.step_tokens_max):
            raise ValueError(fault)


class StepPlan:
    """At most `tokens` tokens of one model, in the order of `add_chunk`."""

    def __init__(self, model: str, tokens: int) -> None:
        self.model = model
        self.tokens_left = tokens
        self.report_left = PROMPT_LOGPROB_ROWS_MAX  # tokens whose logits may be reported
        self.chunks: dict[Entry, Chunk] = {}
        self.step: Step | None = None  # the step, once it has begun
        self.tier_left = 0  # of tokens_left, for the tier whose prefill is being planned
        self.limit_s = 0.0  # seconds: the longest step that the tier's prefill may make
        self.crowd_max = tokens  # prefill tokens in the step up to which a crowding share may add prefill
        self.delayed_for: set[int] = set()  # tiers whose crowding shares had decodes delayed for prefill
        self.short_of_time: set[int] = (
            set()
        )  # tiers for whose prefill delaying lower decodes would not free enough time
        self.prefill_tokens = 0
        self.prefill_of: Counter[int] = Counter()  # by tier
        self._prefilling: set[Entry] = set()
        self.short_of_tokens: set[int] = set()  # tiers that had more to prefill than there were tokens for
        self.decoding: list[int] = []  # ranks of the tiers that decode, once that is planned
        self.delayed: dict[Entry, None] = {}  # decodes that wait a step for prefill
        self._decodes = 0
        self._kv_tokens = 0
        self._adapters: int | None = None
        self.is_probe = False  # `step` is a probe's (token_probes.py), and `chunks` is empty
        self.skipped: frozenset[int] = frozenset()  # chunk indices, once `assume` was called: no id is drawn for them
        self._assumed = False

    def add_chunk(self, entry: Entry, count: int) -> None:
        """Compute the next `count` tokens of a request, which holds the pages for them."""
        sequence = entry.sequence
        start = sequence.computed
        assert 0 < count <= self.tokens_left
        self.tokens_left -= count
        self._kv_tokens += start + count
        sample = start + count == sequence.token_count() and sequence.max_tokens > 0
        if entry.reports_prompt and entry.must_report():
            chunk = Chunk(sequence, start, count, sample, max(start, entry.reported))
            self.report_left -= len(chunk.reported())
        elif sequence.pooling is not None and start + count > entry.pooled:
            chunk = Chunk(sequence, start, count, sample, pool_from=max(start, entry.pooled))
        else:
            chunk = Chunk(sequence, start, count, sample)
        self.chunks[entry] = chunk

    def remaining_reportable(self, entry: Entry) -> int:
        """`entry.remaining()`, within the limit of reported tokens."""
        remaining = entry.remaining()
        if not entry.must_report():
            return remaining
        return min(remaining, max(0, entry.reported - entry.sequence.computed) + self.report_left)

    def add_prefill(self, entry: Entry, count: int) -> None:
        """`add_chunk`, counted as prefill, also if it is one token of a request that has just joined."""
        self.add_chunk(entry, count)
        self.tier_left -= count
        self.prefill_tokens += count
        self.prefill_of[entry.tier] += count
        self._prefilling.add(entry)

    def remove_entry(self, entry: Entry) -> None:
        """Remove the request's chunk, if the plan has a chunk of it."""
        chunk = self.chunks.pop(entry, None)
        if chunk:
            self.tokens_left += chunk.count
            if chunk.report_from is not None:
                self.report_left += len(chunk.reported())
            self._kv_tokens -= chunk.start + chunk.count
            if entry in self._prefilling:
                self._prefilling.remove(entry)
                self.prefill_tokens -= chunk.count
                self.prefill_of[entry.tier] -= chunk.count

    def step_load(self) -> StepLoad:
        """The load of the chunks so far. The number of adapters is that of the first call until the step begins."""
        if self._adapters is None:
            self._adapters = len({chunk.sequence.adapter for chunk in self.chunks.values()} - {None})
        return StepLoad(self.prefill_tokens, len(self.chunks), self._kv_tokens, self._adapters)

    # ---- decodes beside prefill

    def note_decodes(self) -> None:
        """Note that the plan has all decodes and no other chunk."""
        self._decodes = len(self.chunks)
        self.decoding = sorted({entry.tier for entry in self.chunks})

    def decodes_below(self, tier: int) -> int:
        """Upper bound of the decodes of tiers below `tier` that could be delayed."""
        return self._decodes if self.decoding and self.decoding[-1] > tier else 0

    def delay_decodes(self, tier: int, tokens: int, excess_s: float, costs: Costs) -> float:
        """Delay decodes of a tier, the youngest first, until `tokens` tokens are left and the step is `excess_s`
        seconds shorter. A decode that was delayed in the last step is not delayed again. Returns the rest of
        `excess_s`."""
        decodes = self.decodes(tier)
        while decodes and (self.tokens_left < tokens or excess_s > 0):
            entry = decodes.pop()
            excess_s -= self._decode_s(entry, costs)
            self.delay_decode(entry)
        return excess_s

    def decodes_s(self, tier: int, costs: Costs) -> float:
        """Seconds of the step that the tier's decodes take which may be delayed."""
        return sum(self._decode_s(entry, costs) for entry in self.decodes(tier))

    def _decode_s(self, entry: Entry, costs: Costs) -> float:
        return costs.sequence_s + costs.kv_token_s * (self.chunks[entry].start + 1)

    def decodes(self, tier: int) -> list[Entry]:
        """The tier's decodes that may be delayed: decodes that were not delayed in the last step; oldest first."""
        return [e for e, chunk in self.chunks.items() if e.tier == tier and chunk.count == 1 and not e.delayed]

    def delay_decode(self, entry: Entry) -> None:
        """Remove a decode, to be computed in the next step."""
        self.delayed[entry] = None
        self.remove_entry(entry)

    def restore_delayed(self) -> None:
        """Put delayed decodes back as far as there are tokens, if no prefill took their place."""
        for entry in self.delayed:
            if self.tokens_left and entry.running and not self.prefill_tokens:
                self.add_chunk(entry, 1)

    def to_step(self, number: int) -> Step:
        """The step to begin. From now on its chunks are in flight."""
        self._adapters = None
        for entry in self.delayed:
            entry.delayed = True
        for entry in self.chunks:
            entry.delayed = False
            entry.in_flight += 1
        self.step = Step(number, self.model, list(self.chunks.values()))
        return self.step

    def assume(self, skipped: frozenset[int]) -> None:
        """Let the step's requests look as if the step were completed, with PENDING_ID for the ids that it draws, so
        that the next step can be planned. The last token of a chunk in `skipped` looks not computed, so that the next
        step computes it again and draws for the same position. The runner must have begun the step, and drawn its ids
        or skipped them. Further calls change nothing."""
        if self._assumed:
            return
        self._assumed, self.skipped = True, skipped
        for index, (entry, chunk) in enumerate(self.chunks.items()):
            if not entry.ended:
                sequence = entry.sequence
                sequence.computed = chunk.start + chunk.count
                if index in skipped:
                    sequence.computed -= 1
                elif chunk.sample:
                    sequence.output_ids.append(PENDING_ID)
