"""Fills the plan of a step of one model: its decodes, then prefill tier by tier, as much as all tiers' targets leave.

It chooses chunks and lets waiting requests join. It begins no step and ends no request: the scheduler does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Ordered

from engine.memory.adapter_residency import AdapterResidency
from engine.memory.prefix_cache import PrefixCache
from engine.memory.weight_residency import WeightResidency
from engine.protocol.tiers import Tier
from engine.scheduler.capacity import Capacity
from engine.scheduler.cost_model import CostModels
from engine.scheduler.costs import StepLoad
from engine.scheduler.entry import Entry
from engine.scheduler.first_requests import FirstRequests
from engine.scheduler.plan import StepLimits, StepPlan
from engine.scheduler.queues import TierQueue
from engine.scheduler.turns import TARGET_MARGIN, ModelTurns, ModelWork

# Requests whose adapters are in the batch may join before a request that has waited less than this part of its tier's
# first-token target.
PASSED_PART_MAX = 0.25


class StepPlanner:
    def __init__(
        self,
        tiers: Ordered[Tier],
        limits: StepLimits,
        clock: Callable[[], float],
        *,
        capacity: Capacity,
        queues: Ordered[TierQueue],
        first_requests: FirstRequests,
        residency: AdapterResidency,
        weights: WeightResidency,
        prefix: PrefixCache,
        cost_models: CostModels,
        turns: ModelTurns,
        fail: Callable[[Entry, str], None],
        fault: Callable[[Entry, Exception], None],
    ) -> None:
        """`fail(entry, why)` ends a request that can never run; `fault(entry, error)` ends a request whose planning
        raised."""
        self.tiers = tiers
        self.residency = residency
        self.prefix = prefix
        # A request was passed over because its adapter is not ready, since `forget_blocked_requests`.
        self.has_blocked_requests = False
        self._clock = clock
        self._capacity = capacity
        self._queues = queues
        self._first_requests = first_requests
        self._weights = weights
        self._cost_models = cost_models
        self._turns = turns
        self._fail = fail
        self._fault = fault
        self._faulty: dict[Entry, Exception] = {}  # raised while a queue was searched; ended after the search
        self._step_tokens_max = limits.step_tokens_max
        self._prefill_tokens_min = limits.prefill_tokens_min
        self._crowd_tokens = [tier.crowd_tokens(limits.step_tokens_max, limits.prefill_tokens_min) for tier in tiers]
        self._crowd_slots = [tier.crowd_places(limits.sequences_max) for tier in tiers]
        self._crowd_slots_beside_light = [tier.crowd_places_beside_light(limits.sequences_max) for tier in tiers]
        self._targets_s = [TARGET_MARGIN * tier.inter_token_ms / 1000 for tier in tiers]
        self._patience_s = [tier.patience_s(limits.steps_ahead) for tier in tiers]
        self._prefill_owed = [0.0] * len(tiers)  # tokens, by tier
        self._capacity_claims: dict[str, Entry] = {}  # model → its best request that lacks capacity

    # ---- a step

    def forget_blocked_requests(self) -> None:
        """Loads were polled: which requests are blocked is found again by the next planning."""
        self.has_blocked_requests = False

    def fill_plan(self, plan: StepPlan) -> None:
        """Plan the decodes, then the prefill. May preempt and end requests."""
        self._capacity_claims.pop(plan.model, None)
        self._plan_decodes(plan)
        self._plan_prefills(plan)
        self._end_faulty()

    def record_plan(self, plan: StepPlan) -> None:
        """The planned step begins. A tier whose prefill got fewer tokens than its floor guarantees is owed the
        difference in later steps."""
        for tier, owed in enumerate(self._prefill_owed):
            if tier in plan.short_of_tokens:
                missing = self.tiers[tier].floor * plan.prefill_tokens - plan.prefill_of[tier]
                self._prefill_owed[tier] = min(max(0.0, owed + missing), self._step_tokens_max)
            else:
                self._prefill_owed[tier] = 0.0

    def forget_entry(self, entry: Entry) -> None:
        """The request ended: it claims no capacity."""
        if self._capacity_claims.get(entry.sequence.model) is entry:
            del self._capacity_claims[entry.sequence.model]

    def capacity_claims(self) -> list[Entry]:
        """Requests that wait for slots or pages, and that block others from taking them."""
        return list(self._capacity_claims.values())

    def suspend_model(self, model: str) -> None:
        """The model's weights leave the device: none of its requests can join, so none claims capacity."""
        self._capacity_claims.pop(model, None)

    def work_by_model(self, live: dict[str, list[int]]) -> dict[str, ModelWork]:
        """The work of each model that has requests (`live`: by model and tier) and its weights on the device."""
        self._end_faulty()
        models = [model for model, ranks in live.items() if any(ranks) and self._weights.is_resident(model)]
        if len(models) < 2:
            return {model: ModelWork(0, None, (), 0.0) for model in models}
        counts = {model: _WorkCount() for model in models}
        for rank, running in enumerate(self._capacity.running):
            for entry in running:
                own = counts[entry.sequence.model]
                if entry.remaining() == 1:
                    own.decodes(entry, rank)
                elif own.first is None and entry.ready():
                    own.first = rank
        return {model: self._work(model, live[model], counts[model]) for model in models}

    def _work(self, model: str, live: list[int], counts: _WorkCount) -> ModelWork:
        best = next(rank for rank, count in enumerate(live) if count)
        first = counts.first
        if model not in self._capacity_claims:
            # A model with a claim has no request that can join. Otherwise look for the highest tier with such a
            # request.
            for rank in range(len(live) if first is None else first):
                if live[rank] and self._next(model, rank):
                    first = rank
                    break
        costs = self._cost_models.of(model).costs
        next_s = costs.step_seconds(counts.step_load()) if counts.ranks else 0.0
        if first is not None:
            next_s += costs.step_seconds(StepLoad(self._prefill_tokens_min, 1, 0, 0)) - (
                costs.base_s if counts.ranks else 0.0
            )
        return ModelWork(best, first, tuple(counts.ranks), next_s)

    def _plan_decodes(self, plan: StepPlan) -> None:
        grow = self._capacity.grow_entry
        for running in self._capacity.running:
            for entry in tuple(running):
                sequence = entry.sequence
                try:
                    if not entry.running or sequence.model != plan.model or entry.remaining() != 1 or not entry.ready():
                        continue
                    if sequence.computed < len(sequence.pages) * entry.chain.tokens_per_page or grow(entry):
                        plan.add_chunk(entry, 1)
                except Exception as error:  # noqa: BLE001 - the request's edge: it ends alone, and is counted
                    self._fault(entry, error)
        plan.note_decodes()

    def _plan_prefills(self, plan: StepPlan) -> None:
        """Tier by tier; before that, the prefill that is owed to tiers, because higher tiers took more than their part
        in earlier steps."""
        ranks = range(len(self.tiers))
        for tier in ranks:
            if self._prefill_owed[tier] >= self._prefill_tokens_min:
                self._fill_tier(plan, tier, int(self._prefill_owed[tier]))
        for tier in ranks:
            plan.crowd_max = self._crowd_tokens[tier]
            self._fill_tier(plan, tier, self._step_tokens_max)
        plan.restore_delayed()

    def _fill_tier(self, plan: StepPlan, tier: int, tokens_max: int) -> None:
        """Prefill of one tier, at most `tokens_max` tokens, of running requests and of waiting requests that join."""
        chunks, delayed = plan.chunks, plan.delayed
        idle = [entry for entry in self._capacity.running[tier] if entry not in chunks and entry not in delayed]
        begun = [entry for entry in idle if entry.sequence.model == plan.model and entry.ready()]
        waiting = self._next(plan.model, tier)
        if not begun and waiting is None:
            return
        plan.limit_s, plan.tier_left = self._limit_s(plan, tier), tokens_max
        while begun or waiting:
            entry = min(begun, key=self._prefill_order) if begun else None
            if waiting and (entry is None or self._prefill_order(waiting) < self._prefill_order(entry)):
                waiting = self._next(plan.model, tier) if self._guard(self._admit, plan, waiting) else None
                begun = [entry for entry in begun if entry.running]
            elif entry:
                begun.remove(entry)
                self._guard(self._plan_prefill, plan, entry)

    def _guard(self, plans: Callable[[StepPlan, Entry], bool | None], plan: StepPlan, entry: Entry) -> bool | None:
        """Call `plans`. If it raises, end the request and return True, so that others are planned."""
        try:
            return plans(plan, entry)
        except Exception as error:  # noqa: BLE001 - the request's edge: it ends alone, and is counted
            self._fault(entry, error)
            return True

    def _end_faulty(self) -> None:
        while self._faulty:
            entry, error = self._faulty.popitem()
            if not entry.ended:
                self._fault(entry, error)

    def _prefill_order(self, entry: Entry) -> tuple[bool, float, int]:
        """Sort key: the share that was served least is first, whether its request runs or waits; shares that crowd the
        tier are last."""
        queue = self._queues[entry.tier]
        return queue.crowds(entry), queue.served_tokens(entry.sequence.share), entry.number

    def _prefill_allowed(self, plan: StepPlan, entry: Entry) -> int:
        """Tokens left for the tier. A crowding share adds prefill only up to `plan.crowd_max`: steps stay short for new
        requests of other shares, which wait for the steps in flight and then share the next step with it."""
        if not self._queues[entry.tier].crowds(entry):
            return plan.tier_left
        return max(0, min(plan.tier_left, plan.crowd_max - plan.prefill_tokens))

    def _prefill_tokens(self, plan: StepPlan, entry: Entry) -> int:
        """Prefill tokens for the request: the tokens allowed, within the step's time, which never allows fewer than
        `prefill_tokens_min` in the step."""
        costs = self._cost_models.of(plan.model)
        within = costs.prefill_within(plan.limit_s, plan.step_load(), self._step_tokens_max)
        return min(self._prefill_allowed(plan, entry), max(within, self._prefill_tokens_min - plan.prefill_tokens))

    def _may_prefill(self, plan: StepPlan, entry: Entry) -> bool:
        """The step has tokens and time for prefill, possibly after delaying decodes of lower tiers by a step."""
        if self._prefill_tokens(plan, entry) > 0:
            return True
        tier = entry.tier
        if self._prefill_allowed(plan, entry) <= 0 or not plan.decodes_below(tier) or tier in plan.short_of_time:
            return False
        below = (rank for rank in range(tier + 1, len(self.tiers)) if self.tiers[rank].preemptible)
        own = self._cost_models.of(plan.model)
        left_s = plan.limit_s + sum(plan.decodes_s(rank, own.costs) for rank in below)
        if own.prefill_within(left_s, plan.step_load(), self._step_tokens_max) > 0:
            return True
        plan.short_of_time.add(tier)
        return False

    def _lacks_crowd_slot(self, entry: Entry) -> bool:
        """The request's share crowds its tier, and crowding shares have all the slots that they may have together."""
        queue = self._queues[entry.tier]
        if not queue.crowds(entry):
            return False
        heavily = queue.crowds_heavily(entry)
        slots = (self._crowd_slots if heavily else self._crowd_slots_beside_light)[entry.tier]
        return sum(map(queue.crowds, self._capacity.running[entry.tier])) >= slots

    def _delay_crowding_decodes(self, plan: StepPlan, entry: Entry) -> None:
        """Delay decodes of shares that crowd the tier by a step, for prefill of a share that does not. No decode is
        delayed in two consecutive steps."""
        queue, tier = self._queues[entry.tier], entry.tier
        if tier in plan.delayed_for or queue.crowds(entry):
            return
        plan.delayed_for.add(tier)
        # For light shares only in a long step: otherwise each of their requests would delay the decodes by a step.
        costs = self._cost_models.of(plan.model).costs
        crowds = queue.crowds if costs.step_seconds(plan.step_load()) > self._targets_s[tier] else queue.crowds_heavily
        for other in plan.decodes(tier):
            if crowds(other):
                plan.delay_decode(other)

    def _plan_prefill(self, plan: StepPlan, entry: Entry) -> None:
        """A chunk as long as tokens and time allow, after delaying decodes of lower tiers and of shares that crowd the
        tier."""
        remaining = plan.remaining_reportable(entry)
        if not remaining:  # reported chunks of the step take the whole limit; its tokens are not short
            return
        if self._may_prefill(plan, entry):
            self._delay_crowding_decodes(plan, entry)
            self._delay_lower_decodes(plan, entry.tier, min(remaining, self._prefill_allowed(plan, entry)))
        count = min(remaining, self._prefill_tokens(plan, entry), plan.tokens_left)
        if not count:
            plan.short_of_tokens.add(entry.tier)
            return
        plan.add_prefill(entry, count)
        # Charged now, so that the order of shares holds within this step.
        self._queues[entry.tier].charge(entry, entry.sequence.computed + count)

    def _admit(self, plan: StepPlan, entry: Entry) -> bool:
        """Let a waiting request join the batch, if the step has tokens for it. False: no further request of the tier
        may join in this step, because this one waits for tokens or capacity and must not be overtaken."""
        if plan.tokens_left + plan.decodes_below(entry.tier) <= 0 or not self._may_prefill(plan, entry):
            plan.short_of_tokens.add(entry.tier)
            return False
        if self._takes_claimed_capacity(entry) or self._lacks_crowd_slot(entry):
            return False
        if not entry.in_flight and not self._first_requests.must_leave_slot(entry) and self._join(entry):
            self._plan_prefill(plan, entry)
        elif first := self._join_first(plan, entry.tier):
            self._plan_prefill(plan, first)
        elif entry.ended:  # `_join_first` raised for this request, and ended it
            pass
        elif self._capacity.count() or entry.in_flight:
            self._capacity_claims.setdefault(plan.model, entry)
            return False
        elif self._ready(entry):
            # Nothing runs, and steps in flight hold no pages: pinned adapters or other tiers' floors have the capacity
            # that the request lacks.
            self._fail(entry, "the request does not fit beside its adapter and the pinned ones")
        # Otherwise the request's own adapter was evicted, to be loaded again into fewer pages. Others may join until
        # then.
        return True

    def _next(self, model: str, tier: int) -> Entry | None:
        """The waiting request that may join next: the oldest that is owed its run and can reserve its floor's capacity,
        then the queue's order."""
        if not self._weights.can_join(model):
            return None
        queue = self._queues[tier]
        while (owed := queue.oldest_owed(model, self._ready)) and self._capacity.has_outgrown_floor(owed):
            queue.revoke_owed(owed)
        if owed and self._capacity.can_reserve(owed):
            return owed
        head = queue.head(model, self._ready)
        if head is None or head.has_run or self.residency.in_use(head.sequence.adapter):
            return head
        return self._next_without_new_adapter(queue, head) or head

    def _next_without_new_adapter(self, queue: TierQueue, head: Entry) -> Entry | None:
        """A request that adds no adapter to the batch and may join before `head`, which would add one: while `head` has
        waited only briefly, and only as far as the fairness bound at most doubles."""
        if not self._may_be_passed(head):
            return None
        tier = self.tiers[head.tier]
        slack = max(tier.prefill_weight, tier.decode_weight) * self._step_tokens_max
        return queue.next_beside(head, slack, self._adds_no_adapter)

    def _may_be_passed(self, head: Entry) -> bool:
        """The request has waited less than min(PASSED_PART_MAX · `ttft_base_ms`, `ageing_s`)."""
        tier = self.tiers[head.tier]
        patience_s = min(PASSED_PART_MAX * tier.ttft_base_ms / 1000, tier.ageing_s)
        return self._clock() - head.sequence.arrived_at < patience_s

    def _adds_no_adapter(self, entry: Entry) -> bool:
        return self.residency.in_use(entry.sequence.adapter)

    def _join(self, entry: Entry) -> bool:
        if not self._capacity.join_batch(entry):
            return False
        self._queues[entry.tier].note_joined(entry)
        self._first_requests.note_joined(entry)
        sequence = entry.sequence
        self.residency.remove_waiting(sequence.adapter, entry.tier)
        entry.charged = max(entry.charged, sequence.computed)
        if not sequence.preemptions:
            prompt = len(sequence.prompt_ids)
            sequence.cached_tokens = min(sequence.computed, prompt)
            if not entry.must_report() and sequence.pooling != "mean":  # such requests look for no page
                self.prefix.looked_up(sequence.model, prompt, sequence.cached_tokens)
        return True

    def _join_first(self, plan: StepPlan, tier: int) -> Entry | None:
        """If the next request lacks capacity, let a share's first request join instead, preempting others for it."""
        entry = self._first_requests.find_first_request(plan.model, tier, self._may_join)
        if entry is None or self._takes_claimed_capacity(entry):
            return None
        if not self._adds_no_adapter(entry) and self._may_be_passed(entry):
            return None
        try:
            joins = self._first_requests.preempt_for_first(entry) and self._join(entry)
        except Exception as error:  # noqa: BLE001 - see _guard
            self._fault(entry, error)
            return None
        return entry if joins else None

    def _may_join(self, entry: Entry) -> bool:
        """The request is ready, and none of its chunks from before a preemption is in flight: such a chunk still writes
        its old pages."""
        return not entry.in_flight and self._ready(entry)

    def _takes_claimed_capacity(self, entry: Entry) -> bool:
        """The request would take capacity that a request of a higher tier, or of its tier and another model, waits for.
        Capacity of its tier's floor may be taken."""
        for claim in self._capacity_claims.values():
            same_tier = claim.tier == entry.tier and claim.sequence.model != entry.sequence.model
            if claim.tier < entry.tier or same_tier:
                return not self._capacity.within_floor(entry)
        return False

    def _limit_s(self, plan: StepPlan, tier: int) -> float:
        """The longest step, in seconds, that prefill of this tier may make: within `inter_token_ms` of the tiers at or
        above it that decode, in this step and on other models, and within the patience of higher tiers, whose requests
        may arrive while the step runs. Targets of lower tiers do not count."""
        limit_s = min(min(self._patience_s[:tier], default=math.inf), self._turns.limit_s(plan.model, tier))
        waited_s = self._turns.waited_s(plan.model)
        for rank in plan.decoding:
            if rank <= tier:
                limit_s = min(limit_s, self._targets_s[rank] - waited_s)
        return limit_s

    def _delay_lower_decodes(self, plan: StepPlan, tier: int, tokens: int) -> None:
        """Delay decodes of lower tiers by a step, the youngest of the lowest tier first, until `tokens` tokens of
        prefill of this tier fit into the step's tokens and time, and the step is within the tier's patience. So the
        spare time of a step is used for a higher tier's prefill first, then for lower tiers' decodes. No decode is
        delayed in two consecutive steps."""
        if not plan.decodes_below(tier):
            return
        costs = self._cost_models.of(plan.model).costs
        limit_s = min(plan.limit_s, self._patience_s[tier])
        excess_s = costs.step_seconds(plan.step_load()) + costs.prefill_token_s * tokens - limit_s
        for rank in range(len(self.tiers) - 1, tier, -1):
            if self.tiers[rank].preemptible:
                excess_s = plan.delay_decodes(rank, tokens, excess_s, costs)

    def _ready(self, entry: Entry) -> bool:
        """The request's adapter can be placed without a wait. Otherwise it is being loaded, and other requests may join
        first."""
        try:
            ready = self.residency.is_adapter_ready(entry.sequence.adapter)
        except Exception as error:  # noqa: BLE001 - the request's edge: it ends alone, and is counted
            self._faulty[entry] = error
            return False
        self.has_blocked_requests |= not ready
        return ready


class _WorkCount:
    """Counts the work of one model."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.ranks: list[int] = []  # that decode
        self._sequences = self._kv_tokens = 0
        self._adapters: set[str] = set()

    def decodes(self, entry: Entry, rank: int) -> None:
        if not self.ranks or self.ranks[-1] != rank:
            self.ranks.append(rank)
        self._sequences += 1
        self._kv_tokens += entry.sequence.computed + 1
        if entry.sequence.adapter is not None:
            self._adapters.add(entry.sequence.adapter)

    def step_load(self) -> StepLoad:
        return StepLoad(0, self._sequences, self._kv_tokens, len(self._adapters))
