"""The measurements of a simulation: each request's ending, each gap between tokens, and counters over time."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from engine.protocol.frames import FinishReason, RefusalCode
from engine.protocol.tiers import Tier
from engine.scheduler.admission import Refusal
from engine.scheduler.costs import StepLoad
from engine.scheduler.scheduler import Scheduler
from engine.simulate.bounds import fairness_bound
from engine.simulate.fairness import ServedGap
from engine.simulate.traffic import SimulatedRequest
from engine.step import RequestEnding, Step, StepOutcome

# BINS: in the time in which requests arrive; the drain after it has further bins of the same width. With BINS_MAX bins,
# each two neighbours are merged.
BINS, BINS_MAX = 120, 480


@dataclass(slots=True, frozen=True)
class FinishedRequest:
    """One request that has ended. `queue_s` and `ttft_s` are seconds since it arrived."""

    request: SimulatedRequest
    reason: FinishReason
    queue_s: float  # until its first chunk began, or until it ended without one
    ttft_s: float | None  # None: it made no token
    made: int
    prompt_tokens: int  # 0: it never ran
    cached_tokens: int
    preemptions: int
    recomputed_tokens: dict[str, int]  # by the tier that caused it
    swapped_tokens: int  # copied back from host memory instead
    device_s: float  # its part of the steps' time, recompute included
    found: bool  # its model's weights were on the device when it arrived


@dataclass(slots=True)
class Bin:
    """Counters of one interval, by tier."""

    arrived: list[int]
    refused: list[int]
    made: list[int]  # tokens
    waiting: list[int]  # the most waiting requests after any step
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
        """`tenants_max`: the most tenants of a tier. `weights`: of tenants whose weight is not 1. Requests arrive until
        `duration_s`."""
        self.tiers = tuple(tiers)
        self.duration_s = duration_s
        self.bin_s = duration_s / BINS
        self.submitted = 0
        self.endings: list[FinishedRequest] = []
        self.refusals: list[tuple[SimulatedRequest, RefusalCode]] = []
        self.gaps_s = [array("f") for _ in tiers]  # between two tokens of a request
        self.made_in_time = [0] * len(tiers)  # tokens made until duration_s
        self.served = [ServedGap(tenants_max) for _ in tiers]
        self.bins: list[Bin] = []
        self.steps = 0
        self.busy_s = 0.0
        self.ended_at = 0.0
        self.batch_tokens_max = 0  # the most KV tokens of any step
        self._to_begin = 0  # requests that wait for their first chunk
        self._weights = weights
        self._rank = {tier.name: rank for rank, tier in enumerate(tiers)}
        # By handle, which counts from 0: values that are read for each token.
        self._tier_of: list[int] = []
        self._tenant_of: list[int] = []
        self._weight_of: list[float] = []
        self._token_at: list[float] = []  # when its latest token was made; negative: none yet
        self._found: list[bool] = []
        self._peak: list[int] = []  # the most prompt tokens computed or cached so far; negative: it has not begun

    # ---- called by World

    def note_submitted(self, request: SimulatedRequest, refusal: Refusal | None, found: bool) -> None:
        """A request with the next handle was submitted. `found`: its model's weights were on the device."""
        rank = self._rank[request.tier]
        served = self.served[rank]
        tenant = served.index(request.tenant)
        self.submitted += 1
        self._tier_of.append(rank)
        self._tenant_of.append(tenant)
        self._weight_of.append(self._weights.get(request.tenant, 1.0))
        self._token_at.append(-1.0)
        self._peak.append(-1)
        self._found.append(found)
        arrivals = self._bin(request.at_s)
        arrivals.arrived[rank] += 1
        if refusal:
            arrivals.refused[rank] += 1
            self.refusals.append((request, refusal.code))
        else:
            served.note_waiting(tenant)
            self._to_begin += 1

    def note_displaced(self, handle: int, request: SimulatedRequest, refusal: Refusal) -> None:
        """A queued request was displaced by another, and so refused."""
        rank = self._tier_of[handle]
        self._note_start(rank, self._tenant_of[handle])
        self._bin(request.at_s).refused[rank] += 1
        self.refusals.append((request, refusal.code))

    def note_step_end(
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

    def note_ending(self, request: SimulatedRequest, ended: RequestEnding, now: float) -> None:
        sequence = ended.sequence
        self.ended_at = now
        handle = sequence.handle
        if self._peak[handle] < 0:
            self._note_start(self._tier_of[handle], self._tenant_of[handle])
        started, first = sequence.started_at, sequence.first_token_at
        ending = FinishedRequest(
            request,
            ended.reason,
            queue_s=(now if started is None else started) - request.at_s,
            ttft_s=None if first is None else first - request.at_s,
            made=len(sequence.output_ids),
            prompt_tokens=0 if started is None else request.prompt_tokens,
            cached_tokens=sequence.cached_tokens,
            preemptions=sequence.preemptions,
            recomputed_tokens={tier: cost.tokens for tier, cost in sequence.recomputed.items()},
            swapped_tokens=sequence.swapped_tokens,
            device_s=sequence.device_s + sum(cost.device_s for cost in sequence.recomputed.values()),
            found=self._found[handle],
        )
        self.endings.append(ending)

    def check_the_end(self, overrun_s: float) -> None:
        """Raises AssertionError if a request did not end or ended twice, or if the requests' device time differs from
        the steps' time."""
        assert len(self.endings) + len(self.refusals) == self.submitted
        split_s = sum(ending.device_s for ending in self.endings) + overrun_s
        assert abs(split_s - self.busy_s) <= 1e-6 * max(1.0, self.busy_s), f"{split_s} s of {self.busy_s} s are charged"

    def served_gap_bound(self, rank: int) -> float:
        """The bound of the widest gap between two waiting tenants, by weight, for the largest batch of this
        simulation."""
        tier = self.tiers[rank]
        least = min((self._weights.get(tenant, 1.0) for tenant in self.served[rank].tenants()), default=1.0)
        return fairness_bound(tier, self.batch_tokens_max) / least

    # ---- internal

    def _note_start(self, rank: int, tenant: int) -> None:
        self.served[rank].note_start(tenant)
        self._to_begin -= 1

    def _note_prefill(self, step: Step) -> None:
        """Count prompt tokens as served when they are computed for the first time."""
        peaks = self._peak
        for chunk in step.chunks:
            handle = chunk.sequence.handle
            peak = peaks[handle]
            if chunk.count == 1 and peak >= 0:
                continue
            rank, tenant = self._tier_of[handle], self._tenant_of[handle]
            if peak < 0:
                self._note_start(rank, tenant)
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
        """The bin of the moment `at_s`."""
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
