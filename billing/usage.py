"""What was used: sums and pages over the usage rows. Reads only; never recomputes a price."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from billing import tables

PAGE_MAX = 1000

_usage = tables.usage


class UsageRow(msgspec.Struct, frozen=True):
    """One settled request, in the order of the table's columns."""

    sequence: int
    request_id: str
    tenant_id: str
    project_id: str | None
    key_id: str
    model: str
    adapter: str | None
    tier: str
    price_version_id: str
    currency: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    made_tokens: int
    discarded_tokens: int
    discard_reason: str | None
    cost_picos: int
    ending: str
    queue_s: float
    ttft_s: float
    device_s: float
    preemptions: int
    recomputed_tokens: int
    started_at: int
    finished_at: int


class Totals(msgspec.Struct, frozen=True):
    """Sums over requests. `cost_picos` by currency: amounts of different ones do not add up."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    made_tokens: int
    discarded_tokens: int
    device_s: float
    cost_picos: dict[str, int]


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows: every given value must match; `start` ≤ finished_at < `end`, in microseconds UTC."""

    tenant_id: str | None = None
    project_id: str | None = None
    key_id: str | None = None
    model: str | None = None
    adapter: str | None = None
    tier: str | None = None
    start: int | None = None
    end: int | None = None

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        names = ("tenant_id", "project_id", "key_id", "model", "adapter", "tier")
        found: list[sa.ColumnElement[bool]] = [
            _usage.c[name] == getattr(self, name) for name in names if getattr(self, name) is not None
        ]
        if self.start is not None:
            found.append(_usage.c.finished_at >= self.start)
        if self.end is not None:
            found.append(_usage.c.finished_at < self.end)
        return found


def totals(connection: sa.Connection, which: Filter) -> Totals:
    counted = ("prompt_tokens", "cached_tokens", "completion_tokens", "made_tokens", "discarded_tokens")
    columns = [sa.func.coalesce(sa.func.sum(_usage.c[name]), 0).label(name) for name in counted]
    query = sa.select(
        _usage.c.currency,
        sa.func.count().label("requests"),
        sa.func.sum(_usage.c.device_s).label("device_s"),
        sa.func.sum(_usage.c.cost_picos).label("cost_picos"),
        *columns,
    )
    rows = connection.execute(query.where(*which.conditions()).group_by(_usage.c.currency)).all()
    sums: dict[str, Any] = {name: sum(int(getattr(row, name)) for row in rows) for name in (*counted, "requests")}
    return Totals(
        **sums,
        device_s=sum(row.device_s for row in rows),
        cost_picos={row.currency: int(row.cost_picos) for row in rows},
    )


def page(connection: sa.Connection, which: Filter, *, after: int = 0, limit: int = 100) -> list[UsageRow]:
    """Rows in ledger order, beginning after sequence `after`; the last row's sequence asks for the next page."""
    query = sa.select(_usage).where(_usage.c.sequence > after, *which.conditions())
    return [UsageRow(*row) for row in connection.execute(query.order_by(_usage.c.sequence).limit(min(limit, PAGE_MAX)))]


def get(connection: sa.Connection, request_id: str) -> UsageRow | None:
    row = connection.execute(sa.select(_usage).where(_usage.c.request_id == request_id)).one_or_none()
    return None if row is None else UsageRow(*row)
