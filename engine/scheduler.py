"""Which tokens the next step computes: decodes first, then prefill, tier by tier, preempting for whoever must not wait.

Deterministic, on the caller's clock, for one thread. It must never load a tensor library, nor know a tenant.
"""

from __future__ import annotations

import bisect
from collections import Counter, deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Ordered

from engine.admission import Admission, ModelLimits, Refusal
from engine.arena import Arena
from engine.entry import Entry
from engine.floors import Floors
from engine.pace import Pace
from engine.plan import Plan
from engine.prefix import NAMESPACE_QUOTA, Chain, PrefixCache
from engine.protocol import FinishReason
from engine.queues import TierQueue
from engine.residency import Residency
from engine.step import PENDING_ID, AdapterTable, Chunk, Ended, Sequence, Step, StepOutcome, StepResult
from engine.tiers import Tier, check_tiers

# A model with work runs again after at most so many steps of better ranked models, and one of each that waits longer.
MODEL_WAIT_STEPS_MAX = 4

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
        self.preemptions = 0
        self._clock = clock
        self._residency = Residency(adapters, arena)
        self._floors = Floors(tiers, arena)
        self._rank = {tier.name: rank for rank, tier in enumerate(tiers)}
        self._pace = Pace()
        self._step_tokens_max = step_tokens_max
        self._prefill_tokens_min = prefill_tokens_min
        self._sequences_max = sequences_max
        self._steps_ahead = steps_ahead
        self._entries: dict[tuple[int, int], Entry] = {}
        self._queues = [TierQueue() for _ in tiers]
        self._admission = Admission(self.tiers, self.models, self._floors, self._residency, self._queues, clock)
        self._running: list[list[Entry]] = [[] for _ in tiers]  # oldest first
        self._live = {model: [0] * len(tiers) for model in models}  # requests by model and tier
        self._last_step = dict.fromkeys(models, 0)
        self._claims: dict[str, Entry] = {}  # model → its best request that waits for room
        self._failed: list[Ended] = []
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
        chain = Chain(limits.digest or sequence.model, sequence.adapter, sequence.namespace, limits.tokens_per_page)
        entry = Entry(sequence, self._rank[sequence.tier], self._arrivals, chain)
        live = self._live[sequence.model]
        if not any(live):
            self._last_step[sequence.model] = self._steps
        live[entry.tier] += 1
        self._entries[sequence.gateway, sequence.handle] = entry
        self._queues[entry.tier].add(entry)
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
        self._residency.remove(digest)

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
        while self._entries:
            before = (len(self._entries), self.running)
            for model in self._models_by_turn():
                plan = Plan(model, self._step_tokens_max)
                self._claims.pop(model, None)
                self._plan_decodes(plan)
                self._leave_time_to_decode(plan)
                for tier in range(len(self.tiers)):
                    self._plan_prefills(plan, tier)
                    self._admit(plan, tier)
                if plan.chunks:
                    return self._begin(plan)
            # All that ran was preempted: the next round finds the arena empty.
            if before == (len(self._entries), self.running):
                assert self._in_flight, "there is work, and no step can be made of it"
                return None
        return None

    def complete(self, step: Step, result: StepResult, seconds: float) -> StepOutcome:
        """Take in what the oldest step in flight made. `seconds` is what it took; its requests share it by tokens
        computed."""
        plan = self._in_flight.popleft()
        assert plan.step is step, "not the oldest step in flight"
        assert len(result.ids) == len(step.chunks)
        plan.assume()
        now = self._clock()
        outcome = StepOutcome(ended=self.take_failed())
        tokens = sum(chunk.count for chunk in step.chunks)
        self._pace.observe(tokens, seconds)
        token_s = seconds / tokens
        for index, (entry, chunk) in enumerate(plan.chunks.items()):
            entry.in_flight -= 1
            good = index not in result.errors
            if entry.ended:
                self._overrun(chunk, good, token_s)
                continue
            chunk.sequence.device_s += token_s * chunk.count
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

    # ---- what is going on

    def has_work(self) -> bool:
        return bool(self._entries)

    @property
    def running(self) -> int:
        return sum(len(running) for running in self._running)

    def waiting(self) -> dict[str, int]:
        """By tier."""
        return {tier.name: len(queue) for tier, queue in zip(self.tiers, self._queues, strict=True)}

    def check_integrity(self) -> None:
        """AssertionError says what is wrong. For idle moments and tests."""
        references = self._residency.held_pages()
        running = [entry for entries in self._running for entry in entries]
        chunks = Counter(entry for plan in self._in_flight for entry in plan.chunks)
        for entry in self._entries.values():
            sequence = entry.sequence
            assert entry.running == (entry in running)
            assert entry.running or not sequence.pages, f"{sequence.request_id} holds pages and does not run"
            assert entry.in_flight == chunks[entry], f"{sequence.request_id} has {chunks[entry]} chunks in flight"
            assert sequence.output_ids.count(PENDING_ID) <= entry.in_flight, f"{sequence.request_id} lacks an id"
            references.update(sequence.pages)
        assert len(running) + sum(self.waiting().values()) == len(self._entries)
        self.arena.check_integrity(references)
        self.prefix.check_integrity()

    # ---- planning

    def _models_by_turn(self) -> list[str]:
        """Models with work: those kept waiting too long, then by the best tier, then whose last step is oldest."""

        def turn(model: str) -> tuple[int, int, int]:
            last = self._last_step[model]
            if self._steps - last > MODEL_WAIT_STEPS_MAX:
                return (0, 0, last)
            return (1, next(rank for rank, live in enumerate(self._live[model]) if live), last)

        return sorted((model for model, live in self._live.items() if any(live)), key=turn)

    def _plan_decodes(self, plan: Plan) -> None:
        for running in self._running:
            for entry in tuple(running):
                if not entry.running or entry.sequence.model != plan.model or entry.remaining() != 1:
                    continue
                if entry.ready() and self._grow(plan, entry):
                    plan.add(entry, 1)

    def _leave_time_to_decode(self, plan: Plan) -> None:
        """Shrink what is left for prefill towards the strictest inter-token target among those that decode."""
        if plan.chunks:
            target_s = min(self.tiers[entry.tier].inter_token_ms for entry in plan.chunks) / 1000
            within = self._pace.tokens_within(target_s, self._step_tokens_max) - len(plan.chunks)
            plan.tokens_left = min(plan.tokens_left, max(within, self._prefill_tokens_min))

    def _plan_prefills(self, plan: Plan, tier: int) -> None:
        for entry in self._running[tier]:
            if not plan.tokens_left:
                return
            if entry.sequence.model == plan.model and entry not in plan.chunks and entry.ready():
                self._plan_prefill(plan, entry)

    def _plan_prefill(self, plan: Plan, entry: Entry) -> None:
        count = min(entry.remaining(), plan.tokens_left)
        plan.add(entry, count)
        # Charged now, so that the next head in this step is chosen knowing of it.
        self._queues[entry.tier].charge(entry, entry.sequence.computed + count)

    def _admit(self, plan: Plan, tier: int) -> None:
        """Let waiting requests join while the step has tokens for them. Nobody overtakes one that waits for room."""
        queue = self._queues[tier]
        while plan.tokens_left:
            entry = queue.head(plan.model)
            if entry is None or self._overtakes(entry):
                return
            if not entry.in_flight and self._join(plan, entry):
                self._plan_prefill(plan, entry)
            elif self.running or self._in_flight:
                self._claims.setdefault(plan.model, entry)
                return
            else:
                self._failed.append(self._end(entry, "error", "the request does not fit beside its adapter"))

    def _overtakes(self, entry: Entry) -> bool:
        """It would take room for which a better one waits: not if its tier's floor has that room."""
        for claim in self._claims.values():
            same_tier = claim.tier == entry.tier and claim.sequence.model != entry.sequence.model
            if claim.tier < entry.tier or same_tier:
                pages = self._pages(entry, entry.sequence.token_count())
                return self._floors.over(entry.tier) + pages + self._adapter_pages(entry) > 0
        return False

    def _begin(self, plan: Plan) -> Step:
        self._steps += 1
        self._last_step[plan.model] = self._steps
        now = self._clock()
        for entry in plan.chunks:
            if entry.sequence.started_at is None:
                entry.sequence.started_at = now
        self._in_flight.append(plan)
        return plan.begin(self._steps)

    # ---- room

    def _join(self, plan: Plan, entry: Entry) -> bool:
        """Give a waiting request a place, its adapter, and pages for all its tokens; or none of these."""
        sequence, holder = entry.sequence, self.tiers[entry.tier].name
        if not self._has_place(entry):
            return False
        page_tokens = entry.chain.tokens_per_page
        # At least one token is computed, so that there are logits to draw from.
        cached = self.prefix.match(entry.chain, sequence.tokens, (sequence.token_count() - 1) // page_tokens)
        self.arena.retain(cached, holder)
        missing = self._pages(entry, sequence.token_count()) - len(cached)
        if not self._make_room_to_join(plan, entry, missing):
            self.arena.release(reversed(cached), holder)
            return False
        if self.running >= self._sequences_max:
            victim = self._place_victim(entry)
            assert victim is not None
            self._preempt(plan, victim)
        self._queues[entry.tier].remove(entry)
        self._residency.join(sequence.adapter, holder)
        sequence.pages = cached + self.arena.allocate(missing, holder)
        sequence.computed = len(cached) * page_tokens
        entry.shared = entry.published = len(cached)
        entry.charged = max(entry.charged, sequence.computed)
        if not sequence.preemptions:
            sequence.cached_tokens = sequence.computed
            self.prefix.queries += len(sequence.prompt_ids)
            self.prefix.hits += sequence.computed
        entry.running = True
        bisect.insort(self._running[entry.tier], entry, key=lambda other: other.number)
        return True

    def _grow(self, plan: Plan, entry: Entry) -> bool:
        """A page for the next token of a running request. When there is none it is preempted itself."""
        sequence = entry.sequence
        if sequence.computed < len(sequence.pages) * entry.chain.tokens_per_page:
            return True
        while self._floors.spare(entry.tier) < 1:
            if self._residency.evict(keep=sequence.adapter):
                continue
            victim = self._page_victim(entry.tier) or self._running[entry.tier][-1]
            self._preempt(plan, victim)
            if victim is entry:
                return False
        sequence.pages += self.arena.allocate(1, self.tiers[entry.tier].name)
        return True

    def _make_room_to_join(self, plan: Plan, entry: Entry, missing: int) -> bool:
        """Evict idle adapters, then preempt lower tiers, until `missing` pages and those of the adapter are there, and
        one more for each running request that would otherwise soon preempt the newcomer."""
        adapter = entry.sequence.adapter
        headroom = sum(len(running) for running in self._running[: entry.tier + 1])
        wanted = missing + self._adapter_pages(entry) + headroom
        if self._floors.spare(entry.tier, reclaim=True) + self.arena.idle_adapter_pages() < wanted:
            return False
        # Evicting an adapter may change what the own one needs: they share pages.
        while self._floors.spare(entry.tier) < missing + self._adapter_pages(entry) + headroom:
            if self._residency.evict(keep=adapter):
                continue
            victim = self._page_victim(entry.tier)
            if victim:
                self._preempt(plan, victim)
            elif self.running or not self._residency.evict(keep=None):
                return False
        return True

    def _page_victim(self, tier: int) -> Entry | None:
        """Whom to preempt so that `tier` gets pages: in the lowest tier that borrows."""
        for rank in range(len(self.tiers) - 1, tier, -1):
            if self._running[rank] and self._floors.borrows(rank):
                return _cheapest(self._running[rank])
        return None

    def _place_victim(self, entry: Entry) -> Entry | None:
        """Whom to preempt for a place: floors are of pages, and do not count."""
        for rank in range(len(self.tiers) - 1, entry.tier, -1):
            if self._running[rank] and self.tiers[rank].preemptible:
                return _cheapest(self._running[rank])
        return None

    def _has_place(self, entry: Entry) -> bool:
        return self.running < self._sequences_max or self._place_victim(entry) is not None

    def _preempt(self, plan: Plan, entry: Entry) -> None:
        """Back to the front of its queue, its ids kept; its full pages stay in the prefix cache while there is room."""
        plan.drop(entry)
        self._leave(entry)
        entry.sequence.computed = 0
        entry.sequence.preemptions += 1
        self.preemptions += 1
        self._queues[entry.tier].put_back(entry)

    def _leave(self, entry: Entry) -> None:
        """Give up place, adapter and pages."""
        sequence, holder = entry.sequence, self.tiers[entry.tier].name
        entry.running = False
        self._running[entry.tier].remove(entry)
        # Last page first: of a chain the end is evicted before the beginning.
        self.arena.release(reversed(sequence.pages), holder)
        sequence.pages = []
        self._residency.leave(sequence.adapter, holder)

    # ---- results and endings

    def _advance(self, entry: Entry, chunk: Chunk) -> None:
        """The chunk's KV is computed: count it, and let others find the pages that are full now."""
        sequence = entry.sequence
        computed = chunk.start + chunk.count
        if chunk.start < entry.peak:
            sequence.recomputed_tokens += min(entry.peak, computed) - chunk.start
        entry.peak = max(entry.peak, computed)
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

    def _overrun(self, chunk: Chunk, good: bool, token_s: float) -> None:
        """Count what was computed for a request that has ended."""
        self.overrun_s += token_s * chunk.count
        if chunk.sample and good:
            self.tokens_made += 1
            self.tokens_overrun += 1

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
            self._leave(entry)
        else:
            self._queues[entry.tier].remove(entry)
        del self._entries[sequence.gateway, sequence.handle]
        self._live[sequence.model][entry.tier] -= 1
        if self._claims.get(sequence.model) is entry:
            del self._claims[sequence.model]
        return Ended(sequence, reason, message)

    # ---- small counts

    def _pages(self, entry: Entry, tokens: int) -> int:
        return -(-tokens // entry.chain.tokens_per_page)

    def _adapter_pages(self, entry: Entry) -> int:
        return self._residency.pages_needed(entry.sequence.adapter)


def _cheapest(entries: list[Entry]) -> Entry:
    """The one whose preemption loses least work per page freed; of equals the youngest."""
    return min(entries, key=lambda entry: (entry.lost_work(), -entry.number))
