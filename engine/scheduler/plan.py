"""A step being put together, then in flight: which chunk of which request, and how many tokens are left.

What is planned may be dropped until the step begins. It must never decide: the scheduler does.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from engine.scheduler.costs import Costs, StepLoad
from engine.scheduler.entry import Entry
from engine.step import PENDING_ID, Chunk, Step


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
        if self.sequences_max + self.prefill_tokens_min > self.step_tokens_max:
            raise ValueError(
                f"a step of {self.step_tokens_max} tokens (step_tokens_max) cannot hold a token of each of "
                f"{self.sequences_max} sequences (sequences_max) and {self.prefill_tokens_min} of prefill "
                "(prefill_tokens_min)"
            )


class StepPlan:
    """At most `tokens` tokens of one model, in the order of `add`."""

    def __init__(self, model: str, tokens: int) -> None:
        self.model = model
        self.tokens_left = tokens
        self.chunks: dict[Entry, Chunk] = {}
        self.step: Step | None = None  # once it has begun
        self.tier_left = 0  # of tokens_left, for the tier whose turn it is
        self.limit_s = 0.0  # how long its prefill may make the step
        self.crowd_max = tokens  # of prefill in it, up to which a share that crowds its tier may add to it
        self.delayed_for: set[int] = set()  # tiers in which decodes of such shares were taken out again for prefill
        self.short_of_time: set[int] = (
            set()
        )  # tiers for more prefill of which lower ones' decodes would not leave the time
        self.prefill_tokens = 0
        self.prefill_of: Counter[int] = Counter()  # by tier
        self._prefilling: set[Entry] = set()
        self.short_of_tokens: set[int] = set()  # tiers that had more to prefill than there were tokens for
        self.decoding: list[int] = []  # tiers that decode, once that is planned
        self.delayed: dict[Entry, None] = {}  # decodes that were taken out again for prefill
        self._decodes = 0
        self._kv_tokens = 0
        self._adapters: int | None = None
        self._assumed = False

    def add_chunk(self, entry: Entry, count: int) -> None:
        """The next `count` tokens of a request, whose pages it has."""
        sequence = entry.sequence
        start = sequence.computed
        assert 0 < count <= self.tokens_left
        self.tokens_left -= count
        self._kv_tokens += start + count
        self.chunks[entry] = Chunk(sequence, start, count, start + count == sequence.token_count())

    def add_prefill(self, entry: Entry, count: int) -> None:
        """`add`, and count it as prefill, be it a token that did not come to be decoded."""
        self.add_chunk(entry, count)
        self.tier_left -= count
        self.prefill_tokens += count
        self.prefill_of[entry.tier] += count
        self._prefilling.add(entry)

    def remove_entry(self, entry: Entry) -> None:
        """Take a request out again, if it is in."""
        chunk = self.chunks.pop(entry, None)
        if chunk:
            self.tokens_left += chunk.count
            self._kv_tokens -= chunk.start + chunk.count
            if entry in self._prefilling:
                self._prefilling.remove(entry)
                self.prefill_tokens -= chunk.count
                self.prefill_of[entry.tier] -= chunk.count

    def step_load(self) -> StepLoad:
        """What is in it. Until it begins the adapters are those of when it was first asked."""
        if self._adapters is None:
            self._adapters = len({chunk.sequence.adapter for chunk in self.chunks.values()} - {None})
        return StepLoad(self.prefill_tokens, len(self.chunks), self._kv_tokens, self._adapters)

    # ---- decodes beside prefill

    def note_decodes(self) -> None:
        """All that is in are decodes, and all decodes are in."""
        self._decodes = len(self.chunks)
        self.decoding = sorted({entry.tier for entry in self.chunks})

    def decodes_below(self, tier: int) -> int:
        """At most so many decodes of lower tiers could be taken out."""
        return self._decodes if self.decoding and self.decoding[-1] > tier else 0

    def delay_decodes(self, tier: int, tokens: int, excess_s: float, costs: Costs) -> float:
        """Take decodes of a tier out, the youngest first, until `tokens` tokens are left and the step takes `excess_s`
        seconds less; not who was left out of the step before. Returns what is left of `excess_s`."""
        decodes = self.decodes(tier)
        while decodes and (self.tokens_left < tokens or excess_s > 0):
            entry = decodes.pop()
            excess_s -= self._decode_s(entry, costs)
            self.delay_decode(entry)
        return excess_s

    def decodes_s(self, tier: int, costs: Costs) -> float:
        """Seconds of the step that those of a tier take which may be taken out."""
        return sum(self._decode_s(entry, costs) for entry in self.decodes(tier))

    def _decode_s(self, entry: Entry, costs: Costs) -> float:
        return costs.sequence_s + costs.kv_token_s * (self.chunks[entry].start + 1)

    def decodes(self, tier: int) -> list[Entry]:
        """Those of a tier that may be taken out, as they were not left out of the step before; the oldest first."""
        return [e for e, chunk in self.chunks.items() if e.tier == tier and chunk.count == 1 and not e.delayed]

    def delay_decode(self, entry: Entry) -> None:
        """Take a decode out."""
        self.delayed[entry] = None
        self.remove_entry(entry)

    def restore_delayed(self) -> None:
        """Decodes that were taken out, as far as there are tokens after all and nobody prefills in their stead."""
        for entry in self.delayed:
            if self.tokens_left and entry.running and not self.prefill_tokens:
                self.add_chunk(entry, 1)

    def to_step(self, number: int) -> Step:
        self._adapters = None
        for entry in self.delayed:
            entry.delayed = True
        for entry in self.chunks:
            entry.delayed = False
            entry.in_flight += 1
        self.step = Step(number, self.model, list(self.chunks.values()))
        return self.step

    def assume(self) -> None:
        """Let its requests look as if the step, in flight, were completed, PENDING_ID standing for what it draws: then
        the next step can be planned. Before that the runner must have begun it. Twice is once."""
        if self._assumed:
            return
        self._assumed = True
        for entry, chunk in self.chunks.items():
            if not entry.ended:
                sequence = entry.sequence
                sequence.computed = chunk.start + chunk.count
                if chunk.sample:
                    sequence.output_ids.append(PENDING_ID)
