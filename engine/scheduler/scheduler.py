"""The scheduler: admits requests, plans each step's tokens tier by tier, preempts, and applies the results of steps.

Deterministic, on the caller's clock, for one thread. It loads no tensor library and knows no tenant, only shares.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Ordered

from engine.memory.adapter_residency import AdapterResidency
from engine.memory.arena import Arena
from engine.memory.eviction import EvictionValue, by_use
from engine.memory.prefix_cache import NAMESPACE_QUOTA, PrefixCache
from engine.memory.weight_residency import WeightResidency
from engine.protocol.frames import FinishReason
from engine.protocol.tiers import Tier, check_tiers
from engine.scheduler.admission import AdmissionControl, Refusal
from engine.scheduler.capacity import Capacity
from engine.scheduler.cost_model import CostModels
from engine.scheduler.entry import Entry
from engine.scheduler.faults import Faults, NoStep, find_blocking_request
from engine.scheduler.first_requests import FirstRequests
from engine.scheduler.plan import StepLimits, StepPlan
from engine.scheduler.planner import StepPlanner
from engine.scheduler.preemption_log import PreemptionLog
from engine.scheduler.queues import TierQueue
from engine.scheduler.results import SKIPS_MESSAGE, StepResults
from engine.scheduler.served import ModelLimits, ModelTable
from engine.scheduler.swap import Swap
from engine.scheduler.token_probes import TokenProbes
from engine.scheduler.turns import MODEL_WAIT_STEPS_MAX, ModelTurns
from engine.step import (
    PENDING_ID,
    AdapterTable,
    HostPool,
    RequestEnding,
    Sequence,
    Step,
    StepOutcome,
    StepResult,
    WeightsTable,
)

__all__ = ["MODEL_WAIT_STEPS_MAX", "ModelLimits", "Refusal", "RequestEnding", "Scheduler", "StepOutcome"]

# Planning of one step is repeated at most this often because all running requests were preempted.
ROUNDS_MAX = 100


class Scheduler:
    """Owns the bookkeeping of the arena, and every request from `submit` to its one ending. The caller repeats:
    `schedule`, begin the step on the device, take its result, `complete`. Between these calls it may submit and abort.
    It may schedule `steps_ahead` further steps before it completes the oldest step, as all are in order.

    A step in flight is assumed to succeed: its tokens count as computed, and PENDING_ID stands for the ids that it
    draws, so that the next step can be planned on top of it. `complete` corrects the assumption:

    - A request that ends with the step (a stop id, an error, an abort) may have chunks in later steps in flight. Their
      tokens are overrun: counted, and never shown.
    - A request that was preempted in the meantime waits with its pending ids. They are filled in, and may end it, while
      it waits. It joins again only when none of its chunks is in flight.

    Pages are freed, and adapters released, while a step in flight may still use them. That is safe because the device
    works in order (step.Runner): the next owner's writes are later. Only known ids and valid KV enter the prefix
    cache: a page is published when the step that filled it is completed, if its request still runs.
    """

    def __init__(
        self,
        tiers: Ordered[Tier],
        models: Mapping[str, ModelLimits],
        arena: Arena,
        adapters: AdapterTable,
        clock: Callable[[], float],
        *,
        step_tokens_max: int = 512,
        prefill_tokens_min: int = 64,
        sequences_max: int = 64,
        namespace_quota: float = NAMESPACE_QUOTA,
        steps_ahead: int = 0,
        host_pool: HostPool | None = None,
        weights: WeightsTable | None = None,
        weights_residence_s: float = 2.0,
        eviction_value: EvictionValue = by_use,
        probe_after_s: float = 0.0,
    ) -> None:
        """`tiers`: highest first. `weights` None: all models stay on the device. `weights_residence_s`,
        `eviction_value`: see WeightResidency; `probe_after_s`: TokenProbes. Raises ValueError if the limits contradict
        each other."""
        check_tiers(tiers)
        self._limits = StepLimits(step_tokens_max, prefill_tokens_min, sequences_max, steps_ahead)
        self._limits.check_limits()
        self.tiers = tuple(tiers)
        self.arena = arena
        self.prefix = PrefixCache(arena, namespace_quota)
        self.preempted = PreemptionLog(len(tiers))
        self.served = ModelTable(len(tiers), self.prefix)
        self.models = self.served.limits  # retired models included
        self._clock = clock
        self._rank = {tier.name: rank for rank, tier in enumerate(tiers)}
        self._entries: dict[tuple[int, int], Entry] = {}  # (gateway, handle) → request that has not ended
        self._queues = [TierQueue(tier, clock) for tier in tiers]
        self._arrivals = 0
        self._failed, self._displaced = list[RequestEnding](), list[tuple[Sequence, Refusal]]()
        self._blocked_models: frozenset[str] = frozenset()  # no request of theirs can join: weights absent or leaving
        self._in_flight: deque[StepPlan] = deque()  # oldest first
        # The step plan that `schedule` is filling: a preemption, begun anywhere, removes the request's chunk from it.
        self._open_plan: StepPlan | None = None
        self._turns = ModelTurns(tiers)
        self.cost_models = CostModels()
        self.swap = Swap(host_pool, arena, self.cost_models)
        floor_pages = sum(int(tier.floor * arena.pages) for tier in tiers)
        self.residency = AdapterResidency(adapters, arena, sequences_max, floor_pages)
        self._capacity = Capacity(
            self.tiers, arena, self.prefix, self.residency, self.swap, sequences_max, self._preempt
        )
        self.weight_residency = WeightResidency(
            weights, len(tiers), self.served.live, clock, self._capacity.evacuate_model,
            residence_s=weights_residence_s, eviction_value=eviction_value,
        )  # fmt: skip
        self.results = StepResults(self.tiers, self._queues, self.prefix)
        self.probes = TokenProbes(
            self.served, self.weight_residency, arena, self.results, self._turns, clock, probe_after_s
        )
        self._build_parts()
        self._add_models(models)

    def _build_parts(self) -> None:
        """Build the parts that work on requests."""
        self.admission = AdmissionControl(
            self.tiers, self.served, self._capacity, self.residency, self.weight_residency, self._queues
        )
        self.faults = Faults(
            self._entries, self._capacity, self._queues, self.residency, self.weight_residency, self.swap, self.served
        )
        self._first_requests = FirstRequests(
            self.tiers, self._capacity, self.arena, self._queues, self._clock, self._preempt, self._limits.sequences_max
        )
        self._planner = StepPlanner(
            self.tiers, self._limits, self._clock, capacity=self._capacity, queues=self._queues,
            first_requests=self._first_requests, residency=self.residency, weights=self.weight_residency,
            prefix=self.prefix, cost_models=self.cost_models, turns=self._turns, fail=self._fail, fault=self._fault,
        )  # fmt: skip

    def _add_models(self, models: Mapping[str, ModelLimits]) -> None:
        """Add the models of the start, then pin: a pin is checked against the sizes of all models."""
        for model, limits in models.items():
            self.add_model(model, limits, pinned=False)
        for model, limits in models.items():
            if why := self.pin_model(model, limits.pinned):
                raise ValueError(f"model {model!r} cannot be pinned: {why}")

    # ---- models

    def add_model(self, name: str, limits: ModelLimits, *, pinned: bool) -> str:
        """Serve another model. Returns why it cannot be pinned, or ""."""
        self.served.add_limits(name, limits)
        self.weight_residency.add_weights(name)
        return self.weight_residency.pin_weights(name, pinned)

    def pin_model(self, name: str, pinned: bool) -> str:
        """The weights of a pinned model are loaded without a request, and never evicted. Returns why it cannot be
        pinned, or ""."""
        return self.weight_residency.pin_weights(name, pinned)

    def retire_model(self, name: str) -> None:
        """Refuse further requests of the model; its queued and running requests continue."""
        self.served.retired.add(name)

    def uses_model(self, name: str) -> bool:
        """A request of the model has not ended, or a step of it is in flight."""
        return any(self.served.live[name]) or any(plan.model == name for plan in self._in_flight)

    def forget_model(self, name: str) -> None:
        """Free the pages, adapters and weights of a model that is not in use."""
        assert not self.uses_model(name), f"model {name} is in use"
        self.residency.forget_model(name)
        self.served.remove_model(name)
        self.weight_residency.forget_weights(name)
        self._turns.forget_turns(name)
        self.cost_models.forget_costs(name)
        self.probes.forget_tokens(name)
        for queue in self._queues:
            queue.forget_queue(name)

    # ---- requests

    def submit(self, sequence: Sequence) -> Refusal | None:
        """Queue a request, or return why it is refused. A queued request ends exactly once. If this raises, the request
        leaves no state."""
        if (sequence.gateway, sequence.handle) in self._entries:
            return Refusal("bad_request", f"handle {sequence.handle} is in use")
        if refusal := self.admission.refusal(sequence):
            return refusal
        self._arrivals += 1
        entry = Entry(sequence, self._rank[sequence.tier], self._arrivals, self.served.chain(sequence))
        self._displace_for(entry)
        self._entries[sequence.gateway, sequence.handle] = entry
        self.served.note_arrival(entry)
        self.results.tier_seconds.note_arrival(entry)
        try:
            self.weight_residency.note_request(sequence.model, entry.tier)
            self._queues[entry.tier].add_entry(entry)
            self.residency.add_waiting(sequence.adapter, entry.tier, new=True)
        except Exception as error:
            self.faults.take_out(entry, error)
            raise
        return None

    def abort(self, gateway: int, handle: int) -> RequestEnding | None:
        """End the request now. None: it is unknown, or ends when a step in flight is completed."""
        entry = self._entries.get((gateway, handle))
        return self._abort(entry) if entry else None

    def abort_gateway(self, gateway: int) -> list[RequestEnding]:
        """`abort` all requests of a gateway."""
        entries = [entry for (owner, _), entry in self._entries.items() if owner == gateway]
        return [ended for entry in entries if (ended := self._abort(entry))]

    def remove_adapter(self, digest: str) -> None:
        """Evict an adapter that no request and no step in flight uses."""
        assert all(entry.sequence.adapter != digest for entry in self._entries.values()), f"{digest} is in use"
        assert not self.is_adapter_in_flight(digest), f"{digest} is in use by a step"
        self.residency.forget_adapter(digest)

    def pin_adapter(self, digest: str, pinned: bool) -> str:
        """A pinned adapter is loaded without a request, and never evicted. Returns why it cannot be pinned, or ""."""
        return self.residency.pin_adapter(digest, pinned)

    def is_adapter_in_flight(self, digest: str) -> bool:
        """A step in flight reads the adapter, also for a request that has ended."""
        return any(chunk.sequence.adapter == digest for plan in self._in_flight for chunk in plan.chunks.values())

    # ---- steps

    def schedule(self, skipped: frozenset[int] = frozenset()) -> Step | None:
        """Plan the next step; the caller begins it before the next call. None: no work can run before a step in flight
        is completed or a load ends. `skipped`: the chunks of the newest step in flight whose draw was skipped."""
        assert len(self._in_flight) <= self._limits.steps_ahead, "the step before was not completed"
        if self._in_flight:
            self._in_flight[-1].assume(skipped)
        self.poll_loads()
        waiting = len(self._entries) > self.running
        if self.probes.is_due() and (probe := self.probes.plan_due(waiting=waiting)) is not None:
            self._in_flight.append(probe)
            return probe.step
        rounds = 0
        while self._entries:
            before = (len(self._entries), self.running)
            for model in self._turns.order(self._planner.work_by_model(self.served.live)):
                plan = self._open_plan = StepPlan(model, self._limits.step_tokens_max)
                self._planner.fill_plan(plan)
                if plan.chunks:
                    self._check_after_fault()
                    return self._begin_step(plan)
            # If all running requests were preempted, the next round finds the arena empty.
            rounds += 1
            if before == (len(self._entries), self.running) or rounds > ROUNDS_MAX:
                if self._in_flight or self.has_blocked_requests:
                    break
                self._fault(find_blocking_request(self._entries.values(), self._planner.capacity_claims()), NoStep())
        self._open_plan = None
        self._check_after_fault()
        return None

    def complete(self, step: Step, result: StepResult, seconds: float) -> StepOutcome:
        """Take in the result of the oldest step in flight, which took `seconds` of the device."""
        plan = self._in_flight.popleft()
        assert plan.step is step, "not the oldest step in flight"
        assert len(result.ids) == len(step.chunks)
        if plan.is_probe:
            self.probes.take_result(step, result, seconds)
            return StepOutcome(ended=self.take_failed())
        plan.assume(result.skipped)
        now, load, errors, skips = self._clock(), plan.step_load(), result.errors, plan.skipped
        outcome = StepOutcome(ended=self.take_failed())
        self.cost_models.observe(step.model, load, seconds)
        self._turns.note_step_completed(step.model, self.served.shares(step.model), seconds)
        parts = self.cost_models.of(step.model).split(step.chunks, load.adapters, seconds)
        self.results.tier_seconds.note_step(plan.chunks, parts, seconds, now)
        for index, (entry, chunk) in enumerate(plan.chunks.items()):
            entry.in_flight -= 1
            good, skipped = index not in errors, index in skips
            if entry.ended:
                self.results.count_overrun(chunk, good and not skipped, parts[index])
                continue
            entry.account(chunk, parts[index], skipped)
            reason: FinishReason | None = None
            if good:
                try:
                    reason = self.results.take_chunk(entry, chunk, result.ids[index], now, outcome.tokens, skipped)
                except Exception as error:  # noqa: BLE001 - the request's edge: it ends alone, and is counted
                    self.results.count_lost_id(chunk)
                    self._fault(entry, error)
                    continue
                if result.logprobs or result.prompts or result.vectors:
                    self.results.take_reports(entry, index, chunk, result, outcome)
            if entry.aborting:
                outcome.ended.append(self._end_entry(entry, "aborted"))
            elif reason or not good:
                message = errors.get(index, SKIPS_MESSAGE if reason == "error" else "")
                outcome.ended.append(self._end_entry(entry, reason or "error", message))
        if outcome.tokens:
            self.probes.note_tokens(step.model, now)
        if self.faults.unchecked:
            outcome.ended.extend(self.take_failed())
            self._check_after_fault()
        return outcome

    def take_failed(self) -> list[RequestEnding]:
        """Requests that ended since the last call because they cannot run. `complete` returns them too."""
        failed, self._failed = self._failed, []
        return failed

    def take_displaced(self) -> list[tuple[Sequence, Refusal]]:
        """Queued requests that were refused since the last call, for a share with fewer requests in a full queue."""
        displaced, self._displaced = self._displaced, []
        return displaced

    # ---- state, for observers

    def has_work(self) -> bool:
        return bool(self._entries)

    @property
    def has_blocked_requests(self) -> bool:
        """At the last planning a request waited for its adapter, or now one waits for its model's weights."""
        return self._planner.has_blocked_requests or self.weight_residency.has_blocked_requests

    @property
    def has_background_loads(self) -> bool:
        """Adapters or weights are being loaded without a request: `poll_loads` continues them."""
        return self.residency.has_background_loads or self.weight_residency.has_background_loads

    @property
    def running(self) -> int:
        return self._capacity.count()

    @property
    def preemptions(self) -> int:
        return self.preempted.count

    @property
    def request_count(self) -> int:
        """Requests that run or wait."""
        return len(self._entries)

    def running_entries(self) -> list[list[Entry]]:
        """Running entries by rank, oldest first. Not to be modified."""
        return self._capacity.running

    def waiting_entries(self) -> Iterator[Entry]:
        """Oldest first."""
        return (entry for entry in self._entries.values() if not entry.running)

    def floor_pages(self, rank: int) -> int:
        return self._capacity.pages.floor(rank)

    def waiting(self) -> dict[str, int]:
        """Tier → waiting requests."""
        return {tier.name: len(queue) for tier, queue in zip(self.tiers, self._queues, strict=True)}

    def check_integrity(self) -> None:
        """Raises AssertionError. For idle moments and tests."""
        self.faults.check_integrity(self._in_flight)

    # ---- planning

    def poll_loads(self) -> None:
        """Take in loads that completed or failed (a failed load ends the requests that wait for it), then begin loads
        and evictions for waiting requests. Before each step; without a step while `has_blocked_requests` or
        `has_background_loads`."""
        self._planner.forget_blocked_requests()
        # A copy hides behind a step in flight. A request that is alone waits for its own copy, and delays no other.
        hidden = bool(self._in_flight) or (len(self._entries) == 1 and not self.running)
        failed = self.residency.poll_loads(hidden=hidden, unpromised=self._capacity.pages.unpromised)
        for digest, why in failed.items():
            self._fail_waiting(f"its adapter cannot be loaded: {why}", adapter=digest)
        for model, why in self.weight_residency.poll_loads().items():
            self._fail_waiting(f"its model cannot be loaded: {why}", model=model)
        blocked = self.weight_residency.schedule_loads()
        if blocked != self._blocked_models:
            for model in blocked - self._blocked_models:
                self._planner.suspend_model(model)
            for queue in self._queues:
                queue.suspend(blocked)
            self._blocked_models = blocked

    def _fail_waiting(self, why: str, *, adapter: str | None = None, model: str | None = None) -> None:
        """End the waiting requests of an adapter or a model whose load failed."""
        for entry in list(self._entries.values()):
            waits, own = not entry.running and not entry.in_flight, entry.sequence
            if waits and (own.adapter if adapter else own.model) == (adapter or model):
                self._fail(entry, why)

    def _fail(self, entry: Entry, why: str) -> None:
        self._failed.append(self._end_entry(entry, "error", why))

    def _fault(self, entry: Entry, error: Exception) -> None:
        """End a request whose scheduling raised, and remove it from all structures."""
        self._failed.append(self._end_faulty(entry, error))

    def _end_faulty(self, entry: Entry, error: Exception) -> RequestEnding:
        self._remove_from_plan(entry)
        self._planner.forget_entry(entry)
        return RequestEnding(entry.sequence, "error", self.faults.take_out(entry, error))

    def _check_after_fault(self) -> None:
        """Check integrity after a fault. Raises AssertionError, which ends the engine (faults.py)."""
        if self.faults.unchecked:
            self.faults.unchecked = False
            self.check_integrity()

    def _begin_step(self, plan: StepPlan) -> Step:
        self._open_plan = None
        self._planner.record_plan(plan)
        self._turns.note_step_begun(plan.model, self.cost_models.of(plan.model).costs.step_seconds(plan.step_load()))
        self.weight_residency.note_step(plan.model)
        now = self._clock()
        for entry in plan.chunks:
            if entry.sequence.started_at is None:
                self.results.tier_seconds.note_wait(entry, now)
                entry.sequence.started_at = now
        self._in_flight.append(plan)
        return plan.to_step(self._turns.steps)

    # ---- preemption

    def _preempt(self, entry: Entry, cause: int) -> None:
        """Move a running request to the front of its queue, with its ids. Its full pages stay in the prefix cache until
        they are evicted; KV that is cheaper to copy back than to recompute is copied to host memory. If this raises,
        the request ends, so that its pages and slot are freed in any case."""
        try:
            self._move_to_queue(entry, cause)
        except Exception as error:  # noqa: BLE001 - the request's edge: it ends alone, and is counted
            self._fault(entry, error)

    def _remove_from_plan(self, entry: Entry) -> None:
        """Remove the request's chunk from the open step plan, if the plan has a chunk of it. Its chunks in flight
        remain."""
        if self._open_plan is not None:
            self._open_plan.remove_entry(entry)

    def _move_to_queue(self, entry: Entry, cause: int) -> None:
        self._remove_from_plan(entry)
        swapped = self.swap.save(entry)
        self._capacity.leave_batch(entry)
        sequence = entry.sequence
        sequence.computed = 0
        self.preempted.record_preemption(self._clock(), sequence, entry.tier, cause, swapped=swapped)
        sequence.preemptions += 1
        entry.preempted_for, entry.preempted_for_share = self.tiers[cause].name, ""
        entry.owed = self._capacity.is_owed_run(entry)
        self._queues[entry.tier].requeue(entry)
        self.residency.add_waiting(sequence.adapter, entry.tier, new=False)

    # ---- results and endings

    def _displace_for(self, entry: Entry) -> None:
        """If a new request finds its tier's queue full, refuse the newest request of the queue's largest share."""
        queue = self._queues[entry.tier]
        if entry.has_run or len(queue) < self.tiers[entry.tier].queue_max:
            return
        displaced = queue.displaced_by(entry.sequence.share)
        assert displaced is not None
        refusal = self.admission.full(displaced.tier)
        self._end_entry(displaced, "aborted")
        self._displaced.append((displaced.sequence, refusal))

    def _abort(self, entry: Entry) -> RequestEnding | None:
        if entry.in_flight:
            entry.aborting = True
            return None
        return self._end_entry(entry, "aborted")

    def _end_entry(self, entry: Entry, reason: FinishReason, message: str = "") -> RequestEnding:
        try:
            return self._finish(entry, reason, message)
        except Exception as error:  # noqa: BLE001 - the request's edge: it ends in any case, and the fault is counted
            return self._end_faulty(entry, error)

    def _finish(self, entry: Entry, reason: FinishReason, message: str) -> RequestEnding:
        sequence = entry.sequence
        entry.ended = True
        while sequence.output_ids and sequence.output_ids[-1] == PENDING_ID:
            sequence.output_ids.pop()
        if entry.running:
            self._capacity.leave_batch(entry)
            self._first_requests.note_ending(entry)
        else:
            self._queues[entry.tier].remove_ended(entry)
            self.residency.remove_waiting(sequence.adapter, entry.tier)
            self.swap.release_slots(entry)
            self.results.tier_seconds.note_wait(entry, self._clock())
        del self._entries[sequence.gateway, sequence.handle]
        self.served.note_ending(entry)
        self._planner.forget_entry(entry)
        return RequestEnding(sequence, reason, message)
