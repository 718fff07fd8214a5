"""The gateway's side of the protocol: an asyncio client of one engine, which it finds again when it was lost.

It carries ids and endings. It must never know who asks, what it costs, or how an engine works inside; no torch.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from engine.protocol import (
    PROTOCOL_VERSION,
    Abort,
    AdapterState,
    Finished,
    FrameReader,
    FromEngine,
    Heartbeat,
    Hello,
    LoadAdapter,
    LoadModel,
    Logprobs,
    ModelInfo,
    Models,
    ModelState,
    ProtocolError,
    Recorded,
    Refused,
    Sampling,
    Snapshot,
    Status,
    StatusReport,
    Submit,
    ToEngine,
    Tokens,
    UnloadAdapter,
    UnloadModel,
    Watch,
    decode_from_engine,
    encode,
)

BACKOFF_MIN_S = 0.05
BACKOFF_MAX_S = 1.0
HELLO_TIMEOUT_S = 5.0
SILENCE_S = 5.0
STUCK_S = 10.0
# What may lie unsent for an engine that does not read; above it a Submit is refused here.
OUTBOX_BYTES_MAX = 32 * 1024 * 1024

_log = logging.getLogger(__name__)


class EngineUnavailable(Exception):
    """No engine takes requests now: not connected, not ready yet, or it does not read."""


class AdapterFailed(Exception):
    """The engine could not load or unload the adapter; the message is its reason."""


class ModelFailed(Exception):
    """The engine could not load or unload the model; the message is its reason."""


@dataclass(slots=True, frozen=True)
class EngineLost:
    """A request's ending when the engine's process or stream is gone: nothing more will come."""

    message: str


Ending = Finished | Refused | EngineLost
OnConnect = Callable[[Hello], Awaitable[None]]
OnModels = Callable[[dict[str, ModelInfo]], None]
Answer = TypeVar("Answer")


class Generation:
    """One request in flight: ids as they come, then exactly one ending. It has one reader: a task that iterates it
    (lists of ids, those of several steps in one list where they came together, then the ending), or a callback given to
    `listen`, for whom a task switch a token is too much. What waits here is bounded by the request's max_tokens."""

    __slots__ = (
        "_aborted", "_ids", "_link", "_logprobs", "_logprobs_taken", "_on_news", "_over", "_waiter", "cached_tokens",
        "ending", "handle", "received",
    )  # fmt: skip

    def __init__(self, link: _Link, handle: int) -> None:
        self.handle = handle
        self.received = 0  # ids received until Abort was sent; those that come later are dropped
        self.cached_tokens = 0  # of the prompt, known with the first id
        self.ending: Ending | None = None
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

    def take(self) -> list[int]:
        """The ids that came since the last call."""
        ids, self._ids = self._ids, []
        self._logprobs_taken, self._logprobs = self._logprobs, []
        return ids

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> list[int] | Ending:
        while True:
            if self._ids:
                return self.take()
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

    def push(self, token: int, logprobs: Logprobs | None = None) -> None:
        """One id arrived."""
        if self._aborted:
            return
        self.received += 1
        self._ids.append(token)
        if logprobs is not None:
            self._logprobs.append(logprobs)

    def end(self, ending: Ending) -> None:
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


class _Link(asyncio.Protocol):
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
            generation.end(EngineLost(message))
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
                    generation.push(token, None if logprobs is None else logprobs[index])
                    news[generation] = None
                for handle, cached_tokens in (frame.cached or {}).items():
                    if handle in generations:
                        generations[handle].cached_tokens = cached_tokens
            case Finished() | Refused():
                ended = self.generations.pop(frame.handle, None)
                if ended is None:
                    raise ProtocolError(f"a second ending for handle {frame.handle}")
                ended.end(frame)
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
        EngineUnavailable."""
        while (before := changes.get(name)) is not None:
            await asyncio.wait([before])
        if not self.open:
            raise EngineUnavailable("the engine was lost")
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
        waiting.set_exception(EngineUnavailable(message))
        waiting.exception()  # retrieved: nobody may be waiting any more


class EngineClient:
    """`start()` it, wait for `ready`, `submit`. When the engine is lost, all that ran ends with EngineLost and the
    client connects again by itself; `on_connect(hello)` runs each time before it is ready, to load adapters, and
    `on_models(models)`, which must not raise, whenever what is served has changed: before `on_connect`, and later."""

    def __init__(
        self,
        socket_path: str | Path,
        *,
        on_connect: OnConnect | None = None,
        on_models: OnModels | None = None,
        silence_s: float = SILENCE_S,
        stuck_s: float = STUCK_S,
    ) -> None:
        self.on_connect = on_connect
        self.on_models = on_models
        self.hello: Hello | None = None  # the last one seen; kept while the engine is away, as what it serves is
        self.models: dict[str, ModelInfo] = {}  # what it serves now, by name
        self.refused: dict[str, str] = {}  # of its configuration, what it cannot serve, and why
        self.connections = 0  # how often it became ready
        self._path = os.fspath(socket_path)
        self._silence_s = silence_s
        self._stuck_s = stuck_s
        self._link: _Link | None = None
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._next_handle = 1

    async def start(self) -> None:
        """Begin to connect, in the background. Returns at once."""
        assert self._task is None, "started twice"
        self._task = asyncio.create_task(self._run(), name="engine-client")

    async def close(self) -> None:
        """Drop the stream; what runs ends with EngineLost."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None

    @property
    def ready(self) -> bool:
        return self._ready.is_set()

    async def wait_ready(self, timeout_s: float) -> Hello:
        """Raises EngineUnavailable when it is not ready in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        except TimeoutError:
            raise EngineUnavailable(f"no engine at {self._path} within {timeout_s:g} s") from None
        assert self.hello is not None
        return self.hello

    @property
    def last_heartbeat(self) -> Heartbeat | None:
        """None when the engine is away, or in its first second."""
        return None if self._link is None else self._link.heartbeat

    @property
    def stuck(self) -> bool:
        """The engine answers, but its loop is busy and has not moved for over `stuck_s`."""
        link = self._link
        if link is None or link.heartbeat is None or not link.heartbeat.busy:
            return False
        return link.heard_at - link.step_at > self._stuck_s

    @property
    def in_flight(self) -> int:
        return 0 if self._link is None else len(self._link.generations)

    def submit(
        self,
        *,
        request_id: str,
        model: str,
        adapter: str | None,
        namespace: str,
        tier: str,
        share: str,
        prompt_ids: list[int],
        max_tokens: int,
        sampling: Sampling,
        stop_ids: list[int],
        weight: float = 1.0,
    ) -> Generation:
        """Hand one request to the engine. Raises EngineUnavailable, and ProtocolError when the prompt is longer than a
        frame may be; then the engine has not heard of it."""
        link = self._link
        if link is None or not link.open or not self.ready or self.hello is None:
            raise EngineUnavailable("no engine is ready")
        if link.unsent() > OUTBOX_BYTES_MAX:
            raise EngineUnavailable("the engine does not read its requests")
        handle = self._next_handle
        self._next_handle += 1
        frame = Submit(
            handle, request_id, self.hello.epoch, model, adapter, namespace, tier, share,
            prompt_ids, max_tokens, sampling, stop_ids, weight,
        )  # fmt: skip
        link.send(frame)
        generation = link.generations[handle] = Generation(link, handle)
        return generation

    async def load_adapter(self, digest: str, model: str, path: str | Path, *, pinned: bool = False) -> None:
        """Make it known to the engine, which never evicts a `pinned` one; at once when it is. Raises AdapterFailed with
        the reason, EngineUnavailable."""
        await self._change_adapter(LoadAdapter(digest, model, os.fspath(path), pinned))

    async def unload_adapter(self, digest: str) -> None:
        """Returns once no request uses it and the engine forgot it. Raises AdapterFailed, EngineUnavailable."""
        await self._change_adapter(UnloadAdapter(digest))

    async def load_model(
        self,
        name: str,
        path: str | Path,
        *,
        dtype: str = "float32",
        context_tokens: int | None = None,
        pinned: bool = False,
    ) -> str:
        """Have the engine serve one more base model; at once when it does. Returns why it is not pinned, if it was to
        be. Raises ModelFailed with the reason, EngineUnavailable."""
        return await self._change_model(LoadModel(name, os.fspath(path), dtype, context_tokens, pinned))

    async def unload_model(self, name: str) -> None:
        """Returns once no request uses it and the engine forgot it. Raises ModelFailed, EngineUnavailable."""
        await self._change_model(UnloadModel(name))

    async def _change_model(self, frame: LoadModel | UnloadModel) -> str:
        link = self._connected()
        state = await link.change(link.models, frame.name, frame)
        if state.state != ("loaded" if isinstance(frame, LoadModel) else "unloaded"):
            raise ModelFailed(state.message or f"the engine answered {state.state}")
        return state.message

    async def status(self) -> StatusReport:
        """Raises EngineUnavailable."""
        link = self._connected()
        waiting: asyncio.Future[StatusReport] = asyncio.get_running_loop().create_future()
        link.statuses.append(waiting)
        link.send(Status())
        return await waiting

    async def watch(self, preempted: int | None = None) -> Snapshot:
        """What happens in the engine now, with the preemptions after that number. It costs the engine about a
        millisecond: whoever asks asks seldom, and not again before the answer. Raises EngineUnavailable."""
        link = self._connected()
        waiting: asyncio.Future[Snapshot] = asyncio.get_running_loop().create_future()
        link.snapshots.append(waiting)
        link.send(Watch(preempted))
        return await waiting

    async def _change_adapter(self, frame: LoadAdapter | UnloadAdapter) -> None:
        link = self._connected()
        state = await link.change(link.adapters, frame.digest, frame)
        if state.state != ("loaded" if isinstance(frame, LoadAdapter) else "unloaded"):
            raise AdapterFailed(state.message or f"the engine answered {state.state}")

    def _connected(self) -> _Link:
        if self._link is None or not self._link.open:
            raise EngineUnavailable("no engine is connected")
        return self._link

    async def _run(self) -> None:
        backoff = BACKOFF_MIN_S
        while True:
            try:
                link = await self._connect()
            except (OSError, TimeoutError, ProtocolError, EngineUnavailable) as error:
                _log.debug("engine.connect_failed", extra={"fields": {"reason": str(error)}})
            else:
                if await self._serve(link):
                    backoff = BACKOFF_MIN_S
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, BACKOFF_MAX_S)

    async def _connect(self) -> _Link:
        """A link whose Hello is read. Raises OSError, TimeoutError, ProtocolError, EngineUnavailable."""
        loop = asyncio.get_running_loop()
        link = _Link(self._silence_s, self._ready.clear, self._take_models)
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                await loop.create_unix_connection(lambda: link, self._path)
                hello = await link.hello
            if hello.version != PROTOCOL_VERSION:
                raise ProtocolError(f"the engine speaks version {hello.version}, this gateway {PROTOCOL_VERSION}")
        except BaseException as error:
            link.cut(f"no usable Hello: {error}")
            raise
        self.hello = hello
        assert link.served is not None
        self._take_models(link.served)
        return link

    def _take_models(self, frame: Hello | Models) -> None:
        self.models = {model.name: model for model in frame.models}
        self.refused = frame.refused
        if self.on_models is not None:
            self.on_models(self.models)

    async def _serve(self, link: _Link) -> bool:
        """Until the link is lost. True when it had become ready."""
        assert self.hello is not None
        self._link = link
        was_ready = False
        try:
            if self.on_connect is not None:
                await self.on_connect(self.hello)
            if link.open:
                was_ready = True
                self.connections += 1
                self._ready.set()
                _log.info("engine.connected", extra={"fields": {"epoch": self.hello.epoch}})
            reason = await link.lost
            _log.warning("engine.lost", extra={"fields": {"epoch": self.hello.epoch, "reason": reason}})
        except Exception:  # noqa: BLE001 - the hook is the caller's: whatever it raises, we log it and connect again
            _log.exception("engine.on_connect_failed")
        finally:
            self._ready.clear()
            self._link = None
            link.cut("the client closed the stream")
        return was_ready
