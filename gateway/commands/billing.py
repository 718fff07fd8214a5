"""`laneway billing`: months that are closed, invoices, corrections, margins, and whether the books add up."""

from __future__ import annotations

from typing import Any

import click
import msgspec
import sqlalchemy as sa

from billing.accounts.prices import METERS, format_picos
from billing.books import corrections, invoices, periods, rollups
from billing.books.invoices import Invoice
from billing.errors import BillingRefused
from billing.proofs import reconcile
from billing.proofs.reconcile import Reconciliation
from billing.texts import visible
from gateway.admin.writes import tenant_of
from gateway.commands.console import Console, fail, json_option, pass_console, show_row, show_rows
from gateway.commands.database import read, sentence, write
from gateway.commands.money import picos
from gateway.commands.names import names_of
from gateway.views.finance import (
    CorrectionView,
    InvoiceView,
    PeriodView,
    ReconciliationView,
    WholeInvoiceView,
    adapter_names,
)

PERIOD_COLUMNS = ("tenant", "month", "time_zone", "state", "start_at", "end_at", "closed_at", "id")
INVOICE_COLUMNS = ("id", "tenant", "month", "usage", "corrections", "total", "issued_at")
LINE_COLUMNS = ("line", "kind", "model", "adapter", "tier", "meter", "tokens", "unit_price", "amount")
CORRECTION_COLUMNS = ("created_at", "id", "tenant", "request_id", "meter", "tokens", "amount", "reason", "actor")
MARGIN_COLUMNS = (
    "tier", "requests", "usage", "corrections", "device_s", "preemption_s", "cost", "of_it_preemption", "margin",
)  # fmt: skip
EXIT_UNSOUND = 1

tenant_option = click.option("--tenant", help="A slug or an id; without it: all.")


@click.group("billing")
def billing_group() -> None:
    """Months, invoices, corrections, margins, and the proof that the books add up."""


@billing_group.command("periods")
@tenant_option
@click.option("--state", type=click.Choice(("open", "closed")))
@json_option
@pass_console
def periods_command(console: Console, tenant: str | None, state: str | None, as_json: bool) -> None:
    """Billing periods, by their start."""

    def query(connection: sa.Connection) -> list[periods.Period]:
        tenant_id = None if tenant is None else tenant_of(connection, tenant).id
        return periods.listing(connection, tenant_id=tenant_id, state=state)

    rows = _named(console, [msgspec.to_builtins(PeriodView.of(period)) for period in read(console, query)], as_json)
    show_rows(rows, PERIOD_COLUMNS, as_json=as_json)


@billing_group.command("close")
@click.argument("month")
@tenant_option
@json_option
@pass_console
def close_command(console: Console, month: str, tenant: str | None, as_json: bool) -> None:
    """Close MONTH (2026-01) permanently and make its invoices: of one tenant, or of all tenants for which it is open.
    The month must have ended in the tenant's time zone, and no request of it may run. Later corrections count in the
    next month."""
    administration = console.administration

    def tenant_ids(connection: sa.Connection) -> list[str]:
        if tenant is not None:
            return [tenant_of(connection, tenant).id]
        periods.check_month(month)
        return [period.tenant_id for period in periods.listing(connection, month=month, state="open")]

    _fold(console)
    made: list[Invoice] = []
    refused: list[str] = []

    def close(connection: sa.Connection, tenant_id: str) -> Invoice | str:
        try:
            with connection.begin_nested():
                return administration.periods.close(connection, tenant=tenant_id, month=month)
        except BillingRefused as error:
            if tenant is not None:
                raise
            return f"{tenant_of(connection, tenant_id).slug}: {sentence(error)}"

    for tenant_id in read(console, tenant_ids):
        result = write(console, lambda c, tenant_id=tenant_id: close(c, tenant_id))  # type: ignore[misc]
        if isinstance(result, str):
            refused.append(result)
        else:
            made.append(result)
    _show_invoices(console, made, as_json=as_json)
    if refused:
        fail(f"not closed: {'; '.join(refused)}")


@billing_group.command("invoices")
@tenant_option
@click.option("--month", help="For example 2026-01.")
@json_option
@pass_console
def invoices_command(console: Console, tenant: str | None, month: str | None, as_json: bool) -> None:
    """Invoices of closed months."""

    def query(connection: sa.Connection) -> list[Invoice]:
        tenant_id = None if tenant is None else tenant_of(connection, tenant).id
        return invoices.listing(connection, tenant_id=tenant_id, month=month)

    _show_invoices(console, read(console, query), as_json=as_json)


@billing_group.command("invoice")
@click.argument("invoice_id")
@json_option
@pass_console
def invoice_command(console: Console, invoice_id: str, as_json: bool) -> None:
    """One invoice with its lines."""

    def query(connection: sa.Connection) -> WholeInvoiceView:
        found = invoices.get(connection, invoice_id)
        return WholeInvoiceView.of_lines(found, invoices.lines(connection, invoice_id), adapter_names(connection))

    view = read(console, query)
    if as_json:
        show_row(msgspec.to_builtins(view), as_json=True)
        return
    show_row(_named(console, [_invoice_row(view)], False)[0], as_json=False)
    click.echo()
    rows = []
    for line in view.lines:
        unit = None if line.unit_price_picos is None else format_picos(line.unit_price_picos, view.currency)
        shown = {"adapter": line.adapter_name or line.adapter, "unit_price": unit}
        rows.append({**msgspec.to_builtins(line), **shown, "amount": format_picos(line.picos, view.currency)})
    show_rows(rows, LINE_COLUMNS, as_json=False)


@billing_group.command("correct")
@click.argument("request_id")
@click.option("--meter", type=click.Choice(METERS), required=True)
@click.option("--tokens", type=int, required=True, help="Added to the billed tokens; below 0: subtracted.")
@click.option("--reason", required=True, help="Stored with the correction, and shown in exports.")
@json_option
@pass_console
def correct_command(console: Console, request_id: str, meter: str, tokens: int, reason: str, as_json: bool) -> None:
    """Correct the tokens of a settled request, at the price they had, in the period that is open now."""
    administration = console.administration
    made = write(
        console,
        lambda c: administration.corrections.correct_request(
            c, request_id=request_id, meter=meter, tokens=tokens, reason=reason
        ),
    )
    show_row(msgspec.to_builtins(CorrectionView.of(made)), as_json=as_json)


@billing_group.command("credit")
@click.argument("tenant")
@click.argument("amount", callback=picos())
@click.option("--charge", is_flag=True, help="Charge AMOUNT instead.")
@click.option("--reason", required=True, help="Stored with the correction, and shown in exports.")
@click.option("--project", help="An id or a name.")
@click.option("--key", "key_id")
@click.option("--model")
@click.option("--adapter", help="An id.")
@click.option("--tier")
@click.option("--meter", type=click.Choice(METERS))
@json_option
@pass_console
def credit_command(
    console: Console, /, tenant: str, amount: int, charge: bool, reason: str, as_json: bool, **names: str | None
) -> None:
    """Credit TENANT with an AMOUNT of its currency, without reference to a request."""
    administration = console.administration
    signed = amount if charge else -amount
    made = write(
        console,
        lambda c: administration.corrections.correct_tenant(c, tenant=tenant, picos=signed, reason=reason, **names),
    )
    show_row(msgspec.to_builtins(CorrectionView.of(made)), as_json=as_json)


@billing_group.command("corrections")
@tenant_option
@json_option
@pass_console
def corrections_command(console: Console, tenant: str | None, as_json: bool) -> None:
    """Corrections in the order they were made: the first thousand."""

    def query(connection: sa.Connection) -> list[corrections.Correction]:
        tenant_id = None if tenant is None else tenant_of(connection, tenant).id
        return corrections.listing(connection, tenant_id=tenant_id)

    views = [CorrectionView.of(correction) for correction in read(console, query)]
    rows = [{**msgspec.to_builtins(view), "amount": format_picos(view.picos, view.currency)} for view in views]
    rows = _named(console, rows, as_json)
    show_rows(rows, CORRECTION_COLUMNS, as_json=as_json)


@billing_group.command("margin")
@click.option("--month", help="For example 2026-01. Default: the last complete month.")
@tenant_option
@json_option
@pass_console
def margin_command(console: Console, month: str | None, tenant: str | None, as_json: bool) -> None:
    """Revenue of each tier, and the cost of its device time at billing.device_second_picos. Recomputation after a
    preemption counts as a cost of the tier that caused the preemption."""
    _fold(console)
    administration = console.administration
    found = read(console, lambda c: administration.periods.margins(c, month=month, tenant=tenant))
    if as_json:
        show_row(msgspec.to_builtins(found), as_json=True)
        return
    shown = {"usage": "usage_picos", "corrections": "correction_picos", "cost": "cost_picos"}
    shown |= {"of_it_preemption": "preemption_picos", "margin": "margin_picos"}
    rows = []
    for tier in found.tiers:
        money = {name: format_picos(getattr(tier, field), tier.currency) for name, field in shown.items()}
        seconds = {name: f"{getattr(tier, name):.3f}" for name in ("device_s", "preemption_s")}
        rows.append({"tier": tier.tier, "requests": tier.requests, **seconds, **money})
    show_rows(rows, MARGIN_COLUMNS, as_json=False)


@billing_group.command("reconcile")
@click.option("--month", help="Only the periods of this month, for example 2026-01.")
@click.option("--minute", is_flag=True, help="Only the rows since the last such check, as gateways do each minute.")
@json_option
@pass_console
def reconcile_command(console: Console, month: str | None, minute: bool, as_json: bool) -> None:
    """Check that usage = entries = roll-ups = invoices, that all tokens that engines made are accounted for, and that
    no hard budget is exceeded. Exit status 1 if a check fails."""
    if month is not None and minute:
        fail("one of --month and --minute")
    _fold(console)

    def prove(connection: sa.Connection) -> Reconciliation:
        if minute:
            return reconcile.reconcile_minute(connection)
        return reconcile.reconcile_all(connection) if month is None else reconcile.reconcile_month(connection, month)

    proved = read(console, prove)
    result = write(console, lambda c: reconcile.record(c, proved))
    view = msgspec.to_builtins(ReconciliationView.of(result))
    if as_json:
        show_row(view, as_json=True)
    else:
        counted = {"imbalances": len(result.imbalances), "overshot": len(result.overshot)}
        plain = {name: value for name, value in view.items() if not isinstance(value, dict | list)}
        show_row({**plain, **counted, "took_s": f"{result.took_s:.3f}"}, as_json=False)
        for engine in result.engine_bounds:
            click.echo(visible(f"engine bounds: {_pairs(msgspec.to_builtins(engine))}"))
        for sums in result.sums:
            owed, entered = (format_picos(value, sums.currency) for value in (sums.owed_picos, sums.entered_picos))
            click.echo(f"sums: {sums.transactions} transactions, owed {owed}, entered {entered}")
        for imbalance in result.imbalances:
            click.echo(f"{imbalance.what}: {imbalance.where}: expected {imbalance.expected}, found {imbalance.found}")
        for window in result.overshot:
            click.echo(f"overshot: {window}")
    if not result.sound:
        raise SystemExit(EXIT_UNSOUND)


def _fold(console: Console) -> None:
    """Fold all usage rows into the roll-ups, in bounded transactions. Gateways do so too, but none may be running."""
    while write(console, rollups.fold_usage).more:
        pass


def _invoice_row(view: InvoiceView) -> dict[str, Any]:
    return {
        "id": view.id,
        "tenant_id": view.tenant_id,
        "month": view.period.month,
        "usage": format_picos(view.usage_picos, view.currency),
        "corrections": format_picos(view.correction_picos, view.currency),
        "total": format_picos(view.total_picos, view.currency),
        "issued_at": view.issued_at,
    }


def _named(console: Console, rows: list[dict[str, Any]], as_json: bool) -> list[dict[str, Any]]:
    """Rows with the slug of their tenant in place of its id, for a table."""
    if as_json or not rows:
        return rows
    names = read(console, lambda c: names_of(c, [row["tenant_id"] for row in rows]))
    return [
        {("tenant" if name == "tenant_id" else name): (names[value] if name == "tenant_id" else value)
         for name, value in row.items()}
        for row in rows
    ]  # fmt: skip


def _pairs(fields: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in fields.items())


def _show_invoices(console: Console, found: list[Invoice], *, as_json: bool) -> None:
    views = [InvoiceView.of(invoice) for invoice in found]
    rows = [msgspec.to_builtins(view) if as_json else _invoice_row(view) for view in views]
    rows = _named(console, rows, as_json)
    show_rows(rows, INVOICE_COLUMNS, as_json=as_json)
