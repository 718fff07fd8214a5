"""Keeps the base models of one engine up to date: missing models are loaded, removed models are unloaded.

It knows names and paths of models; tenants are unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping

from engine.protocol.frames import ModelFailure, ModelInfo
from gateway.catalog.base_models import BaseModel
from gateway.engines.engine import ContentSources, Engine, EngineUnavailable, ModelFailed

# After this time every gateway has read that a model was removed, or admits no requests. The requests admitted before
# are in the engine, which finishes them before it unloads the model.
UNLOAD_AFTER_S = 1.0
# A refused model is tried again after this: its files may have been repaired, or memory may be free.
RETRY_S = 15.0
# The retry interval while the engine unloads the model, on another gateway's request before the model was restored, or
# loads another model under its name.
RETURN_S = 0.25
PASSING: frozenset[ModelFailure] = frozenset(("unloading", "loading", "other_loading"))
# An added model gets its row a moment after the engine has loaded it. A model without a row for this long belongs to an
# abandoned add and is unloaded.
ROWLESS_S_MAX = 300.0

_log = logging.getLogger(__name__)


class ModelLoader:
    """`all_models()`: the models of laneway.toml and the database, also removed ones. `on_refused(refused)` receives
    the refused models and the reasons, whenever they may have changed; `on_unloaded(name)` is called when the engine
    has unloaded a model and its adapters. `fresh()`: whether `all_models()` is the database's present state."""

    def __init__(
        self,
        engine: Engine,
        all_models: Callable[[], Mapping[str, BaseModel]],
        on_refused: Callable[[Mapping[str, str]], None],
        on_unloaded: Callable[[str], None],
        fresh: Callable[[], bool],
        sources: ContentSources | None = None,
    ) -> None:
        """`sources`: for an engine on another host; None: it reads the models' directories itself."""
        self._engine = engine
        self._all = all_models
        self._on_refused = on_refused
        self._on_unloaded = on_unloaded
        self._fresh = fresh
        self._sources = sources
        self._pinned: dict[str, bool] = {}  # by name, as last requested of this engine process
        self._failed: dict[
            str, tuple[BaseModel, str, float]
        ] = {}  # by name: the model, the reason, the time of the next try
        self._working: dict[str, asyncio.Task[None]] = {}  # by name
        self._unloading: set[str] = set()
        self._rowless: dict[str, float] = {}  # by name: since when the engine serves a model without a row
        self._unloaded_rowless: set[str] = set()  # unloaded for lack of a row: a model loaded again remains
        self._timer: asyncio.TimerHandle | None = None  # the next retry or the next unload for lack of a row
        self._closed = False

    def connected(self) -> None:
        """At each connection: a new engine process serves the models of its own configuration only."""
        self._pinned.clear()
        self._failed.clear()
        self._rowless.clear()
        self._unloaded_rowless.clear()
        for name, reason in self._engine.refused.items():
            if (model := self._all().get(name)) is not None:
                self._fail(model, reason)
        self.follow()

    def follow(self) -> None:
        """The database or the engine's models changed: begin the loads and unloads that follow. Returns at once."""
        if self._closed:
            return
        have, there, now = self._engine.models, self._all(), asyncio.get_running_loop().time()
        self._failed = {
            name: failed for name, failed in self._failed.items() if name not in have and there.get(name) == failed[0]
        }
        for name, model in there.items():
            if name in self._working:
                continue
            info = have.get(name)
            if not model.active:
                if info is not None:
                    self._begin_change(name, self._unload(name))
            elif info is None:
                if name not in self._failed or now >= self._failed[name][2]:
                    self._begin_change(name, self._load_model(model))
            elif self._pinned.get(name, self._known(model, info)) != model.pinned:
                self._begin_change(name, self._load_model(model))
        self._unloaded_rowless -= there.keys()
        rowless = have.keys() - there.keys() - self._unloaded_rowless
        # While the database cannot be read, it is unknown which models have a row: the time starts again.
        self._rowless = {name: self._rowless.get(name, now) if self._fresh() else now for name in rowless}
        for name, since in self._rowless.items():
            if name not in self._working and self._fresh() and now >= since + ROWLESS_S_MAX:
                self._begin_change(name, self._unload_rowless(name))
        self._follow_again(now)
        self._on_refused({name: reason for name, (_, reason, _) in self._failed.items()})

    def _follow_again(self, now: float) -> None:
        """Set the timer for the first retry or unload that no change announces."""
        if self._timer is not None:
            self._timer.cancel()
        retries = [due for _, _, due in self._failed.values()]
        dues = retries + [since + ROWLESS_S_MAX for since in self._rowless.values()]
        later = [due for due in dues if due > now]
        self._timer = asyncio.get_running_loop().call_at(min(later), self.follow) if later else None

    def _known(self, model: BaseModel, info: ModelInfo) -> bool | None:
        """Whether a model that this process has not loaded is pinned in the engine; None: load it again. The engine
        may have started from an old file, in which an added model has another directory."""
        return None if model.origin == "added" else info.pinned

    def draining(self) -> frozenset[str]:
        """The models that this process is unloading."""
        return frozenset(self._unloading)

    async def close(self) -> None:
        """Begin no further loads and unloads, and cancel those in progress."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._working.values()):
            task.cancel()
        await asyncio.gather(*self._working.values(), return_exceptions=True)

    def _fail(self, model: BaseModel, reason: str) -> None:
        self._failed[model.name] = model, reason, asyncio.get_running_loop().time() + RETRY_S

    def _begin_change(self, name: str, work: Coroutine[None, None, None]) -> None:
        task = self._working[name] = asyncio.create_task(work, name=f"model-{name}")
        task.add_done_callback(lambda task: self._ended(name, task))

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        del self._working[name]
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self.follow()
        elif not isinstance(error, EngineUnavailable):  # `connected` begins again at the next connection
            _log.critical("model.follow_failed", exc_info=error, extra={"fields": {"model": name}})

    async def _load_model(self, model: BaseModel) -> None:
        """Raises EngineUnavailable."""
        digest, sources = await self._sources_of(model)
        try:
            why = await self._engine.load_model(
                model.name,
                model.path,
                dtype=model.dtype,
                quantize=model.quantize,
                kv_dtype=model.kv_dtype,
                context_tokens=model.context_tokens,
                pinned=model.pinned,
                digest=digest,
                sources=sources,
            )
        except ModelFailed as error:
            if error.code == "other_served":
                await self._replace(model, str(error))
                return  # `follow` loads it as a missing model
            if error.code in PASSING:
                await asyncio.sleep(RETURN_S)
                return  # `follow` tries again, with the state of that time
            _log.error("model.refused", extra={"fields": {"model": model.name, "reason": str(error)}})
            self._fail(model, str(error))
        else:
            self._pinned[model.name] = model.pinned
            _log.info("model.loaded", extra={"fields": {"model": model.name, "not_pinned": why or None}})

    async def _sources_of(self, model: BaseModel) -> tuple[str, list[str]]:
        """The digest and the sources; none for a directory that this gateway cannot read: the engine may have it."""
        if self._sources is None:
            return "", []
        try:
            return await self._sources.sources_of_model(model.path)
        except (OSError, ValueError) as error:
            _log.warning("model.without_sources", extra={"fields": {"model": model.name, "reason": str(error)}})
            return "", []

    async def _replace(self, model: BaseModel, reason: str) -> None:
        """Unload the weights that are served under the model's name. Raises EngineUnavailable."""
        _log.warning("model.replaced", extra={"fields": {"model": model.name, "reason": reason}})
        try:
            await self._engine.unload_model(model.name)
        except ModelFailed as error:  # another gateway has unloaded it and loaded a model under the name
            _log.info("model.not_unloaded", extra={"fields": {"model": model.name, "reason": str(error)}})
            await asyncio.sleep(RETURN_S)
        else:
            self._on_unloaded(model.name)

    async def _unload(self, name: str) -> None:
        """Raises EngineUnavailable."""
        self._unloading.add(name)
        try:
            await asyncio.sleep(UNLOAD_AFTER_S)
            model = self._all().get(name)
            if model is None or model.active:
                return
            await self._engine.unload_model(name)
            _log.info("model.unloaded", extra={"fields": {"model": name}})
        except ModelFailed as error:  # another gateway has unloaded it, or loaded another model of that name
            _log.info("model.not_unloaded", extra={"fields": {"model": name, "reason": str(error)}})
        finally:
            self._unloading.discard(name)
            self._pinned.pop(name, None)
            self._on_unloaded(name)

    async def _unload_rowless(self, name: str) -> None:
        """Raises EngineUnavailable."""
        if name in self._all():
            return
        self._unloaded_rowless.add(name)
        try:
            await self._engine.unload_model(name)
            _log.warning("model.nameless_unloaded", extra={"fields": {"model": name}})
        except ModelFailed as error:
            _log.warning("model.nameless_not_unloaded", extra={"fields": {"model": name, "reason": str(error)}})
