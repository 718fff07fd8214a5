"""Adds and removes models while others are served: a thread checks files, all else happens between two steps.

It knows which models are served and which gateways to answer. The scheduler alone moves weights.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from engine.contents.fetcher import ContentFetcher, WantedContent
from engine.contents.model_digests import cached_digest
from engine.loop.file_checks import BEING_LOADED, BEING_UNLOADED, FileChecks
from engine.protocol.allowed_words import explain_wrong_word
from engine.protocol.config import ModelConfig
from engine.protocol.frames import LoadModel, ModelFailure, ModelInfo, Models, ModelState, UnloadModel
from engine.protocol.inbox import Inbox
from engine.scheduler.scheduler import Scheduler
from engine.scheduler.served import ModelLimits
from engine.step import Runner

# Limit of EngineConfig.models too.
MODELS_MAX = 64

_log = logging.getLogger(__name__)
Answer = Callable[[int, ModelState], None]


class ModelRequest(NamedTuple):
    """A model to check. `config.digest`: of its content, from the gateway; `located`: its directory here, if it was
    fetched, so that the digest is the content's."""

    config: ModelConfig
    sources: tuple[str, ...]
    located: str = ""


class ModelChanges:
    """Used only by the loop's thread, except the checking of files, which runs on a separate thread."""

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        served: Iterable[ModelInfo],
        refused: Mapping[str, str],
        configs: Iterable[ModelConfig],
        inbox: Inbox,
        answer: Answer,
        changed: Callable[[Models], None],
        forgotten: Callable[[str], None],
        fetcher: ContentFetcher | None = None,
    ) -> None:
        """`configs`: the configurations of the models served at the start. `answer(gateway, state)` sends an answer,
        `changed(models)` sends to all gateways; `forgotten(model)` is called once nothing uses a removed model, before
        the runner forgets it. `fetcher` finds models that are not at their path; None: the path alone."""
        self.served = {info.name: info for info in served}
        self.refused = dict(refused)
        self._runner = runner
        self._scheduler = scheduler
        # As configured or requested; `_located` has the directories of models that were fetched, by name.
        self._configs = {config.name: config for config in configs if config.name in self.served}
        self._located: dict[str, str] = {}
        self._fetcher = fetcher
        self._answer = answer
        self._changed = changed
        self._forgotten = forgotten
        finder = None if fetcher is None else _ModelFinder(fetcher)
        self._changes = FileChecks("models", self._check, self._loaded, inbox, finder)

    def tokenizer_of(self, model: str) -> tuple[Path, int] | None:
        """The directory of a served model with its tokenizer.json, and its vocab_size; None: it has no tokenizer."""
        config, info = self._configs.get(model), self.served.get(model)
        if config is None or info is None or not (path := self._located.get(model, config.path)):
            return None
        directory = Path(path)
        return (directory, info.vocab_size) if (directory / "tokenizer.json").exists() else None

    def load_model(self, gateway: int, frame: LoadModel) -> None:
        """Answer "loaded": at once for a served model, otherwise once its files are checked."""
        name, changes = frame.name, self._changes
        if changes.full():
            self._fail(gateway, name, changes.too_many)
        elif changes.is_retiring(name):
            self._fail(gateway, name, BEING_UNLOADED, "unloading")
        else:
            try:
                request = ModelRequest(_config(frame), tuple(frame.sources))
            except ValueError as error:
                self._fail(gateway, name, str(error))
            else:
                self._check_model(gateway, request)

    def _fail(self, gateway: int, name: str, message: str, code: ModelFailure = "refused") -> None:
        self._answer(gateway, ModelState(name, "failed", message, code))

    def _check_model(self, gateway: int, request: ModelRequest) -> None:
        config, changes = request.config, self._changes
        name = config.name
        if name in self.served:
            known = self._configs.get(name)
            if known is None or not self._is_same(known, config):
                why = f"another model is served under this name: {_described(known)}"
                self._fail(gateway, name, why, "other_served")
                return
            self._configs[name] = msgspec.structs.replace(known, pinned=config.pinned)
            self._answer(gateway, self._pinned(name, config.pinned))
            return
        if not changes.is_loading(name):
            if len(self.served) + changes.loading() >= MODELS_MAX:
                self._fail(gateway, name, f"{MODELS_MAX} models are served already, the limit")
                return
            self._configs[name] = config
        elif not self._is_same(self._configs[name], config):
            why = f"another model is being loaded under this name: {_described(self._configs[name])}"
            self._fail(gateway, name, why, "other_loading")
            return
        changes.begin_check(name, gateway, request)

    def _is_same(self, known: ModelConfig, wanted: ModelConfig) -> bool:
        """Whether both are one model: gateways on other hosts have it at other paths."""
        if _settings(known) != _settings(wanted):
            return False
        if known.digest and wanted.digest:
            return known.digest == wanted.digest
        if _real_path(known) == _real_path(wanted):
            return True
        if not wanted.digest or not known.path:
            return False
        info = self.served.get(known.name)
        return wanted.digest in (info and info.digest, cached_digest(Path(known.path)))

    def _check(self, request: ModelRequest) -> ModelInfo:
        """On the thread for files. A directory that was not fetched may have another content than the gateway says:
        the runner computes its digest."""
        if not request.located:
            return self._runner.load_model(msgspec.structs.replace(request.config, digest=None))
        return self._runner.load_model(msgspec.structs.replace(request.config, path=request.located))

    def unload(self, gateway: int, frame: UnloadModel) -> None:
        """Refuse requests for the model from now on. It is forgotten, and the gateway gets "unloaded", once no request
        and no step uses it; at once if it is unknown."""
        name, changes = frame.name, self._changes
        if changes.full():
            self._fail(gateway, name, changes.too_many)
        elif changes.is_loading(name):
            self._fail(gateway, name, BEING_LOADED, "loading")
        elif changes.is_retiring(name):
            changes.retire(name, gateway)
        elif name not in self.served:
            self._answer(gateway, ModelState(name, "unloaded"))
        else:
            changes.retire(name, gateway)
            del self.served[name]
            self._scheduler.retire_model(name)
            self._tell_all()
            self.forget_unused()

    def forget_unused(self) -> None:
        """Forget retiring models whose last request has ended and last step is completed. Called after each round of
        the loop."""
        for name in self._changes.retiring():
            if not self._scheduler.uses_model(name):
                self._forget_model(name)

    def _forget_model(self, name: str) -> None:
        self._forgotten(name)
        self._scheduler.forget_model(name)
        self._runner.unload_model(name)
        self._release_files(self._configs.pop(name))
        _log.info("model.unloaded", extra={"fields": {"model": name}})
        self._settle(name, "unloaded")

    def _release_files(self, config: ModelConfig) -> None:
        self._located.pop(config.name, None)
        if self._fetcher is not None and config.digest:
            self._fetcher.release("models", config.digest, config.name)

    def _loaded(self, request: ModelRequest, info: ModelInfo | None, message: str) -> None:
        """Serve a model whose files were checked, wherever its weights are; or answer with the check's refusal."""
        config = request.config
        name, path = config.name, request.located or config.path
        _log.info("model.read", extra={"fields": {"model": name, "path": path, "error": message}})
        if info is None:
            self._release_files(self._configs.pop(name))
            self._settle(name, "failed", message)
            return
        if request.located:
            self._located[name] = request.located
        limits = ModelLimits.of(info)
        why = self._scheduler.add_model(name, limits, pinned=config.pinned)
        self.served[name] = msgspec.structs.replace(info, pinned=config.pinned and not why)
        self.refused.pop(name, None)
        if why:
            _note_unpinned(name, why)
        self._tell_all()
        self._settle(name, "loaded", why)

    def _pinned(self, name: str, pinned: bool) -> ModelState:
        """Set `pinned` of a served model. If pinning is impossible, the model is served all the same."""
        before = self.served[name]
        why = self._pin(name, pinned)
        if self.served[name] != before:
            self._tell_all()
        return ModelState(name, "loaded", why)

    def _pin(self, name: str, pinned: bool) -> str:
        why = self._scheduler.pin_model(name, pinned)
        if why:
            _note_unpinned(name, why)
        else:
            self.served[name] = msgspec.structs.replace(self.served[name], pinned=pinned)
        return why

    def _settle(self, name: str, state: Literal["loaded", "unloaded", "failed"], why: str = "") -> None:
        for gateway in self._changes.take_waiting(name):
            self._answer(gateway, ModelState(name, state, why))

    def _tell_all(self) -> None:
        self._changed(Models(list(self.served.values()), dict(self.refused)))


def _note_unpinned(name: str, why: str) -> None:
    _log.warning("model.not_pinned", extra={"fields": {"model": name, "reason": why}})


class _ModelFinder:
    """Implements `FileFinder`."""

    def __init__(self, fetcher: ContentFetcher) -> None:
        self._fetcher = fetcher

    def find(self, request: ModelRequest) -> ModelRequest | None:
        if not request.sources:
            return request
        found = self._fetcher.find(_wanted_content(request))
        if found is None or found == Path(request.config.path):
            return request if found is not None else None
        return request._replace(located=str(found))

    def fetch(self, request: ModelRequest) -> ModelRequest:
        return request._replace(located=str(self._fetcher.fetch(_wanted_content(request))))


def _wanted_content(request: ModelRequest) -> WantedContent:
    config = request.config
    return WantedContent("models", config.digest or "", config.path, request.sources, config.name)


def _config(frame: LoadModel) -> ModelConfig:
    """Raises ValueError naming the field."""
    fields = {name: getattr(frame, name) for name in LoadModel.__struct_fields__ if name != "sources"}
    try:
        return msgspec.convert({**fields, "digest": frame.digest or None}, ModelConfig)
    except msgspec.ValidationError as error:
        raise ValueError(explain_wrong_word(error, ModelConfig)) from error


def _settings(config: ModelConfig) -> tuple[str, str, str, int | None]:
    """The fields beside the content that make it another model; `pinned` does not."""
    return config.dtype, config.quantize, config.kv_dtype, config.context_tokens


def _real_path(config: ModelConfig) -> str:
    return os.path.realpath(config.path) if config.path else ""


def _described(config: ModelConfig | None) -> str:
    if config is None:
        return "of the configuration"
    return (
        f"path {config.path!r}, dtype {config.dtype}, quantize {config.quantize}, kv_dtype {config.kv_dtype}, "
        f"context_tokens {config.context_tokens}"
    )
