"""`laneway billing`: months that are closed, invoices, corrections, margins, and whether the books add up."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import click
import msgspec
import sqlalchemy as sa

from billing.accounts.prices import METERS, format_picos
from billing.books import corrections, documents, invoices, periods, rollups
from billing.books.documents import Tax
from billing.books.invoices import Closable, Invoice
from billing.clock import SECOND, rfc3339
from billing.errors import BillingRefused
from billing.proofs import reconcile
from billing.proofs.reconcile import Reconciliation
from billing.texts import visible
from gateway.admin.writes import tenant_of
from gateway.commands.console import Console, ask, fail, json_option, pass_console, show_row, show_rows, yes_option
from gateway.commands.database import read_database, sentence, write_database
from gateway.commands.exports import check_command, export_command
from gateway.commands.money import picos
from gateway.views.finance import (
    BillingProfileView,
    CorrectionView,
    DocumentView,
    InvoiceView,
    PaymentView,
    PeriodView,
    ReconciliationView,
    WholeInvoiceView,
)
from gateway.views.names import names_of

PERIOD_COLUMNS = ("tenant", "month", "time_zone", "state", "start_at", "end_at", "closed_at", "id")
INVOICE_COLUMNS = ("number", "tenant", "month", "usage", "corrections", "total", "due", "payment", "id")
CLOSABLE_COLUMNS = ("tenant", "usage", "corrections", "stays_open")
PROFILE_COLUMNS = ("tenant_id", "legal_name", "address", "tax_id", "taxes", "payment_days", "accounts")
LINE_COLUMNS = ("line", "kind", "model", "adapter", "tier", "meter", "tokens", "unit_price", "amount")
CORRECTION_COLUMNS = (
    "created_at",
    "month",
    "number",
    "id",
    "tenant",
    "request_id",
    "meter",
    "tokens",
    "amount",
    "reason",
    "actor",
)
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
        return periods.list_periods(connection, tenant_id=tenant_id, state=state)

    found = [PeriodView.of(period) for period in read_database(console, query)]
    names = _tenants(console, [view.tenant_id for view in found])
    rows = [msgspec.to_builtins(view) | {"tenant": names[view.tenant_id]} for view in found]
    show_rows(rows, PERIOD_COLUMNS, as_json=as_json)


@billing_group.command("close")
@click.argument("month")
@tenant_option
@yes_option
@json_option
@pass_console
def close_command(console: Console, month: str, tenant: str | None, yes: bool, as_json: bool) -> None:
    """Close MONTH (2026-01) permanently and make its invoices: of one tenant, or of all tenants for which it is open.
    The month must have ended in the tenant's time zone, and no request of it may run. Later corrections count in the
    next month."""
    administration = console.administration

    def closable(connection: sa.Connection) -> list[Closable]:
        if tenant is not None:
            own = periods.get_period(connection, tenant_of(connection, tenant).id, month)
            return invoices.closable(connection, month, tenant_id=own.tenant_id)
        found: list[Closable] = []
        while page := invoices.closable(connection, month, after=found[-1].period.place if found else None):
            found += page
        return found

    def close(connection: sa.Connection, tenant_id: str) -> Invoice | str:
        try:
            with connection.begin_nested():
                return administration.periods.close(connection, tenant=tenant_id, month=month)
        except BillingRefused as error:
            if tenant is not None:
                raise
            return f"{names[tenant_id]}: {sentence(error)}"

    _fold(console)
    found = read_database(console, closable)
    names = _tenants(console, [each.period.tenant_id for each in found])
    if found and not yes:
        _show_closable(found, names)
        ask(f"Close {month} of {len(found)} tenants permanently?")
    made: list[Invoice] = []
    refused: list[str] = []
    # A tenant whose month is closed already is tried too, so that the refusal names the reason.
    tenant_ids = [one.period.tenant_id for one in found] or ([] if tenant is None else [tenant])
    for tenant_id in tenant_ids:
        result = write_database(console, lambda c, tenant_id=tenant_id: close(c, tenant_id))  # type: ignore[misc]
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
        return invoices.list_invoices(connection, tenant_id=tenant_id, month=month)

    _show_invoices(console, read_database(console, query), as_json=as_json)


@billing_group.command("invoice")
@click.argument("invoice_id")
@json_option
@pass_console
def invoice_command(console: Console, invoice_id: str, as_json: bool) -> None:
    """One invoice, by its id or number, with its lines."""

    def query(connection: sa.Connection) -> WholeInvoiceView:
        return WholeInvoiceView.read(connection, invoices.get_invoice(connection, invoice_id))

    view = read_database(console, query)
    if as_json:
        show_row(msgspec.to_builtins(view), as_json=True)
        return
    show_row(_invoice_row(view, _tenants(console, [view.tenant_id])) | _document_row(view), as_json=False)
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
    """Correct the tokens of a settled request, at the price they had: in its month while that is open, or else in the
    current one."""
    administration = console.administration

    def correct(connection: sa.Connection) -> CorrectionView:
        made = administration.corrections.correct_request(
            connection, request_id=request_id, meter=meter, tokens=tokens, reason=reason
        )
        return CorrectionView.read(connection, [made])[0]

    show_row(msgspec.to_builtins(write_database(console, correct)), as_json=as_json)


@billing_group.command("credit")
@click.argument("tenant")
@click.argument("amount", callback=picos())
@click.option("--charge", is_flag=True, help="Charge AMOUNT instead.")
@click.option("--reason", required=True, help="Stored with the correction, and shown in exports.")
@click.option("--month", help="An open month, for example 2026-01. Default: the current one.")
@click.option("--project", help="An id or a name.")
@click.option("--key", "key_id")
@click.option("--model")
@click.option("--adapter", help="An id.")
@click.option("--tier")
@click.option("--meter", type=click.Choice(METERS))
@yes_option
@json_option
@pass_console
def credit_command(
    console: Console,
    /,
    tenant: str,
    amount: int,
    charge: bool,
    reason: str,
    yes: bool,
    as_json: bool,
    **names: str | None,
) -> None:
    """Credit TENANT with an AMOUNT of its currency, without reference to a request. It gets a numbered credit note, and
    is a line of the month's invoice."""
    administration = console.administration
    signed = amount if charge else -amount
    if not yes:
        own = read_database(console, lambda c: tenant_of(c, tenant))
        what = f"{'Charge' if charge else 'Credit'} {own.slug} {format_picos(amount, own.currency)}"
        ask(f"{what} in {names['month'] or 'the current month'}, permanently?")

    def make(connection: sa.Connection) -> CorrectionView:
        made = administration.corrections.correct_tenant(
            connection, tenant=tenant, picos=signed, reason=reason, **names
        )
        return CorrectionView.read(connection, [made])[0]

    show_row(msgspec.to_builtins(write_database(console, make)), as_json=as_json)


@billing_group.command("pay")
@click.argument("invoice_id")
@click.argument("amount_minor", type=int)
@click.option("--reference", required=True, help="For example of the bank transfer.")
@json_option
@pass_console
def pay_command(console: Console, invoice_id: str, amount_minor: int, reference: str, as_json: bool) -> None:
    """Record AMOUNT_MINOR, in the currency's smallest unit (cents), as received for an invoice, by its id or number;
    after `--`, a negative amount reverses a payment."""
    administration = console.administration
    made = write_database(
        console,
        lambda c: administration.documents.record_payment(
            c, invoice_id=invoice_id, amount_minor=amount_minor, reference=reference
        ),
    )
    show_row(msgspec.to_builtins(PaymentView.of(made)), as_json=as_json)


@billing_group.command("profile")
@click.argument("tenant")
@click.option("--legal-name", help="Default: the tenant's name.")
@click.option("--address", multiple=True, metavar="LINE", help="A line of the address; repeat it for each line.")
@click.option("--tax-id")
@click.option("--tax", "taxes", multiple=True, metavar="NAME=PERCENT", help='For example "VAT=19".')
@click.option("--payment-days", type=int, help="Default: billing.payment_days.")
@click.option("--account", "accounts", multiple=True, metavar="CONNECTOR=ID", help='For example "stripe=cus_…".')
@click.option("--set", "change", is_flag=True, help="Replace the whole profile by these options.")
@json_option
@pass_console
def profile_command(
    console: Console,
    /,
    tenant: str,
    change: bool,
    as_json: bool,
    taxes: tuple[str, ...],
    accounts: tuple[str, ...],
    **fields: Any,
) -> None:
    """Show the name, address, taxes and terms on TENANT's next invoices; with --set, replace them."""
    administration = console.administration
    given = any((taxes, accounts, *fields.values()))
    if given and not change:
        fail("these options replace the whole profile: add --set")
    if change:
        parsed: dict[str, Any] = {
            "taxes": tuple(Tax(*_pair(text, "--tax")) for text in taxes),
            "accounts": dict(_pair(text, "--account") for text in accounts),
        }
        profile = write_database(
            console, lambda c: administration.documents.set_profile(c, tenant=tenant, **parsed, **fields)
        )
    else:
        profile = read_database(console, lambda c: documents.profile_of(c, tenant_of(c, tenant).id))
    row = msgspec.to_builtins(BillingProfileView.of(profile))
    if not as_json:
        row["taxes"] = [f"{tax.name} {tax.rate} %" for tax in profile.taxes]
        row["accounts"] = [f"{name}={account}" for name, account in profile.accounts.items()]
    show_row(row, as_json=as_json)


@billing_group.command("corrections")
@tenant_option
@json_option
@pass_console
def corrections_command(console: Console, tenant: str | None, as_json: bool) -> None:
    """Corrections in the order they were made: the first thousand."""

    def query(connection: sa.Connection) -> list[corrections.Correction]:
        tenant_id = None if tenant is None else tenant_of(connection, tenant).id
        return corrections.list_corrections(connection, tenant_id=tenant_id)

    views = read_database(console, lambda c: CorrectionView.read(c, query(c)))
    rows = [{**msgspec.to_builtins(view), "amount": format_picos(view.picos, view.currency)} for view in views]
    rows = _named(console, rows, as_json)
    show_rows(rows, CORRECTION_COLUMNS, as_json=as_json)


@billing_group.command("margin")
@click.option("--month", help="For example 2026-01. Default: the last complete month.")
@tenant_option
@json_option
@pass_console
def margin_command(console: Console, month: str | None, tenant: str | None, as_json: bool) -> None:
    """Revenue of each tier, and the cost of its device time by billing.device_second_prices. Recomputation after a
    preemption counts as a cost of the tier that caused the preemption."""
    _fold(console)
    administration = console.administration
    found = read_database(console, lambda c: administration.periods.margins(c, month=month, tenant=tenant))
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

    proved = read_database(console, prove)
    result = write_database(console, lambda c: reconcile.store_reconciliation(c, proved))
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
    while write_database(console, rollups.fold_usage).more:
        pass


def _pair(text: str, option: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign and value):
        fail(f"{option} {text!r} is not NAME=VALUE")
    return name, value


def _minor(minor: int, document: DocumentView) -> str:
    return f"{Decimal(minor).scaleb(-document.decimals):f} {document.currency}"


def _document_row(view: InvoiceView) -> dict[str, Any]:
    """The rounded amounts and the taxes of an invoice with a document."""
    if (document := view.document) is None:
        return {}
    taxes = {f"{tax.name} {tax.rate} %": _minor(tax.minor, document) for tax in document.taxes}
    rounded = {"net": _minor(document.net_minor, document), **taxes, "to_pay": _minor(document.total_minor, document)}
    parties = {"issuer": document.issuer.name, "customer": document.customer.name}
    return {**parties, **rounded, "paid": _minor(view.paid_minor, document)}


def _show_closable(found: list[Closable], names: dict[str | None, str]) -> None:
    rows = [
        {
            "tenant": names[one.period.tenant_id],
            "usage": format_picos(one.usage_picos, one.currency),
            "corrections": format_picos(one.correction_picos, one.currency),
            "stays_open": one.reason,
        }
        for one in found
    ]
    show_rows(rows, CLOSABLE_COLUMNS, as_json=False, err=True)


def _invoice_row(view: InvoiceView, names: dict[str | None, str]) -> dict[str, Any]:
    document = view.document
    return {
        "number": None if document is None else document.number,
        "id": view.id,
        "tenant": names[view.tenant_id],
        "month": view.period.month,
        "usage": format_picos(view.usage_picos, view.currency),
        "corrections": format_picos(view.correction_picos, view.currency),
        "total": format_picos(view.total_picos, view.currency),
        "issued_at": view.issued_at,
        "due": None if document is None or document.due_at is None else rfc3339(document.due_at * SECOND)[:10],
        "payment": view.payment,
    }


def _tenants(console: Console, tenant_ids: list[str]) -> dict[str | None, str]:
    """Slugs by id."""
    return read_database(console, lambda c: names_of(c, tenant_ids))


def _named(console: Console, rows: list[dict[str, Any]], as_json: bool) -> list[dict[str, Any]]:
    """Rows with the slug of their tenant in place of its id, for a table."""
    if as_json or not rows:
        return rows
    names = _tenants(console, [row["tenant_id"] for row in rows])
    return [
        {("tenant" if name == "tenant_id" else name): (names[value] if name == "tenant_id" else value)
         for name, value in row.items()}
        for row in rows
    ]  # fmt: skip


def _pairs(fields: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in fields.items())


def _show_invoices(console: Console, found: list[Invoice], *, as_json: bool) -> None:
    views = [InvoiceView.of(invoice) for invoice in found]
    names = _tenants(console, [view.tenant_id for view in views])
    rows = [msgspec.to_builtins(view) if as_json else _invoice_row(view, names) for view in views]
    show_rows(rows, INVOICE_COLUMNS, as_json=as_json)


for command in (export_command, check_command):
    billing_group.add_command(command)
