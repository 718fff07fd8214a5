"""A gateway without a socket: it submits requests to the engine's loop when they are due and notes when ids come.

The loop is the real one behind its real inbox, on the thread that calls `drive`; what submits has a thread of its own,
as the engine's I/O thread is. Nothing is decoded before the end, so that measuring costs the loop next to nothing.
"""

from __future__ import annotations

import gc
import heapq
import queue
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from engine.__main__ import ServedRunner, build_scheduler
from engine.config import EngineConfig
from engine.inbox import Inbox, Progress, Stop
from engine.protocol import (
    PROTOCOL_VERSION,
    Abort,
    Finished,
    FrameReader,
    Hello,
    Refused,
    Sampling,
    Submit,
    Tokens,
    Usage,
    decode_from_engine,
)
from engine.server import Outgoing
from engine.worker import Worker

# An engine that ends no request for so long is stuck, and the run with it.
STALL_S_MAX = 120.0
# Prompts are windows of one ring of ids, a different one each time until a prime number of them has been cut.
RING_IDS, RING_STRIDE = 65_537, 509
FIRST_ID = 1000
GATEWAY, EPOCH = 0, "benchmark"


@dataclass(frozen=True)
class Traffic:
    """Requests of one kind, at Poisson times or, with `outstanding`, one more as soon as one has ended."""

    name: str
    tier: str
    prompt_tokens: int
    new_tokens: int
    rate: float = 0.0  # a second
    outstanding: int = 0
    share: str = "share"
    prefix_tokens: int = 0  # of the prompt, the same in all of a share


@dataclass(frozen=True)
class Phase:
    """`requests` of the first traffic, which has a rate and begins `lead_s` after the others; these go on until all of
    those have ended."""

    name: str
    traffic: tuple[Traffic, ...]
    requests: int
    lead_s: float = 0.0


@dataclass(slots=True, eq=False)
class Request:
    traffic: Traffic
    due_s: float  # on the monotonic clock, as all times here
    token_s: list[float] = field(default_factory=list)  # when each id was handed out
    usage: Usage = field(default_factory=Usage)
    refused: str = ""

    @property
    def ttft_ms(self) -> float:
        """From when it was due."""
        return 1000 * (self.token_s[0] - self.due_s)

    def gaps_ms(self) -> list[float]:
        return [1000 * (b - a) for a, b in zip(self.token_s, self.token_s[1:], strict=False)]


@dataclass
class Measured:
    """One phase. The window goes from when the first traffic began until its last request was due."""

    phase: Phase
    began_s: float = 0.0
    ended_s: float = 0.0
    requests: list[Request] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)  # between the ids of one step and those of the next

    def of(self, traffic: str) -> list[Request]:
        """Those that were due within the window and gave an id."""
        own = (request for request in self.requests if request.traffic.name == traffic and request.token_s)
        return [request for request in own if self.began_s <= request.due_s <= self.ended_s]

    def tokens_per_s(self, traffic: str) -> float:
        """Handed out within the window, also for requests that were due before or ended after it."""
        own = (request for request in self.requests if request.traffic.name == traffic)
        tokens = sum(self.began_s <= at <= self.ended_s for request in own for at in request.token_s)
        return tokens / (self.ended_s - self.began_s)


class Gateway:
    """Submits on a thread of its own; `send` is for the loop's."""

    def __init__(self, inbox: Inbox, model: str, adapters: Sequence[str], vocab: int, seed: int) -> None:
        self._inbox = inbox
        self._model = model
        self._adapters = adapters
        self._seed = seed
        dice = random.Random(seed)
        ids = range(min(FIRST_ID, vocab // 2), vocab)
        self._ring = [dice.choice(ids) for _ in range(RING_IDS)] * 2
        self._frames: list[tuple[float, bytes]] = []
        self._ended: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._live: dict[int, Request] = {}
        self._requests: dict[int, Request] = {}
        self._measured: list[Measured] = []
        self._ended_at = 0.0  # the last request, or when there was none

    def send(self, batch: list[Outgoing]) -> None:
        now = time.monotonic()
        for outgoing in batch:
            self._frames.append((now, outgoing.data))
            for handle in outgoing.ended:
                self._ended.put(handle)

    def run(self, phases: Sequence[Phase]) -> None:
        """Raises TimeoutError when the engine is stuck."""
        for phase in phases:
            measured = Measured(phase)
            self._measured.append(measured)
            self._run(measured)

    def _run(self, measured: Measured) -> None:
        phase = measured.phase
        first, rest = phase.traffic[0], phase.traffic[1:]
        began = time.monotonic()
        measured.began_s = began + phase.lead_s
        for traffic in rest:
            for _ in range(traffic.outstanding):
                self._submit(measured, traffic, began)
        arrivals = []
        for order, traffic in enumerate(phase.traffic):
            if traffic.rate:
                dice = random.Random(f"{self._seed} {phase.name} {traffic.name} {traffic.share}")
                start = measured.began_s if traffic is first else began
                times = _poisson(dice, traffic.rate, start)
                arrivals.append((next(times), order, traffic, times))
        heapq.heapify(arrivals)
        left, unanswered = phase.requests, set[Request]()
        while left or unanswered:
            for request in self._wait(arrivals[0][0] if arrivals else time.monotonic() + STALL_S_MAX):
                unanswered.discard(request)
                if request.traffic.outstanding:
                    self._submit(measured, request.traffic, time.monotonic())
            while arrivals and arrivals[0][0] <= time.monotonic():
                due, order, traffic, times = heapq.heappop(arrivals)
                request = self._submit(measured, traffic, due)
                if traffic is first:
                    unanswered.add(request)
                    measured.ended_s = due
                    left -= 1
                if left or traffic is not first:
                    heapq.heappush(arrivals, (next(times), order, traffic, times))
        for handle in list(self._live):
            self._inbox.receive(GATEWAY, Abort(handle), time.monotonic(), 0)
        while self._live:
            self._wait(time.monotonic() + STALL_S_MAX)

    def _wait(self, until_s: float) -> list[Request]:
        """Those that ended since; waits for one until `until_s`."""
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
        if ended:
            self._ended_at = now
        elif self._live and now - self._ended_at > STALL_S_MAX:
            raise TimeoutError(f"the engine has ended no request for {STALL_S_MAX:g} s")
        return [self._live.pop(handle) for handle in ended]

    def _submit(self, measured: Measured, traffic: Traffic, due_s: float) -> Request:
        handle = len(self._requests)
        request = self._requests[handle] = Request(traffic, due_s)
        if not self._live:
            self._ended_at = time.monotonic()
        self._live[handle] = request
        measured.requests.append(request)
        frame = Submit(
            handle,
            f"req_{handle}",
            EPOCH,
            self._model,
            self._adapters[handle % len(self._adapters)] if self._adapters else None,
            traffic.share,
            traffic.tier,
            traffic.share,
            self._prompt(handle, traffic),
            traffic.new_tokens,
            Sampling(temperature=0.0),
            [],
        )
        self._inbox.receive(GATEWAY, frame, time.monotonic(), 5 * traffic.prompt_tokens)
        return request

    def _prompt(self, handle: int, traffic: Traffic) -> list[int]:
        """The prefix of its share, then ids that no other has: nothing else is found in the prefix cache."""
        at = handle * RING_STRIDE % RING_IDS
        own = self._ring[at : at + traffic.prompt_tokens - traffic.prefix_tokens]
        if not traffic.prefix_tokens:
            return own
        dice = random.Random(traffic.share)
        return [self._ring[dice.randrange(RING_IDS)] for _ in range(traffic.prefix_tokens)] + own

    def measured(self) -> list[Measured]:
        """Once the loop has ended."""
        reader = FrameReader()
        last: tuple[int, float] | None = None
        for at, data in self._frames:
            for body in reader.feed(data):
                frame = decode_from_engine(body)
                if isinstance(frame, Tokens):
                    for handle in frame.handles:
                        self._requests[handle].token_s.append(at)
                    if last is not None and frame.step == last[0] + 1:
                        own = next(m for m in reversed(self._measured) if at >= m.began_s - m.phase.lead_s)
                        own.step_s.append(at - last[1])
                    last = frame.step, at
                elif isinstance(frame, Finished):
                    self._requests[frame.handle].usage = frame.usage
                elif isinstance(frame, Refused):
                    self._requests[frame.handle].refused = frame.message
        return self._measured


def drive(
    config: EngineConfig, runner: ServedRunner, adapters: Sequence[str], phases: Sequence[Phase], seed: int
) -> list[Measured]:
    """All phases, one after another, over one engine. Raises whatever the loop or the gateway failed with."""
    (info,) = runner.models.values()
    inbox, failed = Inbox(), list[Exception]()
    gateway = Gateway(inbox, info.name, adapters, info.vocab_size, seed)
    hello = Hello(PROTOCOL_VERSION, EPOCH, [info], [tier.name for tier in config.tiers])
    scheduler = build_scheduler(config, runner)
    worker = Worker(
        hello=hello, scheduler=scheduler, runner=runner, inbox=inbox, progress=Progress(), send=gateway.send
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
