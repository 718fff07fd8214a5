"""`laneway sla`: whether the tiers kept their promises."""

from __future__ import annotations

from typing import cast, get_args

import click
import msgspec
import sqlalchemy as sa

from billing.books import sla_reports
from billing.books.sla_reports import Period, SlaFigures, SlaQuery, SlaReport
from gateway.admin.writes import tenant_of
from gateway.commands.console import Console, fail, json_option, pass_console, show_json, show_rows
from gateway.commands.database import read_database
from gateway.views.sla import SlaView, sla_csv

COLUMNS = (
    "tier", "model", "date", "promise", "requests", "first_token", "p50_ms", "p95_ms", "p99_ms", "between_tokens",
    "p99_between_ms", "refused", "unanswered", "preemptions",
)  # fmt: skip
PERIODS = tuple(period.replace("_", "-") for period in get_args(Period))


@click.command("sla")
@click.option("--tenant", help="A slug or an id; without it: all tenants together.")
@click.option("--tier")
@click.option("--model", help="A base model.")
@click.option("--period", type=click.Choice(PERIODS), help="Instead of --from and --to. Default: 30d.")
@click.option("--from", "start_date", metavar="DATE", help="The first day, as 2026-01-31. Default: the last day.")
@click.option("--to", "end_date", metavar="DATE", help="The last day. Default: today.")
@click.option("--time-zone", metavar="ZONE", help="Of the days, an IANA name. Default: the tenant's, else UTC.")
@click.option("--by-model", is_flag=True, help="A line for each tier and model.")
@click.option("--days", is_flag=True, help="A line for each day with requests too.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a line for each day.")
@json_option
@pass_console
def sla_command(
    console: Console,
    tenant: str | None,
    tier: str | None,
    model: str | None,
    period: str | None,
    start_date: str | None,
    end_date: str | None,
    time_zone: str | None,
    by_model: bool,
    days: bool,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Whether the tiers kept their promises: of each tier the requests within the targets for the first token and
    between tokens that were in force, and percentiles. For example: laneway sla --tenant acme --period last-month"""
    if period is not None and (start_date or end_date):
        fail("--period is given with --from or --to; give one of them")
    names = [section.name for section in console.config.tiers]

    def query(connection: sa.Connection) -> tuple[SlaReport, str | None]:
        own = None if tenant is None else tenant_of(connection, tenant)
        wanted = SlaQuery(
            tenant_id=None if own is None else own.id,
            tier=tier,
            model=model,
            start_date=start_date,
            end_date=end_date,
            period=cast(Period, (period or "30d").replace("-", "_")),
            time_zone=time_zone,
            by="model" if by_model else "tier",
        )
        return sla_reports.make_sla_report(connection, wanted, names), None if own is None else own.slug

    report, slug = read_database(console, query)
    view = SlaView.of_report(report, slug)
    if as_csv:
        click.echo(sla_csv(view), nl=False)
    elif as_json:
        show_json(msgspec.to_builtins(view))
    else:
        _show_table(report, days=days)


def _show_table(report: SlaReport, *, days: bool) -> None:
    range_ = report.start_date
    if report.end_date != report.start_date:
        range_ += f" to {report.end_date}"
    click.echo(f"{range_}, days of {report.time_zone}")
    rows = []
    for group in report.groups:
        name = {"tier": group.tier, "model": group.model}
        if days:
            rows += [name | {"date": day.date} | _cells(day) for day in group.days if day.verdict != "no_traffic"]
        rows.append(name | {"date": "all"} | _cells(group.total))
    show_rows(rows, COLUMNS, as_json=False)


def _cells(figures: SlaFigures) -> dict[str, object]:
    promised = figures.ttft_measured + figures.refused + figures.unanswered
    return {
        "promise": figures.verdict.replace("_", " "),
        "requests": figures.requests,
        "first_token": _share(figures.ttft_within, promised),
        "p50_ms": _ms(figures.ttft_p50_ms),
        "p95_ms": _ms(figures.ttft_p95_ms),
        "p99_ms": _ms(figures.ttft_p99_ms),
        "between_tokens": _share(figures.itl_within, figures.itl_measured),
        "p99_between_ms": _ms(figures.itl_p99_ms),
        "refused": figures.refused,
        "unanswered": figures.unanswered,
        "preemptions": figures.preemptions,
    }


def _share(within: int, of: int) -> str | None:
    """Truncated, not rounded, so that 100.00 % means all requests."""
    return f"{10_000 * within // of / 100:.2f} %" if of else None


def _ms(value: float | None) -> str | None:
    return None if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"
