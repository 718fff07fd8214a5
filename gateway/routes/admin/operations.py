"""/v1/admin/tiers and health: what is promised and what came of it, and whether all is well."""

from __future__ import annotations

from litestar import get

from gateway.services import Services
from gateway.upkeep.health_checks import HealthReport
from gateway.views.tiers import WINDOWS_S, TiersView, tier_view


@get("/tiers", opt={"route": "/v1/admin/tiers", "area": "engine"})
async def list_tiers(services: Services) -> TiersView:
    """The tiers, from high to low: how each is configured, and how its promise of a first token was kept."""
    windows, since = await services.attainment.of(list(WINDOWS_S.values()))
    tiers = enumerate(services.first_tokens.tiers)
    return TiersView(
        data=[tier_view(tier, rank, windows) for rank, tier in tiers],
        recorded_since=since,
    )


@get("/health", opt={"route": "/v1/admin/health", "area": "engine"})
async def health_report(services: Services) -> HealthReport:
    """Every part that this gateway needs, asked now; one that hangs is told as down after two seconds."""
    return await services.health.report()
