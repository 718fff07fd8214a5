"""Makes the engine serve the base models that there are: those it lacks are loaded, those that were removed go.

It carries names and paths between what this process holds and the engine client; it must never know a tenant.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping

from engine.protocol.frames import ModelFailure, ModelInfo
from gateway.catalog.base_models import BaseModel
from gateway.engines.engine import Engine, EngineUnavailable, ModelFailed

# After this every gateway has heard that a model was removed, or admits nothing: whoever was admitted before is with
# the engine, and runs to its end there.
UNLOAD_AFTER_S = 1.0
# An engine that refused a model is asked again so often: its files may have been mended, its memory be free.
RETRY_S = 15.0
# One that unloads the model, because another gateway asked for that before the model was restored, or that loads
# another model under the name, is asked again so often.
RETURN_S = 0.25
PASSING: frozenset[ModelFailure] = frozenset(("unloading", "loading", "other_loading"))
# Whoever adds a model writes its row a moment after the engine has it. One that stays without a row for so long is of
# an add that was given up: it goes.
NAMELESS_S = 300.0

_log = logging.getLogger(__name__)


class ModelLoader:
    """`all_models()`: those of laneway.toml and of the database, the removed ones too. `told(refused)` hears why the
    engine refuses which, whenever that may have changed; `gone(name)` that it forgot a model and its adapters.
    `fresh()`: whether what the database says now is among them."""

    def __init__(
        self,
        engine: Engine,
        all_models: Callable[[], Mapping[str, BaseModel]],
        told: Callable[[Mapping[str, str]], None],
        gone: Callable[[str], None],
        fresh: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._all = all_models
        self._told = told
        self._gone = gone
        self._fresh = fresh
        self._pinned: dict[str, bool] = {}  # what this engine process was told last
        self._failed: dict[str, tuple[BaseModel, str, float]] = {}  # by name: what failed, why, when it is due again
        self._working: dict[str, asyncio.Task[None]] = {}  # by name
        self._unloading: set[str] = set()
        self._nameless: dict[str, float] = {}  # since when the engine serves what has no row
        self._dismissed: set[str] = set()  # of those, what had to go: whatever comes again is wanted by somebody
        self._timer: asyncio.TimerHandle | None = None  # the next time that something is due by itself
        self._closed = False

    def connected(self) -> None:
        """A new engine process: it knows its file, and nothing that was told to the one before."""
        self._pinned.clear()
        self._failed.clear()
        self._nameless.clear()
        self._dismissed.clear()
        for name, reason in self._engine.refused.items():
            if (model := self._all().get(name)) is not None:
                self._fail(model, reason)
        self.follow()

    def follow(self) -> None:
        """Something changed here or there: begin what must be done about it. Nothing waits for it."""
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
        self._dismissed -= there.keys()
        nameless = have.keys() - there.keys() - self._dismissed
        # Whoever cannot read the database does not know what has a row: it counts anew.
        self._nameless = {name: self._nameless.get(name, now) if self._fresh() else now for name in nameless}
        for name, since in self._nameless.items():
            if name not in self._working and self._fresh() and now >= since + NAMELESS_S:
                self._begin_change(name, self._dismiss(name))
        self._follow_again(now)
        self._told({name: reason for name, (_, reason, _) in self._failed.items()})

    def _follow_again(self, now: float) -> None:
        """When the first thing is due that nobody tells of."""
        if self._timer is not None:
            self._timer.cancel()
        dues = [due for _, _, due in self._failed.values()] + [since + NAMELESS_S for since in self._nameless.values()]
        later = [due for due in dues if due > now]
        self._timer = asyncio.get_running_loop().call_at(min(later), self.follow) if later else None

    def _known(self, model: BaseModel, info: ModelInfo) -> bool | None:
        """Whether it is pinned in an engine that was not told; None: it is to be told. Such an engine started from
        a file as old as its keeper, and what was added may lie in another directory by now."""
        return None if model.origin == "added" else info.pinned

    def draining(self) -> frozenset[str]:
        """Those that this process waits to be gone."""
        return frozenset(self._unloading)

    async def close(self) -> None:
        """Nothing is begun from now on, and what was is cut off."""
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
        elif not isinstance(error, EngineUnavailable):  # which is told all of it when it is back
            _log.critical("model.follow_failed", exc_info=error, extra={"fields": {"model": name}})

    async def _load_model(self, model: BaseModel) -> None:
        """Raises EngineUnavailable."""
        try:
            why = await self._engine.load_model(
                model.name, model.path, dtype=model.dtype, context_tokens=model.context_tokens, pinned=model.pinned
            )
        except ModelFailed as error:
            if error.code == "other_served":
                await self._replace(model, str(error))
                return  # and it is loaded as one that is lacking
            if error.code in PASSING:
                await asyncio.sleep(RETURN_S)
                return  # and it is asked for again, as it is wanted then
            _log.error("model.refused", extra={"fields": {"model": model.name, "reason": str(error)}})
            self._fail(model, str(error))
        else:
            self._pinned[model.name] = model.pinned
            _log.info("model.loaded", extra={"fields": {"model": model.name, "not_pinned": why or None}})

    async def _replace(self, model: BaseModel, reason: str) -> None:
        """Unload what is served under the model's name. Raises EngineUnavailable."""
        _log.warning("model.replaced", extra={"fields": {"model": model.name, "reason": reason}})
        try:
            await self._engine.unload_model(model.name)
        except ModelFailed as error:  # another gateway was quicker, and has a model loaded under the name again
            _log.info("model.not_unloaded", extra={"fields": {"model": model.name, "reason": str(error)}})
            await asyncio.sleep(RETURN_S)
        else:
            self._gone(model.name)

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
        except ModelFailed as error:  # another gateway was quicker, or another model of that name is there again
            _log.info("model.not_unloaded", extra={"fields": {"model": name, "reason": str(error)}})
        finally:
            self._unloading.discard(name)
            self._pinned.pop(name, None)
            self._gone(name)

    async def _dismiss(self, name: str) -> None:
        """Raises EngineUnavailable."""
        if name in self._all():
            return
        self._dismissed.add(name)
        try:
            await self._engine.unload_model(name)
            _log.warning("model.nameless_unloaded", extra={"fields": {"model": name}})
        except ModelFailed as error:
            _log.warning("model.nameless_not_unloaded", extra={"fields": {"model": name, "reason": str(error)}})
