"""Makes the engine know the registry's adapters: all of them when it connects, a new one before its first request.

It carries digests and paths between the registry, the store and the engine client; it must never know a tenant.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence

from adapters.files.store import AdapterStore
from gateway.engines.engine import AdapterFailed, Engine, EngineUnavailable
from gateway.host.adapter_process import Resolver

# A bad or missing adapter costs its own requests, never the engine's readiness.
AT_ONCE_MAX = 4

# Resolves stored adapters without `modules-1.json`; returns the reason of each refusal, by digest.
Resolve = Callable[[Sequence[str]], Awaitable[Mapping[str, str]]]

_log = logging.getLogger(__name__)


class AdapterLoader:
    """What the present engine process knows. `wanted()` gives digest → base model of all that may be called; `kept()`
    the digests of every version that may be again, so that a rollback finds what it leads to; `pinned()` the digests
    that are to stay in the engine's memory."""

    def __init__(
        self,
        engine: Engine,
        store: AdapterStore,
        wanted: Callable[[], Mapping[str, str]],
        kept: Callable[[], Container[str]],
        pinned: Callable[[], Container[str]] = frozenset,
        *,
        resolve: Resolve | None = None,
    ) -> None:
        """`resolve`: by default `adapter_process.Resolver`, in a separate process."""
        self._engine = engine
        self._store = store
        self._wanted = wanted
        self._kept = kept
        self._pinned = pinned
        self._resolve: Resolve = resolve or Resolver(store.root).resolve
        self._known: dict[str, tuple[str, bool]] = {}  # digest → base model, whether the engine was told to pin it
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._unloading: dict[str, asyncio.Task[None]] = {}
        self._late: set[str] = set()  # digests being resolved, to be loaded afterwards
        self._late_tasks: set[asyncio.Task[None]] = set()

    async def on_connect(self) -> None:
        """For Engine: a new process knows nothing. Load all that may be called."""
        self._known.clear()
        await self._load_all(self._wanted())

    async def on_change(self) -> None:
        """The registry changed: load what is new, drop what was removed. An adapter is dropped once its last stream has
        ended; nothing waits for that but its own return."""
        if not self._engine.ready:
            return  # on_connect will load
        wanted, kept = self._wanted(), self._kept()
        for digest in [digest for digest in self._known if digest not in kept and digest not in wanted]:
            del self._known[digest]
            self._unloading[digest] = asyncio.create_task(self._unload(digest))
        pinned = self._pinned()
        new = {digest: model for digest, model in wanted.items() if digest not in self._known}
        moved = {digest: model for digest, (model, told) in self._known.items() if told != (digest in pinned)}
        await self._load_all(new | moved)

    async def ensure(self, digest: str, model: str) -> None:
        """Return once the engine knows it. Raises AdapterFailed, EngineUnavailable."""
        if digest not in self._known:
            await self._loaded(digest, model)

    async def _loaded(self, digest: str, model: str) -> None:
        """Tell the engine of it, once however many ask."""
        task = self._loading.get(digest)
        if task is None:
            task = self._loading[digest] = asyncio.create_task(self._load_adapter(digest, model))
            task.add_done_callback(lambda task: self._ended(digest, task))
        await asyncio.shield(task)

    def _ended(self, digest: str, task: asyncio.Task[None]) -> None:
        self._loading.pop(digest, None)
        if not task.cancelled():
            task.exception()  # retrieved: no caller may be waiting any more, as after the loss of the engine

    def forget_adapter(self, digest: str) -> None:
        """The engine said that it does not know it."""
        self._known.pop(digest, None)

    def forget_model(self, model: str) -> None:
        """The engine dropped this base model, and its adapters with it."""
        for digest in [digest for digest, (base, _) in self._known.items() if base == model]:
            del self._known[digest]

    async def unload_adapter(self, digest: str) -> None:
        """Return once no request of any gateway runs on it, and the engine forgot it. Raises AdapterFailed,
        EngineUnavailable."""
        self._known.pop(digest, None)
        await self._engine.unload_adapter(digest)

    async def _load_adapter(self, digest: str, model: str) -> None:
        if (unloading := self._unloading.get(digest)) is not None:
            await asyncio.wait([unloading])
        if lacking := await self._lacking([digest]):  # resolved here: an engine must not evaluate a tenant's patterns
            for reason in (await self._resolve(lacking)).values():
                raise AdapterFailed(reason)
        pinned = digest in self._pinned()
        path = self._store.path(digest)
        try:
            await self._engine.load_adapter(digest, model, path, pinned=pinned)
        except AdapterFailed as error:
            if not pinned:
                raise
            _log.warning("adapter.not_pinned", extra={"fields": {"digest": digest, "reason": str(error)}})
            await self._engine.load_adapter(digest, model, path)
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
        except EngineUnavailable as error:  # `on_connect` loads everything when the engine is back
            _log.info("adapters.later", extra={"fields": {"reason": str(error)}})
        finally:
            self._late.difference_update(wanted)

    async def _load_each(self, wanted: Mapping[str, str]) -> None:
        places = asyncio.Semaphore(AT_ONCE_MAX)

        async def load(digest: str, model: str) -> None:
            async with places:
                try:
                    await self._loaded(digest, model)
                except (AdapterFailed, OSError, KeyError, ValueError) as error:
                    _log.error("adapter.load_failed", extra={"fields": {"digest": digest, "reason": str(error)}})

        await asyncio.gather(*(load(digest, model) for digest, model in wanted.items()))

    async def _lacking(self, digests: Iterable[str]) -> list[str]:
        """The digests that are in the store without `modules-1.json`."""
        store = self._store
        return await asyncio.to_thread(lambda: [digest for digest in digests if store.lacks_modules(digest)])
