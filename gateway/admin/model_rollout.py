"""Adding and restoring a base model while requests run: its files are read and the engine loads it, then its row is
written.

The admin API and the command line share it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from billing.database import Database
from billing.errors import BillingRefused, InvalidValue
from gateway.admin.administration import Administration
from gateway.admin.models import NewModel
from gateway.catalog.base_models import BaseModel
from gateway.catalog.served_models import ModelFiles
from gateway.engines.engine import Engine, EngineUnavailable, ModelFailed
from gateway.engines.model_sync import RETURN_S

# An engine checks a model's files, and may read all of them once for their digest. A request after this time finds the
# model loaded, or waits for the same load.
LOAD_S_MAX = 300.0

Say = Callable[[str], None]

_log = logging.getLogger(__name__)


class ModelRollout:
    """The rollouts of one actor. `say` receives a sentence about each stage, for people who wait."""

    def __init__(
        self,
        database: Database,
        engine: Engine,
        administration: Administration,
        say: Say = lambda stage: None,
        load_s_max: float = LOAD_S_MAX,
    ) -> None:
        self._database = database
        self._engine = engine
        self._administration = administration
        self._say = say
        self._load_s_max = load_s_max

    async def add_model(self, wanted: NewModel, keep: Callable[[str, ModelFiles], None]) -> BaseModel:
        """`keep` receives the tokenizer and the chat template that were read. Raises BillingRefused, EngineUnavailable,
        DatabaseUnavailable, with nothing changed."""
        administration = self._administration
        new = await self._database.read(lambda c: administration.models.check_addable(c, wanted))
        files = await self._load_model(new)
        try:
            made = await self._database.administer(lambda c: administration.models.add_model(c, wanted))
        except BillingRefused:  # the name was taken, the price removed or the key revoked meanwhile
            await self._unload_unserved(new)
            raise
        keep(made.name, files)
        return made

    async def restore(self, name: str, keep: Callable[[str, ModelFiles], None]) -> BaseModel:
        """Serve a removed model again. Raises as `add_model`."""
        administration = self._administration
        model = await self._database.read(lambda c: administration.models.check_restorable(c, name))
        files = await self._load_model(model)
        made = await self._database.administer(lambda c: administration.models.restore(c, name))
        keep(made.name, files)
        return made

    async def _load_model(self, model: BaseModel) -> ModelFiles:
        """Raises InvalidValue, EngineUnavailable."""
        self._say(f"{model.name}: reading the tokenizer and the chat template")
        with _file_refusals(model):
            files = await asyncio.to_thread(ModelFiles, model.path)
        self._say(f"{model.name}: the engine is checking the files")
        try:
            async with asyncio.timeout(self._load_s_max):
                not_pinned = await self._load_in_engine(model)
        except ModelFailed as error:
            raise InvalidValue(f"the engine refuses {model.name!r}: {error}", "path") from error
        except TimeoutError:
            raise EngineUnavailable(
                f"the engine has not loaded {model.name!r} within {self._load_s_max:g} s; try again later"
            ) from None
        if not_pinned:
            self._say(f"{model.name}: the model is served, but not pinned: {not_pinned}")
        return files

    async def _load_in_engine(self, model: BaseModel) -> str:
        """Why the model is not pinned; "" if it is, or need not be. While the engine still unloads the model after its
        removal, retry every RETURN_S seconds. Raises ModelFailed, EngineUnavailable."""
        said = False
        while True:
            try:
                return await self._engine.load_model(
                    model.name,
                    model.path,
                    dtype=model.dtype,
                    quantize=model.quantize,
                    kv_dtype=model.kv_dtype,
                    context_tokens=model.context_tokens,
                    pinned=model.pinned,
                )
            except ModelFailed as error:
                if error.code != "unloading":
                    raise
            if not said:
                self._say(f"{model.name}: waiting for requests from before the model's removal to finish")
            said = True
            await asyncio.sleep(RETURN_S)

    async def _unload_unserved(self, model: BaseModel) -> None:
        """Unload a model that was not added, unless another request added it."""
        served = await self._database.read(lambda c: self._administration.models.is_served(c, model.name))
        if not served:
            try:
                await self._engine.unload_model(model.name)
            except (ModelFailed, EngineUnavailable) as error:
                _log.warning("model.not_unloaded", extra={"fields": {"model": model.name, "reason": str(error)}})


@contextmanager
def _file_refusals(model: BaseModel) -> Iterator[None]:
    """Raise a fault of a tokenizer's files as InvalidValue, without their paths on the host."""
    try:
        yield
    except OSError as error:
        what = Path(os.fspath(error.filename)).name if error.filename else "its files"
        raise InvalidValue(f"{what!r} of {model.name!r} cannot be read: {error.strerror or error}", "path") from error
    except ValueError as error:
        raise InvalidValue(f"the tokenizer of {model.name!r} cannot be used: {error}", "path") from error
