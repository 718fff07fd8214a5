"""One connection to an engine, and the requests in flight on it.

It carries ids and endings, and dies once. It must never know who asks, nor how a lost engine is found again; no torch.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from engine.protocol.frames import (
    Abort,
    AdapterState,
    Finished,
    FrameReader,
    FromEngine,
    Heartbeat,
    Hello,
    Logprobs,
    Models,
    ModelState,
    ProtocolError,
    Recorded,
    Refused,
    Snapshot,
    StatusReport,
    ToEngine,
    Tokens,
    decode_from_engine,
    encode,
)


class EngineNotConnected(Exception):
    """No engine takes requests now: not connected, not ready yet, or it does not read."""


@dataclass(slots=True, frozen=True)
class EngineLost:
    """A request's ending when the engine's process or stream is gone: nothing more will come."""

    message: str


GenerationEnding = Finished | Refused | EngineLost
Answer = TypeVar("Answer")


class Generation:
    """One request in flight: ids as they come, then exactly one ending. It has one reader: a task that iterates it
    (lists of ids, those of several steps in one list where they came together, then the ending), or a callback given to
    `listen`, for whom a task switch a token is too much. What waits here is bounded by the request's max_tokens."""

    __slots__ = (
        "_aborted", "_ids", "_link", "_logprobs", "_logprobs_taken", "_on_news", "_over", "_waiter", "cached_tokens",
        "ending", "handle", "received",
    )  # fmt: skip

    def __init__(self, link: Link, handle: int) -> None:
        self.handle = handle
        self.received = 0  # ids received until Abort was sent; those that come later are dropped
        self.cached_tokens = 0  # of the prompt, known with the first id
        self.ending: GenerationEnding | None = None
        self._link = link
        self._ids: list[int] = []
        self._logprobs: list[Logprobs] = []  # of _ids, or empty
        self._logprobs_taken: list[Logprobs] = []  # of the ids that were handed out last
        self._on_news: Callable[[], None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._aborted = False
        self._over = False  # the ending was handed out

    # ---- its reader

    def listen(self, on_news: Callable[[], None]) -> None:
        """Call `on_news` once for all that one read of the stream brought: ids to `take`, the `ending`, or both. It
        runs inside the connection's own callback, so it must not raise. To be called before anything came."""
        assert self._on_news is None, "a generation has one reader"
        assert not self._ids, "listen before anything comes"
        self._on_news = on_news

    def take_ids(self) -> list[int]:
        """The ids that came since the last call."""
        ids, self._ids = self._ids, []
        if self._logprobs or self._logprobs_taken:
            self._logprobs_taken, self._logprobs = self._logprobs, []
        return ids

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> list[int] | GenerationEnding:
        while True:
            if self._ids:
                return self.take_ids()
            if self.ending is not None:
                if self._over:
                    raise StopAsyncIteration
                self._over = True
                return self.ending
            assert self._waiter is None, "a generation is iterated by one task"
            assert self._on_news is None, "a generation has one reader"
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def take_logprobs(self) -> list[Logprobs]:
        """Of the ids that were given last, one for each, when the request asked for them; else, and the second time,
        none."""
        taken, self._logprobs_taken = self._logprobs_taken, []
        return taken

    @property
    def aborted(self) -> bool:
        return self._aborted

    def abort(self) -> None:
        """Ask the engine to stop it. Idempotent. The ending still arrives."""
        if self._aborted or self.ending is not None:
            return
        self._aborted = True
        self._link.send(Abort(self.handle))

    def recorded(self) -> None:
        """What it made is in the books: the engine need not count it as lost when this process dies."""
        self._link.recorded(self.handle)

    # ---- the connection's side: what came, then `announce`

    def push_id(self, token: int, logprobs: Logprobs | None = None) -> None:
        """One id arrived."""
        if self._aborted:
            return
        self.received += 1
        self._ids.append(token)
        if logprobs is not None:
            self._logprobs.append(logprobs)

    def set_ending(self, ending: GenerationEnding) -> None:
        """Nothing more comes."""
        assert self.ending is None, "a generation ends once"
        self.ending = ending

    def announce(self) -> None:
        """Tell the reader, if there is anything to tell."""
        if not self._ids and self.ending is None:
            return
        on_news = self._on_news
        if on_news is not None:
            if self.ending is not None:
                self._on_news = None  # it knows us: a circle that only a collector would break
            on_news()
            return
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class Link(asyncio.Protocol):
    """One connection. It dies once, with `lost` set to the reason, and ends all that was in flight on it."""

    def __init__(self, silence_s: float, on_lost: Callable[[], None], on_models: Callable[[Models], None]) -> None:
        loop = asyncio.get_running_loop()
        self.hello: asyncio.Future[Hello] = loop.create_future()
        self.lost: asyncio.Future[str] = loop.create_future()
        self.served: Hello | Models | None = None  # the last that said so
        self.generations: dict[int, Generation] = {}
        self.statuses: collections.deque[asyncio.Future[StatusReport]] = collections.deque()
        self.snapshots: collections.deque[asyncio.Future[Snapshot]] = collections.deque()
        # Answers name the adapter or the model alone, so one change of each is in flight at a time.
        self.adapters: dict[str, asyncio.Future[AdapterState]] = {}
        self.models: dict[str, asyncio.Future[ModelState]] = {}
        self.heartbeat: Heartbeat | None = None
        self.heard_at = loop.time()
        self.step = -1
        self.step_at = self.heard_at  # when the loop was last seen to move, or idle
        self._loop = loop
        self._silence_s = silence_s
        self._on_lost = on_lost
        self._on_models = on_models
        self._watch: asyncio.TimerHandle | None = None
        self._reader = FrameReader()
        self._recorded: list[int] = []
        self._news: dict[Generation, None] = {}  # those for whom this read brought something, in order
        self._transport: asyncio.Transport | None = None
        self._why = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a Transport by create_unix_connection's contract
        self._check_silence()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._watch is not None:
            self._watch.cancel()
        self._on_lost()
        message = self._why or (f"the stream broke: {exc}" if exc else "the engine closed the stream")
        if not self.lost.done():
            self.lost.set_result(message)
        lost, self.generations = self.generations, {}
        for generation in lost.values():
            generation.set_ending(EngineLost(message))
            generation.announce()
        _fail(self.hello, message)
        for status in self.statuses:
            _fail(status, message)
        for snapshot in self.snapshots:
            _fail(snapshot, message)
        for change in self.adapters.values():
            _fail(change, message)
        for changed in self.models.values():
            _fail(changed, message)
        self.statuses.clear()
        self.snapshots.clear()
        self.adapters.clear()
        self.models.clear()

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        try:
            for body in self._reader.feed(data):
                self._frame(decode_from_engine(body))
        except ProtocolError as error:
            self.cut(f"protocol error: {error}")
        news, self._news = self._news, {}
        for generation in news:
            generation.announce()

    def _frame(self, frame: FromEngine) -> None:
        match frame:
            case Tokens():
                self._moved(frame.step)
                generations, news = self.generations, self._news
                logprobs = frame.logprobs
                for index, (handle, token) in enumerate(zip(frame.handles, frame.ids, strict=True)):
                    generation = generations.get(handle)
                    if generation is None:
                        raise ProtocolError(f"ids for handle {handle}, which has ended")
                    generation.push_id(token, None if logprobs is None else logprobs[index])
                    news[generation] = None
                for handle, cached_tokens in (frame.cached or {}).items():
                    if handle in generations:
                        generations[handle].cached_tokens = cached_tokens
            case Finished() | Refused():
                ended = self.generations.pop(frame.handle, None)
                if ended is None:
                    raise ProtocolError(f"a second ending for handle {frame.handle}")
                ended.set_ending(frame)
                self._news[ended] = None
            case Heartbeat():
                self.heartbeat = frame
                if not frame.busy:
                    self.step_at = self.heard_at
                self._moved(frame.step)
            case AdapterState():
                _changed(self.adapters.pop(frame.digest, None), frame)
            case ModelState():
                _changed(self.models.pop(frame.name, None), frame)
            case Models():
                self.served = frame
                self._on_models(frame)
            case StatusReport():
                _answer(self.statuses, frame)
            case Snapshot():
                _answer(self.snapshots, frame)
            case Hello():
                if self.hello.done():
                    raise ProtocolError("a second Hello")
                self.served = frame
                self.hello.set_result(frame)

    def _moved(self, step: int) -> None:
        if step != self.step:
            self.step = step
            self.step_at = self.heard_at

    def send(self, frame: ToEngine) -> None:
        """Write it; on a link that is dead, nothing happens."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(frame))

    async def change(self, changes: dict[str, asyncio.Future[Answer]], name: str, frame: ToEngine) -> Answer:
        """Send it when no other change of that name is in flight, and wait for the answer. Raises
        EngineNotConnected."""
        while (before := changes.get(name)) is not None:
            await asyncio.wait([before])
        if not self.open:
            raise EngineNotConnected("the engine was lost")
        change: asyncio.Future[Answer] = self._loop.create_future()
        changes[name] = change
        self.send(frame)
        # Shielded: whoever gives up waiting leaves the place taken until the answer to it has come.
        return await asyncio.shield(change)

    def recorded(self, handle: int) -> None:
        """Told with all others of this turn of the event loop."""
        if not self._recorded:
            self._loop.call_soon(self._tell_recorded)
        self._recorded.append(handle)

    def _tell_recorded(self) -> None:
        self.send(Recorded(self._recorded))
        self._recorded = []

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _check_silence(self) -> None:
        if self._loop.time() - self.heard_at > self._silence_s:
            self.cut(f"nothing heard for {self._silence_s:g} s")
            return
        self._watch = self._loop.call_later(self._silence_s / 8, self._check_silence)

    def cut(self, why: str) -> None:
        self._why = self._why or why
        if self._transport is not None:
            self._transport.abort()


def _answer(waiting: collections.deque[asyncio.Future[Answer]], frame: Answer) -> None:
    """To whoever asked first; answers come in the order of the questions."""
    first = waiting.popleft() if waiting else None
    if first is not None and not first.done():
        first.set_result(frame)


def _changed(change: asyncio.Future[Answer] | None, frame: Answer) -> None:
    if change is not None and not change.done():
        change.set_result(frame)


def _fail(waiting: asyncio.Future[Answer], message: str) -> None:
    if not waiting.done():
        waiting.set_exception(EngineNotConnected(message))
        waiting.exception()  # retrieved: nobody may be waiting any more
