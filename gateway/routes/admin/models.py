"""/v1/admin/models: base models are added, changed, removed and restored while requests run."""

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
from gateway.admin.administration import Administration
from gateway.admin.model_rollout import ModelRollout
from gateway.admin.models import CONTEXT_TOKENS_MAX, NewModel
from gateway.admin.writes import Actor
from gateway.catalog import base_models
from gateway.catalog.base_models import PATH, BaseModel, Dtype, KvDtype, ModelChange, Quantize
from gateway.config.settings import NAME
from gateway.engines.engine import EngineUnavailable
from gateway.routes.admin.reload_after_writes import reload_now
from gateway.services import Services
from gateway.views.live import adapter_places
from gateway.views.models import ModelStates, ModelsView, ModelView, model_view, quality_limits_view

ENGINE_DOWN_RETRY_S = 5.0

Tenants = Annotated[list[str], Meta(min_length=1, max_length=base_models.TENANTS_MAX)]
Fallbacks = Annotated[list[str], Meta(max_length=base_models.FALLBACKS_MAX)]
TokensDefault = Annotated[int, Meta(ge=1, le=1_000_000)]


class AddedModel(msgspec.Struct, forbid_unknown_fields=True):
    """`path`: a directory below gateway.models_dir with a model's files as Hugging Face has them; by default `name`.
    `dtype`: by default that of the other models. `quantize`: the format that the engine makes of unquantised weights on
    loading; by default none. `kv_dtype`: the format of KV; by default auto, which is `dtype`. `tenants`: ids or slugs
    that may call the model; null: all.
    `fallbacks`: models that serve a request when this one is unavailable. For a model that was added already, a field
    that is left out does not change."""

    name: Annotated[str, Meta(pattern=NAME, examples=["llama-3.1-8b"])]
    path: Annotated[str, Meta(pattern=PATH)] | None = None
    dtype: Dtype | None = None
    quantize: Quantize | None = None
    kv_dtype: KvDtype | None = None
    context_tokens: Annotated[int, Meta(ge=2, le=CONTEXT_TOKENS_MAX)] | None = None
    pinned: bool | msgspec.UnsetType = msgspec.UNSET
    tenants: Tenants | msgspec.UnsetType | None = msgspec.UNSET
    fallbacks: Fallbacks | msgspec.UnsetType = msgspec.UNSET
    max_tokens_default: TokensDefault | msgspec.UnsetType | None = msgspec.UNSET


class ChangedModel(msgspec.Struct, forbid_unknown_fields=True):
    """Only the given fields change. `tenants`: ids or slugs; null: all. `max_tokens_default` null: the configured
    one."""

    pinned: bool | msgspec.UnsetType = msgspec.UNSET
    tenants: Tenants | msgspec.UnsetType | None = msgspec.UNSET
    fallbacks: Fallbacks | msgspec.UnsetType = msgspec.UNSET
    max_tokens_default: TokensDefault | msgspec.UnsetType | None = msgspec.UNSET


class ModelController(Controller):
    path = "/models"
    opt = {"area": "models"}  # noqa: RUF012

    @get("/", opt={"route": "/v1/admin/models"})
    async def list_base_models(self, services: Services, by: Actor, engine: str | None = None) -> ModelsView:
        """All base models, removed ones too, and where the weights of each model and adapter are in the engine that is
        named `engine`, by default in the first ready one."""
        snapshot, engine_down = await _engine_snapshot(services, engine)
        now = _model_states(services, snapshot)
        return ModelsView(
            data=[model_view(model, now, paths=_may_see_paths(by)) for model in services.models.all],
            adapters=[] if snapshot is None else adapter_places(snapshot, services.registry.names()),
            adapters_total=0 if snapshot is None else snapshot.adapters_total,
            weights_bytes=None if snapshot is None else snapshot.weights_bytes,
            quality_limits=quality_limits_view(services.config.engine.quality),
            engine_away=engine_down,
        )

    @post("/", opt={"route": "/v1/admin/models"})
    async def add_model(self, services: Services, administration: Administration, data: AddedModel) -> ModelView:
        """Add a base model. The gateway answers after the engine has checked the model's files: within seconds for most
        models, within five minutes at most. The same request can be repeated. The model needs a price first: POST
        /v1/admin/prices with `ahead`."""
        wanted = NewModel(
            name=data.name,
            path=data.path or data.name,
            dtype=data.dtype,
            quantize=data.quantize,
            kv_dtype=data.kv_dtype,
            context_tokens=data.context_tokens,
            change=ModelChange(
                pinned=data.pinned,
                tenants=data.tenants,
                fallbacks=data.fallbacks,
                max_tokens_default=data.max_tokens_default,
            ),
        )
        try:
            made = await _rollout(services, administration).add_model(wanted, services.models.keep_files)
        except EngineUnavailable as error:
            _engine_unavailable(error)
        return await _shown(services, made)

    @get("/{model:path}", opt={"route": "/v1/admin/models/{model}"})
    async def get_base_model(self, services: Services, by: Actor, model: str) -> ModelView:
        """One base model by its name, which may contain slashes."""
        found = await services.database.read(lambda c: base_models.model_named(c, services.config, _name(model)))
        return await _shown(services, found, paths=_may_see_paths(by))

    @patch("/{model:path}", opt={"route": "/v1/admin/models/{model}"})
    async def change_model(
        self, services: Services, administration: Administration, model: str, data: ChangedModel
    ) -> ModelView:
        """Change which tenants may call a model, whether its weights are pinned, its fallbacks, and the limit of output
        tokens for requests without one."""
        change = ModelChange(**msgspec.structs.asdict(data))
        after = await services.database.administer(lambda c: administration.models.update(c, _name(model), change))
        return await _shown(services, after)

    @delete(
        "/{model:path}",
        opt={"route": "/v1/admin/models/{model}"},
        status_code=200,
        responses={200: ResponseSpec(ModelView, description="It is draining or removed", generate_examples=False)},
    )
    async def remove_model(self, services: Services, administration: Administration, model: str) -> ModelView:
        """Stop serving a model and its adapters. Running requests finish: until then `state` is draining. The request
        can be repeated."""
        after = await services.database.administer(lambda c: administration.models.remove(c, _name(model)))
        return await _shown(services, after)

    @post("/{model:path}", opt={"route": "/v1/admin/models/{model}/restore"}, status_code=200)
    async def restore_model(self, services: Services, administration: Administration, model: str) -> ModelView:
        """Serve a removed model and its adapters again. The gateway answers after the engine has the model."""
        name = _name_to_restore(model)
        try:
            after = await _rollout(services, administration).restore(name, services.models.keep_files)
        except EngineUnavailable as error:
            _engine_unavailable(error)
        return await _shown(services, after)


def _name(path: str) -> str:
    return path.removeprefix("/")


def _name_to_restore(path: str) -> str:
    """The name in "/<name>/restore": a model's name may contain slashes, and the framework routes nothing behind a path
    parameter that takes slashes. Raises NotFound for any other path."""
    name, slash, action = _name(path).rpartition("/")
    if not slash or action != "restore":
        raise errors.NotFound(f"There is nothing to post to at {path!r}.")
    return name


def _rollout(services: Services, administration: Administration) -> ModelRollout:
    return ModelRollout(services.database, services.engine, administration)


async def _engine_snapshot(services: Services, engine: str | None = None) -> tuple[Snapshot | None, str | None]:
    """A snapshot of the engine, by default of the first ready one, or why there is none. Raises NotFound."""
    try:
        return await services.live.feed_of(engine).latest_snapshot(), None
    except EngineUnavailable as error:
        return None, str(error)


def _model_states(services: Services, snapshot: Snapshot | None) -> ModelStates:
    return ModelStates(
        max_tokens_default=services.config.gateway.max_tokens_default,
        infos=services.engine.models,
        places={} if snapshot is None else {place.name: place for place in snapshot.models},
        refused=services.models.all_refused(),
        draining=services.engine.draining_models(),
        adapters=Counter(services.registry.active().values()),
    )


def _may_see_paths(by: Actor) -> bool:
    """Paths on the host are shown only to roles that may write models."""
    return roles.is_permitted(by.role, "models", "write")


async def _shown(services: Services, model: BaseModel, *, paths: bool = True) -> ModelView:
    """The model after this gateway has applied the change. `paths` by default: a role that may write may see them."""
    await reload_now(services)
    snapshot, _ = await _engine_snapshot(services)
    return model_view(model, _model_states(services, snapshot), paths=paths)


def _engine_unavailable(error: EngineUnavailable) -> NoReturn:
    raise errors.EngineDown(f"Nothing was changed: {error}.", retry_after_s=ENGINE_DOWN_RETRY_S) from error
