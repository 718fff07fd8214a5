"""Each tier's revenue and cost of device time in the periods of a month; and a preview of the month at other prices.
Both are sums of the roll-ups, up to the cursor's sequence.

Device time of recomputes is a cost of the tier that preempted, not of the preempted request's tier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.accounts.prices import METERS, SubjectKind, UnitPrices
from billing.books import periods, rollups
from billing.clock import to_datetime

_periods = tables.billing_periods
_hours = tables.usage_hours
_recompute = tables.recompute_hours
_corrections = tables.corrections


class TierMargin(msgspec.Struct, frozen=True, kw_only=True):
    """`usage_picos` and `correction_picos` are revenue. `cost_picos`: the cost of device_s and preemption_s, including
    `preemption_picos`, the cost of the recomputes that this tier caused. Tier None: corrections without a tier."""

    tier: str | None
    currency: str
    requests: int
    usage_picos: int
    correction_picos: int
    device_s: float
    preemption_s: float
    preempted_tokens: int
    cost_picos: int
    preemption_picos: int
    margin_picos: int


class Margins(msgspec.Struct, frozen=True, kw_only=True):
    """Margins by currency, then tiers by rank. Usage rows up to `sequence` are included. `device_second_prices`: the
    cost of a device second by currency; `device_second_picos`: of currencies that `device_second_prices` lacks."""

    month: str
    sequence: int
    device_second_picos: int
    device_second_prices: dict[str, int]
    tiers: list[TierMargin]


class TenantPreview(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's charge for the model or adapter (`was_picos`), and the charge at the previewed prices
    (`would_picos`)."""

    tenant_id: str
    requests: int
    was_picos: int
    would_picos: int


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """Previews of all tenants with usage of the model or adapter in this currency. `sequence`: as in Margins."""

    month: str
    currency: str
    sequence: int
    was_picos: int
    would_picos: int
    tenants: list[TenantPreview]


def month_before(now: int) -> str:
    """The last complete month, in UTC."""
    first = to_datetime(now).replace(day=1)
    return f"{first.year - (first.month == 1)}-{(first.month - 2) % 12 + 1:02d}"


def by_tier(
    connection: sa.Connection,
    month: str,
    *,
    device_picos: Callable[[str], int],
    tiers: Sequence[str] = (),
    tenant_id: str | None = None,
) -> Margins:
    """Margins over all tenants, or of one. `device_picos`: the cost of a device second in a currency. `tiers`: by rank.
    Raises InvalidValue."""
    periods.check_month(month)
    sums_of: dict[tuple[str | None, str], dict[str, Any]] = {}

    def row(tier: str | None, currency: str) -> dict[str, Any]:
        empty = dict.fromkeys(("requests", "usage_picos", "correction_picos", "preempted_tokens"), 0)
        return sums_of.setdefault((tier, currency), empty | {"device_s": 0.0, "preemption_s": 0.0})

    sums = (sa.func.sum(_hours.c[name]) for name in ("requests", "cost_picos", "device_s"))
    query = _of_month(sa.select(_hours.c.tier, _hours.c.currency, *sums), _hours, month, tenant_id)
    for tier, currency, requests, picos, device_s in connection.execute(
        query.group_by(_hours.c.tier, _hours.c.currency)
    ):
        row(tier, currency).update(requests=int(requests), usage_picos=int(picos), device_s=device_s)
    tenants = tables.tenants
    caused = sa.select(
        _recompute.c.caused_by, tenants.c.currency, sa.func.sum(_recompute.c.tokens), sa.func.sum(_recompute.c.device_s)
    )
    query = _of_month(caused, _recompute, month, tenant_id).join(tenants, tenants.c.id == _recompute.c.tenant_id)
    for tier, currency, tokens, device_s in connection.execute(
        query.group_by(_recompute.c.caused_by, tenants.c.currency)
    ):
        row(tier, currency).update(preempted_tokens=int(tokens), preemption_s=device_s)
    corrected = sa.select(_corrections.c.tier, _corrections.c.currency, sa.func.sum(_corrections.c.picos))
    query = _of_month(corrected, _corrections, month, tenant_id)
    for tier, currency, picos in connection.execute(query.group_by(_corrections.c.tier, _corrections.c.currency)):
        row(tier, currency).update(correction_picos=int(picos))
    found = [_margin(*key, fields, device_picos(key[1])) for key, fields in sums_of.items()]
    rank = {name: at for at, name in enumerate(tiers)}
    return Margins(
        month=month,
        sequence=rollups.read_cursor(connection).sequence,
        device_second_picos=device_picos(""),
        device_second_prices={currency: device_picos(currency) for _, currency in sorted(sums_of, key=str)},
        tiers=sorted(found, key=lambda one: (one.currency, rank.get(one.tier or "", len(rank)), one.tier or "")),
    )


def _margin(tier: str | None, currency: str, fields: dict[str, Any], device_second_picos: int) -> TierMargin:
    preemption = round(fields["preemption_s"] * device_second_picos)
    cost = round(fields["device_s"] * device_second_picos) + preemption
    margin = fields["usage_picos"] + fields["correction_picos"] - cost
    return TierMargin(
        tier=tier, currency=currency, cost_picos=cost, preemption_picos=preemption, margin_picos=margin, **fields
    )


def preview(
    connection: sa.Connection,
    *,
    month: str,
    subject: str,
    subject_kind: SubjectKind,
    currency: str,
    tiers: Mapping[str, UnitPrices],
    tenant_id: str | None = None,
) -> Preview:
    """Compute the charges for the month's usage of a model or an adapter at the prices `tiers`. Usage of a model's
    adapters is included unless the adapter has its own prices. The charge of a tier without new prices does not change.
    Raises InvalidValue."""
    periods.check_month(month)
    versions = tables.price_versions
    keys = (_hours.c.tenant_id, _hours.c.tier)
    tokens = [sa.func.sum(_hours.c[f"{meter}_tokens"]).label(meter) for meter in METERS]
    query = sa.select(
        *keys, sa.func.sum(_hours.c.requests).label("requests"), sa.func.sum(_hours.c.cost_picos).label("was"), *tokens
    )
    query = _of_month(query, _hours, month, tenant_id).where(_hours.c.currency == currency)
    if subject_kind == "adapter":
        query = query.where(_hours.c.adapter == subject)
    else:
        query = query.join(versions, versions.c.id == _hours.c.price_version_id)
        query = query.where(_hours.c.model == subject, versions.c.subject_kind == "model")
    by_tenant: dict[str, list[int]] = {}
    for row in connection.execute(query.group_by(*keys)):
        unit = tiers.get(row.tier)
        would = int(row.was)
        if unit is not None:
            would = sum(int(getattr(row, meter)) * int(getattr(unit, meter)) for meter in METERS)
        sums = by_tenant.setdefault(row.tenant_id, [0, 0, 0])
        for at, value in enumerate((int(row.requests), int(row.was), would)):
            sums[at] += value
    found = [
        TenantPreview(tenant_id=key, requests=requests, was_picos=was, would_picos=would)
        for key, (requests, was, would) in sorted(by_tenant.items())
    ]
    return Preview(
        month=month,
        currency=currency,
        sequence=rollups.read_cursor(connection).sequence,
        was_picos=sum(one.was_picos for one in found),
        would_picos=sum(one.would_picos for one in found),
        tenants=found,
    )


def _of_month(query: sa.Select[Any], table: sa.Table, month: str, tenant_id: str | None) -> sa.Select[Any]:
    query = query.join(_periods, _periods.c.id == table.c.period_id).where(_periods.c.month == month)
    return query if tenant_id is None else query.where(table.c.tenant_id == tenant_id)
