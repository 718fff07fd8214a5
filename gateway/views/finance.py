"""How periods, invoices, corrections and reconciliations are shown: moments in whole Unix seconds, money in picos."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.accounts.tenants import Tenant
from billing.books import connectors, documents, invoices
from billing.books.connectors import ConnectorState
from billing.books.corrections import Correction
from billing.books.documents import (
    BillingProfile,
    Document,
    Issuer,
    Party,
    Payment,
    PaymentState,
    Tax,
    TaxLine,
    payment_state,
)
from billing.books.invoices import Closable, Invoice, InvoiceLine
from billing.books.periods import Period
from billing.clock import SECOND
from billing.proofs.imbalances import Imbalance
from billing.proofs.reconcile import Kind, OpenFindings, Reconciliation
from billing.proofs.sums import Sums
from gateway.catalog import adapters
from gateway.config.billing_settings import ConnectorSection


def adapter_names(connection: sa.Connection) -> dict[str, str]:
    """The name of each adapter by its id, for the lines of an invoice."""
    return {row.id: row.name for row in adapters.list_adapters(connection)}


def _seconds(moment: int | None) -> int | None:
    return None if moment is None else moment // SECOND


class PeriodView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's month, start_at ≤ time < end_at. A closed one has the ledger's sequence at its closing, and the lowest
    and highest sequence of its own rows (null: it has none)."""

    id: str
    tenant_id: str
    month: str
    time_zone: str
    start_at: int
    end_at: int
    state: Literal["open", "closed"]
    closed_at: int | None
    closed_by: str | None
    closed_sequence: int | None
    sequence_min: int | None
    sequence_max: int | None

    @classmethod
    def of(cls, period: Period) -> PeriodView:
        fields = {name: getattr(period, name) for name in cls.__struct_fields__}
        moments = {name: _seconds(fields[name]) for name in ("start_at", "end_at", "closed_at")}
        return cls(**fields | moments)


class DocumentView(msgspec.Struct, frozen=True, kw_only=True):
    """The document of an invoice or a credit, as issued. Amounts in `…_minor` are integers of the currency's smallest
    unit, 10^-decimals of the currency; `exact_picos` is the amount before rounding and taxes."""

    number: str
    kind: Literal["invoice", "credit_note"]
    issuer: Party
    customer: Party
    currency: str
    decimals: int
    exact_picos: int
    net_minor: int
    taxes: list[TaxLine]
    tax_minor: int
    total_minor: int
    issued_at: int
    due_at: int | None

    @classmethod
    def of(cls, document: Document) -> DocumentView:
        fields = {name: getattr(document, name) for name in cls.__struct_fields__}
        moments = {"issued_at": document.issued_at // SECOND, "due_at": _seconds(document.due_at)}
        return cls(**fields | moments | {"taxes": list(document.taxes)})


class InvoiceView(msgspec.Struct, frozen=True, kw_only=True):
    """The amount that a tenant owes for a closed period, before taxes; a total below 0 is owed to the tenant.
    `document` null: issued by a version without numbers. `payment`: at this moment, of `paid_minor` received."""

    id: str
    tenant_id: str
    period: PeriodView
    currency: str
    usage_picos: int
    correction_picos: int
    total_picos: int
    issued_at: int
    document: DocumentView | None
    payment: PaymentState | None
    paid_minor: int

    @classmethod
    def of(cls, invoice: Invoice) -> InvoiceView:
        fields = msgspec.structs.asdict(invoice)
        document = invoice.document
        now = time.time_ns() // 1000
        papers = {
            "document": None if document is None else DocumentView.of(document),
            "payment": None if document is None else payment_state(document, invoice.paid_minor, now),
        }
        moments = {"period": PeriodView.of(invoice.period), "issued_at": invoice.issued_at // SECOND}
        return cls(**fields | moments | papers)


class LineView(msgspec.Struct, frozen=True, kw_only=True):
    """A line of an invoice. For usage, picos = tokens × unit_price_picos. `adapter` is an id, `adapter_name` its
    present name. `price_from`: since when the price is in force."""

    line: int
    kind: Literal["usage", "correction"]
    model: str | None
    adapter: str | None
    adapter_name: str | None
    tier: str | None
    meter: str | None
    price_version_id: str | None
    unit_price_picos: int | None
    tokens: int
    picos: int
    correction_id: str | None
    price_from: int | None

    @classmethod
    def of(cls, line: InvoiceLine, names: dict[str, str], prices: Mapping[str, int]) -> LineView:
        fields = msgspec.structs.asdict(line)
        del fields["invoice_id"]
        price_from = _seconds(prices.get(line.price_version_id or ""))
        return cls(**fields, adapter_name=names.get(line.adapter or ""), price_from=price_from)


class PaymentView(msgspec.Struct, frozen=True, kw_only=True):
    """An amount received for an invoice, in the document's smallest unit; below 0: a reversal."""

    id: str
    invoice_id: str
    tenant_id: str
    minor: int
    paid_at: int
    reference: str
    actor: str
    created_at: int

    @classmethod
    def of(cls, payment: Payment) -> PaymentView:
        moments = {name: getattr(payment, name) // SECOND for name in ("paid_at", "created_at")}
        return cls(**msgspec.structs.asdict(payment) | moments)


class WholeInvoiceView(InvoiceView, frozen=True, kw_only=True):
    """An invoice with its lines and payments."""

    lines: list[LineView]
    payments: list[PaymentView]

    @classmethod
    def read(cls, connection: sa.Connection, invoice: Invoice) -> WholeInvoiceView:
        names, lines = adapter_names(connection), invoices.lines(connection, invoice.id)
        versions = tables.price_versions.c
        wanted = {line.price_version_id for line in lines if line.price_version_id is not None}
        rows = connection.execute(sa.select(versions.id, versions.effective_from).where(versions.id.in_(wanted)))
        prices = {row.id: row.effective_from for row in rows}
        return cls(
            **msgspec.structs.asdict(InvoiceView.of(invoice)),
            lines=[LineView.of(line, names, prices) for line in lines],
            payments=[PaymentView.of(one) for one in documents.payments_of(connection, invoice.id)],
        )


class ClosableView(msgspec.Struct, frozen=True, kw_only=True):
    """An open period, its amounts so far, and why it cannot be closed now (null: it can)."""

    period: PeriodView
    currency: str
    usage_picos: int
    correction_picos: int
    reason: str | None

    @classmethod
    def of(cls, one: Closable) -> ClosableView:
        return cls(**msgspec.structs.asdict(one) | {"period": PeriodView.of(one.period)})


class BillingProfileView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant on its documents from now on. Null: the tenant's name, and the days of laneway.toml. `accounts`: by the
    name of a connector."""

    tenant_id: str
    legal_name: str | None
    address: list[str]
    tax_id: str | None
    taxes: list[Tax]
    payment_days: int | None
    accounts: dict[str, str]

    @classmethod
    def of(cls, profile: BillingProfile) -> BillingProfileView:
        lists = {"address": list(profile.address), "taxes": list(profile.taxes)}
        return cls(**msgspec.structs.asdict(profile) | lists)


class TenantProfileView(BillingProfileView, frozen=True, kw_only=True):
    """The profile in a list of tenants. `is_set` false: the profile was never set, and the defaults are used."""

    slug: str
    name: str
    is_set: bool

    @property
    def id(self) -> str:
        return self.tenant_id

    @classmethod
    def of_tenant(cls, tenant: Tenant, stored: BillingProfile | None) -> TenantProfileView:
        """`stored` None: the profile was never set."""
        profile = BillingProfileView.of(stored or BillingProfile(tenant_id=tenant.id))
        return cls(**msgspec.structs.asdict(profile), slug=tenant.slug, name=tenant.name, is_set=stored is not None)


class IssuerView(msgspec.Struct, frozen=True, kw_only=True):
    """The issuer of documents. `invoice_series` and `credit_series`: the prefixes of the numbers. `payment_days`: until
    an invoice is due, for tenants without a number of days of their own."""

    name: str
    address: list[str]
    tax_id: str | None
    invoice_series: str
    credit_series: str
    payment_days: int

    @classmethod
    def of(cls, issuer: Issuer) -> IssuerView:
        return cls(
            name=issuer.party.name,
            address=list(issuer.party.address),
            tax_id=issuer.party.tax_id,
            invoice_series=issuer.invoice_series,
            credit_series=issuer.credit_series,
            payment_days=issuer.payment_days,
        )


class ConnectorView(msgspec.Struct, frozen=True, kw_only=True):
    """A connector. `kind` and `url` null: laneway.toml does not have it any more. `gateway_id`: the gateway with its
    lease. `waiting`: hours and meters with tokens that are due and not sent, the oldest of which ended `lag_s` ago.
    `retrying`: hours and meters whose last attempt failed or has no answer yet; `next_attempt_at`: the first of their
    next attempts. `stuck`: hours and meters that an operator must release. `without_account`: tenants with usage and
    without an account of the connector."""

    name: str
    kind: Literal["stripe", "openmeter"] | None
    url: str | None
    gateway_id: str | None
    waiting: int
    waiting_tokens: int
    lag_s: int
    sent_tokens: int
    retrying: int
    next_attempt_at: int | None
    stuck: int
    stuck_reason: str | None
    without_account: int
    sent_at: int | None
    failed_at: int | None
    last_error: str | None

    @property
    def id(self) -> str:
        return self.name

    @classmethod
    def of(cls, state: ConnectorState, section: ConnectorSection | None) -> ConnectorView:
        """`section` None: laneway.toml does not have the connector any more."""
        names = [name for name in cls.__struct_fields__ if name not in ("kind", "url")]
        fields = {name: getattr(state, name) for name in names}
        moments = {name: _seconds(fields[name]) for name in ("sent_at", "failed_at", "next_attempt_at")}
        settings = {"kind": section and section.kind, "url": section and section.base_url}
        return cls(**fields | moments | settings)

    @classmethod
    def read_all(cls, connection: sa.Connection, sections: Sequence[ConnectorSection]) -> list[ConnectorView]:
        """The connectors that have run and those of laneway.toml (`sections`), by name."""
        by_name = {section.name: section for section in sections}
        after_s = max((section.after_s for section in sections), default=0.0)
        accounts = [section.name for section in sections if section.needs_account]
        found = {
            state.name: state
            for state in connectors.list_connector_states(connection, after_s=after_s, needs_account=accounts)
        }
        names = sorted(by_name.keys() | found.keys())
        return [cls.of(found.get(name) or ConnectorState(name=name), by_name.get(name)) for name in names]


class CorrectionView(msgspec.Struct, frozen=True, kw_only=True):
    """An amount beside usage, of a request or free (`request_id` null). `counted_at`: when reports count it. `month`:
    of its period; `number`: of a credit's note. Both are null where a correction is shown beside its request."""

    id: str
    period_id: str
    tenant_id: str
    project_id: str | None
    key_id: str | None
    request_id: str | None
    model: str | None
    adapter: str | None
    tier: str | None
    meter: str | None
    currency: str
    tokens: int
    picos: int
    reason: str
    actor: str
    created_at: int
    counted_at: int
    month: str | None = None
    number: str | None = None

    @classmethod
    def of(cls, correction: Correction) -> CorrectionView:
        fields = {name: getattr(correction, name) for name in cls.__struct_fields__ if hasattr(correction, name)}
        moments = {"created_at": correction.created_at // SECOND, "counted_at": correction.counts_at // SECOND}
        return cls(**fields | moments)

    @classmethod
    def read(cls, connection: sa.Connection, made: Sequence[Correction]) -> list[CorrectionView]:
        """Views with months and numbers."""
        periods = tables.billing_periods.c
        ids = {one.period_id for one in made}
        months = {
            row.id: row.month
            for row in connection.execute(sa.select(periods.id, periods.month).where(periods.id.in_(ids)))
        }
        notes = documents.documents_of(connection, correction_ids=[one.id for one in made])
        return [
            msgspec.structs.replace(
                cls.of(one), month=months[one.period_id], number=notes[one.id].number if one.id in notes else None
            )
            for one in made
        ]


class WholeCorrectionView(CorrectionView, frozen=True, kw_only=True):
    """A correction with its credit note; null: it is no credit, or was made by a version without numbers."""

    document: DocumentView | None

    @classmethod
    def read_one(cls, connection: sa.Connection, made: Correction) -> WholeCorrectionView:
        [view] = CorrectionView.read(connection, [made])
        note = documents.documents_of(connection, correction_ids=[made.id]).get(made.id)
        return cls(**msgspec.structs.asdict(view), document=None if note is None else DocumentView.of(note))


class ReconciliationView(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a reconciliation of usage with sequence_from < sequence ≤ sequence_to. `sums`: what is owed by
    usage and corrections, and by the ledger entries, by currency; for a month, each by its own time."""

    number: int
    kind: Kind
    sound: bool
    at: int
    took_s: float
    sequence_from: int
    sequence_to: int
    imbalances: list[Imbalance]
    overshot: list[str]
    engine_gap: int | None
    sums: list[Sums]

    @classmethod
    def of(cls, result: Reconciliation) -> ReconciliationView:
        fields = {name: getattr(result, name) for name in cls.__struct_fields__}
        return cls(**fields | {"at": result.at // SECOND})


class StandingView(msgspec.Struct, frozen=True, kw_only=True):
    """The open findings: those of the last whole reconciliation and of all since. `at`: the time of the newest one."""

    imbalances: int
    overshot: int
    at: int | None

    @classmethod
    def of(cls, findings: OpenFindings) -> StandingView:
        return cls(imbalances=findings.imbalances, overshot=findings.overshot, at=_seconds(findings.at))
