"""Documents of invoices and credits: numbers without gaps, addresses, taxes, rounded totals, due dates and payments.

A document is made in the transaction that issues it and never changes. Its net amount is the exact amount rounded once
to the currency's smallest unit, half away from 0; each tax is computed on the net amount and rounded the same way; the
total is their sum. This module knows no HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Literal

import msgspec
import sqlalchemy as sa

from billing.accounts.prices import PICOS_MAX
from billing.clock import DAY, Clock, database_now, to_datetime
from billing.errors import InvalidValue, RowNotFound
from billing.finance_tables import billing_profiles, document_counters, documents, payments
from billing.ids import new_id
from billing.tables import tenants
from billing.texts import check_text

TAXES_MAX = 8
RATE_PLACES = 4  # decimal places of a rate in percent
ADDRESS_LINES_MAX = 8
PAYMENT_DAYS_MAX = 365
ACCOUNT_CHARS_MAX = 100
# ISO 4217: decimal places of the currencies whose number of places is not two.
_PLACES = {
    **dict.fromkeys(
        ("BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "UYI", "VND", "VUV"), 0
    ),
    **dict.fromkeys(("XAF", "XOF", "XPF"), 0),
    **dict.fromkeys(("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"), 3),
    **dict.fromkeys(("CLF", "UYW"), 4),
}


class Party(msgspec.Struct, frozen=True, kw_only=True):
    """The issuer or the customer, as printed on a document."""

    name: str
    address: tuple[str, ...] = ()
    tax_id: str | None = None


class Tax(msgspec.Struct, frozen=True):
    """`rate`: percent, a decimal number such as "7.5"."""

    name: str
    rate: str


class TaxLine(msgspec.Struct, frozen=True):
    """A tax on the net amount of a document, rounded to the smallest unit."""

    name: str
    rate: str
    minor: int


class Issuer(msgspec.Struct, frozen=True, kw_only=True):
    """The issuer of documents, from the configuration. A series of numbers belongs to one issuer."""

    party: Party = Party(name="Laneway")
    invoice_series: str = "INV"
    credit_series: str = "CN"
    payment_days: int = 30


DEFAULT_ISSUER = Issuer()


class BillingProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant on its documents. `legal_name` None: the tenant's name; `payment_days` None: the issuer's. `accounts`:
    the tenant's account in another system, by the name of the connector that pushes usage there."""

    tenant_id: str
    legal_name: str | None = None
    address: tuple[str, ...] = ()
    tax_id: str | None = None
    taxes: tuple[Tax, ...] = ()
    payment_days: int | None = None
    accounts: dict[str, str] = {}

    @property
    def id(self) -> str:
        """The id of the profile in audit lines, made from the tenant's id."""
        return f"bpr_{self.tenant_id.removeprefix('ten_')}"


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A row of documents. Amounts in `…_minor` are integers of 10^-decimals of the currency."""

    number: str
    kind: Literal["invoice", "credit_note"]
    tenant_id: str
    invoice_id: str | None
    correction_id: str | None
    issuer: Party
    customer: Party
    currency: str
    decimals: int
    exact_picos: int
    net_minor: int
    taxes: tuple[TaxLine, ...]
    tax_minor: int
    total_minor: int
    issued_at: int
    due_at: int | None


class Payment(msgspec.Struct, frozen=True, kw_only=True):
    """A row of payments."""

    id: str
    invoice_id: str
    tenant_id: str
    minor: int
    paid_at: int
    reference: str
    actor: str
    created_at: int


PaymentState = Literal["unpaid", "partly_paid", "paid", "overdue", "nothing_due"]


def decimals_of(currency: str) -> int:
    """Decimal places of the currency's smallest unit."""
    return _PLACES.get(currency, 2)


def rounded(amount: int, unit: int) -> int:
    """`amount` in multiples of `unit`, rounded half away from 0."""
    whole, rest = divmod(abs(amount), unit)
    whole += 2 * rest >= unit
    return whole if amount >= 0 else -whole


def tax_lines(taxes: Sequence[Tax], net_minor: int) -> tuple[TaxLine, ...]:
    scale = 10 ** (RATE_PLACES + 2)
    return tuple(
        TaxLine(tax.name, tax.rate, rounded(net_minor * int(Decimal(tax.rate) * 10**RATE_PLACES), scale))
        for tax in taxes
    )


def profile_of(connection: sa.Connection, tenant_id: str) -> BillingProfile:
    """The tenant's profile; an empty profile if none is stored."""
    return stored_profile(connection, tenant_id) or BillingProfile(tenant_id=tenant_id)


def stored_profile(connection: sa.Connection, tenant_id: str) -> BillingProfile | None:
    return stored_profiles(connection, [tenant_id]).get(tenant_id)


def stored_profiles(connection: sa.Connection, tenant_ids: Sequence[str]) -> dict[str, BillingProfile]:
    """The profiles of these tenants by tenant; a tenant whose profile was never set is missing."""
    query = sa.select(billing_profiles).where(billing_profiles.c.tenant_id.in_(tenant_ids))
    found: dict[str, BillingProfile] = {}
    for row in connection.execute(query):
        fields = {name: row._mapping[name] for name in BillingProfile.__struct_fields__}
        found[row.tenant_id] = msgspec.convert(fields, BillingProfile)
    return found


def set_profile(connection: sa.Connection, profile: BillingProfile, clock: Clock = database_now) -> BillingProfile:
    """Store the tenant's profile, for documents that are issued from now on. Raises InvalidValue."""
    _check_profile(profile)
    values = msgspec.to_builtins(profile) | {"updated_at": clock(connection)}
    changed = sa.update(billing_profiles).where(billing_profiles.c.tenant_id == profile.tenant_id)
    if not connection.execute(changed.values(values)).rowcount:
        connection.execute(sa.insert(billing_profiles).values(values))
    return profile


def issue(
    connection: sa.Connection,
    issuer: Issuer,
    *,
    kind: Literal["invoice", "credit_note"],
    tenant_id: str,
    currency: str,
    exact_picos: int,
    now: int,
    invoice_id: str | None = None,
    correction_id: str | None = None,
) -> Document:
    """Make the document of an invoice or of a credit (`exact_picos` above 0) with the next number of its series and
    year (UTC). A credit note has no taxes: the credit is a line of its month's invoice, before taxes."""
    profile = profile_of(connection, tenant_id)
    own_name = connection.execute(sa.select(tenants.c.name).where(tenants.c.id == tenant_id)).scalar_one()
    decimals = decimals_of(currency)
    net = rounded(exact_picos, 10 ** (12 - decimals))
    lines = tax_lines(profile.taxes, net) if kind == "invoice" else ()
    tax = sum(line.minor for line in lines)
    series = issuer.invoice_series if kind == "invoice" else issuer.credit_series
    year = to_datetime(now).year
    ordinal = _next_ordinal(connection, series, year)
    days = issuer.payment_days if profile.payment_days is None else profile.payment_days
    made = Document(
        number=f"{series}-{year}-{ordinal:06d}",
        kind=kind,
        tenant_id=tenant_id,
        invoice_id=invoice_id,
        correction_id=correction_id,
        issuer=issuer.party,
        customer=Party(name=profile.legal_name or own_name, address=profile.address, tax_id=profile.tax_id),
        currency=currency,
        decimals=decimals,
        exact_picos=exact_picos,
        net_minor=net,
        taxes=lines,
        tax_minor=tax,
        total_minor=net + tax,
        issued_at=now,
        due_at=now + days * DAY if kind == "invoice" and net + tax > 0 else None,
    )
    row = msgspec.to_builtins(made) | {"series": series, "year": year, "ordinal": ordinal}
    connection.execute(sa.insert(documents).values(row))
    return made


def documents_of(
    connection: sa.Connection, *, invoice_ids: Sequence[str] = (), correction_ids: Sequence[str] = ()
) -> dict[str, Document]:
    """The documents of invoices and corrections, by the id of the invoice or correction."""
    wanted = sa.or_(documents.c.invoice_id.in_(invoice_ids), documents.c.correction_id.in_(correction_ids))
    found = [document_of(row._mapping) for row in connection.execute(sa.select(documents).where(wanted))]
    return {one.invoice_id or one.correction_id or "": one for one in found}


def document_of(row: sa.RowMapping) -> Document:
    return msgspec.convert({name: row[name] for name in Document.__struct_fields__}, Document)


def pay(
    connection: sa.Connection,
    invoice_id: str,
    *,
    minor: int,
    reference: str,
    actor: str,
    paid_at: int | None = None,
    clock: Clock = database_now,
) -> Payment:
    """Record an amount received for a numbered invoice; below 0: a reversal. Raises RowNotFound, InvalidValue."""
    document = documents_of(connection, invoice_ids=[invoice_id]).get(invoice_id)
    if document is None:
        raise RowNotFound(f"there is no numbered invoice {invoice_id!r}")
    if not 0 < abs(minor) <= PICOS_MAX:
        raise InvalidValue(f"must be ±1 to ±{PICOS_MAX} of the currency's smallest unit", "amount_minor")
    check_text(reference, "reference", "a reference has", 200)
    received = paid_minor(connection, [invoice_id]).get(invoice_id, 0)
    if not 0 <= received + minor <= max(document.total_minor, 0):
        raise InvalidValue(
            f"{received} of {document.total_minor} (10^-{document.decimals} {document.currency}) were received: the "
            "payments' sum must be from 0 to the total",
            "amount_minor",
        )
    now = clock(connection)
    if paid_at is not None and paid_at > now:
        raise InvalidValue("is in the future", "paid_at")
    made = Payment(
        id=new_id("pay"),
        invoice_id=invoice_id,
        tenant_id=document.tenant_id,
        minor=minor,
        paid_at=now if paid_at is None else paid_at,
        reference=reference,
        actor=actor,
        created_at=now,
    )
    connection.execute(sa.insert(payments).values(msgspec.structs.asdict(made)))
    return made


def payments_of(connection: sa.Connection, invoice_id: str) -> list[Payment]:
    """The payments of an invoice, in the order in which they were recorded."""
    query = sa.select(payments).where(payments.c.invoice_id == invoice_id)
    return [Payment(**row._mapping) for row in connection.execute(query.order_by(payments.c.created_at, payments.c.id))]


def paid_minor(connection: sa.Connection, invoice_ids: Sequence[str]) -> dict[str, int]:
    """The sum of the payments by invoice."""
    query = sa.select(payments.c.invoice_id, sa.func.sum(payments.c.minor)).group_by(payments.c.invoice_id)
    rows = connection.execute(query.where(payments.c.invoice_id.in_(invoice_ids)))
    return {invoice_id: int(minor) for invoice_id, minor in rows}


def payment_state(document: Document, paid: int, now: int) -> PaymentState:
    if document.total_minor <= 0:
        return "nothing_due"
    if paid >= document.total_minor:
        return "paid"
    if document.due_at is not None and now > document.due_at:
        return "overdue"
    return "partly_paid" if paid else "unpaid"


def _next_ordinal(connection: sa.Connection, series: str, year: int) -> int:
    """Lock and raise the counter. The callers hold the roll-ups' cursor, so no two make a counter's first row."""
    own = sa.and_(document_counters.c.series == series, document_counters.c.year == year)
    raised = sa.update(document_counters).where(own).values(last=document_counters.c.last + 1)
    found = connection.execute(raised.returning(document_counters.c.last)).scalar_one_or_none()
    if found is None:
        connection.execute(sa.insert(document_counters).values(series=series, year=year, last=1))
        return 1
    return int(found)


def _check_profile(profile: BillingProfile) -> None:
    if profile.legal_name is not None:
        check_text(profile.legal_name, "legal_name", "a name has", 200)
    if len(profile.address) > ADDRESS_LINES_MAX:
        raise InvalidValue(f"an address has at most {ADDRESS_LINES_MAX} lines", "address")
    for line in profile.address:
        check_text(line, "address", "a line of an address has", 100)
    if profile.tax_id is not None:
        check_text(profile.tax_id, "tax_id", "a tax id has", 64)
    if profile.payment_days is not None and not 0 <= profile.payment_days <= PAYMENT_DAYS_MAX:
        raise InvalidValue(f"must be 0 to {PAYMENT_DAYS_MAX}", "payment_days")
    if len(profile.taxes) > TAXES_MAX:
        raise InvalidValue(f"there are at most {TAXES_MAX} taxes", "taxes")
    for tax in profile.taxes:
        check_text(tax.name, "taxes", "the name of a tax has", 64)
        _check_rate(tax.rate)
    for name, account in profile.accounts.items():
        check_text(name, "accounts", "the name of a connector has", 63)
        check_text(account, "accounts", "an account has", ACCOUNT_CHARS_MAX)


def _check_rate(text: str) -> None:
    try:
        rate = Decimal(text) if len(text) <= 16 else Decimal("nan")
    except InvalidOperation:
        rate = Decimal("nan")
    exponent = rate.as_tuple().exponent
    if not rate.is_finite() or not 0 <= rate <= 100 or not isinstance(exponent, int) or exponent < -RATE_PLACES:
        raise InvalidValue(
            f"{text!r} is not a rate. A rate is 0 to 100 percent with at most {RATE_PLACES} decimal places, as 7.5.",
            "taxes",
        )
