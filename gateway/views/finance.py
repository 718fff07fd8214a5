"""How periods, invoices, corrections and reconciliations are shown: moments in whole Unix seconds, money in picos."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import sqlalchemy as sa

from billing.books.corrections import Correction
from billing.books.invoices import Invoice, InvoiceLine
from billing.books.periods import Period
from billing.clock import SECOND
from billing.proofs.imbalances import Imbalance
from billing.proofs.reconcile import Kind, OpenFindings, Reconciliation
from billing.proofs.sums import Sums
from gateway.catalog import adapters


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


class InvoiceView(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant owes for a closed period; a total below 0 is owed to the tenant."""

    id: str
    tenant_id: str
    period: PeriodView
    currency: str
    usage_picos: int
    correction_picos: int
    total_picos: int
    issued_at: int

    @classmethod
    def of(cls, invoice: Invoice) -> InvoiceView:
        fields = msgspec.structs.asdict(invoice)
        return cls(**fields | {"period": PeriodView.of(invoice.period), "issued_at": invoice.issued_at // SECOND})


class LineView(msgspec.Struct, frozen=True, kw_only=True):
    """A line of an invoice. For usage, picos = tokens × unit_price_picos. `adapter` is an id, `adapter_name` its
    present name."""

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

    @classmethod
    def of(cls, line: InvoiceLine, names: dict[str, str]) -> LineView:
        fields = msgspec.structs.asdict(line)
        del fields["invoice_id"]
        return cls(**fields, adapter_name=names.get(line.adapter or ""))


class WholeInvoiceView(InvoiceView, frozen=True, kw_only=True):
    """An invoice with its lines."""

    lines: list[LineView]

    @classmethod
    def of_lines(cls, invoice: Invoice, lines: Sequence[InvoiceLine], names: dict[str, str]) -> WholeInvoiceView:
        shown = [LineView.of(line, names) for line in lines]
        return cls(**msgspec.structs.asdict(InvoiceView.of(invoice)), lines=shown)


class CorrectionView(msgspec.Struct, frozen=True, kw_only=True):
    """An amount beside usage, of a request or free (`request_id` null)."""

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

    @classmethod
    def of(cls, correction: Correction) -> CorrectionView:
        fields = {name: getattr(correction, name) for name in cls.__struct_fields__}
        return cls(**fields | {"created_at": correction.created_at // SECOND})


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
