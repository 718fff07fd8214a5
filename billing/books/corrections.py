"""Corrections: amounts owed in addition to usage, as new ledger entries; existing rows never change.

A correction belongs to the period that it corrects while that is open, or else to the current period: that of its
request, or the month that the caller names. Budgets do not count it. This module knows no HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.accounts.prices import METERS, PICOS_MAX, REQUEST_TOKENS_MAX, PriceBook
from billing.books import documents, periods, rollups, usage
from billing.books.documents import DEFAULT_ISSUER, Issuer
from billing.clock import Clock, database_now
from billing.errors import InvalidValue, RowNotFound
from billing.ids import new_id
from billing.texts import check_text

REASON_CHARS_MAX = 500
LIST_MAX = 1000
# The absolute sum of a period's corrections. The other half of an invoice's range is for its usage.
PERIOD_PICOS_MAX = PICOS_MAX // 2

_corrections = tables.corrections
_METER_TOKENS: Mapping[str, Callable[[usage.UsageRow], int]] = {
    "input": lambda row: row.prompt_tokens - row.cached_tokens if row.operation == "text" else 0,
    "cached_input": lambda row: row.cached_tokens,
    "output": lambda row: row.completion_tokens,
    "embedding": lambda row: row.prompt_tokens if row.operation == "embedding" else 0,
}


class Correction(msgspec.Struct, frozen=True, kw_only=True):
    """A row of corrections. A correction of a request has the request's key, model and so on, and adds `tokens` (below
    0: takes them off) of one meter, at the billed price. A free correction (`request_id` None) is an amount in the
    tenant's currency, with the key, model and so on that the caller gave."""

    sequence: int = 0
    id: str
    period_id: str
    tenant_id: str
    project_id: str | None = None
    key_id: str | None = None
    request_id: str | None = None
    model: str | None = None
    adapter: str | None = None
    tier: str | None = None
    meter: str | None = None
    price_version_id: str | None = None
    currency: str
    tokens: int
    picos: int
    reason: str
    actor: str
    created_at: int
    counted_at: int | None = None

    @property
    def counts_at(self) -> int:
        """The moment at which reports and exports count it, microseconds UTC."""
        return self.created_at if self.counted_at is None else self.counted_at


def correct_request(
    connection: sa.Connection,
    request_id: str,
    *,
    meter: str,
    tokens: int,
    reason: str,
    actor: str,
    tenant_id: str | None = None,
    clock: Clock = database_now,
) -> Correction:
    """Bill `tokens` more (below 0: fewer) of one meter of a settled request, at its own price. Raises RowNotFound, and
    InvalidValue if less than 0 tokens would remain."""
    _check_words(reason, meter)
    if not 0 < abs(tokens) <= REQUEST_TOKENS_MAX:
        raise InvalidValue(f"must be ±1 to ±{REQUEST_TOKENS_MAX}", "tokens")
    rollups.lock_cursor(connection)  # serialises corrections: two at the same time might take off more than was billed
    row = usage.get_usage_row(connection, request_id)
    if row is None or tenant_id not in (None, row.tenant_id):
        raise RowNotFound(f"no settled request {request_id!r}", "request_id")
    left = _METER_TOKENS[meter](row) + _corrected(connection, request_id, meter)
    if left + tokens < 0:
        raise InvalidValue(f"the request has {left} {meter} tokens left that were billed", "tokens")
    unit = getattr(PriceBook().version(connection, row.price_version_id).tiers[row.tier], meter)
    now = clock(connection)
    own = periods.period_of_usage(connection, request_id)
    if own is None:
        rollups.fold_all(connection, clock)  # makes the period of usage that was not folded yet
        own = periods.period_of_usage(connection, request_id)
    is_open = own is not None and own.state == "open"
    correction = Correction(
        id=new_id("cor"),
        period_id=own.id if own is not None and is_open else periods.period_at(connection, row.tenant_id, now).id,
        tenant_id=row.tenant_id,
        project_id=row.project_id,
        key_id=row.key_id,
        request_id=request_id,
        model=row.model,
        adapter=row.adapter,
        tier=row.tier,
        meter=meter,
        price_version_id=row.price_version_id,
        currency=row.currency,
        tokens=tokens,
        picos=tokens * unit,
        reason=reason,
        actor=actor,
        created_at=now,
        counted_at=row.finished_at if is_open else now,
    )
    return _write(connection, correction)


def correct_tenant(
    connection: sa.Connection,
    tenant_id: str,
    *,
    picos: int,
    reason: str,
    actor: str,
    project_id: str | None = None,
    key_id: str | None = None,
    model: str | None = None,
    adapter: str | None = None,
    tier: str | None = None,
    meter: str | None = None,
    month: str | None = None,
    issuer: Issuer = DEFAULT_ISSUER,
    clock: Clock = database_now,
) -> Correction:
    """Credit (below 0) or charge an amount in the tenant's currency, in the current period or in the open period of
    `month` (2026-01). A credit gets a credit note. Raises RowNotFound, InvalidValue."""
    _check_words(reason, meter)
    if not 0 < abs(picos) <= PICOS_MAX:
        raise InvalidValue(f"must be ±1 to ±{PICOS_MAX}", "picos")
    currency = connection.execute(
        sa.select(tables.tenants.c.currency).where(tables.tenants.c.id == tenant_id)
    ).scalar_one_or_none()
    if currency is None:
        raise RowNotFound(f"corrected_picos is no tenant {tenant_id!r}", "tenant")
    rollups.lock_cursor(connection)
    now = clock(connection)
    period = periods.period_at(connection, tenant_id, now)
    if month is not None and month != period.month:
        period = periods.get_period(connection, tenant_id, month)
        if period.state == "closed":
            raise InvalidValue(f"{month} is closed; without a month the amount counts in the current one", "month")
    correction = Correction(
        id=new_id("cor"),
        period_id=period.id,
        tenant_id=tenant_id,
        project_id=project_id,
        key_id=key_id,
        model=model,
        adapter=adapter,
        tier=tier,
        meter=meter,
        currency=currency,
        tokens=0,
        picos=picos,
        reason=reason,
        actor=actor,
        created_at=now,
        counted_at=min(max(now, period.start_at), period.end_at - 1),
    )
    made = _write(connection, correction)
    if picos < 0:
        documents.issue(
            connection,
            issuer,
            kind="credit_note",
            tenant_id=tenant_id,
            currency=currency,
            exact_picos=-picos,
            now=now,
            correction_id=made.id,
        )
    return made


def get_correction(connection: sa.Connection, correction_id: str) -> Correction:
    """Raises RowNotFound."""
    row = connection.execute(sa.select(_corrections).where(_corrections.c.id == correction_id)).one_or_none()
    if row is None:
        raise RowNotFound(f"there is no correction {correction_id!r}")
    return Correction(**row._mapping)


def list_corrections(
    connection: sa.Connection,
    *,
    tenant_id: str | None = None,
    period_id: str | None = None,
    request_id: str | None = None,
    after: int = 0,
    limit: int = LIST_MAX,
) -> list[Correction]:
    """Corrections in the order they were made, after sequence `after`."""
    query = sa.select(_corrections).where(_corrections.c.sequence > after).order_by(_corrections.c.sequence)
    for name, value in (("tenant_id", tenant_id), ("period_id", period_id), ("request_id", request_id)):
        if value is not None:
            query = query.where(_corrections.c[name] == value)
    return [Correction(**row._mapping) for row in connection.execute(query.limit(min(limit, LIST_MAX)))]


def _check_words(reason: str, meter: str | None) -> None:
    check_text(reason, "reason", "a reason is", REASON_CHARS_MAX)
    if meter is not None and meter not in METERS:
        raise InvalidValue(f"must be one of {', '.join(METERS)}", "meter")


def _corrected(connection: sa.Connection, request_id: str, meter: str) -> int:
    """The sum of earlier corrections' tokens of this request."""
    query = sa.select(sa.func.coalesce(sa.func.sum(_corrections.c.tokens), 0)).where(
        _corrections.c.request_id == request_id, _corrections.c.meter == meter
    )
    return int(connection.execute(query).scalar_one())


def _check_sum(connection: sa.Connection, correction: Correction) -> None:
    """Raises InvalidValue if the period's corrections would exceed PERIOD_PICOS_MAX: its invoice might exceed the range
    of an amount, and the month could never be closed."""
    query = sa.select(sa.func.coalesce(sa.func.sum(_corrections.c.picos), 0))
    corrected_picos = int(
        connection.execute(query.where(_corrections.c.period_id == correction.period_id)).scalar_one()
    )
    if abs(corrected_picos + correction.picos) > PERIOD_PICOS_MAX:
        field = "picos" if correction.request_id is None else "tokens"
        raise InvalidValue(
            f"the period's corrections are {corrected_picos} picos; at most ±{PERIOD_PICOS_MAX} fit", field
        )


def _write(connection: sa.Connection, correction: Correction) -> Correction:
    _check_sum(connection, correction)
    row = msgspec.structs.asdict(correction)
    del row["sequence"]
    made = connection.execute(sa.insert(_corrections).values(row).returning(_corrections.c.sequence))
    sequence = int(made.scalar_one())
    amounts = (("receivable", None, correction.picos), ("revenue", correction.meter, -correction.picos))
    entries = [
        {
            "transaction_id": correction.id,
            "tenant_id": correction.tenant_id,
            "account": account,
            "meter": meter,
            "amount_picos": amount,
            "currency": correction.currency,
            "recorded_at": correction.created_at,
        }
        for account, meter, amount in amounts
        if amount
    ]
    if entries:  # a correction of free tokens has no entries
        connection.execute(sa.insert(tables.entries), entries)
    return msgspec.structs.replace(correction, sequence=sequence)
