"""A fleet on a virtual clock: engines, gateways that choose among them by heartbeats and page news, and engines that
are killed. A text of a killed engine continues on another one from the ids that were delivered.

It must never read a real clock.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from engine.protocol.frames import ModelInfo, PagesChanged, RefusalCode
from engine.protocol.tiers import Tier
from engine.simulate.conversations import ConversationRate, Conversations, FleetText
from engine.simulate.devices import BadInput, Device
from engine.simulate.fleet_engine import FleetEngine, ScheduledEngine
from engine.simulate.routing_policies import POLICIES, RoutingPolicy
from engine.simulate.simple_engine import SimpleEngine
from engine.simulate.traffic import Traffic
from engine.simulate.world import Clock

HEARTBEAT_S, NEWS_S = 1.0, 0.1
# From the kill of an engine until the gateways notice the end of their streams.
NOTICE_S = 0.01
# Until a text that every engine refused is submitted again.
RETRY_S = 1.0
# Width of the bins of `FleetRun.series`, as a part of the traffic's time.
BINS = 120
# A fleet of one with the pages, slots and speed of all engines: the reference of hit rates.
ONE_ENGINE = "one-engine"


@dataclass(slots=True, frozen=True)
class Kill:
    """Engine number `engine` (from 1) dies at `at_s`, and restarts empty after `restart_s`; None: never."""

    at_s: float
    engine: int
    restart_s: float | None


@dataclass(slots=True, frozen=True)
class FleetSettings:
    tiers: tuple[Tier, ...]
    device: Device
    traffic: Traffic
    conversations: tuple[ConversationRate, ...]
    engines: int
    gateways: int
    system_tokens: int
    kills: tuple[Kill, ...] = ()
    simple: bool = False  # SimpleEngine
    step_noise: float = 0.0
    seed: int = 0


class FleetWorld:
    """One simulation of a fleet under one routing policy. Implements fleet_engine.TextObserver."""

    def __init__(self, settings: FleetSettings, policy: str) -> None:
        """`policy`: a key of POLICIES, or ONE_ENGINE. Raises BadInput."""
        self.settings, self.policy = settings, policy
        self.clock = Clock()
        self.count = 1 if policy == ONE_ENGINE else settings.engines
        self.device = enlarged(settings.device, settings.engines) if policy == ONE_ENGINE else settings.device
        self.texts: list[FleetText] = []
        self.refused = 0
        self.resumed: list[FleetText] = []
        self.engines: dict[str, FleetEngine] = {}  # running engines
        self.dead: list[FleetEngine] = []
        self.bin_s = settings.traffic.duration_s / BINS
        self.bins: dict[str, Counter[int]] = {}  # engine → bin → tokens made
        self.made_in_time = dict.fromkeys((tier.name for tier in settings.tiers), 0)  # by tier, while requests arrive
        self.gateways: list[RoutingPolicy] = []
        self._talks = Conversations(
            settings.traffic,
            settings.conversations,
            system_tokens=settings.system_tokens,
            context_tokens=settings.device.context_tokens,
            seed=settings.seed,
        )
        self._models = settings.traffic.population.model_names()
        self._events: list[tuple[float, int, Callable[[], None]]] = []  # a heap
        self._scheduled = 0
        self._wakes: dict[str, float] = {}  # engine → when it is due
        self._at: dict[int, tuple[FleetEngine, RoutingPolicy]] = {}  # text → its engine and its gateway
        self._first: set[int] = set()  # texts whose first output on their engine arrived
        self._waiting = 0  # arrivals that are scheduled
        self._lb = random.Random(f"{settings.seed}/gateways")

    def run(self) -> None:
        """Run until the last text has ended. Raises BadInput for a kill that leaves no engine."""
        settings = self.settings
        kind = "predicted" if self.policy == ONE_ENGINE else self.policy
        info = {name: self._info(name) for name in self._models}
        tiers = [tier.name for tier in settings.tiers]
        for number in range(settings.gateways):
            self.gateways.append(POLICIES[kind](tiers, info, random.Random(f"{settings.seed}/gateway/{number}")))
        for number in range(self.count):
            self._start_engine(f"engine-{number + 1}", HEARTBEAT_S * number / self.count)
        for text in self._talks.first_texts():
            self._arrive_at(text)
        if self.policy != ONE_ENGINE:
            for kill in settings.kills:
                self._schedule_at(kill.at_s, lambda kill=kill: self._kill(kill))  # type: ignore[misc]
        while self._at or self._waiting:
            at_s, _, event = heapq.heappop(self._events)
            self.clock.now = max(self.clock.now, at_s)
            event()
        for engine in self.engines.values():
            engine.check_the_end()
        for text in self.texts:
            assert text.refused or text.made == text.new_tokens, f"{text.made} of {text.new_tokens} tokens were made"

    # ---- fleet_engine.TextObserver

    def note_token(self, text: FleetText) -> None:
        now = self.clock.now
        engine, gateway = self._at[text.number]
        if text.number not in self._first:
            self._first.add(text.number)
            gateway.note_first_output(engine.name, text)
        if text.first_at is None:
            text.first_at = now
        else:
            text.gap_s = max(text.gap_s, now - text.last_at)
        text.last_at = now
        self._count_tokens(engine, text, 1)

    def note_finished(self, text: FleetText) -> None:
        if left := text.new_tokens - text.made:  # a simple engine makes all tokens after the first at once
            self._count_tokens(self._at[text.number][0], text, left)
        text.ended_at = text.last_at = self.clock.now
        self._leave_engine(text)
        following = self._talks.next_text(text, self.clock.now)
        if following is not None:
            self._arrive_at(following)

    def note_refused(self, text: FleetText, code: RefusalCode) -> None:
        engine, gateway = self._leave_engine(text)
        self._submit(text, gateway, {engine.name}, code)

    def _count_tokens(self, engine: FleetEngine, text: FleetText, tokens: int) -> None:
        text.made += tokens
        self.bins[engine.name][int(self.clock.now / self.bin_s)] += tokens
        if self.clock.now <= self.settings.traffic.duration_s:
            self.made_in_time[text.tier] += tokens

    # ---- events

    def _arrive_at(self, text: FleetText) -> None:
        self._waiting += 1
        self._schedule_at(text.at_s, lambda: self._arrive(text))

    def _arrive(self, text: FleetText) -> None:
        self._waiting -= 1
        self.texts.append(text)
        self._submit(text, self._lb.choice(self.gateways), set(), None)

    def _submit(self, text: FleetText, gateway: RoutingPolicy, exclude: set[str], code: RefusalCode | None) -> None:
        """`exclude`: engines that refused the text with `code`."""
        name = gateway.choose_engine(text, self.clock.now, exclude)
        if name is None:
            if code is not None:
                text.refused, text.ended_at = code, self.clock.now
                self.refused += 1
                return
            self._waiting += 1  # no engine lives
            self._schedule_at(self.clock.now + RETRY_S, lambda: self._retry(text, gateway))
            return
        engine = self.engines.get(name)
        if engine is None:  # killed, and the gateway has not noticed
            gateway.note_text_ended(name, text)
            self._submit(text, gateway, {*exclude, name}, code)
            return
        self._at[text.number] = engine, gateway
        engine.submit_text(text)
        self._wake_at(engine, self.clock.now)

    def _retry(self, text: FleetText, gateway: RoutingPolicy) -> None:
        self._waiting -= 1
        self._submit(text, gateway, set(), None)

    def _leave_engine(self, text: FleetText) -> tuple[FleetEngine, RoutingPolicy]:
        engine, gateway = self._at.pop(text.number)
        self._first.discard(text.number)
        gateway.note_text_ended(engine.name, text)
        return engine, gateway

    def _wake_at(self, engine: FleetEngine, at_s: float) -> None:
        """An engine in a step takes submissions in at its end, at which it is due anyway."""
        due = self._wakes.get(engine.name)
        if due is None or (at_s < due and not engine.is_computing()):
            self._wakes[engine.name] = at_s
            self._schedule_at(at_s, lambda: self._wake(engine, at_s))

    def _wake(self, engine: FleetEngine, at_s: float) -> None:
        if self._wakes.get(engine.name) != at_s or self.engines.get(engine.name) is not engine:
            return
        del self._wakes[engine.name]
        due = engine.advance()
        if due is not None:
            self._wake_at(engine, due)

    def _start_engine(self, name: str, phase_s: float) -> None:
        settings, device = self.settings, self.device
        engine: FleetEngine
        if settings.simple:
            engine = SimpleEngine(name, settings.tiers, device, self._models, self.clock, self)
        else:
            draws = random.Random(f"{settings.seed}/noise of {name}")
            try:
                engine = ScheduledEngine(
                    name, settings.tiers, device, self._models, self.clock, self, draws, settings.step_noise
                )
            except ValueError as error:
                raise BadInput(str(error)) from error
        self.engines[name] = engine
        self.bins.setdefault(name, Counter())
        for gateway in self.gateways:
            gateway.set_engine(name)
        self._heartbeat(engine)
        self._schedule_at(self.clock.now + phase_s, lambda: self._heartbeat(engine, again=True))
        self._post_news(engine)

    def _heartbeat(self, engine: FleetEngine, again: bool = False) -> None:
        if self.engines.get(engine.name) is not engine:
            return
        load = engine.load()
        for gateway in self.gateways:
            gateway.note_load(engine.name, load, len(engine.texts), self.clock.now)
        if again:
            self._schedule_at(self.clock.now + HEARTBEAT_S, lambda: self._heartbeat(engine, again=True))

    def _post_news(self, engine: FleetEngine) -> None:
        if self.engines.get(engine.name) is engine:
            engine.post_news(lambda frame: self._hand_out(engine.name, frame))
            self._schedule_at(self.clock.now + NEWS_S, lambda: self._post_news(engine))

    def _hand_out(self, name: str, frame: PagesChanged) -> None:
        for gateway in self.gateways:
            gateway.note_pages(name, frame)

    def _kill(self, kill: Kill) -> None:
        engine = self.engines.pop(f"engine-{kill.engine}", None)
        if engine is None:
            return
        self.dead.append(engine)
        self._wakes.pop(engine.name, None)
        if kill.restart_s is not None:
            self._schedule_at(self.clock.now + kill.restart_s, lambda: self._start_engine(engine.name, 0.0))
        elif not self.engines and len([own for own in self.settings.kills if own.restart_s is not None]) == 0:
            raise BadInput("--kill-at: no engine is left")
        self._waiting += 1
        self._schedule_at(self.clock.now + NOTICE_S, lambda: self._notice_death(engine))

    def _notice_death(self, engine: FleetEngine) -> None:
        """The gateways' streams to the engine end: its texts continue on others."""
        self._waiting -= 1
        texts = list(engine.texts.values())
        moved = [(text, self._leave_engine(text)[1]) for text in texts]
        for gateway in self.gateways:
            if engine.name in gateway.engines:
                gateway.remove_engine(engine.name)
        for text, gateway in moved:
            text.attempt += 1
            self.resumed.append(text)
            self._submit(text, gateway, set(), None)

    def _schedule_at(self, at_s: float, event: Callable[[], None]) -> None:
        self._scheduled += 1
        heapq.heappush(self._events, (at_s, self._scheduled, event))

    def _info(self, name: str) -> ModelInfo:
        device = self.device
        return ModelInfo(name, "", device.context_tokens, 0, device.tokens_per_page, device.pages)


def enlarged(device: Device, times: int) -> Device:
    """One engine with the memory and the speed of `times` engines; a step's fixed cost is unchanged."""
    return msgspec.structs.replace(
        device,
        prefill_token_s=device.prefill_token_s / times,
        sequence_s=device.sequence_s / times,
        kv_token_s=device.kv_token_s / times,
        adapter_s=device.adapter_s / times,
        pages=device.pages * times,
        step_tokens_max=min(65_536, device.step_tokens_max * times),
        prefill_tokens_min=min(65_536, device.prefill_tokens_min * times),
        sequences_max=min(4096, device.sequences_max * times),
    )


def hit_rate(engines: Sequence[FleetEngine]) -> float | None:
    """Part of all prompt tokens that were found in a prefix cache."""
    queries = sum(engine.queries for engine in engines)
    return sum(engine.hits for engine in engines) / queries if queries else None
