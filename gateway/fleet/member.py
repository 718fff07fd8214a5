"""One engine of the fleet: its connection, and the tasks that keep its models and adapters up to date."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

import msgspec

from adapters.files.store import AdapterStore
from engine.protocol.frames import AttemptTokens, ModelInfo, RaisedTargets
from gateway.catalog.base_models import BaseModel
from gateway.engines.adapter_sync import AdapterLoader
from gateway.engines.engine import ContentSources, Engine, EngineRequest
from gateway.engines.local import LocalEngine
from gateway.engines.model_sync import ModelLoader
from gateway.fleet.confirmations import Confirmations
from gateway.fleet.roster import EngineAddress


class Catalog(msgspec.Struct, frozen=True):
    """The models and adapters that every engine should serve, from the database."""

    store: AdapterStore
    models: Callable[[], Mapping[str, BaseModel]]  # also removed ones
    models_fresh: Callable[[], bool]  # whether `models` is the database's present state
    adapters: Callable[[], Mapping[str, str]]  # digest → base model, of adapters that may be called
    sources: ContentSources  # of adapters and models, for engines on other hosts
    kept: Callable[[], Container[str]]  # digests of all versions that a rollback may lead to
    pinned: Callable[[], Container[str]]


class Member:
    """An engine, by its name in the roster."""

    def __init__(
        self,
        address: EngineAddress,
        engine: Engine,
        catalog: Catalog,
        confirmations: Confirmations,
        *,
        on_connect: Callable[[Member, Mapping[str, RaisedTargets]], None],
        on_ready: Callable[[], None],
        on_models: Callable[[], None],
        on_refused: Callable[[], None],
    ) -> None:
        """`on_connect` is called at each connection, before the engine is ready, and `on_ready` when it is; `on_models`
        when its models changed, `on_refused` when `refused` did. None of them may raise."""
        self.name = address.name
        self.address = address
        self.engine = engine
        self.drains_here = False  # the roster has it no more: no new request, and it is closed when it is idle
        self.refused: Mapping[str, str] = {}  # models that it refuses, and why
        self.streams = 0  # that it has of this gateway
        self.unconfirmed = 0  # attempts that ended, with tokens, and that the ledger does not have yet
        self._signed: Mapping[str, ModelInfo] | None = None  # the models of which `_signatures` are
        self._signatures: Mapping[str, tuple[str, str, str]] = {}
        self._sources = catalog.sources if address.is_remote else None
        self.loader = AdapterLoader(
            engine, catalog.store, self._loadable, catalog.kept, catalog.pinned, sources=self._sources
        )
        self.model_loader = ModelLoader(
            engine,
            catalog.models,
            self._take_refused,
            self.loader.forget_model,
            catalog.models_fresh,
            sources=self._sources,
        )
        self._catalog = catalog
        self._on_connect = on_connect
        self._on_models = on_models
        self._on_refused = on_refused
        self._confirmations = confirmations
        engine.on_connect = self._connected
        engine.on_models = self._models_changed
        if isinstance(engine, LocalEngine):
            engine.on_ready = on_ready

    @property
    def draining(self) -> bool:
        """Whether the engine accepts no new request."""
        beat = self.engine.last_heartbeat
        return self.drains_here or (beat is not None and beat.draining)

    @property
    def usable(self) -> bool:
        """A new request may be sent to it."""
        return self.engine.ready and not self.draining and not self.engine.stuck

    @property
    def resumes(self) -> bool:
        """Whether its streams may continue on another engine, and another engine's on it."""
        return isinstance(self.engine, LocalEngine)

    def serves(self, request: EngineRequest) -> bool:
        """It has the request's model and, for a vector, pools it: an engine before protocol version 6 does not."""
        info = self.engine.models.get(request.model)
        return info is not None and (request.pooling is None or info.vector_width > 0)

    def signature(self, model: str) -> tuple[str, str, str] | None:
        """The values that decide whether this engine continues a text as another engine would: contents of the model,
        layout of the KV, numerics. None: it does not serve the model, or does not say."""
        models = self.engine.models
        if models is not self._signed:
            self._signed = models
            self._signatures = {
                name: (info.digest, info.kv_identity, info.numerics) for name, info in models.items() if info.numerics
            }
        return self._signatures.get(model)

    async def load_model(self, name: str, path: str | Path, **settings: Any) -> str:
        """As Engine.load_model; an engine on another host receives the digest and the sources. Raises ModelFailed,
        EngineUnavailable, OSError, ValueError."""
        if self._sources is not None:
            settings["digest"], settings["sources"] = await self._sources.sources_of_model(str(path))
        return await self.engine.load_model(name, path, **settings)

    def send_reclaims(self, tokens: list[AttemptTokens]) -> None:
        """Send the reclaims of the present engine process; to an engine that is not connected no frame is sent."""
        if tokens and isinstance(self.engine, LocalEngine):
            self.engine.reclaim_tokens(tokens)

    def _loadable(self) -> dict[str, str]:
        """The adapters whose base model the engine has."""
        served = self.engine.models
        return {digest: model for digest, model in self._catalog.adapters().items() if model in served}

    def _take_refused(self, refused: Mapping[str, str]) -> None:
        if refused != self.refused:  # the loader reports after each of its rounds
            self.refused = refused
            self._on_refused()

    def _models_changed(self, models: Mapping[str, ModelInfo]) -> None:
        self._on_models()

    async def _connected(self, raised: Mapping[str, RaisedTargets]) -> None:
        """Models load in the background, so that a slow model does not delay requests for others."""
        self.send_reclaims(self._confirmations.of_engine(self.engine.epoch))
        self._on_connect(self, raised)
        self.model_loader.connected()
        await self.loader.on_connect()
