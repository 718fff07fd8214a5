"""What a simulation measured: every request's ending, every gap between tokens, and counters over time."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from engine.protocol.frames import FinishReason, RefusalCode
from engine.protocol.tiers import Tier
from engine.scheduler.admission import Refusal
from engine.scheduler.bounds import fairness_bound
from engine.scheduler.costs import StepLoad
from engine.scheduler.scheduler import Scheduler
from engine.simulate.fairness import ServedGap
from engine.simulate.traffic import SimulatedRequest
from engine.step import RequestEnding, Step, StepOutcome

# Over the time in which requests arrive; the drain after it has more of the same width. At the most they are merged,
# two and two.
BINS, BINS_MAX = 120, 480


@dataclass(slots=True, frozen=True)
class FinishedRequest:
    """One request that has ended; times are seconds since it arrived."""

    asked: SimulatedRequest
    reason: FinishReason
    queue_s: float  # until its first chunk began, or it ended without
    ttft_s: float | None  # None: it made nothing
    made: int
    prompt_tokens: int  # 0: it never ran
    cached_tokens: int
    preemptions: int
    recomputed_tokens: dict[str, int]  # by the tier that caused it
    swapped_tokens: int  # brought back from host memory instead
    device_s: float  # its share of the steps, recompute included
    found: bool  # its model's weights were on the device when it came


@dataclass(slots=True)
class Bin:
    """What happened in one stretch of time, by tier."""

    arrived: list[int]
    refused: list[int]
    made: list[int]  # ids
    waiting: list[int]  # the most at once after a step
    busy_s: float = 0.0

    def merged(self, later: Bin) -> Bin:
        arrived, refused, made = (
            [a + b for a, b in zip(ours, theirs, strict=True)]
            for ours, theirs in ((self.arrived, later.arrived), (self.refused, later.refused), (self.made, later.made))
        )
        waiting = [max(pair) for pair in zip(self.waiting, later.waiting, strict=True)]
        return Bin(arrived, refused, made, waiting, self.busy_s + later.busy_s)


class Measure:
    def __init__(self, tiers: Ordered[Tier], tenants_max: int, weights: Mapping[str, float], duration_s: float) -> None:
        """`tenants_max`: of a tier. `weights`: of tenants whose weight is not 1. Requests arrive until `duration_s`."""
        self.tiers = tuple(tiers)
        self.duration_s = duration_s
        self.bin_s = duration_s / BINS
        self.submitted = 0
        self.endings: list[FinishedRequest] = []
        self.refusals: list[tuple[SimulatedRequest, RefusalCode]] = []
        self.gaps_s = [array("f") for _ in tiers]  # between two tokens of a request
        self.made_in_time = [0] * len(tiers)  # ids, until duration_s
        self.served = [ServedGap(tenants_max) for _ in tiers]
        self.bins: list[Bin] = []
        self.steps = 0
        self.busy_s = 0.0
        self.ended_at = 0.0
        self.batch_tokens_max = 0  # that any step attended to
        self._to_begin = 0  # requests that wait for their first chunk
        self._weights = weights
        self._rank = {tier.name: rank for rank, tier in enumerate(tiers)}
        # By handle, which counts from 0: what is looked up for every token.
        self._tier_of: list[int] = []
        self._tenant_of: list[int] = []
        self._weight_of: list[float] = []
        self._token_at: list[float] = []  # of its latest; negative: none yet
        self._found: list[bool] = []
        self._peak: list[int] = []  # prompt tokens computed or found; negative: it has not begun

    # ---- what the world tells

    def arrived(self, asked: SimulatedRequest, refusal: Refusal | None, found: bool) -> None:
        """A request with the next handle was submitted. `found`: its model's weights were on the device."""
        rank = self._rank[asked.tier]
        served = self.served[rank]
        tenant = served.index(asked.tenant)
        self.submitted += 1
        self._tier_of.append(rank)
        self._tenant_of.append(tenant)
        self._weight_of.append(self._weights.get(asked.tenant, 1.0))
        self._token_at.append(-1.0)
        self._peak.append(-1)
        self._found.append(found)
        arrivals = self._bin(asked.at_s)
        arrivals.arrived[rank] += 1
        if refusal:
            arrivals.refused[rank] += 1
            self.refusals.append((asked, refusal.code))
        else:
            served.note_waiting(tenant)
            self._to_begin += 1

    def displaced(self, handle: int, asked: SimulatedRequest, refusal: Refusal) -> None:
        """A queued request is refused after all."""
        rank = self._tier_of[handle]
        self._begins(rank, self._tenant_of[handle])
        self._bin(asked.at_s).refused[rank] += 1
        self.refusals.append((asked, refusal.code))

    def stepped(
        self, step: Step, load: StepLoad, outcome: StepOutcome, began: float, ended: float, scheduler: Scheduler
    ) -> None:
        """A step was computed from `began` to `ended`."""
        self.steps += 1
        self.busy_s += ended - began
        self.batch_tokens_max = max(self.batch_tokens_max, load.kv_tokens)
        if load.prefill_tokens or self._to_begin:
            self._note_prefill(step)
        self._note_tokens(outcome, ended)
        for served in self.served:
            served.note_step()
        own = self._bin(ended)
        own.busy_s += ended - began
        for rank, count in enumerate(scheduler.waiting().values()):
            if count > own.waiting[rank]:
                own.waiting[rank] = count

    def note_ending(self, asked: SimulatedRequest, ended: RequestEnding, now: float) -> None:
        sequence = ended.sequence
        self.ended_at = now
        handle = sequence.handle
        if self._peak[handle] < 0:
            self._begins(self._tier_of[handle], self._tenant_of[handle])
        started, first = sequence.started_at, sequence.first_token_at
        ending = FinishedRequest(
            asked,
            ended.reason,
            queue_s=(now if started is None else started) - asked.at_s,
            ttft_s=None if first is None else first - asked.at_s,
            made=len(sequence.output_ids),
            prompt_tokens=0 if started is None else asked.prompt_tokens,
            cached_tokens=sequence.cached_tokens,
            preemptions=sequence.preemptions,
            recomputed_tokens={tier: cost.tokens for tier, cost in sequence.recomputed.items()},
            swapped_tokens=sequence.swapped_tokens,
            device_s=sequence.device_s + sum(cost.device_s for cost in sequence.recomputed.values()),
            found=self._found[handle],
        )
        self.endings.append(ending)

    def check_the_end(self, overrun_s: float) -> None:
        """AssertionError: a request did not end, or ended twice, or the device's time does not add up."""
        assert len(self.endings) + len(self.refusals) == self.submitted
        split_s = sum(ending.device_s for ending in self.endings) + overrun_s
        assert abs(split_s - self.busy_s) <= 1e-6 * max(1.0, self.busy_s), f"{split_s} s of {self.busy_s} s are charged"

    def served_gap_bound(self, rank: int) -> float:
        """Of what tenants who wait may be served apart, by weight, for the largest batch that was seen."""
        tier = self.tiers[rank]
        least = min((self._weights.get(tenant, 1.0) for tenant in self.served[rank].tenants()), default=1.0)
        return fairness_bound(tier, self.batch_tokens_max) / least

    # ---- inside

    def _begins(self, rank: int, tenant: int) -> None:
        self.served[rank].note_start(tenant)
        self._to_begin -= 1

    def _note_prefill(self, step: Step) -> None:
        """Prompt tokens are served when they are computed for the first time."""
        peaks = self._peak
        for chunk in step.chunks:
            handle = chunk.sequence.handle
            peak = peaks[handle]
            if chunk.count == 1 and peak >= 0:
                continue
            rank, tenant = self._tier_of[handle], self._tenant_of[handle]
            if peak < 0:
                self._begins(rank, tenant)
            end = min(chunk.start + chunk.count, len(chunk.sequence.prompt_ids))
            fresh = max(0, end - max(chunk.start, peak))
            self.served[rank].totals[tenant] += self.tiers[rank].prefill_weight * fresh / self._weight_of[handle]
            peaks[handle] = max(peak, end)

    def _note_tokens(self, outcome: StepOutcome, now: float) -> None:
        token_at, tier_of, tenant_of, weight_of = self._token_at, self._tier_of, self._tenant_of, self._weight_of
        gaps_s, made = self.gaps_s, [0] * len(self.tiers)
        totals = [served.totals for served in self.served]
        costs = [tier.decode_weight for tier in self.tiers]
        for sequence, _ in outcome.tokens:
            handle = sequence.handle
            rank = tier_of[handle]
            made[rank] += 1
            totals[rank][tenant_of[handle]] += costs[rank] / weight_of[handle]
            before = token_at[handle]
            if before >= 0:
                gaps_s[rank].append(now - before)
            token_at[handle] = now
        own = self._bin(now).made
        for rank, count in enumerate(made):
            own[rank] += count
            if now <= self.duration_s:
                self.made_in_time[rank] += count

    def _bin(self, at_s: float) -> Bin:
        """The one of this time."""
        while at_s / self.bin_s >= BINS_MAX:
            if len(self.bins) % 2:
                self.bins.append(self._empty())
            pairs = zip(self.bins[::2], self.bins[1::2], strict=True)
            self.bins = [earlier.merged(later) for earlier, later in pairs]
            self.bin_s *= 2
        index = int(at_s / self.bin_s)
        while index >= len(self.bins):
            self.bins.append(self._empty())
        return self.bins[index]

    def _empty(self) -> Bin:
        arrived, refused, made, waiting = ([0] * len(self.tiers) for _ in range(4))
        return Bin(arrived, refused, made, waiting)
