"""/v1/admin/tiers and /v1/admin/health: the tiers with their attainment, and the health of every part."""

from __future__ import annotations

from litestar import get

from gateway.services import Services
from gateway.upkeep.health_checks import HealthReport
from gateway.views.tiers import WINDOWS_S, TiersView, tier_view


@get("/tiers", opt={"route": "/v1/admin/tiers", "area": "engine"})
async def list_tiers(services: Services) -> TiersView:
    """The tiers from high to low: each one's settings, and how often its target for the first token was met."""
    windows, since = await services.attainment.of(list(WINDOWS_S.values()))
    tiers = enumerate(services.first_tokens.tiers)
    return TiersView(
        data=[tier_view(tier, rank, windows) for rank, tier in tiers],
        recorded_since=since,
    )


@get("/health", opt={"route": "/v1/admin/health", "area": "engine"})
async def health_report(services: Services) -> HealthReport:
    """Check every part that this gateway needs now. A part whose check takes over two seconds is reported as down."""
    return await services.health.report()
