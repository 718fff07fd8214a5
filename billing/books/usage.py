"""Sums and pages of usage rows. This module only reads, and never recomputes a price."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.accounts.prices import Operation
from billing.accounts.tags import has_tags, tags_of
from billing.books import reports, rollups
from billing.books.periods import SEQUENCE_MAX
from billing.books.rollups import HOUR
from billing.ledger.messages import Recompute

PAGE_MAX = 1000
MOMENT_MAX = 2**62  # later than any request

_usage = tables.usage
_recompute = tables.usage_recompute


class UsageRow(msgspec.Struct, frozen=True):
    """One settled request, in the order of the table's columns. `recomputed`: its recomputes, by the tier whose
    preemptions caused them. `tags`: the key's, when the request began. `asked`: the model that the request named, if an
    alias or a fallback replaced it. The last four numbers: as in Settlement. `batch_id`: of a line of a batch.
    `queue_device_s`: of `queue_s`, the seconds in which the device computed for other requests, by their tier."""

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
    swapped_tokens: int
    started_at: int
    finished_at: int
    trace_id: str | None
    submitted_s: float | None
    load_s: float | None
    weights_s: float | None
    asked: str | None
    adapter_version: int | None
    operation: Operation
    recomputed: dict[str, Recompute]
    tags: dict[str, str]
    ttft_target_s: float | None
    itl_target_s: float | None
    itl_s: float | None
    pause_s: float | None
    batch_id: str | None
    queue_device_s: dict[str, float]


class Totals(msgspec.Struct, frozen=True):
    """Sums over requests. `cost_picos`: by currency. `device_s` excludes the seconds in `recomputed`, whose keys are
    the tiers whose preemptions caused them."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    embedding_tokens: int  # of prompt_tokens
    made_tokens: int
    discarded_tokens: int
    device_s: float
    preemptions: int
    recomputed: dict[str, Recompute]
    swapped_tokens: int
    cost_picos: dict[str, int]


class UsageFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects rows: every given value must match, of `tags` one value of each name, and `start` ≤ finished_at < `end`,
    in microseconds UTC."""

    tenant_id: str | None = None
    project_id: str | None = None
    key_id: str | None = None
    model: str | None = None
    adapter: str | None = None
    tier: str | None = None
    tags: tuple[tuple[str, str], ...] = ()
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
        return [*found, *has_tags(_usage.c.tag_set_id, self.tags)]

    def which(self) -> reports.ReportFilter:
        """The same filter for reports. A missing start or end becomes 0 or MOMENT_MAX."""
        lists = {f"{name}s": (value,) for name in reports.GROUPS if (value := getattr(self, name)) is not None}
        start, end = self.start or 0, MOMENT_MAX if self.end is None else self.end
        return reports.ReportFilter(start=start, end=max(start, end), tags=self.tags, **lists)


# Without the column engine_epoch, which concerns the operator's own books.
_SELECT = sa.select(*(column for column in _usage.c if column.name != "engine_epoch"))


def sum_usage(connection: sa.Connection, which: UsageFilter) -> Totals:
    """Sums over all matching requests up to now; complete hours are read from the roll-ups."""
    report_filter = which.which()
    rows = reports.sum_by_currency(connection, report_filter)
    names = (
        "requests", "cached_input_tokens", "output_tokens", "embedding_tokens", "made_tokens", "discarded_tokens",
        "preemptions", "swapped_tokens",
    )  # fmt: skip
    sums = {name: sum(getattr(row, name) for row in rows) for name in names}
    cached, completion = sums.pop("cached_input_tokens"), sums.pop("output_tokens")
    return Totals(
        **sums,
        prompt_tokens=cached + sums["embedding_tokens"] + sum(row.input_tokens for row in rows),
        cached_tokens=cached,
        completion_tokens=completion,
        device_s=sum(row.device_s for row in rows),
        recomputed={tier: Recompute(*cost) for tier, cost in reports.recomputed(connection, report_filter).items()},
        cost_picos={row.currency: row.cost_picos for row in rows},
    )


def list_usage_rows(
    connection: sa.Connection, which: UsageFilter, *, after: int = 0, limit: int = 100
) -> list[UsageRow]:
    """Rows in ledger order after sequence `after`; the next page begins after the last row's sequence."""
    limit = min(limit, PAGE_MAX)
    found: list[UsageRow] = []
    for first, last in _ranges(connection, which):
        between = sa.and_(_usage.c.sequence > max(first, after), _usage.c.sequence <= last)
        if last > after and len(found) < limit:
            query = _SELECT.where(between, *which.conditions()).order_by(_usage.c.sequence)
            found += _rows(connection, query.limit(limit - len(found)))
    return found


def _ranges(connection: sa.Connection, which: UsageFilter) -> list[tuple[int, int]]:
    """Ranges (first, last) of sequences, first < sequence ≤ last, that can have matching rows. With a start or an end:
    the range that the roll-ups have for these hours, and the rows that are not folded yet."""
    if which.start is None and which.end is None:
        return [(0, SEQUENCE_MAX)]
    hours, report_filter = tables.usage_hours, which.which()
    query = sa.select(sa.func.min(hours.c.sequence_min), sa.func.max(hours.c.sequence_max)).where(
        hours.c.hour >= report_filter.start - report_filter.start % HOUR,
        hours.c.hour < report_filter.end,
        *report_filter.of(hours),
    )
    lowest, highest = connection.execute(query).one()
    unfolded = (rollups.read_cursor(connection).sequence, SEQUENCE_MAX)
    return [unfolded] if lowest is None else [(lowest - 1, highest), unfolded]


def get_usage_row(connection: sa.Connection, request_id: str) -> UsageRow | None:
    found = _rows(connection, _SELECT.where(_usage.c.request_id == request_id))
    return found[0] if found else None


def _rows(connection: sa.Connection, query: sa.Select[Any]) -> list[UsageRow]:
    """The rows of `query`, each with its recomputes and tags."""
    rows = connection.execute(query).all()
    recomputes: dict[str, dict[str, Recompute]] = {row.request_id: {} for row in rows}
    costs = sa.select(_recompute).where(_recompute.c.request_id.in_(recomputes)).order_by(_recompute.c.tier)
    for request_id, tier, tokens, device_s in connection.execute(costs):
        recomputes[request_id][tier] = Recompute(tokens, device_s)
    tags = tags_of(connection, {row.tag_set_id for row in rows if row.tag_set_id is not None})
    found = []
    for row in rows:
        fields = dict(row._mapping)
        own = tags.get(fields.pop("tag_set_id"), {})
        fields["queue_device_s"] = fields["queue_device_s"] or {}
        found.append(UsageRow(**fields, recomputed=recomputes[row.request_id], tags=own))
    return found
