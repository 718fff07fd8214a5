"""The gateway's side of the protocol: an asyncio client of one engine, which connects again after a loss.

It carries ids and endings. It must never know tenants, prices or the inside of an engine; no torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import ssl
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from engine.protocol.addresses import TlsAddress, parse_address
from engine.protocol.codec import ProtocolError
from engine.protocol.connection import (
    EngineLost,
    EngineNotConnected,
    Generation,
    GenerationEnding,
    Link,
    NoCommonVersion,
)
from engine.protocol.frames import (
    FLEET_VERSION,
    POOLING_VERSION,
    AttemptTokens,
    DrainEngine,
    Guide,
    Heartbeat,
    Hello,
    LoadAdapter,
    LoadModel,
    ModelFailure,
    ModelInfo,
    Models,
    PagesChanged,
    Pooling,
    Reclaim,
    Sampling,
    Snapshot,
    Status,
    StatusReport,
    Submit,
    UnloadAdapter,
    UnloadModel,
    Watch,
)
from engine.protocol.tls import peer_expires_at, set_tcp_options

__all__ = [
    "AdapterNotChanged",
    "EngineClient",
    "EngineLost",
    "EngineNotConnected",
    "EngineTooOld",
    "Generation",
    "GenerationEnding",
    "ModelNotChanged",
]

BACKOFF_MIN_S = 0.05
BACKOFF_MAX_S = 1.0
BACKOFF_VERSION_S = 5.0  # after an engine without a common version: it is upgraded, or this gateway is
HELLO_TIMEOUT_S = 5.0
SILENCE_S = 5.0
STUCK_S = 10.0
# Bytes that may wait for an engine that does not read its stream; above this a Submit is refused here.
OUTBOX_BYTES_MAX = 32 * 1024 * 1024
# In one Reclaim frame.
ATTEMPTS_MAX = 10_000

_log = logging.getLogger(__name__)


class EngineTooOld(Exception):
    """The engine's protocol version lacks the requested function."""


class AdapterNotChanged(Exception):
    """The engine could not load or unload the adapter; the message is its reason."""


class ModelNotChanged(Exception):
    """The engine could not load or unload the model; the message is its reason, `code` its remedy."""

    def __init__(self, message: str, code: ModelFailure = "refused") -> None:
        super().__init__(message)
        self.code = code


OnConnect = Callable[[Hello], Awaitable[None]]
OnModels = Callable[[dict[str, ModelInfo]], None]
OnPages = Callable[[PagesChanged], None]


class EngineClient:
    """Call `start`, wait for `ready`, then `submit`. When the engine is lost, running requests end with EngineLost, and
    the client connects again by itself. `on_connect(hello)` runs on each connection before it is ready, to load
    adapters. `on_models(models)` runs before `on_connect` and after each change of the served models; it must not
    raise."""

    def __init__(
        self,
        address: str | Path,
        *,
        tls: ssl.SSLContext | Callable[[], ssl.SSLContext] | None = None,
        server_name: str | None = None,
        gateway: str = "",
        on_connect: OnConnect | None = None,
        on_models: OnModels | None = None,
        on_pages: OnPages | None = None,
        silence_s: float = SILENCE_S,
        stuck_s: float = STUCK_S,
        generation: type[Generation] = Generation,
    ) -> None:
        """`address`: a path, "unix:PATH", or "tls://HOST:PORT" with `tls`: a context (protocol.tls.client_context), or
        a function that returns the context of each new connection (`CurrentContext.current`). The engine's certificate
        must name `server_name`, or without it HOST. `gateway`: this process, unique among all gateways; "": a random
        name. `on_pages`, which must not raise, receives the names of the engine's cached pages: the first frame of each
        connection is a full list. `silence_s`: an engine that was silent this long is lost. `generation`: the class of
        what `submit` returns. Raises ValueError for a malformed address and for a TLS address without `tls`."""
        self.on_connect = on_connect
        self.on_models = on_models
        self.on_ready: Callable[[], None] | None = None  # called when the engine has become ready; must not raise
        self.hello: Hello | None = None  # the last Hello received, also while the engine is unavailable
        self.models: dict[str, ModelInfo] = {}  # served models by name, also while the engine is unavailable
        self.refused: dict[str, str] = {}  # configured models that the engine cannot serve, and why
        self._address = parse_address(address)
        self._tls = tls
        self._server_name = server_name
        self._gateway = gateway or secrets.token_hex(16)
        self._on_pages = on_pages
        self.peer_expires_at: float | None = None  # Unix seconds: of the engine's certificate; None: without TLS
        self._failure = ""  # the failure that was logged last; "" after a connection succeeded
        self._generation = generation
        self._silence_s = silence_s
        self._stuck_s = stuck_s
        self._link: Link | None = None
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._next_handle = 1
        if isinstance(self._address, TlsAddress) and tls is None:
            raise ValueError(f"{self._address} needs certificates")

    async def start(self) -> None:
        """Begin to connect, in the background. Returns at once."""
        assert self._task is None, "started twice"
        self._task = asyncio.create_task(self._run(), name="engine-client")

    async def close(self) -> None:
        """Drop the stream; running requests end with EngineLost."""
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
        """Raises EngineNotConnected when it is not ready in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        except TimeoutError:
            raise EngineNotConnected(f"no engine at {self._address} within {timeout_s:g} s") from None
        assert self.hello is not None
        return self.hello

    @property
    def version(self) -> int | None:
        """The connection's protocol version; None without a connection."""
        return None if self._link is None else self._link.version

    @property
    def connect_failure(self) -> str:
        """Why the last attempt to connect failed; "": it succeeded, or no attempt was made."""
        return self._failure

    @property
    def last_heartbeat(self) -> Heartbeat | None:
        """None when the engine is unavailable, or in its first second."""
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
        guide: Guide | None = None,
        resumed: int = 0,
        attempt: int = 0,
        pooling: Pooling | None = None,
        generation: Generation | None = None,
    ) -> Generation:
        """Hand one request to the engine. `resumed`, `attempt` and `pooling`: as in Submit. `generation`: the request's
        own, which this engine begins or continues; None: a new one. Raises EngineNotConnected, ProtocolError when the
        prompt is longer than a frame may be, and EngineTooOld for an engine that does not know `resumed` (it would read
        ids of the answer as a part of the prompt) or `pooling` (it would make no vector). Then the engine has not
        received the request."""
        link = self._link
        if link is None or not link.open or not self.ready or self.hello is None:
            raise EngineNotConnected("no engine is ready")
        if resumed and link.version < FLEET_VERSION:
            raise EngineTooOld(f"the engine speaks protocol version {link.version}, which cannot resume a text")
        if pooling is not None and link.version < POOLING_VERSION:
            raise EngineTooOld(f"the engine speaks protocol version {link.version}, which has no vectors")
        if link.unsent() > OUTBOX_BYTES_MAX:
            raise EngineNotConnected("the engine does not read its requests")
        handle = self._next_handle
        self._next_handle += 1
        frame = Submit(
            handle, request_id, self.hello.epoch, model, adapter, namespace, tier, share,
            prompt_ids, max_tokens, sampling, stop_ids, weight, guide, resumed, attempt, pooling,
        )  # fmt: skip
        link.send(frame)
        if generation is None:
            generation = self._generation(link, handle)
        else:
            generation.attach(link, handle)
        link.generations[handle] = generation
        return generation

    async def load_adapter(
        self, digest: str, model: str, path: str | Path, *, pinned: bool = False, sources: Sequence[str] = ()
    ) -> None:
        """Register an adapter with the engine; returns at once if it is registered. A `pinned` one is never evicted. An
        engine that cannot read `path` fetches it from `sources`, URLs. Raises AdapterNotChanged with the reason,
        EngineNotConnected."""
        await self._change_adapter(LoadAdapter(digest, model, os.fspath(path), pinned, list(sources)))

    async def unload_adapter(self, digest: str) -> None:
        """Returns once no request uses the adapter and the engine forgot it. Raises AdapterNotChanged,
        EngineNotConnected."""
        await self._change_adapter(UnloadAdapter(digest))

    async def load_model(
        self,
        name: str,
        path: str | Path,
        *,
        dtype: str = "float32",
        quantize: str = "none",
        kv_dtype: str = "auto",
        context_tokens: int | None = None,
        pinned: bool = False,
        digest: str = "",
        sources: Sequence[str] = (),
    ) -> str:
        """Have the engine serve one more base model; returns at once if it is served. `digest`: of its content;
        `sources`: as in `load_adapter`. Returns why a model that was to be pinned is not, or "". Raises
        ModelNotChanged with the reason, EngineNotConnected."""
        frame = LoadModel(
            name, os.fspath(path), dtype, context_tokens, pinned, quantize, kv_dtype, digest, list(sources)
        )
        return await self._change_model(frame)

    async def unload_model(self, name: str) -> None:
        """Returns once no request uses the model and the engine forgot it. Raises ModelNotChanged,
        EngineNotConnected."""
        await self._change_model(UnloadModel(name))

    async def _change_model(self, frame: LoadModel | UnloadModel) -> str:
        link = self._connected()
        state = await link.change(link.models, frame.name, frame)
        if state.state != ("loaded" if isinstance(frame, LoadModel) else "unloaded"):
            raise ModelNotChanged(state.message or f"the engine answered {state.state}", state.code)
        return state.message

    async def status(self) -> StatusReport:
        """Raises EngineNotConnected."""
        link = self._connected()
        waiting: asyncio.Future[StatusReport] = asyncio.get_running_loop().create_future()
        link.statuses.append(waiting)
        link.send(Status())
        return await waiting

    async def watch(self, preempted: int | None = None) -> Snapshot:
        """A snapshot of the engine's current state, with the preemptions after that number. It costs the engine about a
        millisecond, so callers should request it rarely, and not again before the answer. Raises EngineNotConnected."""
        link = self._connected()
        waiting: asyncio.Future[Snapshot] = asyncio.get_running_loop().create_future()
        link.snapshots.append(waiting)
        link.send(Watch(preempted))
        return await waiting

    def drain(self, draining: bool) -> None:
        """Have the engine refuse new requests and finish those that run, or serve again; its heartbeats confirm it.
        Raises EngineTooOld, EngineNotConnected."""
        link = self._connected()
        if link.version < FLEET_VERSION:
            raise EngineTooOld(f"the engine speaks protocol version {link.version}, which cannot drain")
        link.send(DrainEngine(draining))

    def reclaim(self, attempts: list[AttemptTokens]) -> None:
        """Report tokens that the ledger has and that arrived over an earlier connection to this engine process: they
        are not lost. Raises EngineTooOld, EngineNotConnected."""
        link = self._connected()
        if link.version < FLEET_VERSION:
            raise EngineTooOld(f"the engine speaks protocol version {link.version}, which cannot reclaim tokens")
        for first in range(0, len(attempts), ATTEMPTS_MAX):
            link.send(Reclaim(attempts[first : first + ATTEMPTS_MAX]))

    async def _change_adapter(self, frame: LoadAdapter | UnloadAdapter) -> None:
        link = self._connected()
        state = await link.change(link.adapters, frame.digest, frame)
        if state.state != ("loaded" if isinstance(frame, LoadAdapter) else "unloaded"):
            raise AdapterNotChanged(state.message or f"the engine answered {state.state}")

    def _connected(self) -> Link:
        if self._link is None or not self._link.open:
            raise EngineNotConnected("no engine is connected")
        return self._link

    async def _run(self) -> None:
        backoff = BACKOFF_MIN_S
        while True:
            try:
                link = await self._connect()
            except NoCommonVersion as error:
                self._note_failure(f"{error.hello.epoch}: {error}", logging.WARNING)
                await asyncio.sleep(BACKOFF_VERSION_S)
                continue
            except (OSError, TimeoutError, ProtocolError, EngineNotConnected) as error:
                # A Unix socket is absent during each start of a host; of another host the reason is worth a line.
                level = logging.WARNING if isinstance(self._address, TlsAddress) else logging.DEBUG
                self._note_failure(str(error) or f"no answer within {HELLO_TIMEOUT_S:g} s", level)
            else:
                self._failure = ""
                if await self._serve(link):
                    backoff = BACKOFF_MIN_S
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, BACKOFF_MAX_S)

    async def _connect(self) -> Link:
        """A link whose Hello is read. Raises OSError, TimeoutError, ProtocolError, EngineNotConnected."""
        link = Link(self._silence_s, self._ready.clear, self._take_models, self._on_pages)
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                await self._open(link)
                hello = await link.hello
            link.greet(hello, self._gateway)
        except NoCommonVersion:
            link.leave()
            raise
        except BaseException as error:
            link.cut(f"no usable Hello: {error}")
            raise
        self.hello = hello
        assert link.served is not None
        self._take_models(link.served)
        return link

    async def _open(self, link: Link) -> None:
        loop = asyncio.get_running_loop()
        address = self._address
        if isinstance(address, TlsAddress):
            assert self._tls is not None
            context = self._tls if isinstance(self._tls, ssl.SSLContext) else self._tls()
            transport, _ = await loop.create_connection(
                lambda: link,
                address.host,
                address.port,
                ssl=context,
                server_hostname=self._server_name or address.host,
                ssl_handshake_timeout=HELLO_TIMEOUT_S,
            )
            set_tcp_options(transport)
            self.peer_expires_at = peer_expires_at(transport)
        else:
            await loop.create_unix_connection(lambda: link, address.path)

    def _note_failure(self, reason: str, level: int) -> None:
        """Log a reason once, not at each attempt."""
        if reason != self._failure:
            self._failure = reason
            fields = {"address": str(self._address), "reason": reason}
            _log.log(level, "engine.connect_failed", extra={"fields": fields})

    def _take_models(self, frame: Hello | Models) -> None:
        self.models = {model.name: model for model in frame.models}
        self.refused = frame.refused
        if self.on_models is not None:
            self.on_models(self.models)

    async def _serve(self, link: Link) -> bool:
        """Serve until the link is lost. True when it had become ready."""
        assert self.hello is not None
        self._link = link
        was_ready = False
        try:
            if self.on_connect is not None:
                await self.on_connect(self.hello)
            if link.open:
                was_ready = True
                self._ready.set()
                if self.on_ready is not None:
                    self.on_ready()
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
