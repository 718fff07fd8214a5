"""Which tokens the next step computes: decodes first, then prefill, tier by tier, preempting for whoever must not wait.

Deterministic, on the caller's clock, for one thread. It must never load a tensor library, nor know a tenant.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Ordered

from engine.admission import Admission, ModelLimits, Refusal
from engine.arena import Arena
from engine.cost_model import CostModel
from engine.entry import Entry
from engine.plan import Plan
from engine.preempted import PreemptionLog
from engine.prefix import NAMESPACE_QUOTA, Chain, PrefixCache
from engine.protocol import FinishReason
from engine.queues import TierQueue
from engine.residency import Residency
from engine.room import Room
from engine.step import PENDING_ID, AdapterTable, Chunk, Ended, HostPool, Sequence, Step, StepOutcome, StepResult
from engine.swap import Swap
from engine.tiers import Tier, check_tiers

# A model with work runs again after at most so many steps of better ranked models, and one of each that waits longer.
MODEL_WAIT_STEPS_MAX = 4
# Steps are planned to take this part of a target: the cost model is right on the whole, not for each.
TARGET_MARGIN = 0.95
# Others whose adapters are in the batch may join before a request until it has waited so much of its tier's target.
PASSED_SHARE_MAX = 0.25

__all__ = ["Ended", "ModelLimits", "Refusal", "Scheduler", "StepOutcome"]


class Scheduler:
    """Owns the arena's bookkeeping and every request from submit to its one ending. The caller repeats `schedule`,
    begin the step, take its result, `complete`; in between it may submit and abort. With `steps_ahead` it schedules so
    many further steps before the oldest is completed, which then is always the next to be.

    A step in flight is taken to go well: its tokens count as computed and its ids stand as PENDING_ID, so that the next
    can be planned on top of it. What turns out otherwise is set right when it is completed:

    - A request that ends then (by a stop id, an error, an abort) may have chunks in later steps in flight. They are
      overrun: what they make is counted, and nobody sees it.
    - One preempted meanwhile waits with its pending ids, which come to it, and may end it, there. It joins again only
      when none of its chunks is in flight.

    Pages are freed, and adapters lose their pins, at once, though a step in flight may still use them: the device works
    in order (see step.Runner), so whoever gets them next comes after. Only known ids and good KV get into the prefix
    cache, as a page enters it when the step that filled it is completed, and only for a request that still runs.
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
    ) -> None:
        """`tiers` high to low. Raises ValueError when the limits cannot be kept together."""
        check_tiers(tiers)
        if sequences_max < 1 or prefill_tokens_min < 1:
            raise ValueError("sequences_max and prefill_tokens_min must be at least 1")
        if sequences_max + prefill_tokens_min > step_tokens_max:
            raise ValueError(
                f"a step of {step_tokens_max} tokens (step_tokens_max) cannot hold a token of each of {sequences_max} "
                f"sequences (sequences_max) and {prefill_tokens_min} of prefill (prefill_tokens_min)"
            )
        self.tiers = tuple(tiers)
        self.models = dict(models)
        self.arena = arena
        self.prefix = PrefixCache(arena, namespace_quota)
        self.tokens_made = 0  # ids drawn, the overrun among them
        self.tokens_overrun = 0  # ids drawn for requests that had ended by then
        self.overrun_s = 0.0  # device-seconds that no request has: Σ of all requests' and this is Σ of all steps'
        self.preempted = PreemptionLog(len(tiers))
        self._clock = clock
        self.residency = Residency(adapters, arena, sequences_max)
        self._cost_model = CostModel()
        self.swap = Swap(host_pool, arena, self._cost_model)
        self._room = Room(self.tiers, arena, self.prefix, self.residency, self.swap, sequences_max, self._preempt)
        self._rank = {tier.name: rank for rank, tier in enumerate(tiers)}
        self._step_tokens_max = step_tokens_max
        self._prefill_tokens_min = prefill_tokens_min
        self._crowd_tokens = [tier.crowd_tokens(step_tokens_max, prefill_tokens_min) for tier in tiers]
        self._crowd_places = [tier.crowd_places(sequences_max) for tier in tiers]
        self._steps_ahead = steps_ahead
        self._entries: dict[tuple[int, int], Entry] = {}
        self._queues = [TierQueue(tier, clock) for tier in tiers]
        self._admission = Admission(self.tiers, self.models, self._room.pages, self.residency, self._queues)
        self._label = {model: index for index, model in enumerate(models)}  # of cached pages, for watchers
        self._live = {model: [0] * len(tiers) for model in models}  # requests by model and tier
        self._last_step = dict.fromkeys(models, 0)
        self._claims: dict[str, Entry] = {}  # model → its best request that waits for room
        self._failed: list[Ended] = []
        self.awaits_adapter = False  # when the last step was planned, a request was passed over as its adapter came
        self._displaced: list[tuple[Sequence, Refusal]] = []
        self._plan = Plan("", 0)  # the one being put together
        self._inter_token_s = [tier.inter_token_ms / 1000 for tier in tiers]
        self._patience_s = [tier.patience_s(steps_ahead) for tier in tiers]
        self._prefill_owed = [0.0] * len(tiers)  # tokens, by tier
        self._arrivals = 0
        self._steps = 0
        self._in_flight: deque[Plan] = deque()  # oldest first

    # ---- requests

    def submit(self, sequence: Sequence) -> Refusal | None:
        """Queue it, or say why not. Once queued it ends exactly once."""
        if (sequence.gateway, sequence.handle) in self._entries:
            return Refusal("bad_request", f"handle {sequence.handle} is in use")
        refusal = self._admission.refusal(sequence)
        if refusal:
            return refusal
        limits = self.models[sequence.model]
        self._arrivals += 1
        root, label = limits.digest or sequence.model, self._label[sequence.model]
        chain = Chain(root, sequence.adapter, sequence.namespace, limits.tokens_per_page, label)
        entry = Entry(sequence, self._rank[sequence.tier], self._arrivals, chain)
        live = self._live[sequence.model]
        if not any(live):
            self._last_step[sequence.model] = self._steps
        live[entry.tier] += 1
        self._displace(entry)
        self._entries[sequence.gateway, sequence.handle] = entry
        self._queues[entry.tier].add(entry)
        self.residency.waits(sequence.adapter, entry.tier, new=True)
        return None

    def abort(self, gateway: int, handle: int) -> Ended | None:
        """End it now; None when it is not there, or ends with a step in flight."""
        entry = self._entries.get((gateway, handle))
        return self._abort(entry) if entry else None

    def abort_gateway(self, gateway: int) -> list[Ended]:
        """`abort` for all requests of a stream."""
        entries = [entry for (owner, _), entry in self._entries.items() if owner == gateway]
        return [ended for entry in entries if (ended := self._abort(entry))]

    def remove_adapter(self, digest: str) -> None:
        """Take it out of the arena. No request and no step uses it: the caller lets the last one end first."""
        assert all(entry.sequence.adapter != digest for entry in self._entries.values()), f"{digest} is in use"
        assert not self.reads(digest), f"{digest} is in use by a step"
        self.residency.forget(digest)

    def pin_adapter(self, digest: str, pinned: bool) -> str:
        """A pinned one comes into the arena and stays there. Why that cannot be, or ""."""
        return self.residency.stay(digest, pinned)

    def reads(self, digest: str) -> bool:
        """A step in flight reads this adapter, be it for a request that has ended."""
        return any(chunk.sequence.adapter == digest for plan in self._in_flight for chunk in plan.chunks.values())

    # ---- steps

    def schedule(self) -> Step | None:
        """The next step, which the caller begins before the next call; None when there is no work, or none before a
        step in flight is completed."""
        assert len(self._in_flight) <= self._steps_ahead, "the step before was not completed"
        if self._in_flight:
            self._in_flight[-1].assume()
        self.take_in_adapters()
        while self._entries:
            before = (len(self._entries), self.running)
            for model in self._models_by_turn():
                plan = self._plan = Plan(model, self._step_tokens_max)
                self._claims.pop(model, None)
                self._plan_decodes(plan)
                self._plan_prefills(plan)
                if plan.chunks:
                    return self._begin(plan)
            # All that ran was preempted: the next round finds the arena empty.
            if before == (len(self._entries), self.running):
                assert self._in_flight or self.awaits_adapter, "there is work, and no step can be made of it"
                return None
        return None

    def complete(self, step: Step, result: StepResult, seconds: float) -> StepOutcome:
        """Take in what the oldest step in flight made. `seconds` is what it took; the cost model says what of it
        each request has."""
        plan = self._in_flight.popleft()
        assert plan.step is step, "not the oldest step in flight"
        assert len(result.ids) == len(step.chunks)
        plan.assume()
        now = self._clock()
        outcome = StepOutcome(ended=self.take_failed())
        load = plan.load()
        self._cost_model.observe(load, seconds)
        parts = self._cost_model.split(step.chunks, load.adapters, seconds)
        for index, (entry, chunk) in enumerate(plan.chunks.items()):
            entry.in_flight -= 1
            good = index not in result.errors
            if entry.ended:
                self._overrun(chunk, good, parts[index])
                continue
            entry.account(chunk, parts[index])
            reason: FinishReason | None = None
            if good:
                self._advance(entry, chunk)
                reason = self._take_id(entry, chunk, result.ids[index], now, outcome.tokens)
                if index in result.logprobs:
                    outcome.logprobs[chunk.sequence] = result.logprobs[index]
            if entry.aborting:
                outcome.ended.append(self._end(entry, "aborted"))
            elif reason or not good:
                outcome.ended.append(self._end(entry, reason or "error", result.errors.get(index, "")))
        return outcome

    def take_failed(self) -> list[Ended]:
        """Requests that ended because they turned out never to fit, since last asked. `complete` takes them too; ask
        when `schedule` returned None."""
        failed, self._failed = self._failed, []
        return failed

    def take_displaced(self) -> list[tuple[Sequence, Refusal]]:
        """Requests that were queued, and refused after all, since last asked: a full queue had a place for a share that
        has fewer waiting."""
        displaced, self._displaced = self._displaced, []
        return displaced

    # ---- what is going on

    def has_work(self) -> bool:
        return bool(self._entries)

    @property
    def running(self) -> int:
        return self._room.count()

    @property
    def preemptions(self) -> int:
        return self.preempted.count

    @property
    def in_flight(self) -> int:
        """Requests that run or wait."""
        return len(self._entries)

    def running_entries(self) -> list[list[Entry]]:
        """By tier, the oldest first; not to be changed."""
        return self._room.running

    def waiting_entries(self) -> Iterator[Entry]:
        """The oldest first."""
        return (entry for entry in self._entries.values() if not entry.running)

    def floor_pages(self, rank: int) -> int:
        return self._room.pages.floor(rank)

    def waiting(self) -> dict[str, int]:
        """By tier."""
        return {tier.name: len(queue) for tier, queue in zip(self.tiers, self._queues, strict=True)}

    def check_integrity(self) -> None:
        """AssertionError says what is wrong. For idle moments and tests."""
        running = [entry for entries in self._room.running for entry in entries]
        chunks = Counter(entry for plan in self._in_flight for entry in plan.chunks)
        for entry in self._entries.values():
            sequence = entry.sequence
            assert entry.running == (entry in running)
            assert entry.running or not sequence.pages, f"{sequence.request_id} holds pages and does not run"
            assert entry.in_flight == chunks[entry], f"{sequence.request_id} has {chunks[entry]} chunks in flight"
            assert sequence.output_ids.count(PENDING_ID) <= entry.in_flight, f"{sequence.request_id} lacks an id"
        assert len(running) + sum(self.waiting().values()) == len(self._entries)
        self._room.check_integrity()
        waiting = [(e.sequence.adapter, e.tier) for e in self._entries.values() if not e.running and e.sequence.adapter]
        self.residency.check_integrity(Counter(waiting))
        self.swap.check_integrity(entry for entry in self._entries.values() if not entry.running)
        self.arena.check_integrity(self._room.references())
        self.prefix.check_integrity()

    # ---- planning

    def take_in_adapters(self) -> None:
        """What came since the last step, or failed to: that ends those who wait for it. Before each step, and without
        one while `residency.brings`."""
        self.awaits_adapter = False
        # Behind the step in flight a copy hides; a request that is alone waits for its own, and keeps nobody waiting.
        alone = len(self._entries) == 1 and not self.running
        for digest, why in self.residency.poll(hidden=bool(self._in_flight) or alone).items():
            for entry in list(self._entries.values()):
                if entry.sequence.adapter == digest and not entry.running and not entry.in_flight:
                    self._failed.append(self._end(entry, "error", f"its adapter cannot be loaded: {why}"))

    def _ready(self, entry: Entry) -> bool:
        """Its adapter is here, or as good as here; else it is brought, and others pass by."""
        ready = self.residency.ready(entry.sequence.adapter)
        self.awaits_adapter |= not ready
        return ready

    def _models_by_turn(self) -> list[str]:
        """Models with work: those kept waiting too long, then by the best tier, then whose last step is oldest."""

        def turn(model: str) -> tuple[int, int, int]:
            last = self._last_step[model]
            if self._steps - last > MODEL_WAIT_STEPS_MAX:
                return (0, 0, last)
            return (1, next(rank for rank, live in enumerate(self._live[model]) if live), last)

        return sorted((model for model, live in self._live.items() if any(live)), key=turn)

    def _plan_decodes(self, plan: Plan) -> None:
        grow = self._room.grow
        for running in self._room.running:
            for entry in tuple(running):
                sequence = entry.sequence
                if not entry.running or sequence.model != plan.model or entry.remaining() != 1 or not entry.ready():
                    continue
                if sequence.computed < len(sequence.pages) * entry.chain.tokens_per_page or grow(entry):
                    plan.add(entry, 1)
        plan.note_decodes()

    def _plan_prefills(self, plan: Plan) -> None:
        """Tier by tier; before that, those that higher tiers kept from their share of prefill get what they are
        owed."""
        ranks = range(len(self.tiers))
        for tier in ranks:
            if self._prefill_owed[tier] >= self._prefill_tokens_min:
                self._fill(plan, tier, int(self._prefill_owed[tier]))
        for tier in ranks:
            plan.crowd_max = self._crowd_tokens[tier]
            self._fill(plan, tier, self._step_tokens_max)
        plan.put_back()

    def _fill(self, plan: Plan, tier: int, tokens_max: int) -> None:
        """Prefill of one tier, at most `tokens_max` tokens: who runs goes on, then who waits joins."""
        chunks, left_out = plan.chunks, plan.left_out
        idle = [entry for entry in self._room.running[tier] if entry not in chunks and entry not in left_out]
        begun = [entry for entry in idle if entry.sequence.model == plan.model and entry.ready()]
        waiting = self._next(plan.model, tier)
        if not begun and waiting is None:
            return
        plan.tier_left = max(0, min(tokens_max, self._prefill_left(plan, tier)))
        while begun or waiting:
            entry = min(begun, key=self._turn) if begun else None
            if waiting and (entry is None or self._turn(waiting) < self._turn(entry)):
                waiting = self._next(plan.model, tier) if self._admit(plan, waiting) else None
            elif entry:
                begun.remove(entry)
                self._plan_prefill(plan, entry)

    def _turn(self, entry: Entry) -> tuple[bool, float, int]:
        """Prefill goes to the share that was served least, be it one that runs or one that waits; last to those that
        crowd the tier."""
        queue = self._queues[entry.tier]
        return queue.crowds(entry), queue.served(entry.sequence.share), entry.number

    def _prefill_for(self, plan: Plan, entry: Entry) -> int:
        """What is left for the tier, and for a share that crowds it: steps with its prefill stay short, as newcomers of
        other shares wait for those in flight and then share theirs with it."""
        if not self._queues[entry.tier].crowds(entry):
            return plan.tier_left
        return max(0, min(plan.tier_left, plan.crowd_max - plan.prefill_tokens))

    def _crowds_out(self, entry: Entry) -> bool:
        """It would take a place beyond those that shares which crowd its tier may have together."""
        queue = self._queues[entry.tier]
        places = self._crowd_places[entry.tier]
        return queue.crowds(entry) and sum(map(queue.crowds, self._room.running[entry.tier])) >= places

    def _make_way(self, plan: Plan, entry: Entry) -> None:
        """Let decodes of shares that crowd the tier wait a step for prefill of one that does not. Nobody waits twice in
        a row."""
        queue, tier = self._queues[entry.tier], entry.tier
        if tier in plan.made_way or queue.crowds(entry):
            return
        plan.made_way.add(tier)
        for other in plan.decodes(tier):
            if queue.crowds(other):
                plan.leave_out(other)

    def _plan_prefill(self, plan: Plan, entry: Entry) -> None:
        """A chunk as long as there are tokens for; decodes of lower tiers wait for it, and of who crowds its own."""
        wanted = min(entry.remaining(), self._prefill_for(plan, entry))
        if wanted:
            self._make_way(plan, entry)
            self._take_from_decodes(plan, entry.tier, wanted)
        count = min(wanted, plan.tokens_left)
        if not count:
            plan.hungry.add(entry.tier)
            return
        plan.add_prefill(entry, count)
        # Charged now, so that whose turn is next in this step is known.
        self._queues[entry.tier].charge(entry, entry.sequence.computed + count)

    def _admit(self, plan: Plan, entry: Entry) -> bool:
        """Let a waiting request join, if the step has tokens for it. Nobody overtakes one that waits for room: False
        ends it for the tier and this step."""
        if min(self._prefill_for(plan, entry), plan.tokens_left + plan.decodes_below(entry.tier)) <= 0:
            plan.hungry.add(entry.tier)
            return False
        if self._overtakes(entry) or self._crowds_out(entry):
            return False
        if not entry.in_flight and self._join(entry):
            self._plan_prefill(plan, entry)
        elif self.running or self._in_flight or not self._ready(entry):
            self._claims.setdefault(plan.model, entry)
            return False
        else:
            self._failed.append(self._end(entry, "error", "the request does not fit beside its adapter"))
        return True

    def _next(self, model: str, tier: int) -> Entry | None:
        queue = self._queues[tier]
        owed = queue.owed(model, self._ready)
        if owed and self._room.can_reserve(owed):
            return owed
        head = queue.head(model, self._ready)
        if head is None or head.sequence.preemptions or self.residency.in_use(head.sequence.adapter):
            return head
        return self._beside(queue, head) or head

    def _beside(self, queue: TierQueue, head: Entry) -> Entry | None:
        """Who adds no adapter to the batch, and may join before `head`, which would: while that has hardly waited, and
        only so far as the bound of fairness stays within twice what it is."""
        tier = self.tiers[head.tier]
        patience_s = min(PASSED_SHARE_MAX * tier.ttft_base_ms / 1000, tier.ageing_s)
        if self._clock() - head.sequence.arrived_at >= patience_s:
            return None
        slack = max(tier.prefill_weight, tier.decode_weight) * self._step_tokens_max
        return queue.beside(head, slack, self._adds_no_adapter)

    def _adds_no_adapter(self, entry: Entry) -> bool:
        return self.residency.in_use(entry.sequence.adapter)

    def _join(self, entry: Entry) -> bool:
        if not self._room.join(entry):
            return False
        self._queues[entry.tier].joined(entry)
        sequence = entry.sequence
        self.residency.waits_no_more(sequence.adapter, entry.tier)
        entry.charged = max(entry.charged, sequence.computed)
        if not sequence.preemptions:
            sequence.cached_tokens = sequence.computed
            self.prefix.queries += len(sequence.prompt_ids)
            self.prefix.hits += sequence.computed
        return True

    def _overtakes(self, entry: Entry) -> bool:
        """It would take room for which a better one waits: not if its tier's floor has that room."""
        for claim in self._claims.values():
            same_tier = claim.tier == entry.tier and claim.sequence.model != entry.sequence.model
            if claim.tier < entry.tier or same_tier:
                return not self._room.within_floor(entry)
        return False

    def _prefill_left(self, plan: Plan, tier: int) -> int:
        """Tokens that prefill of this tier may add, so that the step is no longer than those who decode in it may wait,
        nor than a request of a higher tier that comes while it runs may. Lower tiers' targets do not count."""
        limit_s = min(self._patience_s[:tier], default=math.inf)
        for rank in plan.decoding:
            if rank <= tier:
                limit_s = min(limit_s, TARGET_MARGIN * self._inter_token_s[rank])
        within = self._cost_model.prefill_within(limit_s, plan.load(), self._step_tokens_max)
        return max(within, self._prefill_tokens_min - plan.prefill_tokens)

    def _take_from_decodes(self, plan: Plan, tier: int, tokens: int) -> None:
        """Let decodes of lower tiers wait a step, the youngest of the lowest first, for so many tokens of prefill of
        this one: until they fit, and the step is no longer than its first token can wait. Nobody waits twice in a
        row."""
        if not plan.decodes_below(tier):
            return
        costs = self._cost_model.costs
        excess_s = costs.seconds(plan.load()) + costs.prefill_token_s * tokens - self._patience_s[tier]
        for rank in range(len(self.tiers) - 1, tier, -1):
            if self.tiers[rank].preemptible:
                excess_s = plan.drop_decodes(rank, tokens, excess_s, costs)

    def _settle_prefill(self, plan: Plan) -> None:
        """What a tier that ran out of tokens lacks of its floor's share of prefill is owed to it."""
        for tier, owed in enumerate(self._prefill_owed):
            if tier in plan.hungry:
                lacks = self.tiers[tier].floor * plan.prefill_tokens - plan.prefill_of[tier]
                self._prefill_owed[tier] = min(max(0.0, owed + lacks), self._step_tokens_max)
            else:
                self._prefill_owed[tier] = 0.0

    def _begin(self, plan: Plan) -> Step:
        self._settle_prefill(plan)
        self._steps += 1
        self._last_step[plan.model] = self._steps
        now = self._clock()
        for entry in plan.chunks:
            if entry.sequence.started_at is None:
                entry.sequence.started_at = now
        self._in_flight.append(plan)
        return plan.begin(self._steps)

    # ---- preemption

    def _preempt(self, entry: Entry, cause: int) -> None:
        """Back to the front of its queue, its ids kept; its full pages stay in the prefix cache while there is room,
        and what is cheaper to bring back than to compute again goes to host memory."""
        self._plan.drop(entry)
        swapped = self.swap.save(entry)
        self._room.leave(entry)
        entry.sequence.computed = 0
        entry.sequence.preemptions += 1
        entry.cause = self.tiers[cause].name
        entry.owed = self._room.owes(entry)
        self.preempted.note(self._clock(), entry.sequence.request_id, entry.tier, cause, swapped=swapped)
        self._queues[entry.tier].put_back(entry)
        self.residency.waits(entry.sequence.adapter, entry.tier, new=False)

    # ---- results and endings

    def _advance(self, entry: Entry, chunk: Chunk) -> None:
        """The chunk's KV is computed: count it, and let others find the pages that are full now."""
        sequence = entry.sequence
        computed = chunk.start + chunk.count
        self._queues[entry.tier].charge(entry, computed)
        if not entry.running:  # preempted since: its pages are others'
            return
        while entry.published < computed // entry.chain.tokens_per_page:
            page = sequence.pages[entry.published]
            self.prefix.publish(entry.chain, sequence.tokens, entry.published, page)
            entry.published += 1

    def _take_id(
        self, entry: Entry, chunk: Chunk, token: int | None, now: float, made: list[tuple[Sequence, int]]
    ) -> FinishReason | None:
        """Put the id that a sampling chunk made in its place; why the request ends with it, or None."""
        if not chunk.sample:
            return None
        assert token is not None, "a sampling chunk yields an id or an error"
        sequence = entry.sequence
        place = chunk.start + chunk.count - len(sequence.prompt_ids)
        assert sequence.output_ids[place] == PENDING_ID
        sequence.output_ids[place] = token
        made.append((sequence, token))
        self.tokens_made += 1
        if sequence.first_token_at is None:
            sequence.first_token_at = now
        if token in sequence.stop_ids:
            return "stop"
        return "length" if place + 1 >= sequence.max_tokens else None

    def _overrun(self, chunk: Chunk, good: bool, seconds: float) -> None:
        """Count what was computed for a request that has ended."""
        self.overrun_s += seconds
        if chunk.sample and good:
            self.tokens_made += 1
            self.tokens_overrun += 1

    def _displace(self, newcomer: Entry) -> None:
        """Give it the place of another's in a full queue. Admission saw that there is one."""
        queue = self._queues[newcomer.tier]
        if len(queue) < self.tiers[newcomer.tier].queue_max:
            return
        entry = queue.displaced_by(newcomer.sequence.share)
        assert entry is not None
        refusal = self._admission.full(entry.tier)
        self._end(entry, "aborted")
        self._displaced.append((entry.sequence, refusal))

    def _abort(self, entry: Entry) -> Ended | None:
        if entry.in_flight:
            entry.aborting = True
            return None
        return self._end(entry, "aborted")

    def _end(self, entry: Entry, reason: FinishReason, message: str = "") -> Ended:
        sequence = entry.sequence
        entry.ended = True
        while sequence.output_ids and sequence.output_ids[-1] == PENDING_ID:
            sequence.output_ids.pop()
        if entry.running:
            self._room.leave(entry)
        else:
            self._queues[entry.tier].left(entry)
            self.residency.waits_no_more(sequence.adapter, entry.tier)
            self.swap.forget(entry)
        del self._entries[sequence.gateway, sequence.handle]
        self._live[sequence.model][entry.tier] -= 1
        if self._claims.get(sequence.model) is entry:
            del self._claims[sequence.model]
        return Ended(sequence, reason, message)
