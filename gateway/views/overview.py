"""The overview of the console's first page: the tightest budgets, today's usage, and what needs attention.

It is made of roll-ups and counters, without reading usage rows, and cached for FRESH_S. Whether this process can serve
requests is added by the route.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Literal
from urllib.parse import quote

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.accounts import budgets
from billing.books import projections, rollups, sla_reports
from billing.books.projections import DAY
from billing.books.rollups import HOUR
from billing.clock import SECOND, database_now
from billing.database import Database
from billing.proofs import reconcile
from gateway.access.keys import first_keys
from gateway.tables import keys, problem_deliveries, problem_events
from gateway.views.error_rates import rolled_up_rates

FRESH_S = 1.0
TENANTS_MAX = 1000  # cached overviews; one more drops the oldest
SPEND_MAX = 8
SOON_S = 3 * 24 * 3600  # a budget that runs out within this time needs attention
KEYS_EXPIRE_S = 7 * 24 * 3600
RECENT = DAY  # failures of this time need attention
SLA_LINK = "/admin/sla"
ERRORS_LINK = "/admin/requests?outcome="
# Refused and failed requests of the last whole hour need attention from this share of all requests, and this number.
REFUSED_SHARE, FAILED_SHARE, ERRORS_MIN = 0.05, 0.01, 20
_hours = tables.usage_hours


class Spend(msgspec.Struct, frozen=True, kw_only=True):
    """A money budget in its present window. `tenant`: a slug. `run_out_at`: the projection at the average rate of the
    last seven days (billing/books/projections.py); null: it does not run out in this window."""

    tenant: str
    tenant_id: str
    budget: str
    scope: Literal["tenant", "project", "key"]
    scope_id: str
    kind: Literal["hard", "soft"]
    period: Literal["day", "month", "total"]
    currency: str
    limit_picos: int
    posted_picos: int
    held_picos: int
    left_picos: int
    window_end: int | None
    run_out_at: int | None


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """A problem that an operator should look at. `link`: the page of the console that shows it."""

    kind: Literal[
        "engine", "models", "database", "lease", "journal", "tiers", "queue", "books", "budget", "exports", "webhooks",
        "keys", "refusals", "failures", "redis", "gateways", "workers", "disk", "certificates", "drain", "connectors",
        "traces",
    ]  # fmt: skip
    severity: Literal["warning", "critical"]
    message: str
    link: str


class Hour(msgspec.Struct, frozen=True, kw_only=True):
    """One hour in UTC. Cost by currency."""

    start: int
    requests: int
    tokens: int
    cost_picos: dict[str, int]


class Today(msgspec.Struct, frozen=True, kw_only=True):
    """Sums since midnight UTC over the requests that were in the roll-ups at `as_of` (null: there are no roll-ups yet).
    `series` has the hours with requests."""

    as_of: int | None
    requests: int
    tokens: int
    cost_picos: dict[str, int]
    series: list[Hour]


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """`spend`: the SPEND_MAX tightest of the `money_budgets` active money budgets."""

    at: int
    spend: list[Spend]
    money_budgets: int
    attention: list[Attention]
    today: Today


class Overviews:
    """Overviews by tenant, and one of all tenants, each cached for FRESH_S."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._read_at: dict[str | None, tuple[float, Overview]] = {}
        self._reading = asyncio.Lock()

    async def get(self, tenant_id: str | None) -> Overview:
        """Raises DatabaseUnavailable."""
        async with self._reading:
            at, found = self._read_at.get(tenant_id, (0.0, None))
            if found is None or self._clock() - at >= FRESH_S:
                at = self._clock()
                found = await self._database.report(lambda c: read_overview(c, tenant_id))
                self._read_at.pop(tenant_id, None)
                if len(self._read_at) >= TENANTS_MAX:
                    del self._read_at[next(iter(self._read_at))]
                self._read_at[tenant_id] = (at, found)
            return found


def read_overview(connection: sa.Connection, tenant_id: str | None) -> Overview:
    """The overview of one tenant, or (None) of all tenants."""
    now = database_now(connection)
    spend = _spend(connection, tenant_id, now)
    attention = [] if tenant_id is not None else _of_the_books(connection)
    attention += _of_budgets(spend, now) + _of_failures(connection, tenant_id, now)
    attention += _of_keys(connection, tenant_id, now)
    attention += _of_promises(connection, tenant_id, now) + _of_errors(connection, tenant_id, now)
    return Overview(
        at=now // SECOND,
        spend=spend,
        money_budgets=budgets.count_of_money(connection, tenant_id),
        attention=attention,
        today=_today(connection, tenant_id, now),
    )


def _spend(connection: sa.Connection, tenant_id: str | None, now: int) -> list[Spend]:
    states = budgets.fullest_budgets(connection, tenant_id=tenant_id, limit=SPEND_MAX)
    tenant_ids = {state.budget.tenant_id for state in states}
    paces = projections.paces(connection, [state.budget for state in states], now, first_keys(connection, tenant_ids))
    tenants = tables.tenants
    owners = sa.select(tenants.c.id, tenants.c.slug, tenants.c.currency).where(tenants.c.id.in_(tenant_ids))
    named = {row.id: row for row in connection.execute(owners)}
    found = []
    for state in states:
        budget, owner = state.budget, named[state.budget.tenant_id]
        run_out_at = projections.project(state, paces.get(budget.counts_for), now).run_out_at
        found.append(
            Spend(
                tenant=owner.slug,
                tenant_id=owner.id,
                budget=budget.id,
                scope=budget.scope,
                scope_id=budget.scope_id,
                kind=budget.kind,
                period=budget.period,
                currency=owner.currency,
                limit_picos=budget.limit_amount,
                posted_picos=state.used,
                held_picos=state.held,
                left_picos=state.left,
                window_end=None if state.resets_at is None else state.resets_at // SECOND,
                run_out_at=None if run_out_at is None else run_out_at // SECOND,
            )
        )
    return found


def _today(connection: sa.Connection, tenant_id: str | None, now: int) -> Today:
    prompts = _hours.c.input_tokens + _hours.c.cached_input_tokens + _hours.c.embedding_tokens
    tokens = sa.func.sum(prompts + _hours.c.output_tokens)
    query = sa.select(
        _hours.c.hour, _hours.c.currency, sa.func.sum(_hours.c.requests), tokens, sa.func.sum(_hours.c.cost_picos)
    ).where(_hours.c.hour >= now - now % DAY)
    if tenant_id is not None:
        query = query.where(_hours.c.tenant_id == tenant_id)
    series: dict[int, Hour] = {}
    cost: dict[str, int] = {}
    for hour, currency, requests, used, picos in connection.execute(
        query.group_by(_hours.c.hour, _hours.c.currency).order_by(_hours.c.hour, _hours.c.currency)
    ):
        start = int(hour) // SECOND
        before = series.get(start, Hour(start=start, requests=0, tokens=0, cost_picos={}))
        series[start] = Hour(
            start=start,
            requests=before.requests + int(requests),
            tokens=before.tokens + int(used),
            cost_picos=before.cost_picos | {currency: int(picos)},
        )
        cost[currency] = cost.get(currency, 0) + int(picos)
    return Today(
        as_of=rollups.read_cursor(connection).folded_at // SECOND or None,
        requests=sum(one.requests for one in series.values()),
        tokens=sum(one.tokens for one in series.values()),
        cost_picos=cost,
        series=list(series.values()),
    )


def _of_the_books(connection: sa.Connection) -> list[Attention]:
    findings = reconcile.open_findings(connection)
    if not findings.imbalances + findings.overshot:
        return []
    message = (
        f"The books have {findings.imbalances} imbalances, and {findings.overshot} budgets were exceeded: see the last "
        "reconciliation."
    )
    return [Attention(kind="books", severity="critical", message=message, link="/admin/billing")]


def _of_budgets(spend: list[Spend], now: int) -> list[Attention]:
    found = []
    for one in spend:
        whose = one.tenant if one.scope == "tenant" else f"{one.tenant} ({one.scope} {one.scope_id})"
        if one.kind == "hard" and one.left_picos <= 0:
            message, severity = f"The {one.period} budget of {whose} is used up: its requests are refused.", "critical"
        elif one.run_out_at is not None and one.run_out_at * SECOND <= now + SOON_S * SECOND:
            hours = max(0, one.run_out_at * SECOND - now) // HOUR
            message, severity = (
                f"The {one.period} budget of {whose} is projected to run out in about {hours} hours.",
                "warning",
            )
        else:
            continue
        link = f"/admin/budgets?search={one.budget}"
        found.append(Attention(kind="budget", severity=severity, message=message, link=link))  # type: ignore[arg-type]
    return found


def _of_failures(connection: sa.Connection, tenant_id: str | None, now: int) -> list[Attention]:
    exports, alerts, deliveries = tables.exports, tables.alerts, tables.alert_deliveries
    failed = sa.select(sa.func.count()).where(exports.c.state == "failed", exports.c.finished_at >= now - RECENT)
    undelivered = (
        sa.select(sa.func.count())
        .select_from(deliveries.join(alerts, alerts.c.id == deliveries.c.alert_id))
        .where(deliveries.c.state == "failed", alerts.c.crossed_at >= now - RECENT)
    )
    if tenant_id is not None:
        failed = failed.where(exports.c.tenant_id == tenant_id)
        own = sa.select(tables.webhooks.c.id).where(tables.webhooks.c.tenant_id == tenant_id)
        undelivered = undelivered.where(alerts.c.tenant_id == tenant_id, deliveries.c.webhook_id.in_(own))
    undelivered_problems = 0
    if tenant_id is None:
        events, of_problems = problem_events, problem_deliveries
        query = (
            sa.select(sa.func.count())
            .select_from(of_problems.join(events, events.c.id == of_problems.c.event_id))
            .where(of_problems.c.state == "failed", events.c.occurred_at >= now - RECENT)
        )
        undelivered_problems = int(connection.execute(query).scalar_one())
    found = []
    if count := connection.execute(failed).scalar_one():
        message = f"{_counted(count, 'export')} failed in the last 24 hours."
        found.append(Attention(kind="exports", severity="warning", message=message, link="/admin/billing?tab=exports"))
    if count := connection.execute(undelivered).scalar_one() + undelivered_problems:
        message = f"{_counted(count, 'webhook delivery', 'webhook deliveries')} failed in the last 24 hours."
        found.append(Attention(kind="webhooks", severity="warning", message=message, link="/admin/budgets?tab=alerts"))
    return found


def _of_keys(connection: sa.Connection, tenant_id: str | None, now: int) -> list[Attention]:
    """Keys that expire within KEYS_EXPIRE_S and were not rotated. Keys made for less than a day, like those of the
    playground, are not counted: they were meant to expire."""
    expiring = sa.select(sa.func.count()).where(
        keys.c.expires_at > now,
        keys.c.expires_at <= now + KEYS_EXPIRE_S * SECOND,
        keys.c.expires_at - keys.c.created_at >= DAY,
        keys.c.revoked_at.is_(None),
        keys.c.rotated_to.is_(None),
    )
    if tenant_id is not None:
        expiring = expiring.where(keys.c.tenant_id == tenant_id)
    if not (count := connection.execute(expiring).scalar_one()):
        return []
    message = f"{_counted(count, 'key')} will expire within 7 days and {'was' if count == 1 else 'were'} not rotated."
    return [
        Attention(kind="keys", severity="warning", message=message, link="/admin/keys?status=expiring&sort=expires_at")
    ]


def _of_promises(connection: sa.Connection, tenant_id: str | None, now: int) -> list[Attention]:
    """Tiers that did not keep a promise in the last whole hour. tier_attention.py reports the first
    tokens of all tenants, within seconds."""
    end = now - now % HOUR
    found = []
    for tier, figures in sla_reports.figures_by_tier(connection, tenant_id, end - HOUR, end).items():
        (first, promised), (steady, measured) = sla_reports.shares(figures)
        missed = []
        if tenant_id is not None and not sla_reports.is_kept(first, promised):
            missed.append(f"{_counted(promised - first, 'request')} of {promised} had no first token within the target")
        if not sla_reports.is_kept(steady, measured):
            missed.append(f"{_counted(measured - steady, 'request')} of {measured} had tokens later than the target")
        if figures.unanswered and tenant_id is None:
            missed.append(f"{_counted(figures.unanswered, 'request')} ended without a first token")
        if missed:
            message = f"The tier {tier} did not keep its promise in the last whole hour: {', and '.join(missed)}."
            link = f"{SLA_LINK}?tier={quote(tier, '')}"
            found.append(Attention(kind="tiers", severity="warning", message=message, link=link))
    return found


def _of_errors(connection: sa.Connection, tenant_id: str | None, now: int) -> list[Attention]:
    """The requests of the last whole hour that were refused or failed."""
    rates = rolled_up_rates(connection, now - now % HOUR - HOUR, tenant_id)
    found = []
    for kind, outcome, count, share in (
        ("refusals", "refused", rates.refused, REFUSED_SHARE),
        ("failures", "failed", rates.failed, FAILED_SHARE),
    ):
        if count >= ERRORS_MIN and count >= share * rates.requests:
            code = next(one.code for one in rates.errors if one.outcome == outcome)
            verb = "were refused" if outcome == "refused" else "failed"
            whole = _counted(rates.requests, "request")
            message = f"{count} of {whole} of the last whole hour {verb}, most often with {code}."
            found.append({"kind": kind, "severity": "warning", "message": message, "link": ERRORS_LINK + outcome})
    return msgspec.convert(found, list[Attention])


def _counted(count: int, noun: str, plural: str = "") -> str:
    return f"1 {noun}" if count == 1 else f"{count} {plural or noun + 's'}"
