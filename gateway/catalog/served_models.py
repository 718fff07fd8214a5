"""The base models of one gateway process: the list from the database, the tokenizer of each model, and the reason why a
model cannot be served.

Files are read outside the event loop. This module knows neither the engine's connection nor HTTP.
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
from engine.protocol.frames import Pooling
from engine.text.tokenizer import Tokenizer
from gateway.catalog.base_models import BaseModel, configured_models, list_models
from gateway.catalog.capabilities import ModelCapabilities, capabilities
from gateway.catalog.registry import Registry, ServedName
from gateway.config.file import Config
from gateway.config.settings import ModelSection
from gateway.tools.model_dialect import PLAIN_DIALECT, ModelDialect, dialect_of

VOCABULARY_FILES = ("tokenizer.json",)
ENCODING_FILES = (*VOCABULARY_FILES, "tokenizer_config.json", "chat_template.jinja")

_log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class ServedModel:
    """A base model that requests can use. `vocabulary`: a digest; models with the same one map ids to the same tokens.
    `encoding`: a digest; models with the same one encode a prompt to the same ids."""

    name: str
    tokenizer: Tokenizer
    vocabulary: str
    encoding: str
    default_max_tokens: int
    created: int  # Unix seconds
    dialect: ModelDialect = PLAIN_DIALECT
    tools: str | None = None  # of its section in laneway.toml
    pooling: Pooling | None = "last"  # of its embeddings; None: it makes none


class ModelFiles:
    """The tokenizer of a model's directory, with the digests of VOCABULARY_FILES (`vocabulary`) and ENCODING_FILES
    (`encoding`), and the time of config.json (`created`, Unix seconds)."""

    def __init__(self, path: str) -> None:
        """Raises OSError or ValueError."""
        directory = Path(path)
        self.path = path
        self.tokenizer = Tokenizer.load(directory)
        self.vocabulary = _digest(directory, VOCABULARY_FILES)
        self.encoding = _digest(directory, ENCODING_FILES)
        self.created = int((directory / "config.json").stat().st_mtime)
        self._dialects: dict[str | None, ModelDialect] = {}

    def dialect(self, tools: str | None) -> ModelDialect:
        """The model's dialect of tools and reasoning. `tools`: of its section in laneway.toml."""
        if tools not in self._dialects:
            self._dialects[tools] = dialect_of(self.tokenizer, tools)
        return self._dialects[tools]


class ServedModels:
    """One per process. `served` is changed in place and never replaced, so other parts may hold a reference to it. A
    change of the mapping does not affect the `ServedModel` of a request in flight."""

    def __init__(self, config: Config, database: Database, registry: Registry) -> None:
        """Read the list from the database, or from laneway.toml alone while the database is unavailable, and load the
        files of all active models. Raises OSError or ValueError if no model's files can be loaded."""
        self.served: dict[str, ServedModel] = {}
        self.all: Sequence[BaseModel] = _at_start(config, database)
        self._config = config
        self._database = database
        self._registry = registry
        self._files: dict[str, ModelFiles] = {}  # name → files of an active model
        self._faults: dict[str, tuple[str, str]] = {}  # name → path, and why its files cannot be loaded
        self._refused: Mapping[str, str] = {}  # name → why the engine refuses the model
        self._following = asyncio.Lock()
        for model in self.active().values():
            files = _read(model.path)
            self._take_files(model, files)
            if isinstance(files, OSError | ValueError) and len(self._faults) == len(self.active()):
                raise files
        if removed := [model.name for model in self.all if not model.active and model.origin == "config"]:
            _log.info("models.removed", extra={"fields": {"models": removed, "back_with": "laneway models restore"}})
        self._apply()

    def capabilities(self, name: str) -> ModelCapabilities | None:
        """The capabilities of a base model; None: it is not served."""
        model = self.served.get(name)
        return None if model is None else capabilities(model)

    def active(self) -> dict[str, BaseModel]:
        """Models that are not removed, by name; models that cannot be loaded are included."""
        return {model.name: model for model in self.all if model.active}

    def open_names(self) -> list[str]:
        """Models that every tenant may call; removed models are included."""
        return [model.name for model in self.all if model.tenants is None]

    def refused(self, name: str) -> str | None:
        """Why an active model cannot be served; None if no reason is known."""
        fault = self._faults.get(name)
        return self._refused.get(name) if fault is None else f"its files cannot be used by a gateway: {fault[1]}"

    def all_refused(self) -> dict[str, str]:
        """Name → reason of all active models that cannot be served."""
        reasons = {name: self.refused(name) for name in self.active()}
        return {name: reason for name, reason in reasons.items() if reason is not None}

    def refuse(self, refused: Mapping[str, str]) -> None:
        """Replace the models that the engine refuses: name → reason."""
        self._refused = refused
        self._apply()

    def keep_files(self, name: str, files: ModelFiles) -> None:
        """Keep the files that were already read when a model was added, so that `load_files` need not read them."""
        self._files[name] = files
        self._faults.pop(name, None)

    async def follow(self) -> None:
        """Read the list from the database. Removed and changed models take effect at once; a new model is served after
        `load_files` has read its files. Raises DatabaseUnavailable."""
        self.all = await self._database.read(lambda connection: list_models(connection, self._config))
        active = self.active()
        paths = {name: model.path for name, model in active.items()}
        self._files = {name: files for name, files in self._files.items() if paths.get(name) == files.path}
        self._faults = {name: fault for name, fault in self._faults.items() if paths.get(name) == fault[0]}
        self._apply()

    async def load_files(self) -> bool:
        """Read the files of new models, and of models whose files could not be read before, one after another and in a
        thread. Returns whether the files of all active models are loaded."""
        async with self._following:
            for model in list(self.active().values()):
                if model.name not in self._files:
                    self._take_files(model, await asyncio.to_thread(_read, model.path))
                    self._apply()
        return not self._faults

    def _take_files(self, model: BaseModel, files: ModelFiles | OSError | ValueError) -> None:
        """Store the result of `_read`; log a fault unless it is the same as before."""
        if isinstance(files, ModelFiles):
            self._files[model.name] = files
            self._faults.pop(model.name, None)
            return
        fault = model.path, str(files)
        if self._faults.get(model.name) != fault:
            _log.error("model.unusable", extra={"fields": {"model": model.name, "reason": str(files)}})
        self._faults[model.name] = fault

    def _apply(self) -> None:
        """Update `served` and the registry's names from the list, the loaded files and the engine's refusals."""
        served: dict[str, ServedModel] = {}
        names: list[ServedName] = []
        for model in self.active().values():
            files, refused = self._files.get(model.name), self.refused(model.name)
            if files is not None:
                default = model.max_tokens_default or self._config.gateway.max_tokens_default
                section = self._config.model(model.name) if model.origin == "config" else None
                tools = None if section is None else section.tools
                served[model.name] = ServedModel(
                    name=model.name,
                    tokenizer=files.tokenizer,
                    vocabulary=files.vocabulary,
                    # Another format of tools makes other ids of a prompt.
                    encoding=files.encoding if tools is None else f"{files.encoding} {tools}",
                    default_max_tokens=default,
                    created=files.created,
                    dialect=files.dialect(tools),
                    tools=tools,
                    pooling=_pooling(section),
                )
            if files is not None or refused is not None:
                names.append(ServedName(model, 0 if files is None else files.created, refused))
        self.served.clear()
        self.served.update(served)
        self._registry.serve(names)


def _pooling(section: ModelSection | None) -> Pooling | None:
    """`section`: of a model in laneway.toml; None: the model was added by an operator."""
    if section is None:
        return "last"
    return None if section.pooling == "none" else section.pooling


def _digest(directory: Path, names: Sequence[str]) -> str:
    """SHA-256 over the contents of these files; a missing file counts as empty. Raises OSError."""
    digest = hashlib.sha256()
    for name in names:
        content = (directory / name).read_bytes() if (directory / name).exists() else b""
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()


def _read(path: str) -> ModelFiles | OSError | ValueError:
    """The files, or the error as a value. May run in a thread."""
    try:
        return ModelFiles(path)
    except (OSError, ValueError) as error:
        return error


def _at_start(config: Config, database: Database) -> Sequence[BaseModel]:
    """The list from the database; from laneway.toml alone while the database is unavailable, until `follow` reads
    it."""
    if database.sqlite_path is not None and not database.sqlite_path.exists():
        return configured_models(config)
    try:
        return database.read_sync(lambda connection: list_models(connection, config))
    except (DatabaseUnavailable, sa.exc.DatabaseError) as error:
        _log.warning("models.unread", extra={"fields": {"reason": str(error).splitlines()[0]}})
        return configured_models(config)
