"""Adding a base model while everything runs, and bringing one back: what is asked of files and engine before its row.

The admin API and the command line are two doors to it. Nothing is written before the engine has the model.
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
from gateway.errors import ApiError

# An engine checks a model's files, and may read all of them once, to name what they are. Whoever asks again after this
# finds it loaded, or waits on.
LOAD_S_MAX = 300.0

Say = Callable[[str], None]

_log = logging.getLogger(__name__)


class ModelRollout:
    """Of one actor. `say` hears of each stage, for people who wait."""

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
        """`keep` gets what was read of its files. Raises BillingRefused with the reason, EngineUnavailable,
        DatabaseUnavailable; then nothing was changed."""
        administration = self._administration
        new = await self._database.read(lambda c: administration.check_model(c, wanted))
        files = await self._load_model(new)
        try:
            made = await self._database.administer(lambda c: administration.add_model(c, wanted))
        except (BillingRefused, ApiError):  # another took the name meanwhile, or the price; or its key was revoked
            await self._take_back(new)
            raise
        keep(made.name, files)
        return made

    async def restore(self, name: str, keep: Callable[[str, ModelFiles], None]) -> BaseModel:
        """As `add` raises."""
        administration = self._administration
        model = await self._database.read(lambda c: administration.check_restorable(c, name))
        files = await self._load_model(model)
        made = await self._database.administer(lambda c: administration.restore_model(c, name))
        keep(made.name, files)
        return made

    async def _load_model(self, model: BaseModel) -> ModelFiles:
        """Raises InvalidValue, EngineUnavailable."""
        self._say(f"{model.name}: its tokenizer and its chat template are read")
        with _reasons(model):
            files = await asyncio.to_thread(ModelFiles, model.path)
        self._say(f"{model.name}: the engine checks its files")
        try:
            async with asyncio.timeout(self._load_s_max):
                why = await self._load_there(model)
        except ModelFailed as error:
            raise InvalidValue(f"the engine refuses {model.name!r}: {error}", "path") from error
        except TimeoutError:
            raise EngineUnavailable(
                f"the engine has not loaded {model.name!r} within {self._load_s_max:g} s; ask again, and it goes on"
            ) from None
        if why:
            self._say(f"{model.name}: it is served, and not pinned: {why}")
        return files

    async def _load_there(self, model: BaseModel) -> str:
        """Why it is not pinned, if it was to be. While the engine still lets go of it, it waits. Raises ModelFailed,
        EngineUnavailable."""
        told = False
        while True:
            try:
                return await self._engine.load_model(
                    model.name, model.path, dtype=model.dtype, context_tokens=model.context_tokens, pinned=model.pinned
                )
            except ModelFailed as error:
                if error.code != "unloading":
                    raise
            if not told:
                self._say(f"{model.name}: it was removed a moment ago, and comes back once what runs on it has ended")
            told = True
            await asyncio.sleep(RETURN_S)

    async def _take_back(self, model: BaseModel) -> None:
        """From the engine, unless somebody else added it."""
        there = await self._database.read(lambda c: self._administration.is_served(c, model.name))
        if not there:
            try:
                await self._engine.unload_model(model.name)
            except (ModelFailed, EngineUnavailable) as error:
                _log.warning("model.not_unloaded", extra={"fields": {"model": model.name, "reason": str(error)}})


@contextmanager
def _reasons(model: BaseModel) -> Iterator[None]:
    """What a tokenizer's files lack, as a refusal that does not tell where on the host they are."""
    try:
        yield
    except OSError as error:
        what = Path(os.fspath(error.filename)).name if error.filename else "its files"
        raise InvalidValue(f"{what!r} of {model.name!r} cannot be read: {error.strerror or error}", "path") from error
    except ValueError as error:
        raise InvalidValue(f"the tokenizer of {model.name!r} cannot be used: {error}", "path") from error
