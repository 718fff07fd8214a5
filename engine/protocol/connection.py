"""One connection to an engine, and the requests in flight on it.

It carries ids and endings, and is lost once; `client.py` connects again. It knows no tenant, and loads no torch.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from engine.protocol.codec import FrameReader, ProtocolError, decode_from_engine, encode
from engine.protocol.frames import (
    FLEET_VERSION,
    PROTOCOL_OLDEST,
    PROTOCOL_VERSION,
    Abort,
    AdapterState,
    Alive,
    Finished,
    FromEngine,
    GatewayHello,
    Heartbeat,
    Hello,
    Logprobs,
    Models,
    ModelState,
    PagesChanged,
    PromptLogprobs,
    PromptPart,
    Recorded,
    Refused,
    Snapshot,
    StatusReport,
    ToEngine,
    Tokens,
    Vector,
)

# A gateway's sign of life, in seconds, or a quarter of the engine's lease if that is shorter.
ALIVE_S = 1.0


class NoCommonVersion(ProtocolError):
    """The ranges of protocol versions of gateway and engine do not overlap. `hello`: of the engine."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(
            f"the engine speaks the protocol's versions {oldest_version(hello)} to {hello.version}, this gateway "
            f"{PROTOCOL_OLDEST} to {PROTOCOL_VERSION}; upgrade the older of the two"
        )
        self.hello = hello


class EngineNotConnected(Exception):
    """No engine accepts requests now: it is not connected, not ready yet, or does not read its stream."""


@dataclass(slots=True, frozen=True)
class EngineLost:
    """The ending of a request whose engine process or stream was lost."""

    message: str


GenerationEnding = Finished | Refused | EngineLost
Answer = TypeVar("Answer")


class Generation:
    """One request in flight: ids as they arrive, then exactly one ending. It has one reader, a callback given to
    `listen`: a task that awaits each token would cost a task switch for each. The ids that are not taken yet are
    bounded by the request's max_tokens."""

    __slots__ = (
        "_aborted", "_ids", "_link", "_logprobs", "_logprobs_taken", "_on_news", "_prompt", "_taken", "cached_tokens",
        "ending", "handle", "vector",
    )  # fmt: skip

    def __init__(self, link: Link | None = None, handle: int = 0) -> None:
        """`link` None: not submitted yet; `EngineClient.submit` attaches it."""
        self.handle = handle
        self.cached_tokens = 0  # of the prompt, known with the first id
        self.ending: GenerationEnding | None = None
        self.vector: bytes | None = None  # of the prompt, if it is pooled; known with the ending
        self._link = link
        self._ids: list[int] = []
        self._taken = 0  # ids taken before _ids
        self._logprobs: list[Logprobs] = []  # one for each of _ids, or empty
        self._logprobs_taken: list[Logprobs] = []  # of the ids that were taken last
        self._prompt: list[PromptLogprobs] = []
        self._on_news: Callable[[], None] | None = None
        self._aborted = False

    # ---- its reader

    def listen(self, on_news: Callable[[], None]) -> None:
        """Call `on_news` once for each read of the stream that has news: ids to `take_ids`, parts to `take_prompt`, the
        `ending`, or several of them. It runs inside the connection's own callback, so it must not raise. Call `listen`
        before anything has arrived."""
        assert self._on_news is None, "a generation has one reader"
        assert not self._ids, "listen before anything arrives"
        self._on_news = on_news

    def take_ids(self) -> list[int]:
        """The ids since the last call."""
        ids, self._ids = self._ids, []
        self._taken += len(ids)
        if self._logprobs or self._logprobs_taken:
            self._logprobs_taken, self._logprobs = self._logprobs, []
        return ids

    def take_logprobs(self) -> list[Logprobs]:
        """If requested, one entry for each id that `take_ids` returned last. A second call returns none."""
        taken, self._logprobs_taken = self._logprobs_taken, []
        return taken

    def take_prompt(self) -> list[PromptLogprobs]:
        """If requested, the log probabilities of prompt tokens since the last call."""
        parts, self._prompt = self._prompt, []
        return parts

    @property
    def epoch(self) -> str:
        """The epoch of the engine process that has the request, or had it last; "" before it is submitted."""
        return "" if self._link is None else self._link.epoch

    @property
    def made_tokens(self) -> int:
        """The number of made tokens that the engine reported with the ending; without such a report, the number of ids
        that arrived here before the request was aborted."""
        if isinstance(self.ending, Finished):
            return self.ending.usage.completion_tokens
        return self._taken + len(self._ids)

    def abort(self) -> None:
        """Ask the engine to stop it. Idempotent. The ending still arrives."""
        if self._aborted or self.ending is not None:
            return
        self._aborted = True
        if self._link is not None:
            self._link.send(Abort(self.handle))

    def recorded(self) -> None:
        """Confirm that the ledger has this request's tokens: the engine need not count them as lost if this gateway
        disconnects."""
        if self._link is not None:
            self._link.recorded(self.handle)

    # ---- for the connection: `push_id` and `set_ending`, then `announce`

    def attach(self, link: Link, handle: int) -> None:
        """Direct the frames for `handle` of `link` to this request: at its first Submit, and at each further Submit of
        a request that continues on another engine."""
        self._link, self.handle = link, handle

    def push_id(self, token: int, logprobs: Logprobs | None = None) -> None:
        """One id arrived."""
        if self._aborted:
            return
        self._ids.append(token)
        if logprobs is not None:
            self._logprobs.append(logprobs)

    def push_prompt(self, part: PromptLogprobs) -> None:
        """Log probabilities of prompt tokens arrived."""
        if not self._aborted:
            self._prompt.append(part)

    def push_vector(self, values: bytes) -> None:
        """The pooled vector of the prompt arrived; its ending follows."""
        self.vector = values

    def set_ending(self, ending: GenerationEnding) -> None:
        """Note the ending; no more output arrives."""
        assert self.ending is None, "a generation ends once"
        self.ending = ending

    def announce(self) -> None:
        """Call the reader, if there is news."""
        if not self._ids and not self._prompt and self.ending is None:
            return
        on_news = self._on_news
        if on_news is not None:
            if self.ending is not None:
                self._on_news = None  # it refers to this object: a cycle that only the garbage collector would free
            on_news()


class Link(asyncio.Protocol):
    """One connection. It is lost once: `lost` is then the reason, and every request in flight has ended."""

    def __init__(
        self,
        silence_s: float,
        on_lost: Callable[[], None],
        on_models: Callable[[Models], None],
        on_pages: Callable[[PagesChanged], None] | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.hello: asyncio.Future[Hello] = loop.create_future()
        self.lost: asyncio.Future[str] = loop.create_future()
        self.served: Hello | Models | None = None  # the newest list of models
        self.generations: dict[int, Generation] = {}
        self.statuses: collections.deque[asyncio.Future[StatusReport]] = collections.deque()
        self.snapshots: collections.deque[asyncio.Future[Snapshot]] = collections.deque()
        # Answers name the adapter or the model alone, so one change of each is in flight at a time.
        self.adapters: dict[str, asyncio.Future[AdapterState]] = {}
        self.models: dict[str, asyncio.Future[ModelState]] = {}
        self.heartbeat: Heartbeat | None = None
        self.epoch = ""  # of the engine process, once its Hello arrived
        self.version = PROTOCOL_OLDEST  # of the connection, once `greet` agreed on one
        self.heard_at = loop.time()
        self.fell_silent = False  # the link was lost by silence of the engine, and not closed by an end
        self.step = -1
        self.step_at = self.heard_at  # when the engine loop was last seen idle or at another step
        self._loop = loop
        self._silence_s = silence_s
        self._on_lost = on_lost
        self._on_models = on_models
        self._on_pages = on_pages
        self._greeting: GatewayHello | None = None
        self._pages_number: int | None = 0  # of the last PagesChanged; None after a gap, until a full one arrives
        self._alive: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._reader = FrameReader()
        self._recorded: list[int] = []
        self._news: dict[Generation, None] = {}  # with news in this read, in order
        self._transport: asyncio.Transport | None = None
        self._why = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a Transport by create_unix_connection's contract
        self._check_silence()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for timer in (self._watch, self._alive):
            if timer is not None:
                timer.cancel()
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
        if not self.open:
            return
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
            case PromptPart():
                if (reported := self.generations.get(frame.handle)) is None:
                    raise ProtocolError(f"a part of a prompt for handle {frame.handle}, which has ended")
                reported.push_prompt(frame.part)
                self._news[reported] = None
            case Vector():
                if (pooled := self.generations.get(frame.handle)) is None:
                    raise ProtocolError(f"a vector for handle {frame.handle}, which has ended")
                pooled.push_vector(frame.values)
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
            case PagesChanged():
                self._pages_changed(frame)
            case Hello():
                if self.hello.done():
                    raise ProtocolError("a second Hello")
                self.served, self.epoch = frame, frame.epoch
                self.hello.set_result(frame)

    def greet(self, hello: Hello, gateway: str) -> None:
        """Agree on a version with an engine that said `hello`; from version 5 on, identify the gateway and send
        keep-alives. Raises NoCommonVersion."""
        version = min(hello.version, PROTOCOL_VERSION)
        common = version >= max(oldest_version(hello), PROTOCOL_OLDEST)
        if hello.version >= FLEET_VERSION:
            # Without a common version too: the engine logs then why this gateway leaves.
            self._greeting = GatewayHello(PROTOCOL_VERSION, gateway, self._on_pages is not None, PROTOCOL_OLDEST)
            self.send(self._greeting)
        if not common:
            raise NoCommonVersion(hello)
        self.version = version
        if version >= FLEET_VERSION:
            self._send_alive(min(ALIVE_S, hello.lease_s / 4) if hello.lease_s > 0 else ALIVE_S)

    def _send_alive(self, every_s: float) -> None:
        self.send(Alive())
        self._alive = self._loop.call_later(every_s, self._send_alive, every_s)

    def _pages_changed(self, frame: PagesChanged) -> None:
        """Pass it on in the order of its numbers. After a gap only a full list is of use, so one is requested."""
        if self._on_pages is None or self._greeting is None:
            return
        before = self._pages_number
        if frame.full or (before is not None and frame.number == before + 1):
            self._pages_number = frame.number
            self._on_pages(frame)
        elif before is not None:
            self._pages_number = None
            self.send(self._greeting)

    def _moved(self, step: int) -> None:
        if step != self.step:
            self.step = step
            self.step_at = self.heard_at

    def send(self, frame: ToEngine) -> None:
        """Write it; on a lost link, nothing happens."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(frame))

    async def change(self, changes: dict[str, asyncio.Future[Answer]], name: str, frame: ToEngine) -> Answer:
        """Send the frame once no other change of that name is in flight, and wait for its answer. Raises
        EngineNotConnected."""
        while (before := changes.get(name)) is not None:
            await asyncio.wait([before])
        if not self.open:
            raise EngineNotConnected("the engine was lost")
        change: asyncio.Future[Answer] = self._loop.create_future()
        changes[name] = change
        self.send(frame)
        # Shielded: if the caller is cancelled, the next change of the name still waits for this answer.
        return await asyncio.shield(change)

    def recorded(self, handle: int) -> None:
        """Sent in one frame with all others of this turn of the event loop."""
        if not self._recorded:
            self._loop.call_soon(self._send_recorded)
        self._recorded.append(handle)

    def _send_recorded(self) -> None:
        self.send(Recorded(self._recorded))
        self._recorded = []

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _check_silence(self) -> None:
        if self._loop.time() - self.heard_at > self._silence_s:
            self.fell_silent = True
            self.cut(f"nothing heard for {self._silence_s:g} s")
            return
        self._watch = self._loop.call_later(self._silence_s / 8, self._check_silence)

    def leave(self) -> None:
        """Close after all written bytes are sent. The close is not reported to `on_lost`."""
        self._on_lost = lambda: None
        if self._transport is not None:
            self._transport.close()

    def cut(self, why: str) -> None:
        """Close without flushing. Frames that arrive later are ignored."""
        self._why = self._why or why
        if self._transport is not None:
            self._transport.abort()


def oldest_version(hello: Hello) -> int:
    """The oldest version that the engine speaks. Engines before version 5 speak one version, and their Hello does not
    have the field."""
    return hello.oldest if hello.version >= FLEET_VERSION else hello.version


def _answer(waiting: collections.deque[asyncio.Future[Answer]], frame: Answer) -> None:
    """Resolve the oldest future: the engine answers in the order of the questions."""
    first = waiting.popleft() if waiting else None
    if first is not None and not first.done():
        first.set_result(frame)


def _changed(change: asyncio.Future[Answer] | None, frame: Answer) -> None:
    if change is not None and not change.done():
        change.set_result(frame)


def _fail(waiting: asyncio.Future[Answer], message: str) -> None:
    if not waiting.done():
        waiting.set_exception(EngineNotConnected(message))
        waiting.exception()  # mark it as retrieved: there may be no waiting task left
