"""/v1/admin/tiers, models and health: what is promised and what came of it, what is served, and whether all is well."""

from __future__ import annotations

from collections import Counter

from litestar import get

from engine.client import EngineUnavailable
from gateway.health_checks import HealthReport
from gateway.live_views import adapter_places
from gateway.services import Services
from gateway.tier_views import WINDOWS_S, ModelsView, TiersView, model_view, tier_view


@get("/tiers", opt={"route": "/v1/admin/tiers", "area": "engine"})
async def list_tiers(services: Services) -> TiersView:
    """The tiers, from high to low: how each is configured, and how its promise of a first token was kept."""
    windows, since = await services.attained.of(list(WINDOWS_S.values()))
    tiers = enumerate(services.config.tiers)
    return TiersView(
        data=[tier_view(tier, rank, windows) for rank, tier in tiers],
        recorded_since=since,
    )


@get("/models", opt={"route": "/v1/admin/models", "area": "engine"})
async def list_base_models(services: Services) -> ModelsView:
    """The base models, and where each adapter is."""
    hello = services.engine.hello
    infos = {} if hello is None else {info.name: info for info in hello.models}
    adapters = Counter(services.registry.active().values())
    data = [
        model_view(model, services.models[model.name].default_max_tokens, infos.get(model.name), adapters[model.name])
        for model in services.config.models
    ]
    try:
        snapshot = await services.live.look()
    except EngineUnavailable as error:
        return ModelsView(data=data, adapters=[], adapters_total=0, engine_away=str(error))
    places = adapter_places(snapshot, services.registry.names())
    return ModelsView(data=data, adapters=places, adapters_total=snapshot.adapters_total, engine_away=None)


@get("/health", opt={"route": "/v1/admin/health", "area": "engine"})
async def health_report(services: Services) -> HealthReport:
    """Every part that this gateway needs, asked now; one that hangs is told as down after two seconds."""
    return await services.health.report()
