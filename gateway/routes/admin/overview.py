"""GET /v1/admin/overview: the console's first page."""

from __future__ import annotations

import asyncio
from typing import Literal
from urllib.parse import quote

import msgspec
from litestar import get

from billing.timeouts import within_timeout
from engine.protocol.frames import Snapshot
from gateway.admin.writes import Actor
from gateway.engines.engine import EngineUnavailable
from gateway.services import Services
from gateway.upkeep.health_checks import HealthReport
from gateway.views import tier_attention
from gateway.views.engines import EngineCounts, count_engines, describe_unready
from gateway.views.overview import Attention, Overview

HEALTH = "/admin/health"
MODELS = "/admin/models"
ENGINES = "/admin/engines"
SNAPSHOT_S_MAX = 1.0  # the page does not wait longer for the engine
HEALTH_AGE_S_MAX = 10.0  # of the report whose faults need attention
# Parts of the health report that need attention when they are not sound. The other parts have items of their own.
ATTENTION_PARTS = frozenset(
    {"redis", "gateways", "workers", "disk", "certificates", "drain", "connectors", "traces"}
)  # fmt: skip
CRITICAL_PARTS = frozenset({"disk", "certificates"})  # when they are down, requests are refused


class OverviewView(Overview, frozen=True, kw_only=True):
    """`status`: down if this gateway cannot serve requests; degraded if an item of `attention` is critical. `engines`:
    null for an actor with a tenant. Times in Unix seconds, money in picos."""

    status: Literal["ok", "degraded", "down"]
    engines: EngineCounts | None


@get("/overview", opt={"route": "/v1/admin/overview", "area": "usage"})
async def overview(services: Services, by: Actor) -> OverviewView:
    """Whether the gateway is up, the tightest budgets and when they run out, today's usage, and what needs attention;
    for an actor with a tenant, of this tenant only. `run_out_at` is what is left divided by the average rate of the
    last seven days' roll-ups, and null if that lies beyond the budget's window. A tier needs attention if fewer than 99
    % of its requests of the last hour had their first token within their target, or if a request has waited in the
    engine's queue for longer than its target. Refusals need attention if at least 5 % of the requests of the last whole
    hour were refused, failures if at least 1 % failed."""
    found = await services.overviews.get(by.tenant_id)
    problems = services.readiness.problems()
    attention = list(found.attention)
    if by.tenant_id is None:
        parts = health_attention(await services.health.recent_report(HEALTH_AGE_S_MAX))
        attention = [*_problem_attention(services, problems), *parts, *await _tier_attention(services), *attention]
    critical = any(one.severity == "critical" and one.kind != "budget" for one in attention)
    fields = {name: getattr(found, name) for name in Overview.__struct_fields__}
    status: Literal["ok", "degraded", "down"] = "down" if problems else "degraded" if critical else "ok"
    engines = services.readiness.engines() if by.tenant_id is None else None
    return OverviewView(**fields | {"attention": attention}, status=status, engines=engines)


async def _tier_attention(services: Services) -> list[Attention]:
    """Raises DatabaseUnavailable."""
    tiers = services.config.tiers
    windows, _ = await services.attainment.of([tier_attention.WINDOW_S])
    found = tier_attention.missed_targets(tiers, windows[tier_attention.WINDOW_S][1])
    members = services.engine.members
    names = sorted(name for name, member in members.items() if member.engine.ready and not member.engine.stuck)
    snapshots = await asyncio.gather(
        *[within_timeout(SNAPSHOT_S_MAX, services.live.feed_of(name).latest_snapshot()) for name in names],
        return_exceptions=True,
    )
    queues: list[Attention] = []
    for name, snapshot in zip(names, snapshots, strict=True):
        if isinstance(snapshot, Snapshot):
            queues += tier_attention.stuck_queues(tiers, snapshot, name if len(members) > 1 else "")
        elif not isinstance(snapshot, EngineUnavailable | TimeoutError):  # these are a problem of their own
            raise snapshot
    return [*queues, *found]


def health_attention(report: HealthReport) -> list[Attention]:
    """The parts of ATTENTION_PARTS that the gateway finds degraded or down."""
    found = []
    for item in report.data:
        if item.name in ATTENTION_PARTS and item.status != "ok":
            severity = "critical" if item.status == "down" and item.name in CRITICAL_PARTS else "warning"
            message = f"{item.name.capitalize()}: {item.detail}."
            found.append({"kind": item.name, "severity": severity, "message": message, "link": HEALTH})
    return msgspec.convert(found, list[Attention])


def _problem_attention(services: Services, problems: dict[str, str]) -> list[Attention]:
    found = [
        msgspec.convert(
            {"kind": kind, "severity": "critical", "message": f"{why[:1].upper()}{why[1:]}.", "link": HEALTH}, Attention
        )
        for kind, why in problems.items()
    ]
    fleet = services.engine
    if "engine" not in problems and (unready := describe_unready(fleet)):
        message = f"{count_engines(fleet)}. Not ready: {unready}."
        found.append(Attention(kind="engine", severity="warning", message=message, link=ENGINES))
    if fleet.roster_stale_s is not None:
        message = "The source of the list of engines does not answer, so the last list is in use."
        found.append(Attention(kind="engine", severity="warning", message=message, link=ENGINES))
    for name, why in services.models.all_refused().items():
        message = f"The base model {name} cannot be loaded: {why}"
        found.append(Attention(kind="models", severity="critical", message=message, link=f"{MODELS}/{quote(name, '')}"))
    if "journal" not in problems and services.settler.bytes_used:
        message = f"{services.settler.bytes_used} bytes of settlements in the journal are waiting for the database."
        found.append(Attention(kind="journal", severity="warning", message=message, link=HEALTH))
    return found
