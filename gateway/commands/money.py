"""`laneway prices publish|preview|list` and `laneway budgets set|list|remove|end-users`. Amounts are exact decimals."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click
import msgspec
import sqlalchemy as sa

from billing.accounts import budgets, prices
from billing.accounts.budget_windows import Kind
from billing.accounts.budgets import BudgetState
from billing.accounts.end_users import EndUserState
from billing.accounts.prices import PICOS_MAX, PriceVersion, SubjectKind, format_picos, parse_picos
from billing.clock import Period, from_datetime
from billing.errors import InvalidValue
from billing.lists import LIMIT_MAX, ListQuery
from gateway.access.end_users import EndUserDigests
from gateway.access.sealed_values import ValueUnreadable
from gateway.admin.budgets import budget_state, end_user_states
from gateway.admin.writes import Actor, tenant_of
from gateway.commands.console import Console, fail, json_option, pass_console, show_row, show_rows
from gateway.commands.database import currencies_of, read_database, write_database
from gateway.config.file import ConfigError
from gateway.config.server_secrets import ServerSecrets, read_server_secrets
from gateway.views.accounts import BudgetView, EndUserView, PriceView
from gateway.views.names import names_of

MILLION = 10**6
PERIODS = ("day", "month", "total")
KINDS = ("hard", "soft")
BUDGET_COLUMNS = (
    "id",
    "tenant",
    "scope",
    "of",
    "per_end_user",
    "period",
    "kind",
    "thresholds",
    "limit",
    "used",
    "held",
    "left",
)


def picos(per: int = 1) -> Callable[[click.Context, click.Parameter, str | None], int | None]:
    """Parse a decimal amount of a currency as picos divided by `per`. An amount that is not a whole number is
    refused."""

    def read_amount(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
        try:
            return None if text is None else parse_picos(text, per)
        except InvalidValue as error:
            raise click.BadParameter(str(error)) from None

    return read_amount


@click.group("prices")
def prices_group() -> None:
    """Prices of tokens."""


def _price_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that make up a price, for `publish` and `preview`."""
    for option in (
        click.option("--currency", default="USD", show_default=True),
        click.option("--adapter", is_flag=True, help="SUBJECT is an adapter's id, not a model's name."),
        click.option(
            "--multiplier", "multipliers", multiple=True, metavar="TIER=FACTOR", help="For example batch=0.5."
        ),
        click.option(
            "--output",
            metavar="AMOUNT",
            callback=picos(MILLION),
            required=True,
            help="For a million completion tokens.",
        ),
        click.option(
            "--embedding",
            metavar="AMOUNT",
            callback=picos(MILLION),
            help="For a million prompt tokens of embeddings. Default: as --input.",
        ),
        click.option(
            "--cached-input",
            metavar="AMOUNT",
            callback=picos(MILLION),
            help="For a million cached prompt tokens. Default: as --input.",
        ),
        click.option(
            "--input",
            "input_",
            metavar="AMOUNT",
            callback=picos(MILLION),
            required=True,
            help="For a million prompt tokens.",
        ),
        click.argument("subject"),
    ):
        command = option(command)
    return command


def _price(
    subject: str,
    input_: int,
    cached_input: int | None,
    output: int,
    embedding: int | None,
    multipliers: tuple[str, ...],
    adapter: bool,
    currency: str,
) -> dict[str, Any]:
    kind: SubjectKind = "adapter" if adapter else "model"
    return {
        "subject": subject,
        "input": input_,
        "cached_input": input_ if cached_input is None else cached_input,
        "output": output,
        "embedding": embedding,
        "multipliers": dict(_pair(text) for text in multipliers),
        "subject_kind": kind,
        "currency": currency,
    }


@prices_group.command("publish")
@_price_options
@click.option("--from", "effective_from", type=click.DateTime(), help="Beginning, UTC. Default: at once.")
@click.option("--ahead", is_flag=True, help="SUBJECT is a model that will be added later.")
@json_option
@pass_console
def publish_command(
    console: Console, /, as_json: bool, effective_from: datetime | None, ahead: bool, **price: Any
) -> None:
    """Publish prices of the model SUBJECT. A published version never changes; the newest version in force applies."""
    fields = _price(**price) | {"ahead": ahead}
    if effective_from is not None:
        fields["effective_from"] = from_datetime(effective_from.replace(tzinfo=UTC))
    administration = console.administration
    version = write_database(console, lambda c: administration.prices.publish(c, **fields))
    _show_prices([version], as_json=as_json)


@prices_group.command("preview")
@_price_options
@click.option("--month", help="For example 2026-01. Default: the last complete month.")
@click.option("--tenant", help="A slug or an id; without it: all.")
@json_option
@pass_console
def preview_command(console: Console, /, as_json: bool, month: str | None, tenant: str | None, **price: Any) -> None:
    """The cost of a month's usage of the model SUBJECT at these prices, beside its actual cost. Nothing is
    published."""
    fields, administration = _price(**price), console.administration
    found = read_database(console, lambda c: administration.prices.preview(c, **fields, month=month, tenant=tenant))
    if as_json:
        show_row(msgspec.to_builtins(found), as_json=True)
        return
    names = read_database(console, lambda c: names_of(c, [row.tenant_id for row in found.tenants]))
    shown = [(names[row.tenant_id], row.requests, row.was_picos, row.would_picos) for row in found.tenants]
    shown.append(("all", sum(row.requests for row in found.tenants), found.was_picos, found.would_picos))
    rows = [
        {
            "tenant": name,
            "requests": requests,
            "was": format_picos(was, found.currency),
            "would": format_picos(would, found.currency),
            "difference": format_picos(would - was, found.currency),
        }
        for name, requests, was, would in shown
    ]
    show_rows(rows, ("tenant", "requests", "was", "would", "difference"), as_json=False)


def _pair(text: str) -> tuple[str, str]:
    tier, equals, factor = text.partition("=")
    if not equals:
        fail(f"--multiplier {text!r}: TIER=FACTOR is needed, for example batch=0.5")
    return tier, factor


@prices_group.command("list")
@json_option
@pass_console
def list_prices_command(console: Console, as_json: bool) -> None:
    """Price versions, the latest first; the table has prices for a million tokens."""
    _show_prices(read_database(console, prices.list_price_versions), as_json=as_json)


def _show_prices(versions: list[PriceVersion], *, as_json: bool) -> None:
    """A line for each tier, per million tokens; as JSON, an object for each version."""
    if as_json:
        show_rows([msgspec.to_builtins(PriceView.of(version)) for version in versions], (), as_json=True)
        return
    rows = [
        {
            "subject": version.subject,
            "tier": tier,
            **{meter: format_picos(getattr(unit, meter) * MILLION, version.currency) for meter in prices.METERS},
            "effective_at": PriceView.of(version).effective_from,
            "id": version.id,
        }
        for version in versions
        for tier, unit in version.tiers.items()
    ]
    show_rows(rows, ("subject", "tier", *prices.METERS, "effective_at", "id"), as_json=False)


@click.group("budgets")
def budgets_group() -> None:
    """Limits in tokens or money of a tenant, a project or a key."""


@budgets_group.command("set")
@click.argument("tenant")
@click.option("--period", type=click.Choice(PERIODS), required=True, help="Of the tenant's time zone.")
@click.option("--money", metavar="AMOUNT", callback=picos(), help="The limit, in the tenant's currency.")
@click.option("--tokens", type=click.IntRange(0, PICOS_MAX), help="The limit, in tokens.")
@click.option("--project", help="The budget of this project of the tenant, an id or a name.")
@click.option("--key", "key_id", help="The budget of this key of the tenant.")
@click.option("--kind", type=click.Choice(KINDS), help="A soft budget only alerts. Default: unchanged; hard if new.")
@click.option(
    "--threshold",
    "thresholds",
    multiple=True,
    type=click.IntRange(1, budgets.THRESHOLD_MAX),
    help="Alert at this percentage. May be repeated. Default: unchanged.",
)
@click.option("--per-end-user", is_flag=True, help="The limit of each end user that requests name.")
@json_option
@pass_console
def set_command(
    console: Console,
    tenant: str,
    period: Period,
    money: int | None,
    tokens: int | None,
    project: str | None,
    key_id: str | None,
    kind: Kind | None,
    thresholds: tuple[int, ...],
    per_end_user: bool,
    as_json: bool,
) -> None:
    """Set the one budget of TENANT (a slug or an id) of this period and unit."""
    limit = tokens if money is None else money
    if limit is None or (money is not None and tokens is not None):
        fail("one of --money and --tokens is needed")
    administration = console.administration

    def change(connection: Any) -> BudgetState:
        budget = administration.budgets.set(
            connection,
            tenant_id=tenant_of(connection, tenant).id,
            unit="tokens" if money is None else "money",
            period=period,
            limit_amount=limit,
            project=project,
            key_id=key_id,
            kind=kind,
            thresholds=thresholds or None,
            per_end_user=per_end_user,
        )
        return budget_state(connection, budget)

    show_row(msgspec.to_builtins(BudgetView.of(write_database(console, change))), as_json=as_json)


@budgets_group.command("list")
@click.option("--tenant", help="A slug or an id; without it: all.")
@json_option
@pass_console
def list_budgets_command(console: Console, tenant: str | None, as_json: bool) -> None:
    """Budgets with the amounts used, held and left now. JSON has money in picos."""

    def query(connection: sa.Connection) -> tuple[list[BudgetState], dict[str | None, str], dict[str, str]]:
        tenant_id = None if tenant is None else tenant_of(connection, tenant).id
        found = budgets.list_budget_states(connection, tenant_id=tenant_id)
        ids = [one for state in found for one in (state.budget.tenant_id, state.budget.scope_id)]
        return found, names_of(connection, ids), currencies_of(connection)

    found, names, currencies = read_database(console, query)
    rows: list[dict[str, Any]] = [msgspec.to_builtins(BudgetView.of(state)) for state in found]
    if not as_json:
        rows = [row | _budget_cells(row, names, currencies) for row in rows]
    show_rows(rows, BUDGET_COLUMNS, as_json=as_json)


def _budget_cells(row: dict[str, Any], names: dict[str | None, str], currencies: dict[str, str]) -> dict[str, Any]:
    """The cells that differ from the JSON."""
    cells: dict[str, Any] = {"tenant": names[row["tenant_id"]], "of": names[row["scope_id"]]}
    for field, name in (("limit", "limit_amount"), ("used", "used"), ("held", "held"), ("left", "left")):
        money = row["unit"] == "money"
        cells[field] = format_picos(row[name], currencies[row["tenant_id"]]) if money else f"{row[name]} tokens"
    return cells


@budgets_group.command("end-users")
@click.argument("budget_id")
@click.option("--user", "name", help="Only this end user, by the name in requests. Names are not stored.")
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=100, show_default=True, help="Most rows.")
@json_option
@pass_console
def end_users_command(console: Console, budget_id: str, name: str | None, limit: int, as_json: bool) -> None:
    """The end users of the budget BUDGET_ID, made with --per-end-user, the most used first. JSON has money in picos."""
    wanted = ListQuery(sort="-used", limit=limit)
    digests = None if name is None else EndUserDigests(_secrets(console))

    def query(connection: Any) -> tuple[list[EndUserState], str | None]:
        budget = budgets.get_budget(connection, budget_id)
        money = budget is not None and budget.unit == "money"
        currency = currencies_of(connection)[budget.tenant_id] if budget is not None and money else None
        digest_in = None
        if digests is not None and name is not None:
            if not digests.load_key(connection):  # no gateway has started: no request has named an end user
                return [], currency
            digest_in = functools.partial(digests.digest, name=name)
        return end_user_states(connection, Actor("cli"), budget_id, wanted, digest_in).items, currency

    columns = ("id", "limit_amount", "used", "held", "left", "shared", "created_at", "resets_at")
    try:
        found, currency = read_database(console, query)
    except ValueUnreadable:
        fail("the key of end users' names was encrypted with another secret than gateway.secret_file")
    rows: list[dict[str, Any]] = [msgspec.to_builtins(EndUserView.of(state)) for state in found]
    if currency is not None and not as_json:
        amounts = ("limit_amount", "used", "held", "left")
        rows = [row | {amount: format_picos(row[amount], currency) for amount in amounts} for row in rows]
    show_rows(rows, columns, as_json=as_json)


def _secrets(console: Console) -> ServerSecrets:
    try:
        return read_server_secrets(console.config)
    except (ConfigError, OSError) as error:
        fail(str(error))


@budgets_group.command("remove")
@click.argument("budget_id")
@pass_console
def remove_command(console: Console, budget_id: str) -> None:
    """Stop enforcing a budget."""
    administration = console.administration
    write_database(console, lambda c: administration.budgets.remove(c, budget_id))
    click.echo(f"{budget_id} is no longer enforced")
