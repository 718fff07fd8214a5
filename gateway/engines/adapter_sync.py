"""Registers the adapters of the registry with the engine: all of them at each connection, a new one before its first
request. Adapters are named by digest here; tenants are unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence

from adapters.files.store import AdapterStore
from gateway.engines.engine import AdapterFailed, ContentSources, Engine, EngineUnavailable
from gateway.host.adapter_process import Resolver

# Adapters that are registered at the same time.
LOADS_MAX = 4

# Resolves stored adapters without `modules-1.json`; returns the reason of each refusal, by digest.
Resolve = Callable[[Sequence[str]], Awaitable[Mapping[str, str]]]

_log = logging.getLogger(__name__)


class AdapterLoader:
    """Keeps one engine's adapters up to date. `wanted()`: digest → base model of all adapters that may be called;
    `kept()`: the digests of all versions that a rollback may lead to; `pinned()`: the digests of pinned adapters. An
    adapter that cannot be loaded fails its own requests, and does not affect the engine's readiness."""

    def __init__(
        self,
        engine: Engine,
        store: AdapterStore,
        wanted: Callable[[], Mapping[str, str]],
        kept: Callable[[], Container[str]],
        pinned: Callable[[], Container[str]] = frozenset,
        *,
        resolve: Resolve | None = None,
        sources: ContentSources | None = None,
    ) -> None:
        """`resolve`: by default `adapter_process.Resolver`, in a separate process. `sources`: for an engine on another
        host; None: it reads the store itself."""
        self._engine = engine
        self._store = store
        self._wanted = wanted
        self._kept = kept
        self._pinned = pinned
        self._resolve: Resolve = resolve or Resolver(store.root).resolve
        self._sources = sources
        self._known: dict[str, tuple[str, bool]] = {}  # digest → base model, and whether it was registered as pinned
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._unloading: dict[str, asyncio.Task[None]] = {}
        self._late: set[str] = set()  # digests being resolved, to be loaded afterwards
        self._late_tasks: set[asyncio.Task[None]] = set()

    async def on_connect(self) -> None:
        """For `Engine.on_connect`: register all adapters that may be called. A new engine process has no adapters."""
        self._known.clear()
        await self._load_all(self._wanted())

    async def on_change(self) -> None:
        """The registry changed: register new adapters and unload removed ones. An unload lasts until the adapter's last
        stream has ended; only a later registration of the same adapter waits for it."""
        if not self._engine.ready:
            return  # `on_connect` registers all of them
        wanted, kept = self._wanted(), self._kept()
        for digest in [digest for digest in self._known if digest not in kept and digest not in wanted]:
            del self._known[digest]
            self._unloading[digest] = asyncio.create_task(self._unload(digest))
        pinned = self._pinned()
        new = {digest: model for digest, model in wanted.items() if digest not in self._known}
        repinned = {
            digest: model for digest, (model, was_pinned) in self._known.items() if was_pinned != (digest in pinned)
        }
        await self._load_all(new | repinned)

    def has_adapter(self, digest: str) -> bool:
        """Whether the adapter is registered with the engine, as far as this gateway knows."""
        return digest in self._known

    async def ensure(self, digest: str, model: str) -> None:
        """Returns once the adapter is registered. Raises AdapterFailed, EngineUnavailable."""
        if digest not in self._known:
            await self._loaded(digest, model)

    async def _loaded(self, digest: str, model: str) -> None:
        """Register the adapter; concurrent calls share one registration."""
        task = self._loading.get(digest)
        if task is None:
            task = self._loading[digest] = asyncio.create_task(self._load_adapter(digest, model))
            task.add_done_callback(lambda task: self._ended(digest, task))
        await asyncio.shield(task)

    def _ended(self, digest: str, task: asyncio.Task[None]) -> None:
        self._loading.pop(digest, None)
        if not task.cancelled():
            task.exception()  # mark it as retrieved: after the loss of the engine no caller may wait

    def forget_adapter(self, digest: str) -> None:
        """The engine refused the adapter as unknown."""
        self._known.pop(digest, None)

    def forget_model(self, model: str) -> None:
        """The engine unloaded this base model, and its adapters with it."""
        for digest in [digest for digest, (base, _) in self._known.items() if base == model]:
            del self._known[digest]

    async def unload_adapter(self, digest: str) -> None:
        """Returns once no request of any gateway uses the adapter and the engine has unloaded it. Raises AdapterFailed,
        EngineUnavailable."""
        self._known.pop(digest, None)
        await self._engine.unload_adapter(digest)

    async def _load_adapter(self, digest: str, model: str) -> None:
        if (unloading := self._unloading.get(digest)) is not None:
            await asyncio.wait([unloading])
        if lacking := await self._lacking([digest]):  # an engine must not evaluate a tenant's patterns
            for reason in (await self._resolve(lacking)).values():
                raise AdapterFailed(reason)
        pinned = digest in self._pinned()
        path = self._store.path(digest)
        sources = [] if self._sources is None else self._sources.sources_of_adapter(digest)
        try:
            await self._engine.load_adapter(digest, model, path, pinned=pinned, sources=sources)
        except AdapterFailed as error:
            if not pinned:
                raise
            _log.warning("adapter.not_pinned", extra={"fields": {"digest": digest, "reason": str(error)}})
            await self._engine.load_adapter(digest, model, path, sources=sources)
        self._known[digest] = (model, pinned)

    async def _unload(self, digest: str) -> None:
        try:
            await self._engine.unload_adapter(digest)
        except (AdapterFailed, EngineUnavailable) as error:
            _log.warning("adapter.unload_failed", extra={"fields": {"digest": digest, "reason": str(error)}})
        finally:
            del self._unloading[digest]

    async def _load_all(self, wanted: Mapping[str, str]) -> None:
        """Load all; adapters that must be resolved first are loaded by a separate task, so that others do not wait."""
        lacking = [digest for digest in await self._lacking(wanted) if digest not in self._late]
        if lacking:
            self._late.update(lacking)
            task = asyncio.create_task(self._load_late({digest: wanted[digest] for digest in lacking}))
            self._late_tasks.add(task)
            task.add_done_callback(self._late_tasks.discard)
        await self._load_each({digest: model for digest, model in wanted.items() if digest not in self._late})

    async def _load_late(self, wanted: Mapping[str, str]) -> None:
        try:
            await self._resolve(list(wanted))
            await self._load_each(wanted)
        except EngineUnavailable as error:  # `on_connect` registers all of them at the next connection
            _log.info("adapters.later", extra={"fields": {"reason": str(error)}})
        finally:
            self._late.difference_update(wanted)

    async def _load_each(self, wanted: Mapping[str, str]) -> None:
        slots = asyncio.Semaphore(LOADS_MAX)

        async def load(digest: str, model: str) -> None:
            async with slots:
                try:
                    await self._loaded(digest, model)
                except (AdapterFailed, OSError, KeyError, ValueError) as error:
                    _log.error("adapter.load_failed", extra={"fields": {"digest": digest, "reason": str(error)}})

        await asyncio.gather(*(load(digest, model) for digest, model in wanted.items()))

    async def _lacking(self, digests: Iterable[str]) -> list[str]:
        """The digests that are in the store without `modules-1.json`."""
        store = self._store
        return await asyncio.to_thread(lambda: [digest for digest in digests if store.lacks_modules(digest)])
