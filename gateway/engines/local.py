"""One engine, over frames on its Unix socket or over TCP: the one module that translates the client's types to the
types of `gateway.engines.engine`. Its streams are the client's own objects, so a token takes no further call on its
way.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, TypeVar, cast

from engine.protocol.client import (
    SILENCE_S,
    AdapterNotChanged,
    EngineClient,
    EngineLost,
    EngineNotConnected,
    EngineTooOld,
    Generation,
    GenerationEnding,
    ModelNotChanged,
)
from engine.protocol.codec import ProtocolError
from engine.protocol.connection import Link
from engine.protocol.frames import (
    AttemptTokens,
    Heartbeat,
    Hello,
    ModelInfo,
    PagesChanged,
    Refused,
    Snapshot,
    StatusReport,
)
from gateway.engines.engine import (
    AdapterFailed,
    EngineRequest,
    EngineUnavailable,
    ModelFailed,
    OnConnect,
    OnModels,
    OutputKind,
    RefusalReason,
    StreamEnd,
    StreamEnding,
)

REPORT_S = 2.0

# The client's types, for the streams of a fleet.
EngineLink = Link
LocalEnding = GenerationEnding

T = TypeVar("T")


class LocalStream(Generation):
    """Implements `TokenStream`: a `Generation` whose ending is translated to `StreamEnding`."""

    __slots__ = ("final",)

    output: ClassVar[OutputKind] = "ids"
    take_output = Generation.take_ids
    confirm_recorded = Generation.recorded

    def __init__(self, link: Link | None = None, handle: int = 0) -> None:
        super().__init__(link, handle)
        self.final: StreamEnding | None = None

    @property
    def attempts(self) -> Mapping[str, int]:
        return {self.epoch: self.made_tokens}

    def set_ending(self, ending: GenerationEnding) -> None:
        self.set_final(ending, stream_ending(ending))

    def set_final(self, ending: GenerationEnding, final: StreamEnding) -> None:
        """`final` is the translated ending."""
        super().set_ending(ending)
        self.final = final


class LocalEngine:
    """Implements `Engine`."""

    reports_prompts = True

    def __init__(
        self,
        address: str | Path,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        server_name: str | None = None,
        gateway: str = "",
        with_pages: bool = False,
        silence_s: float = SILENCE_S,
    ) -> None:
        """As EngineClient. `with_pages`: the engine reports the names of its cached pages to `on_pages`."""
        self.on_connect: OnConnect | None = None
        self.on_models: OnModels | None = None
        self.on_pages: Callable[[PagesChanged], None] | None = None
        self._client = EngineClient(
            address,
            tls=tls,
            server_name=server_name,
            gateway=gateway,
            on_connect=self._connected,
            on_models=self._models_changed,
            on_pages=self._pages_changed if with_pages else None,
            silence_s=silence_s,
            generation=LocalStream,
        )

    @property
    def on_ready(self) -> Callable[[], None] | None:
        """Called whenever the engine has become ready; must not raise."""
        return self._client.on_ready

    @on_ready.setter
    def on_ready(self, function: Callable[[], None] | None) -> None:
        self._client.on_ready = function

    @property
    def ready(self) -> bool:
        return self._client.ready

    @property
    def protocol_version(self) -> int | None:
        """The version of the connection; None without a connection."""
        return self._client.version

    @property
    def build(self) -> str:
        """The build of the engine's code, for people; "" before the first connection."""
        return "" if self._client.hello is None else self._client.hello.build

    @property
    def certificate_expires_at(self) -> float | None:
        """Unix seconds, of the newest connection over TLS; None: there was none."""
        return self._client.peer_expires_at

    @property
    def connect_failure(self) -> str:
        """Why the last attempt to connect failed; "": it succeeded, or no attempt was made."""
        return self._client.connect_failure

    @property
    def stuck(self) -> bool:
        return self._client.stuck

    @property
    def epoch(self) -> str:
        return "" if self._client.hello is None else self._client.hello.epoch

    @property
    def models(self) -> Mapping[str, ModelInfo]:
        return self._client.models

    @property
    def refused(self) -> Mapping[str, str]:
        return self._client.refused

    @property
    def last_heartbeat(self) -> Heartbeat | None:
        return self._client.last_heartbeat

    async def start(self) -> None:
        await self._client.start()

    async def close(self) -> None:
        await self._client.close()

    async def wait_ready(self, timeout_s: float) -> None:
        await _translated(self._client.wait_ready(timeout_s))

    def submit(self, request: EngineRequest, stream: LocalStream | None = None) -> LocalStream:
        """`stream`: the request's own, which begins or continues here; None: a new one. Raises EngineUnavailable."""
        try:
            submitted = self._client.submit(
                request_id=request.request_id,
                model=request.model,
                adapter=request.adapter,
                namespace=request.namespace,
                tier=request.tier,
                share=request.share,
                prompt_ids=request.prompt_ids,
                max_tokens=request.max_tokens,
                sampling=request.sampling,
                stop_ids=request.stop_ids,
                weight=request.weight,
                guide=request.guide,
                resumed=request.resumed,
                attempt=request.attempt,
                pooling=request.pooling,
                generation=stream,
            )
        except (EngineNotConnected, EngineTooOld, ProtocolError) as error:  # `_translation` costs a microsecond
            raise EngineUnavailable(str(error)) from error
        return cast(LocalStream, submitted)

    async def load_adapter(
        self, digest: str, model: str, path: str | Path, *, pinned: bool = False, sources: Sequence[str] = ()
    ) -> None:
        await _translated(self._client.load_adapter(digest, model, path, pinned=pinned, sources=sources))

    async def unload_adapter(self, digest: str) -> None:
        await _translated(self._client.unload_adapter(digest))

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
        loading = self._client.load_model(
            name,
            path,
            dtype=dtype,
            quantize=quantize,
            kv_dtype=kv_dtype,
            context_tokens=context_tokens,
            pinned=pinned,
            digest=digest,
            sources=sources,
        )
        return await _translated(loading)

    async def unload_model(self, name: str) -> None:
        await _translated(self._client.unload_model(name))

    async def status(self) -> StatusReport:
        return await _translated(self._client.status())

    async def reports(self) -> list[StatusReport]:
        try:
            async with asyncio.timeout(REPORT_S):
                return [await self.status()]
        except (EngineUnavailable, TimeoutError):
            return []

    async def watch(self, preempted: int | None = None) -> Snapshot:
        return await _translated(self._client.watch(preempted))

    async def _connected(self, hello: Hello) -> None:
        if self.on_connect is not None:
            await self.on_connect(hello.raised)

    def drain_engine(self, draining: bool) -> None:
        """Have the engine refuse new requests and finish running ones, or serve again. Raises EngineUnavailable."""
        with _translation():
            self._client.drain(draining)

    def reclaim_tokens(self, attempts: list[AttemptTokens]) -> None:
        """Like EngineClient.reclaim; to an engine that is not connected, or too old, no frame is sent."""
        with contextlib.suppress(EngineNotConnected, EngineTooOld):
            self._client.reclaim(attempts)

    def _pages_changed(self, frame: PagesChanged) -> None:
        if self.on_pages is not None:
            self.on_pages(frame)

    def _models_changed(self, models: dict[str, ModelInfo]) -> None:
        if self.on_models is not None:
            self.on_models(models)


def stream_ending(ending: GenerationEnding) -> StreamEnding:
    """The client's ending in the gateway's words."""
    if isinstance(ending, EngineLost):
        return StreamEnding(StreamEnd.LOST, ending.message)
    if isinstance(ending, Refused):
        reason = RefusalReason(ending.code)
        return StreamEnding(StreamEnd.REFUSED, ending.message, None, reason, ending.retry_after_s)
    end = StreamEnd(ending.reason)
    return StreamEnding(end, ending.message, ending.usage, guide_fault=ending.guide_fault, resumable=ending.resumable)


def lost_ending(message: str) -> EngineLost:
    """The client's ending of a request that no engine ends."""
    return EngineLost(message)


async def _translated(answer: Awaitable[T]) -> T:
    with _translation():
        return await answer


@contextmanager
def _translation() -> Iterator[None]:
    """Translates the client's exceptions to the exceptions of `gateway.engines.engine`."""
    try:
        yield
    except (EngineNotConnected, EngineTooOld, ProtocolError) as error:
        raise EngineUnavailable(str(error)) from error
    except AdapterNotChanged as error:
        raise AdapterFailed(str(error)) from error
    except ModelNotChanged as error:
        raise ModelFailed(str(error), error.code) from error
