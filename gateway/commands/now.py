"""`laneway status`, `requests`, `usage` and `tiers`: the state of this deployment, read from its database."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, get_args

import click
import msgspec
import sqlalchemy as sa

from billing import tables
from billing.accounts.prices import format_picos
from billing.books import reports
from billing.books.history import RequestFilter
from billing.books.reports import GroupSums, ReportFilter
from billing.clock import SECOND, database_now
from billing.ledger import leases
from billing.proofs import reconcile
from gateway.admin.writes import tenant_of
from gateway.commands.console import Console, json_option, pass_console, show_row, show_rows
from gateway.commands.database import read_database
from gateway.commands.request_facts import show_request
from gateway.generation import first_tokens
from gateway.generation.endings import Outcome
from gateway.tables import problems
from gateway.views import request_errors
from gateway.views.names import names_of
from gateway.views.request_errors import RequestQuery
from gateway.views.requests import RequestView
from gateway.views.tiers import WINDOWS_S, TierView, tier_view

REQUEST_COLUMNS = (
    *("ended_at", "tenant", "key", "model", "tier", "ending", "prompt_tokens", "completion_tokens", "cost"),
    *("ttft_s", "duration_s", "request_id"),
)
USAGE_COLUMNS = ("requests", "input_tokens", "cached_input_tokens", "output_tokens", "embedding_tokens", "cost")
TIER_COLUMNS = ("tier", "service_tier", "window", "requests", "within_target", "ttft_p50_ms", "ttft_p99_ms", "refused")
LISTED_MAX = 1000
EXIT_UNSOUND = 1
_SPAN = re.compile(r"([1-9][0-9]{0,5})([mhd])")
_SECONDS = {"m": 60, "h": 3600, "d": 86_400}
GROUPS = ("tenant", "project", "key", "model", "adapter", "tier", "source")
_COLUMNS = {"tenant": "tenant_id", "project": "project_id", "key": "key_id"}  # the others are columns by their name
SOURCE, REQUEST = "source", "request"  # REQUEST: the source of usage that is no line of a batch


def _span(_context: click.Context, _option: click.Parameter, text: str) -> int:
    """Seconds of a text such as 90m, 24h or 30d."""
    if (found := _SPAN.fullmatch(text)) is None:
        raise click.BadParameter(f"{text!r} is no time such as 90m, 24h or 30d")
    return int(found[1]) * _SECONDS[found[2]]


@click.command("requests")
@click.argument("request_id", required=False)
@click.option("--tenant", help="A slug or an id; without it: all.")
@click.option("--key", "key_id", help="An id.")
@click.option("--model")
@click.option("--tier")
@click.option("--batch", "batch_id", help="An id: only the settled lines of this batch.")
@click.option("--ending", help="How it ended: stop, length, client_left, …")
@click.option("--outcome", type=click.Choice(get_args(Outcome)), help="Of an ended request.")
@click.option("--code", help="Of the error that the caller got: rate_limit_exceeded, …")
@click.option("--since", default="24h", show_default=True, callback=_span, help="Such as 90m, 24h or 30d.")
@click.option("--limit", type=click.IntRange(1, LISTED_MAX), default=50, show_default=True)
@json_option
@pass_console
def requests_command(
    console: Console,
    /,
    request_id: str | None,
    tenant: str | None,
    outcome: Outcome | None,
    code: str | None,
    since: int,
    limit: int,
    as_json: bool,
    **of: Any,
) -> None:
    """Running requests, then ended ones, newest first; refused and failed ones too. With REQUEST_ID (as in the header
    x-request-id) one request: its error or its cost and prices, its time in phases, and whether it met its targets.
    Prompts and answers are not stored."""
    if request_id is not None:
        show_request(console, request_id, as_json=as_json)
        return

    def query(connection: sa.Connection) -> tuple[list[RequestView], dict[str | None, str]]:
        begin = database_now(connection) - since * SECOND
        tenant_id = None if tenant is None else tenant_of(connection, tenant).id
        which = RequestQuery(of=RequestFilter(tenant_id=tenant_id, start=begin, **of), outcome=outcome, code=code)
        found, _ = request_errors.list_requests_and_errors(connection, which, after=None, limit=limit)
        views = [RequestView.of(row, error) for row, error in found]
        ids = [one for view in views for one in (view.tenant_id, view.key_id, view.adapter)]
        return views, names_of(connection, ids)

    found, names = read_database(console, query)
    rows = []
    for each in found:
        view: dict[str, Any] = msgspec.to_builtins(each)
        rows.append(view if as_json else view | _shown(view, names))
    show_rows(rows, REQUEST_COLUMNS, as_json=as_json)


def _shown(view: dict[str, Any], names: dict[str | None, str]) -> dict[str, Any]:
    """The cells that differ from the JSON."""
    adapter = view["adapter"]
    return {
        "tenant": names[view["tenant_id"]],
        "key": names[view["key_id"]],
        "model": view["model"] if adapter is None else names[adapter],
        "ending": view["ending"] or ("running" if view["status"] == "held" else view["error"]["code"]),
        "ended_at": None if view["ended_at"] is None else int(view["ended_at"]),
        "cost": None if view["cost_picos"] is None else format_picos(view["cost_picos"], view["currency"]),
        **{name: None if view[name] is None else f"{view[name]:.3f}" for name in ("ttft_s", "duration_s")},
    }


@click.command("usage")
@click.option("--tenant", help="A slug or an id; without it: all.")
@click.option("--by", type=click.Choice(GROUPS), multiple=True, default=("tenant", "model"), show_default=True)
@click.option("--since", default="30d", show_default=True, callback=_span, help="Such as 90m, 24h or 30d.")
@json_option
@pass_console
def usage_command(console: Console, tenant: str | None, by: tuple[str, ...], since: int, as_json: bool) -> None:
    """Requests, tokens and cost by group, the most expensive first. Complete to this moment. The source is `batch_line`
    or `request`."""
    columns = [_COLUMNS.get(name, name) for name in by]

    def query(connection: sa.Connection) -> tuple[list[GroupSums], dict[str | None, str]]:
        end = database_now(connection) + 1
        tenant_ids = () if tenant is None else (tenant_of(connection, tenant).id,)
        which = ReportFilter(start=end - since * SECOND, end=end, tenant_ids=tenant_ids)
        groups = [reports.SOURCE_GROUP if column == SOURCE else column for column in columns]
        rows = reports.buckets(connection, which, width="all", group_by=groups, limit=1).rows
        found = [msgspec.structs.replace(sums, groups=_with_source(sums.groups)) for sums in rows]
        return found, names_of(connection, [value for sums in found for value in sums.groups.values()])

    found, names = read_database(console, query)
    found.sort(key=lambda sums: (sums.currency, -sums.cost_picos))
    rows = []
    for sums in found:
        row: dict[str, Any] = msgspec.to_builtins(sums)
        del row["bucket"]
        if not as_json:
            groups = zip(by, (sums.groups[column] for column in columns), strict=True)
            row |= {name: None if value is None else names[value] for name, value in groups}
            row["cost"] = format_picos(sums.cost_picos, sums.currency)
        rows.append(row)
    show_rows(rows, (*by, *USAGE_COLUMNS), as_json=as_json)


def _with_source(groups: dict[str, str | None]) -> dict[str, str | None]:
    """The groups with the source of the usage in place of the tag."""
    source = reports.SOURCE_GROUP
    return {
        (SOURCE if name == source else name): value or (REQUEST if name == source else None)
        for name, value in groups.items()
    }


@click.command("tiers")
@json_option
@pass_console
def tiers_command(console: Console, as_json: bool) -> None:
    """The tiers from high to low: how often each met its target for the first token in the last five minutes, hour and
    day. Percentiles are at most 9.1 % too high."""
    windows, _ = read_database(console, lambda c: first_tokens.summaries(c, list(WINDOWS_S.values())))
    views = [tier_view(tier, rank, windows) for rank, tier in enumerate(console.config.tiers)]
    rows = [msgspec.to_builtins(view) for view in views] if as_json else _tier_rows(views)
    show_rows(rows, TIER_COLUMNS, as_json=as_json)


def _tier_rows(views: Sequence[TierView]) -> list[dict[str, Any]]:
    rows = []
    for view in views:
        for window in view.attainment:
            share = window.share_within_target
            shown = {name: getattr(window, name) for name in ("window", "requests")}
            for name in ("ttft_p50_ms", "ttft_p99_ms"):
                value = getattr(window, name)
                shown[name] = None if value is None else f"{value:.0f}"
            shown["within_target"] = None if share is None else f"{share:.2%}"
            rows.append({"tier": view.name, "service_tier": view.service_tier, "refused": window.refused_503, **shown})
    return rows


@click.command("status")
@json_option
@pass_console
@click.pass_context
def status_command(context: click.Context, console: Console, as_json: bool) -> None:
    """The deployment in a few lines: gateways, running requests, open problems, the books. Exit status 1: no gateway
    runs, a problem is open, or the books do not add up. `laneway fleet status` asks the engines."""

    def query(connection: sa.Connection) -> dict[str, Any]:
        now = database_now(connection)
        running = sa.select(sa.func.count()).where(tables.holds.c.state == "held")
        active = sa.select(sa.func.count()).where(tables.tenants.c.status == "active")
        open_ = sa.select(problems.c.part, problems.c.status).where(problems.c.opened_by.is_not(None))
        books = reconcile.open_findings(connection)
        last = sa.select(sa.func.max(tables.usage.c.finished_at))
        last_at = connection.execute(last).scalar_one()
        return {
            "gateways": leases.count_live_gateways(connection, now, console.config.lease.renew_s),
            "running_requests": connection.execute(running).scalar_one(),
            "last_request_at": None if last_at is None else last_at // SECOND,
            "active_tenants": connection.execute(active).scalar_one(),
            "problems": [f"{row.part} {row.status}" for row in connection.execute(open_.order_by(problems.c.part))],
            "books_sound": None if books.at is None else not books.imbalances and not books.overshot,
            "books_checked_at": None if books.at is None else books.at // SECOND,
        }

    found = read_database(console, query)
    show_row(found, as_json=as_json)
    if not found["gateways"] or found["problems"] or found["books_sound"] is False:
        context.exit(EXIT_UNSOUND)
