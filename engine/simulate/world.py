"""The engine's loop on a virtual clock: the real scheduler, arena and prefix cache, with a device that computes nothing
but takes the time that the steps cost.

It does what engine.loop.worker does between frames, in the same order. It must never read a real clock.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from engine.fake.runner import FakeHostPool
from engine.memory.arena import Arena
from engine.memory.eviction import EVICTION_VALUES
from engine.protocol.frames import Sampling
from engine.protocol.tiers import Tier
from engine.scheduler.costs import StepLoad, load_of
from engine.scheduler.scheduler import ModelLimits, Refusal, RequestEnding, Scheduler
from engine.scheduler.token_probes import is_probe
from engine.simulate.devices import BadInput, Device
from engine.simulate.loads import SimulatedAdapters, SimulatedWeights
from engine.simulate.measure import Measure
from engine.simulate.traffic import MAX_TOKENS, SimulatedRequest, Traffic, arrivals, flooded
from engine.step import Sequence, Step, StepResult

STOP_ID, PLAIN_ID = 0, 1
# Token ids of prompts: the prompts of a tenant share their first `system_tokens` ids; all other ids differ.
IDS_EACH = 1 << 24
FIRST_REQUEST_ID = 1 << 48
STEPS_PER_PROGRESS = 1000
# Time until a flood replaces a request that failed, or was refused without a retry time.
RETRY_S = 1.0
GATEWAY = 0
# Time by which the clock advances when nothing is computed and no event is due.
LOOK_S = 0.01


@dataclass(slots=True, frozen=True)
class Stall:
    """The device computes nothing for `for_s` seconds from `at_s` on."""

    at_s: float
    for_s: float


class Clock:
    """Seconds since the simulation began."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SimulatedDevice:
    """Runs one step after another. A step takes the cost of its load, times the noise, plus the stalls in between."""

    def __init__(self, device: Device, stalls: Iterable[Stall], noise: float, draws: random.Random) -> None:
        """`noise`: the standard deviation of a step time's logarithm."""
        self._costs = device.costs()
        self._stalls = sorted(stalls, key=lambda stall: stall.at_s)
        self._noise = noise
        self._draws = draws
        self._page_copy_s = device.page_copy_s
        self._idle_at = 0.0

    def idle_at(self) -> float:
        """When the device will have completed all steps and copies that were begun."""
        return self._idle_at

    def copied(self, pages: int, now: float) -> None:
        """Copy pages to or from host memory, after all steps and copies that were begun."""
        self._idle_at = max(now, self._idle_at) + pages * self._page_copy_s

    def run_step(self, load: StepLoad, now: float) -> float:
        """Begin a step; returns when it will be complete."""
        left_s = self._costs.step_seconds(load)
        if self._noise:
            left_s *= self._draws.lognormvariate(0.0, self._noise)
        at_s = max(now, self._idle_at)
        for stall in self._stalls:
            if stall.at_s >= at_s + left_s:
                break
            if at_s < stall.at_s + stall.for_s:
                left_s -= max(0.0, stall.at_s - at_s)
                at_s = stall.at_s + stall.for_s
        self._idle_at = at_s + left_s
        return self._idle_at


@dataclass(slots=True, frozen=True)
class Flight:
    """A step in flight."""

    step: Step
    load: StepLoad
    began: float
    ready_at: float


class World:
    """One simulation, from the first arrival until the last request has ended."""

    def __init__(
        self,
        tiers: Ordered[Tier],
        device: Device,
        traffic: Traffic,
        *,
        system_tokens: int = 256,
        stalls: Iterable[Stall] = (),
        step_noise: float = 0.0,
        seed: int = 0,
        models_resident: int | None = None,
        keep: str = "use",
    ) -> None:
        """`system_tokens`: the number of ids with which all prompts of a tenant begin. `models_resident`: the number of
        models whose weights fit on the device; None: all. `keep`: a key of engine.memory.eviction.EVICTION_VALUES.
        Raises BadInput."""
        self.clock = Clock()
        self.arena = Arena(device.pages, 1)
        self.adapters = SimulatedAdapters(device.adapter_pages, device.adapter_load_s, self.clock)
        self._device = SimulatedDevice(device, stalls, step_noise, random.Random(f"{seed}/noise of steps"))
        models = traffic.population.model_names()
        self.weights = self._budget(models, models_resident, device)
        pool = FakeHostPool(device.host_pages, device.page_copy_s, self._copied) if device.host_pages else None
        try:
            self.scheduler = Scheduler(
                tiers,
                {model: ModelLimits(device.context_tokens, device.tokens_per_page) for model in models},
                self.arena,
                self.adapters,
                self.clock,
                step_tokens_max=device.step_tokens_max,
                prefill_tokens_min=device.prefill_tokens_min,
                sequences_max=device.sequences_max,
                steps_ahead=device.steps_ahead,
                host_pool=pool,
                weights=self.weights,
                weights_residence_s=device.weights_residence_s,
                eviction_value=EVICTION_VALUES[keep],
                probe_after_s=device.probe_after_s,
            )
        except ValueError as error:
            raise BadInput(str(error)) from error
        tenants_max = traffic.population.tenants + len(traffic.floods)
        self.measure = Measure(tiers, tenants_max, traffic.weights, traffic.duration_s)
        self._steps_ahead = device.steps_ahead
        self._context_tokens = device.context_tokens
        self._traffic = traffic
        self._system_tokens = system_tokens
        self._arrivals = arrivals(traffic, seed)
        self._arrived = 0
        self._due: list[
            tuple[float, int, SimulatedRequest | int]
        ] = []  # a heap: a request that arrives, or the handle of a request whose client disconnects
        self._scheduled = 0
        self._requests: list[SimulatedRequest] = []  # by handle
        self._last_token: list[int] = []  # by handle, the index of the last token whose id is drawn
        self._tenants: dict[str, int] = {}
        self._flooded = [0] * len(traffic.floods)
        self._flights: deque[Flight] = deque()  # oldest first
        self._completed_at = 0.0

    def _budget(self, models: list[str], resident: int | None, device: Device) -> SimulatedWeights | None:
        if resident is None or resident >= len(models):
            return None
        return SimulatedWeights(
            models, device.weights_bytes, resident, device.weights_load_s, self.clock, self._device.idle_at
        )

    def run(self, progress: Callable[[], None] | None = None) -> Measure:
        """Run to the end. `progress` is called every STEPS_PER_PROGRESS steps."""
        for index, flood in enumerate(self._traffic.floods):
            for _ in range(flood.outstanding):
                self._flood(index, 0.0)
        while self._take_in():
            while len(self._flights) <= self._steps_ahead and (step := self.scheduler.schedule()) is not None:
                now, load = self.clock.now, load_of(step)
                self._flights.append(Flight(step, load, now, self._device.run_step(load, now)))
            if self._flights:
                self._complete(self._flights.popleft())
                if progress and not self.measure.steps % STEPS_PER_PROGRESS:
                    progress()
            else:
                for ended in self.scheduler.take_failed():
                    self._end_request(ended)
                if self.scheduler.has_blocked_requests:
                    self._wait()
        self._check_the_end()
        return self.measure

    # ---- arrivals and disconnections

    def _take_in(self) -> bool:
        """Submit and abort all requests that are due, as the engine's loop does between two steps. If the engine is
        idle, first advance the clock to the next event. False: the simulation is over."""
        if not self._flights and not self.scheduler.has_work():
            next_at = self._next_at()
            if next_at is None:
                return False
            probe_at = self.scheduler.probes.due_at()
            self.clock.now = max(self.clock.now, next_at if probe_at is None else min(next_at, probe_at))
        now = self.clock.now
        while (next_at := self._next_at()) is not None and next_at <= now:
            due = self._due[0] if self._due else None
            if due is not None and due[0] == next_at:
                heapq.heappop(self._due)
                event = due[2]
                if isinstance(event, SimulatedRequest):
                    self._submit(event)
                else:
                    self._leave(event)
            else:
                self._arrived += 1
                self._submit(self._arrivals[self._arrived - 1])
        return True

    def _wait(self) -> None:
        """Nothing can be computed: advance the clock to the next load that ends, or the next arrival."""
        weights_at = self.weights.next_at() if self.weights else None
        dues = [at for at in (self.adapters.next_at(), weights_at, self._next_at()) if at is not None]
        self.clock.now = max(self.clock.now, min(dues, default=self.clock.now + LOOK_S))

    def _next_at(self) -> float | None:
        """When the next arrival or disconnection is due; None: there is none."""
        at_s = self._due[0][0] if self._due else None
        if self._arrived < len(self._arrivals):
            arrives_at = self._arrivals[self._arrived].at_s
            if at_s is None or arrives_at < at_s:
                return arrives_at
        return at_s

    def _schedule_at(self, at_s: float, event: SimulatedRequest | int) -> None:
        self._scheduled += 1
        heapq.heappush(self._due, (at_s, self._scheduled, event))

    def _flood(self, flood: int, at_s: float) -> None:
        """Schedule the next request of a flood, unless `duration_s` is over."""
        if at_s < self._traffic.duration_s:
            self._schedule_at(at_s, flooded(self._traffic, flood, self._flooded[flood], at_s))
            self._flooded[flood] += 1

    def _submit(self, request: SimulatedRequest) -> None:
        handle = len(self._requests)
        sequence = self._sequence(handle, request)
        if request.adapter is not None:
            self.adapters.models[request.adapter] = request.model
        self._requests.append(request)
        self._last_token.append(request.prompt_tokens + request.new_tokens - 1)
        found = self.scheduler.weight_residency.can_join(request.model)
        refusal = self.scheduler.submit(sequence)
        self.measure.note_submitted(request, refusal, found)
        if refusal is not None:
            self._flood_later(request, refusal)
        elif request.leaves_at_s is not None:
            self._schedule_at(request.leaves_at_s, handle)
        for displaced, refusal in self.scheduler.take_displaced():
            other = self._requests[displaced.handle]
            self.measure.note_displaced(displaced.handle, other, refusal)
            self._flood_later(other, refusal)

    def _flood_later(self, request: SimulatedRequest, refusal: Refusal) -> None:
        if request.flood is not None:
            self._flood(request.flood, self.clock.now + (refusal.retry_after_s or RETRY_S))

    def _leave(self, handle: int) -> None:
        ended = self.scheduler.abort(GATEWAY, handle)
        if ended is not None:
            self._end_request(ended)

    def _sequence(self, handle: int, request: SimulatedRequest) -> Sequence:
        tenant = self._tenants.setdefault(request.tenant, len(self._tenants))
        shared = min(self._system_tokens, request.prompt_tokens - 1)
        own = FIRST_REQUEST_ID + handle * IDS_EACH
        ids = [*range(tenant * IDS_EACH, tenant * IDS_EACH + shared), *range(own, own + request.prompt_tokens - shared)]
        max_tokens = request.new_tokens
        if request.by_stop:
            max_tokens = max(max_tokens, min(MAX_TOKENS, self._context_tokens - request.prompt_tokens))
        return Sequence(
            handle=handle,
            gateway=GATEWAY,
            request_id=f"sim_{handle}",
            model=request.model,
            adapter=request.adapter,
            namespace=request.tenant,
            tier=request.tier,
            share=request.tenant,
            prompt_ids=ids,
            max_tokens=max_tokens,
            sampling=Sampling(),
            stop_ids=frozenset((STOP_ID,) if request.by_stop else ()),
            arrived_at=request.at_s,
            weight=self._traffic.weights.get(request.tenant, 1.0),
        )

    # ---- steps

    def _complete(self, flight: Flight) -> None:
        """Advance the clock to the end of a step. Its time counts from its beginning, or from the end of the step
        before if that was later."""
        now = self.clock.now = max(self.clock.now, flight.ready_at)
        began, self._completed_at = max(flight.began, self._completed_at), now
        step, last = flight.step, self._last_token
        if is_probe(step):
            self.scheduler.complete(step, StepResult([PLAIN_ID]), now - began)
            self.measure.busy_s += now - began
            return
        # A stop id for the last token of a request.
        ids = [
            (STOP_ID if chunk.start + chunk.count == last[chunk.sequence.handle] else PLAIN_ID)
            if chunk.sample
            else None
            for chunk in step.chunks
        ]
        outcome = self.scheduler.complete(step, StepResult(ids), now - began)
        self.measure.note_step_end(step, flight.load, outcome, began, now, self.scheduler)
        for ended in outcome.ended:
            self._end_request(ended)

    def _copied(self, pages: int) -> None:
        self._device.copied(pages, self.clock.now)

    def _end_request(self, ended: RequestEnding) -> None:
        request = self._requests[ended.sequence.handle]
        self.measure.note_ending(request, ended, self.clock.now)
        if request.flood is not None:
            # Not at once after a failure: a failure may take no time, and the clock would not advance.
            self._flood(request.flood, self.clock.now + (RETRY_S if ended.reason == "error" else 0.0))

    def _check_the_end(self) -> None:
        """Raises AssertionError if a request has no ending, or a page or slot leaked."""
        scheduler, arena = self.scheduler, self.arena
        scheduler.check_integrity()
        assert not scheduler.has_work()
        unowned = arena.free_pages() + scheduler.prefix.idle_pages() + arena.adapter_pages()
        assert unowned == arena.pages, f"{arena.pages - unowned} pages leaked"
        assert scheduler.swap.free_slots() == scheduler.swap.slots, "a slot of host memory leaked"
        self.measure.check_the_end(scheduler.results.overrun_s)
