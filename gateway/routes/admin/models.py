"""/v1/admin/models: base models, added, changed, removed and brought back while everything serves."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, NoReturn

import msgspec
from litestar import Controller, delete, get, patch, post
from litestar.openapi.datastructures import ResponseSpec
from msgspec import Meta

from engine.protocol.frames import Snapshot
from gateway import errors
from gateway.access import roles
from gateway.admin.administration import Actor, Administration
from gateway.admin.model_rollout import ModelRollout
from gateway.admin.models import CONTEXT_TOKENS_MAX, NewModel
from gateway.catalog import base_models
from gateway.catalog.base_models import PATH, BaseModel, Dtype, ModelChange
from gateway.config.settings import NAME
from gateway.engines.engine import EngineUnavailable
from gateway.routes.admin.following import reload_now
from gateway.services import Services
from gateway.views.live import adapter_places
from gateway.views.models import ModelStates, ModelsView, ModelView, model_view

AWAY_RETRY_S = 5.0

Tenants = Annotated[list[str], Meta(min_length=1, max_length=base_models.TENANTS_MAX)]
Fallbacks = Annotated[list[str], Meta(max_length=base_models.FALLBACKS_MAX)]
TokensDefault = Annotated[int, Meta(ge=1, le=1_000_000)]


class AddedModel(msgspec.Struct, forbid_unknown_fields=True):
    """`path`: a directory in gateway.models_dir, as Hugging Face lays a model out; without it, `name`. `dtype`: that of
    the other models. `tenants`: ids or slugs; null: all may call it. `fallbacks`: models that serve in its place."""

    name: Annotated[str, Meta(pattern=NAME, examples=["llama-3.1-8b"])]
    path: Annotated[str, Meta(pattern=PATH)] | None = None
    dtype: Dtype | None = None
    context_tokens: Annotated[int, Meta(ge=2, le=CONTEXT_TOKENS_MAX)] | None = None
    pinned: bool = False
    tenants: Tenants | None = None
    fallbacks: Fallbacks = []
    max_tokens_default: TokensDefault | None = None


class ChangedModel(msgspec.Struct, forbid_unknown_fields=True):
    """What is given changes. `tenants`: ids or slugs; null: all. `max_tokens_default` null: as it was configured."""

    pinned: bool | msgspec.UnsetType = msgspec.UNSET
    tenants: Tenants | msgspec.UnsetType | None = msgspec.UNSET
    fallbacks: Fallbacks | msgspec.UnsetType = msgspec.UNSET
    max_tokens_default: TokensDefault | msgspec.UnsetType | None = msgspec.UNSET


class ModelController(Controller):
    path = "/models"
    opt = {"area": "models"}  # noqa: RUF012

    @get("/", opt={"route": "/v1/admin/models"})
    async def list_base_models(self, services: Services, by: Actor) -> ModelsView:
        """The base models, the removed ones too, and where each and each adapter is."""
        snapshot, away = await _look(services)
        now = _standing(services, snapshot)
        return ModelsView(
            data=[model_view(model, now, paths=_may_see_paths(by)) for model in services.models.all],
            adapters=[] if snapshot is None else adapter_places(snapshot, services.registry.names()),
            adapters_total=0 if snapshot is None else snapshot.adapters_total,
            weights_bytes=None if snapshot is None else snapshot.weights_bytes,
            engine_away=away,
        )

    @post("/", opt={"route": "/v1/admin/models"})
    async def add_model(self, services: Services, administration: Administration, data: AddedModel) -> ModelView:
        """Serve one more base model, once the engine has checked its files: within seconds for most, in five minutes at
        most. The same again is answered as it was. It needs a price before: POST /v1/admin/prices, with `ahead`."""
        # What is left out stays as it is of one that is there; of a new one it is the default all the same.
        given = {
            name: value
            for name, value in msgspec.structs.asdict(data).items()
            if name in ModelChange.__struct_fields__ and value not in (None, False, [])
        }
        wanted = NewModel(
            name=data.name,
            path=data.path or data.name,
            dtype=data.dtype,
            context_tokens=data.context_tokens,
            change=ModelChange(**given),
        )
        try:
            made = await _changes(services, administration).add_model(wanted, services.models.keep_files)
        except EngineUnavailable as error:
            _engine_unavailable(error)
        return await _shown(services, made)

    @get("/{model:path}", opt={"route": "/v1/admin/models/{model}"})
    async def get_base_model(self, services: Services, by: Actor, model: str) -> ModelView:
        """One, by its name; so in all paths below."""
        found = await services.database.read(lambda c: base_models.model_named(c, services.config, _name(model)))
        return await _shown(services, found, paths=_may_see_paths(by))

    @patch("/{model:path}", opt={"route": "/v1/admin/models/{model}"})
    async def change_model(
        self, services: Services, administration: Administration, model: str, data: ChangedModel
    ) -> ModelView:
        """Change who may call it, whether its weights may leave the device, what serves in its place, and the most
        tokens of a request that names none."""
        change = ModelChange(**msgspec.structs.asdict(data))
        after = await services.database.administer(lambda c: administration.set_model(c, _name(model), change))
        return await _shown(services, after)

    @delete(
        "/{model:path}",
        opt={"route": "/v1/admin/models/{model}"},
        status_code=200,
        responses={200: ResponseSpec(ModelView, description="It drains, or is removed", generate_examples=False)},
    )
    async def remove_model(self, services: Services, administration: Administration, model: str) -> ModelView:
        """Nobody may call it from now on, nor its adapters. What runs on it ends as it would have: `state` is draining
        until then. A second time it changes nothing."""
        after = await services.database.administer(lambda c: administration.remove_model(c, _name(model)))
        return await _shown(services, after)

    @post("/{model:path}", opt={"route": "/v1/admin/models/{model}/restore"}, status_code=200)
    async def restore_model(self, services: Services, administration: Administration, model: str) -> ModelView:
        """Serve a removed one again, with its adapters, once the engine has it."""
        name, slash, last = _name(model).rpartition("/")
        if not slash or last != "restore":
            raise errors.NotFound(f"There is nothing at {model!r}.")
        try:
            after = await _changes(services, administration).restore(name, services.models.keep_files)
        except EngineUnavailable as error:
            _engine_unavailable(error)
        return await _shown(services, after)


def _name(path: str) -> str:
    return path.removeprefix("/")


def _changes(services: Services, administration: Administration) -> ModelRollout:
    return ModelRollout(services.database, services.engine, administration)


async def _look(services: Services) -> tuple[Snapshot | None, str | None]:
    """Or why there is none."""
    try:
        return await services.live.latest_snapshot(), None
    except EngineUnavailable as error:
        return None, str(error)


def _standing(services: Services, snapshot: Snapshot | None) -> ModelStates:
    return ModelStates(
        max_tokens_default=services.config.gateway.max_tokens_default,
        infos=services.engine.models,
        places={} if snapshot is None else {place.name: place for place in snapshot.models},
        refused=services.models.all_refused(),
        draining=services.model_loader.draining(),
        adapters=Counter(services.registry.active().values()),
    )


def _may_see_paths(by: Actor) -> bool:
    """Paths on the host are shown only to roles that may write models."""
    return roles.may(by.role, "models", "write")


async def _shown(services: Services, model: BaseModel, *, paths: bool = True) -> ModelView:
    """The model after this gateway has applied the change. `paths` by default: a role that may write may see them."""
    await reload_now(services)
    snapshot, _ = await _look(services)
    return model_view(model, _standing(services, snapshot), paths=paths)


def _engine_unavailable(error: EngineUnavailable) -> NoReturn:
    raise errors.EngineDown(f"Nothing was changed: {error}.", retry_after_s=AWAY_RETRY_S) from error
