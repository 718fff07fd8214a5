"""What one gateway process holds of base models: which there are, the tokenizer of each, and why one cannot be served.

It follows the database, and loads files beside the event loop. It must never know the engine's connection or HTTP.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from billing.database import Database, DatabaseUnavailable
from engine.text.tokenizer import Tokenizer
from gateway.catalog.base_models import BaseModel, configured, list_models
from gateway.catalog.registry import Registry, ServedName
from gateway.config.file import Config

VOCABULARY_FILES = ("tokenizer.json",)
ENCODING_FILES = (*VOCABULARY_FILES, "tokenizer_config.json", "chat_template.jinja")

_log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class ServedModel:
    """A base model as the gateway knows it. Those of one `vocabulary` have the same words by the same ids, those of one
    `encoding` make the same ids of a prompt."""

    name: str
    tokenizer: Tokenizer
    vocabulary: str
    encoding: str
    default_max_tokens: int
    created: int  # Unix seconds


class ModelFiles:
    """What a gateway reads of a model's directory. `vocabulary` and `encoding` are those of every model whose files of
    these say the same: an id is the same word to them, and a prompt the same ids."""

    def __init__(self, path: str) -> None:
        """Raises OSError or ValueError."""
        directory = Path(path)
        self.path = path
        self.tokenizer = Tokenizer.load(directory)
        self.vocabulary = _digest(directory, VOCABULARY_FILES)
        self.encoding = _digest(directory, ENCODING_FILES)
        self.created = int((directory / "config.json").stat().st_mtime)


class ServedModels:
    """One per process. `served` is one mapping for ever; a request in flight keeps what it took of it."""

    def __init__(self, config: Config, database: Database, registry: Registry) -> None:
        """Loads all that are served, by the database where it can be read. Raises OSError or ValueError where that is
        none of them."""
        self.served: dict[str, ServedModel] = {}
        self.all: Sequence[BaseModel] = _at_start(config, database)
        self._config = config
        self._database = database
        self._registry = registry
        self._files: dict[str, ModelFiles] = {}  # by name, of models that are not removed
        self._faults: dict[str, tuple[str, str]] = {}  # by name: the path, and why it cannot be loaded here
        self._refused: Mapping[str, str] = {}  # by the engine
        self._following = asyncio.Lock()
        for model in self.active().values():
            files = _read(model.path)
            self._take_files(model, files)
            if isinstance(files, OSError | ValueError) and len(self._faults) == len(self.active()):
                raise files
        if removed := [model.name for model in self.all if not model.active and model.origin == "config"]:
            _log.info("models.removed", extra={"fields": {"models": removed, "back_with": "laneway models restore"}})
        self._apply()

    def active(self) -> dict[str, BaseModel]:
        """Models that are not removed, by name, including those that cannot be loaded."""
        return {model.name: model for model in self.all if model.active}

    def refused(self, name: str) -> str | None:
        """Why a model that is not removed cannot be served; None: it can, as far as is known."""
        fault = self._faults.get(name)
        return self._refused.get(name) if fault is None else f"its files cannot be used by a gateway: {fault[1]}"

    def all_refused(self) -> dict[str, str]:
        found = {name: self.refused(name) for name in self.active()}
        return {name: reason for name, reason in found.items() if reason is not None}

    def refuse(self, refused: Mapping[str, str]) -> None:
        """What the engine refuses now, and why, in place of what it refused before."""
        self._refused = refused
        self._apply()

    def keep_files(self, name: str, files: ModelFiles) -> None:
        """What was read of a model that was added just now."""
        self._files[name] = files
        self._faults.pop(name, None)

    async def follow(self) -> None:
        """Take over what the database says. What is removed or changed holds when this returns; a model that is new
        once its files are read, which `load` does. Raises DatabaseUnavailable."""
        self.all = await self._database.read(lambda connection: list_models(connection, self._config))
        active = self.active()
        paths = {name: model.path for name, model in active.items()}
        self._files = {name: files for name, files in self._files.items() if paths.get(name) == files.path}
        self._faults = {name: fault for name, fault in self._faults.items() if paths.get(name) == fault[0]}
        self._apply()

    async def load_files(self) -> bool:
        """Read the files of new models, and again of models whose files could not be read, one after another and
        outside the event loop. Returns whether all could be read."""
        async with self._following:
            for model in list(self.active().values()):
                if model.name not in self._files:
                    self._take_files(model, await asyncio.to_thread(_read, model.path))
                    self._apply()
        return not self._faults

    def _take_files(self, model: BaseModel, files: ModelFiles | OSError | ValueError) -> None:
        """What came of reading them."""
        if isinstance(files, ModelFiles):
            self._files[model.name] = files
            self._faults.pop(model.name, None)
            return
        fault = model.path, str(files)
        if self._faults.get(model.name) != fault:
            _log.error("model.unusable", extra={"fields": {"model": model.name, "reason": str(files)}})
        self._faults[model.name] = fault

    def _apply(self) -> None:
        """Serve what is active and loaded, under the names and for the tenants that hold now."""
        served: dict[str, ServedModel] = {}
        names: list[ServedName] = []
        for model in self.active().values():
            files, refused = self._files.get(model.name), self.refused(model.name)
            if files is not None:
                default = model.max_tokens_default or self._config.gateway.max_tokens_default
                served[model.name] = ServedModel(
                    name=model.name,
                    tokenizer=files.tokenizer,
                    vocabulary=files.vocabulary,
                    encoding=files.encoding,
                    default_max_tokens=default,
                    created=files.created,
                )
            if files is not None or refused is not None:
                names.append(ServedName(model, 0 if files is None else files.created, refused))
        self.served.clear()
        self.served.update(served)
        self._registry.serve(names)


def _digest(directory: Path, names: Sequence[str]) -> str:
    """Of files' contents, or that they are not there. Raises OSError."""
    digest = hashlib.sha256()
    for name in names:
        content = (directory / name).read_bytes() if (directory / name).exists() else b""
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()


def _read(path: str) -> ModelFiles | OSError | ValueError:
    """Also in a thread."""
    try:
        return ModelFiles(path)
    except (OSError, ValueError) as error:
        return error


def _at_start(config: Config, database: Database) -> Sequence[BaseModel]:
    """By laneway.toml alone while the database cannot be read; what it says is taken over once it can."""
    if database.sqlite_path is not None and not database.sqlite_path.exists():
        return configured(config)
    try:
        return database.read_sync(lambda connection: list_models(connection, config))
    except (DatabaseUnavailable, sa.exc.DatabaseError) as error:
        _log.warning("models.unread", extra={"fields": {"reason": str(error).splitlines()[0]}})
        return configured(config)
