"""/v1/admin/tiers, /v1/admin/health and /v1/admin/engines: the tiers with their attainment, the health of every part,
the engines of the fleet.
"""

from __future__ import annotations

import msgspec
from litestar import get, post

from gateway import errors
from gateway.admin.administration import Administration
from gateway.engines.engine import EngineUnavailable
from gateway.engines.local import LocalEngine
from gateway.services import Services
from gateway.upkeep.health_checks import HealthReport
from gateway.views.engines import FleetEngineView, FleetView, engine_view, fleet_view
from gateway.views.tiers import WINDOWS_S, TiersView, TierView, tier_view


@get("/tiers", opt={"route": "/v1/admin/tiers", "area": "engine"})
async def list_tiers(services: Services) -> TiersView:
    """The tiers from high to low: each one's settings, and how often its target for the first token was met."""
    windows, since = await services.attainment.of(list(WINDOWS_S.values()))
    tiers = enumerate(services.first_tokens.tiers)
    return TiersView(
        data=[tier_view(tier, rank, windows) for rank, tier in tiers],
        recorded_since=since,
    )


@get("/tiers/{name:str}", opt={"route": "/v1/admin/tiers/{name}", "area": "engine"})
async def get_tier(services: Services, name: str) -> TierView:
    """One tier by its name, with its settings and its attainment."""
    ranks = {tier.name: rank for rank, tier in enumerate(services.first_tokens.tiers)}
    if name not in ranks:
        raise errors.NotFound(f"There is no tier {name!r}. The tiers: {', '.join(ranks)}.", param="name")
    windows, _ = await services.attainment.of(list(WINDOWS_S.values()))
    return tier_view(services.first_tokens.tiers[ranks[name]], ranks[name], windows)


@get("/health", opt={"route": "/v1/admin/health", "area": "engine"})
async def health_report(services: Services) -> HealthReport:
    """Check every part that this gateway needs now. A part whose check takes over two seconds is reported as down."""
    return await services.health.report()


class EngineDrain(msgspec.Struct, forbid_unknown_fields=True):
    """`draining` true: the engine refuses new requests and finishes those that run; false: it serves again."""

    draining: bool = True


@get("/engines", opt={"route": "/v1/admin/engines", "area": "engine"}, sync_to_thread=False)
def list_engines(services: Services) -> FleetView:
    """The engines of this gateway's roster: state, load and what each one serves."""
    return fleet_view(services.engine)


@get("/engines/{name:str}", opt={"route": "/v1/admin/engines/{name}", "area": "engine"}, sync_to_thread=False)
def get_engine(services: Services, name: str) -> FleetEngineView:
    """One engine of this gateway's roster by its name."""
    return engine_view(name, services.engine.member_named(name))


@post("/engines/{name:str}/drain", opt={"route": "/v1/admin/engines/{name}/drain", "area": "engine"}, status_code=200)
async def drain_engine(
    services: Services, administration: Administration, name: str, data: EngineDrain
) -> FleetEngineView:
    """Drain one engine, or let it serve again. Every gateway sees it in the engine's next heartbeat; its running
    requests end there. A restarted engine serves."""
    member = services.engine.member_named(name)
    if not isinstance(member.engine, LocalEngine):
        raise errors.InvalidRequest(f"The engine {name!r} cannot drain.")
    engine = member.engine
    if not engine.ready:
        raise errors.EngineDown(f"The engine {name!r} is not connected.")
    await services.database.administer(
        lambda connection: administration.engines.note_drain(connection, engine=name, draining=data.draining)
    )
    try:
        engine.drain_engine(data.draining)
    except EngineUnavailable as error:
        raise errors.InvalidRequest(f"The engine {name!r} cannot drain: {error}.") from error
    return engine_view(name, member)
