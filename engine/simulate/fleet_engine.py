"""One engine of a simulated fleet: the real scheduler, arena and prefix cache, and the frames that gateways route by.

It does what `world.World` does for one engine, but lets the fleet's clock decide when. It must never read a real clock.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from typing import Protocol

from engine.loop.page_news import PageNews
from engine.memory.arena import Arena
from engine.protocol.frames import PagesChanged, RefusalCode, Sampling
from engine.protocol.snapshot_parts import EngineLoad
from engine.protocol.tiers import Tier
from engine.scheduler.costs import load_of
from engine.scheduler.scheduler import ModelLimits, Scheduler
from engine.simulate.conversations import MADE_ID, FleetText
from engine.simulate.devices import Device
from engine.simulate.loads import SimulatedAdapters
from engine.simulate.world import LOOK_S, Clock, Flight, SimulatedDevice
from engine.step import Sequence, StepResult

GATEWAY = 0


class TextObserver(Protocol):
    """Receives an engine's reports of the texts that were submitted to it."""

    def note_token(self, text: FleetText) -> None: ...
    def note_finished(self, text: FleetText) -> None: ...
    def note_refused(self, text: FleetText, code: RefusalCode) -> None: ...


class FleetEngine(Protocol):
    """An engine of a simulated fleet: with the real scheduler, or a simple one (`simple_engine.SimpleEngine`)."""

    name: str
    texts: dict[int, FleetText]  # texts in flight, by number
    busy_s: float
    tokens: int  # made
    requests: int

    @property
    def queries(self) -> int:
        """Prompt tokens looked up in the prefix cache."""

    @property
    def hits(self) -> int:
        """The tokens of these queries that were found."""

    @property
    def adapter_loads(self) -> int: ...

    def submit_text(self, text: FleetText) -> None:
        """Submit a text; the next `advance` admits it."""

    def advance(self) -> float | None:
        """Do all due work. Returns when more work will be due; None: none will be without a submission."""

    def is_computing(self) -> bool:
        """A submission makes no work due earlier than the work that is due next."""

    def load(self) -> EngineLoad: ...

    def post_news(self, send: Callable[[PagesChanged], None]) -> None:
        """Send the changes of cached pages since the last call; the first time all."""

    def check_the_end(self) -> None:
        """Check that all texts have ended. Raises AssertionError if something leaked."""


class CountedAdapters(SimulatedAdapters):
    """Counts the loads."""

    loads = 0

    def place_adapter(self, digest: str, pages: list[int]) -> None:
        self.loads += digest not in self._resident
        super().place_adapter(digest, pages)


class ScheduledEngine:
    def __init__(
        self,
        name: str,
        tiers: Ordered[Tier],
        device: Device,
        models: Ordered[str],
        clock: Clock,
        observer: TextObserver,
        draws: random.Random,
        step_noise: float = 0.0,
    ) -> None:
        self.name = name
        self.texts: dict[int, FleetText] = {}
        self.busy_s = 0.0
        self.tokens = self.requests = 0
        self.arena = Arena(device.pages, 1)
        self.adapters = CountedAdapters(device.adapter_pages, device.adapter_load_s, clock)
        self.scheduler = Scheduler(
            tiers,
            {model: ModelLimits(device.context_tokens, device.tokens_per_page) for model in models},
            self.arena,
            self.adapters,
            clock,
            step_tokens_max=device.step_tokens_max,
            prefill_tokens_min=device.prefill_tokens_min,
            sequences_max=device.sequences_max,
            steps_ahead=device.steps_ahead,
        )
        self._clock = clock
        self._observer = observer
        self._device = SimulatedDevice(device, (), step_noise, draws)
        self._adapter_load_s = device.adapter_load_s
        self._steps_ahead = device.steps_ahead
        self._inbox: list[FleetText] = []
        self._flights: deque[Flight] = deque()
        self._completed_at = 0.0
        self._posted: list[PagesChanged] = []
        self._news = PageNews(self.scheduler.prefix, lambda _, frame: self._posted.append(frame), clock)
        self._news.subscribe(GATEWAY)

    @property
    def queries(self) -> int:
        return self.scheduler.prefix.queries

    @property
    def hits(self) -> int:
        return self.scheduler.prefix.hits

    @property
    def adapter_loads(self) -> int:
        return self.adapters.loads

    def submit_text(self, text: FleetText) -> None:
        self.texts[text.number] = text
        self._inbox.append(text)

    def advance(self) -> float | None:
        now = self._clock.now
        while self._flights and self._flights[0].ready_at <= now:
            self._complete(self._flights.popleft(), now)
        for text in self._inbox:
            self._take_in(text)
        self._inbox.clear()
        scheduler = self.scheduler
        while len(self._flights) <= self._steps_ahead and (step := scheduler.schedule()) is not None:
            load = load_of(step)
            self._flights.append(Flight(step, load, now, self._device.run_step(load, now)))
        if self._flights:
            return self._flights[0].ready_at
        for ended in scheduler.take_failed():
            raise AssertionError(f"{ended.sequence.request_id} failed: {ended.message}")
        if not scheduler.has_work():
            return None
        loaded_at = self.adapters.next_at() if scheduler.has_blocked_requests else None
        return now + LOOK_S if loaded_at is None else max(now, loaded_at)

    def is_computing(self) -> bool:
        return bool(self._flights)

    def load(self) -> EngineLoad:
        scheduler = self.scheduler
        return EngineLoad(
            waits=scheduler.admission.queue_waits_s(),
            queued=scheduler.waiting(),
            prefill_token_s=scheduler.cost_models.prefill_token_s(scheduler.served.live),
            adapters=self.adapters.resident(),
            adapter_load_s=self._adapter_load_s,
        )

    def post_news(self, send: Callable[[PagesChanged], None]) -> None:
        self._news.post()
        for frame in self._posted:
            send(frame)
        self._posted.clear()

    def check_the_end(self) -> None:
        """Raises AssertionError if a page leaked, or a request has no ending."""
        scheduler, arena = self.scheduler, self.arena
        scheduler.check_integrity()
        assert not scheduler.has_work()
        assert not self.texts
        unowned = arena.free_pages() + scheduler.prefix.idle_pages() + arena.adapter_pages()
        assert unowned == arena.pages, f"{arena.pages - unowned} pages leaked"

    def _take_in(self, text: FleetText) -> None:
        if text.adapter is not None:
            self.adapters.models[text.adapter] = text.model
        sequence = Sequence(
            handle=text.number,
            gateway=GATEWAY,
            request_id=f"sim_{text.number}",
            model=text.model,
            adapter=text.adapter,
            namespace=text.tenant,
            tier=text.tier,
            share=text.tenant,
            prompt_ids=text.ids,
            max_tokens=text.new_tokens,
            sampling=Sampling(),
            stop_ids=frozenset(),
            arrived_at=self._clock.now,
            output_ids=[MADE_ID] * text.made,
            resumed=text.made,
            attempt=text.attempt,
        )
        refusal = self.scheduler.submit(sequence)
        refused = [] if refusal is None else [(text, refusal.code)]
        refused += [(self.texts[own.handle], why.code) for own, why in self.scheduler.take_displaced()]
        self.requests += 1
        for own, code in refused:
            self.requests -= 1
            del self.texts[own.number]
            self._observer.note_refused(own, code)

    def _complete(self, flight: Flight, now: float) -> None:
        began, self._completed_at = max(flight.began, self._completed_at), now
        self.busy_s += now - began
        step = flight.step
        ids = [MADE_ID if chunk.sample else None for chunk in step.chunks]
        outcome = self.scheduler.complete(step, StepResult(ids), now - began)
        for sequence, _ in outcome.tokens:
            text = self.texts[sequence.handle]
            if text.cached_tokens is None:
                text.cached_tokens = sequence.cached_tokens
            self.tokens += 1
            self._observer.note_token(text)
        for ended in outcome.ended:
            self._observer.note_finished(self.texts.pop(ended.sequence.handle))
