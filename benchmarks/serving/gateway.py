"""A gateway that measures: it submits requests to one or several engines when they are due and notes when ids arrive.

`drive` has no socket: the loop is the real one behind its real inbox, on the calling thread; a separate thread submits,
like the engine's I/O thread. Frames are decoded only at the end, so that measuring costs the loop little.
benchmarks/serving/processes.py starts engines in separate processes.
"""

from __future__ import annotations

import functools
import gc
import heapq
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.__main__ import ServedRunner, build_scheduler
from engine.loop.worker import EngineLoop
from engine.protocol.codec import FrameReader, decode_from_engine
from engine.protocol.config import EngineConfig
from engine.protocol.frames import (
    PROTOCOL_VERSION,
    Abort,
    EngineUsage,
    Finished,
    Hello,
    Refused,
    Sampling,
    Snapshot,
    Submit,
    Tokens,
    Watch,
)
from engine.protocol.inbox import Inbox, LoopProgress, Stop
from engine.protocol.server import OutgoingFrames
from engine.scheduler.scheduler import Scheduler

# An engine that ends no request for this long is stuck; the run then fails.
STALL_S_MAX = 120.0
# Prompts are windows of one ring of ids. No window repeats before a prime number of them has been cut.
RING_IDS, RING_STRIDE = 65_537, 509
FIRST_ID = 1000
GATEWAY, EPOCH = 0, "benchmark"
# Zipf exponent over the models of one traffic; the first is the likeliest.
ZIPF = 1.0
# Seconds after a phase of fixed length for requests that are not answered yet.
LATE_S_MAX = 60.0
LOST = -1  # in place of a handle: the engine's connection was lost


@dataclass(frozen=True)
class Traffic:
    """Requests of one kind: at Poisson times or, with `outstanding`, a new request as soon as one has ended."""

    name: str
    tier: str
    prompt_tokens: int
    new_tokens: int
    rate: float = 0.0  # a second
    outstanding: int = 0
    share: str = "share"
    prefix_tokens: int = 0  # prompt tokens that all requests of a share have in common
    models: tuple[str, ...] = ()  # drawn by Zipf's law; empty: the engine's first
    asks_where: bool = False  # query the location of the model before each request


@dataclass(frozen=True)
class Phase:
    """One phase, of two kinds. With `requests`: that many requests of the first traffic, which has a rate and begins
    `lead_s` after the other traffics; the phase ends when all of them have ended. With `seconds`: all traffics run for
    `lead_s` and then for `seconds`; the phase ends when all requests with a rate that arrived within `seconds` have
    ended."""

    name: str
    traffic: tuple[Traffic, ...]
    requests: int = 0
    lead_s: float = 0.0
    seconds: float = 0.0
    watch_s: float = 0.0  # between two snapshots of the engine; 0: no snapshots


class Line(Protocol):
    """A connection to one engine, to the process with this epoch."""

    epoch: str

    def take(self, frame: Submit | Abort | Watch) -> None: ...


class InboxLine:
    """A connection to a loop in this process."""

    epoch = EPOCH

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def take(self, frame: Submit | Abort | Watch) -> None:
        size = 5 * len(frame.prompt_ids) if isinstance(frame, Submit) else 0
        self._inbox.receive(GATEWAY, frame, time.monotonic(), size)


@dataclass(slots=True, eq=False)
class Request:
    traffic: Traffic
    due_s: float  # on the monotonic clock, as all times here
    token_s: list[float] = field(default_factory=list)  # when each id arrived
    usage: EngineUsage = field(default_factory=EngineUsage)
    refused: str = ""
    model: str = ""
    error: str = ""  # of its ending
    ending: str = ""  # its FinishReason; "": it was refused, or never ended
    found: str = ""  # where its model was on arrival: "device", "host", "disk"

    @property
    def failed(self) -> str:
        """Why the request failed; "": it did not."""
        return self.refused or self.error

    @property
    def ttft_ms(self) -> float:
        """Milliseconds from the due time to the first id."""
        return 1000 * (self.token_s[0] - self.due_s)

    def gaps_ms(self) -> list[float]:
        return [1000 * (b - a) for a, b in zip(self.token_s, self.token_s[1:], strict=False)]


@dataclass(frozen=True, slots=True)
class Took:
    """The time from the ids of the previous step to the ids of this step."""

    seconds: float
    model: str
    switched: bool  # the step before was of another model


@dataclass
class Measured:
    """The result of one phase. The window begins with the first traffic and ends when its last request was due, or
    covers the phase's `seconds`."""

    phase: Phase
    began_s: float = 0.0
    ended_s: float = 0.0
    requests: list[Request] = field(default_factory=list)
    steps: list[Took] = field(default_factory=list)
    watched: list[tuple[float, Snapshot]] = field(default_factory=list)

    @property
    def step_s(self) -> list[float]:
        return [step.seconds for step in self.steps]

    def of(self, traffic: str, model: str = "") -> list[Request]:
        """The requests that were due within the window and received an id."""
        own = (request for request in self.requests if request.traffic.name == traffic and request.token_s)
        if model:
            own = (request for request in own if request.model == model)
        return [request for request in own if self.began_s <= request.due_s <= self.ended_s]

    def failures(self) -> Counter[str]:
        """Why requests failed."""
        return Counter(request.failed for request in self.requests if request.failed)

    def tokens_per_s(self, traffic: str = "") -> float:
        """Tokens a second that arrived within the window, including tokens of requests that were due before it or ended
        after it; without a name, of all traffic."""
        own = (request for request in self.requests if traffic in ("", request.traffic.name))
        tokens = sum(self.began_s <= at <= self.ended_s for request in own for at in request.token_s)
        return tokens / (self.ended_s - self.began_s)


class Gateway:
    """Submits on a separate thread; the engines' threads call `send` and `arrived`."""

    def __init__(self, lines: Mapping[str, Line], adapters: Mapping[str, Sequence[str]], vocab: int, seed: int) -> None:
        """`lines` and `adapters` by model; models of one engine have the same line."""
        self._lines = lines
        self._adapters = adapters
        self._seed = seed
        dice = random.Random(seed)
        ids = range(min(FIRST_ID, vocab // 2), vocab)
        self._ring = [dice.choice(ids) for _ in range(RING_IDS)] * 2
        self._frames: dict[Line, list[tuple[float, bytes]]] = {line: [] for line in lines.values()}
        # The request for which each snapshot of an engine was requested, in order; None: for the phase.
        self._asked: dict[Line, list[Request | None]] = {line: [] for line in lines.values()}
        self._ended: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._live: dict[int, Request] = {}
        self._requests: dict[int, Request] = {}
        self._measured: list[Measured] = []
        self._ended_at = 0.0  # of the last request, or of the last moment without requests

    def send(self, line: Line, batch: list[OutgoingFrames]) -> None:
        for outgoing in batch:
            self.arrived(line, outgoing.data, outgoing.ended)

    def arrived(self, line: Line, data: bytes, ended: Sequence[int]) -> None:
        """Take frames, and the handles whose ending they contain."""
        self._frames[line].append((time.monotonic(), data))
        for handle in ended:
            self._ended.put(handle)

    def lost(self) -> None:
        """Note that an engine's connection was lost."""
        self._ended.put(LOST)

    def run(self, phases: Sequence[Phase]) -> None:
        """Raises TimeoutError when the engine is stuck, ConnectionError when its connection was lost."""
        for phase in phases:
            measured = Measured(phase)
            self._measured.append(measured)
            self._run(measured)

    def _run(self, measured: Measured) -> None:
        phase = measured.phase
        first, rest = phase.traffic[0], phase.traffic[1:]
        began = time.monotonic()
        measured.began_s = began + phase.lead_s
        measured.ended_s = measured.began_s + phase.seconds
        for traffic in phase.traffic if phase.seconds else rest:
            for _ in range(traffic.outstanding):
                self._submit(measured, traffic, began)
        arrivals = self._arrivals(measured, began)
        left, unanswered, look_s = phase.requests, set[Request](), began
        while left or unanswered or (phase.seconds and time.monotonic() < measured.ended_s):
            if phase.watch_s and time.monotonic() >= look_s:
                self._watch()
                look_s = time.monotonic() + phase.watch_s
            soonest = [arrivals[0][0]] if arrivals else []
            soonest += [look_s] if phase.watch_s else []
            soonest += [measured.ended_s] if phase.seconds and time.monotonic() < measured.ended_s else []
            for request in self._wait(min(soonest, default=time.monotonic() + STALL_S_MAX)):
                unanswered.discard(request)
                if request.traffic.outstanding:
                    self._submit(measured, request.traffic, time.monotonic())
            while arrivals and arrivals[0][0] <= time.monotonic():
                due, order, traffic, times = heapq.heappop(arrivals)
                if phase.seconds and due > measured.ended_s:
                    continue
                request = self._submit(measured, traffic, due)
                if traffic is first and not phase.seconds:
                    measured.ended_s = due
                    left -= 1
                if traffic is first or (phase.seconds and due >= measured.began_s):
                    unanswered.add(request)
                if left or phase.seconds or traffic is not first:
                    heapq.heappush(arrivals, (next(times), order, traffic, times))
            if phase.seconds and time.monotonic() > measured.ended_s + LATE_S_MAX:
                break
        if phase.watch_s:
            self._watch()
        for handle, request in list(self._live.items()):
            self._lines[request.model].take(Abort(handle))
        while self._live:
            self._wait(time.monotonic() + STALL_S_MAX)

    def _arrivals(self, measured: Measured, began: float) -> list[tuple[float, int, Traffic, Iterator[float]]]:
        """A heap of the next due time of each traffic with a rate, and an iterator of the later due times."""
        phase = measured.phase
        arrivals = []
        for order, traffic in enumerate(phase.traffic):
            if traffic.rate:
                dice = random.Random(f"{self._seed} {phase.name} {traffic.name} {traffic.share}")
                start = measured.began_s if traffic is phase.traffic[0] and not phase.seconds else began
                times = _poisson(dice, traffic.rate, start)
                arrivals.append((next(times), order, traffic, times))
        heapq.heapify(arrivals)
        return arrivals

    def _watch(self) -> None:
        for line, asked in self._asked.items():
            asked.append(None)
            line.take(Watch(0))  # all preemptions in the engine's log: each has a number

    def _wait(self, until_s: float) -> list[Request]:
        """The requests that ended since the last call; waits for an ending until `until_s`."""
        ended = []
        try:
            timeout = until_s - time.monotonic()
            if timeout > 0:
                ended.append(self._ended.get(timeout=min(timeout, STALL_S_MAX)))
            while True:
                ended.append(self._ended.get_nowait())
        except queue.Empty:
            pass
        now = time.monotonic()
        if LOST in ended:
            raise ConnectionError("the connection to an engine was lost")
        if ended:
            self._ended_at = now
        elif self._live and now - self._ended_at > STALL_S_MAX:
            raise TimeoutError(f"the engine has ended no request for {STALL_S_MAX:g} s")
        return [self._live.pop(handle) for handle in ended]

    def _submit(self, measured: Measured, traffic: Traffic, due_s: float) -> Request:
        handle = len(self._requests)
        request = self._requests[handle] = Request(traffic, due_s, model=self.model_of(handle, traffic))
        if not self._live:
            self._ended_at = time.monotonic()
        self._live[handle] = request
        measured.requests.append(request)
        line, adapters = self._lines[request.model], self._adapters.get(request.model)
        if traffic.asks_where:
            self._asked[line].append(request)
            line.take(Watch())
        frame = Submit(
            handle,
            f"req_{handle}",
            line.epoch,
            request.model,
            adapters[handle % len(adapters)] if adapters else None,
            traffic.share,
            traffic.tier,
            traffic.share,
            self._prompt(handle, traffic),
            traffic.new_tokens,
            Sampling(temperature=0.0),
            [],
        )
        line.take(frame)
        return request

    def model_of(self, handle: int, traffic: Traffic) -> str:
        """The model of a request: the same for one seed, however the engines behave."""
        models = traffic.models or (next(iter(self._lines)),)
        if len(models) == 1:
            return models[0]
        weights = [1 / (1 + rank) ** ZIPF for rank in range(len(models))]
        return random.Random(f"{self._seed} {handle}").choices(models, weights)[0]

    def _prompt(self, handle: int, traffic: Traffic) -> list[int]:
        """The prefix of its share, then ids that no other prompt has, so that only the prefix is found in the prefix
        cache."""
        at = handle * RING_STRIDE % RING_IDS
        own = self._ring[at : at + traffic.prompt_tokens - traffic.prefix_tokens]
        if not traffic.prefix_tokens:
            return own
        dice = random.Random(traffic.share)
        return [self._ring[dice.randrange(RING_IDS)] for _ in range(traffic.prefix_tokens)] + own

    def measured(self) -> list[Measured]:
        """The results. Call it after the engines' last frames have arrived."""
        for line, frames in self._frames.items():
            reader, asked = FrameReader(), iter(self._asked[line])
            last: tuple[int, float, str] | None = None
            for at, data in frames:
                for body in reader.feed(data):
                    frame = decode_from_engine(body)
                    if isinstance(frame, Tokens):
                        last = self._note_step(frame, at, last)
                    elif isinstance(frame, Finished):
                        request = self._requests[frame.handle]
                        request.usage, request.ending = frame.usage, frame.reason
                        request.error = frame.message if frame.reason == "error" else ""
                    elif isinstance(frame, Refused):
                        self._requests[frame.handle].refused = frame.message
                    elif isinstance(frame, Snapshot):
                        self._note_snapshot(frame, at, next(asked))
        return self._measured

    def _note_step(self, frame: Tokens, at: float, last: tuple[int, float, str] | None) -> tuple[int, float, str]:
        """`last`: number, time and model of the step before."""
        for handle in frame.handles:
            self._requests[handle].token_s.append(at)
        model = self._requests[frame.handles[0]].model
        if last is not None and frame.step == last[0] + 1:
            self._phase_at(at).steps.append(Took(at - last[1], model, model != last[2]))
        return frame.step, at, model

    def _note_snapshot(self, seen: Snapshot, at: float, request: Request | None) -> None:
        self._phase_at(at).watched.append((at, seen))
        if request is not None:
            request.found = next((place.where for place in seen.models if place.name == request.model), "")

    def _phase_at(self, at: float) -> Measured:
        return next(m for m in reversed(self._measured) if at >= m.began_s - m.phase.lead_s)


def drive(
    config: EngineConfig,
    runner: ServedRunner,
    adapters: Mapping[str, Sequence[str]],
    phases: Sequence[Phase],
    seed: int,
    prepare: Callable[[Scheduler], None] = lambda _: None,
) -> list[Measured]:
    """Run all phases, one after another, over one engine; `adapters` by model. `prepare` is called with the scheduler
    before its first step. Raises the exception with which the loop or the gateway failed."""
    infos = list(runner.models.values())
    inbox, failed = Inbox(), list[Exception]()
    line = InboxLine(inbox)
    vocab = min(info.vocab_size for info in infos)
    gateway = Gateway({info.name: line for info in infos}, adapters, vocab, seed)
    hello = Hello(PROTOCOL_VERSION, EPOCH, infos, [tier.name for tier in config.tiers])
    scheduler = build_scheduler(config, runner)
    prepare(scheduler)
    send = functools.partial(gateway.send, line)
    worker = EngineLoop(
        hello=hello, scheduler=scheduler, runner=runner, inbox=inbox, progress=LoopProgress(), send=send
    )

    def submit() -> None:
        try:
            gateway.run(phases)
        except Exception as error:  # noqa: BLE001 - raised again where the caller waits
            failed.append(error)
        inbox.put(Stop("measured"))

    gc.collect()
    gc.freeze()  # as `python -m engine` does
    thread = threading.Thread(target=submit, name="gateway", daemon=True)
    thread.start()
    worker.run()
    thread.join()
    if failed:
        raise failed[0]
    scheduler.check_integrity()
    return gateway.measured()


def _poisson(dice: random.Random, rate: float, start: float) -> Iterator[float]:
    at = start
    while True:
        at += dice.expovariate(rate)
        yield at
