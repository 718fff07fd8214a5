"""Counts of requests within their targets, folded from usage rows into sla_quarters. Each row is folded once,
in the order of its sequence, as the roll-ups are (rollups.py), with a separate cursor, so that a fault here cannot
delay the books.

A row is measured if it has targets, which are the targets in force at its first token. It is within its target for the
first token if `ttft_s` ≤ `ttft_target_s`, and within its target between tokens if `itl_s` ≤ `itl_target_s`. `ttft_s`
counts from the request's arrival at the gateway. `itl_s` is the mean time between the tokens of the request's slowest
text as they arrived at the gateway; a request with a single token has no `itl_s`. Requests without a usage row are
counted by `count_unserved`. Lines of batches are not counted: the promise of a line is its batch's deadline. All
moments are microseconds UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from billing import tables
from billing.books.rollups import FOLD_MAX, FoldResult, complete_up_to
from billing.books.sketch import DurationSketch
from billing.clock import SECOND, Clock, database_now
from billing.sla_tables import SLA_COUNTS, sla_cursor, sla_quarters
from billing.tables import NONE

# Midnight of every time zone of today is at the beginning of a UTC quarter-hour.
QUARTER = 900 * SECOND
# A tier keeps its promise in an interval if this part of its requests was within each of the two targets.
OBJECTIVE = 0.99
SKETCHES = ("ttft_sketch", "itl_sketch", "pause_sketch")
KEYS_AT_ONCE = 200  # rows read by their keys in one query

_usage = tables.usage
_quarters = sla_quarters
_cursor = sla_cursor
_KEY = (_quarters.c.tenant_id, _quarters.c.quarter, _quarters.c.tier, _quarters.c.model)
_READ = ("tenant_id", "finished_at", "tier", "model", "ttft_s", "ttft_target_s", "itl_s", "itl_target_s", "pause_s")
_ROWS = sa.select(*(_usage.c[name] for name in _READ), _usage.c.preemptions).where(_usage.c.batch_id.is_(None))


class QuarterKey(msgspec.Struct, frozen=True, order=True):
    """The key of a row of sla_quarters. `tenant_id` NONE: all tenants. `quarter`: its beginning."""

    tenant_id: str
    quarter: int
    tier: str
    model: str


class UnservedCount(msgspec.Struct):
    """Requests without a first token. `refused`: with a 503. `unanswered`: the server failed, or the caller left after
    its target had passed."""

    refused: int = 0
    unanswered: int = 0


class SlaCounts:
    """The counts and durations of some requests."""

    __slots__ = ("counts", "sketches")

    def __init__(self) -> None:
        self.counts = dict.fromkeys(SLA_COUNTS, 0)
        self.sketches = {name: DurationSketch() for name in SKETCHES}

    def count_row(self, row: Any) -> None:
        """Count one usage row."""
        counts = self.counts
        counts["requests"] += 1
        counts["preemptions"] += row.preemptions
        if row.ttft_target_s is None:
            return
        counts["ttft_measured"] += 1
        counts["ttft_within"] += row.ttft_s <= row.ttft_target_s
        self.sketches["ttft_sketch"].count_duration(row.ttft_s)
        if row.itl_s is None:
            return
        counts["itl_measured"] += 1
        counts["itl_within"] += row.itl_s <= row.itl_target_s
        self.sketches["itl_sketch"].count_duration(row.itl_s)
        self.sketches["pause_sketch"].count_duration(row.pause_s)

    def add_counts(self, other: SlaCounts) -> None:
        """Add the counts and durations of other requests."""
        for name, count in other.counts.items():
            self.counts[name] += count
        for name, sketch in other.sketches.items():
            self.sketches[name].merge_sketch(sketch)


class SlaCursor(msgspec.Struct, frozen=True):
    """A row of sla_cursor."""

    id: int
    sequence: int
    folded_at: int


def read_cursor(connection: sa.Connection) -> SlaCursor:
    return SlaCursor(*connection.execute(sa.select(_cursor).where(_cursor.c.id == 1)).one())


class CountedRows(msgspec.Struct, frozen=True):
    """Usage rows with sequence_from < sequence ≤ sequence_to by quarter-hour, and by quarter-hour for all tenants.
    `newest`: the highest sequence."""

    sequence_from: int
    sequence_to: int
    newest: int
    quarters: dict[QuarterKey, SlaCounts]


def fold_sla(connection: sa.Connection, *, limit: int = FOLD_MAX, clock: Clock = database_now) -> FoldResult:
    """Add the usage rows after the cursor, about `limit` of them, to their quarter-hours. Needs a writing
    transaction."""
    _lock_cursor(connection)
    return store_counts(connection, count_rows(connection, limit), clock=clock)


def count_rows(connection: sa.Connection, limit: int) -> CountedRows:
    """Count the usage rows after the cursor, about `limit` of them. On PostgreSQL, `connection` must be in the
    transaction of `store_counts`, which has locked the cursor (`complete_up_to`). On SQLite it may be in a separate
    transaction that only reads, for which the ledger does not wait."""
    cursor = read_cursor(connection)
    newest = complete_up_to(connection)
    if newest is None or newest <= cursor.sequence:
        return CountedRows(cursor.sequence, cursor.sequence, cursor.sequence, {})
    upto = min(newest, cursor.sequence + limit)
    found: dict[QuarterKey, SlaCounts] = {}
    for row in connection.execute(_ROWS.where(_usage.c.sequence > cursor.sequence, _usage.c.sequence <= upto)):
        quarter = row.finished_at - row.finished_at % QUARTER
        key = QuarterKey(row.tenant_id, quarter, row.tier, row.model)
        if (counts := found.get(key)) is None:
            counts = found[key] = SlaCounts()
        counts.count_row(row)
    for key, counts in list(found.items()):
        of_all = msgspec.structs.replace(key, tenant_id=NONE)
        found.setdefault(of_all, SlaCounts()).add_counts(counts)
    return CountedRows(cursor.sequence, upto, newest, found)


def store_counts(connection: sa.Connection, counted: CountedRows, *, clock: Clock = database_now) -> FoldResult:
    """Add the counts to the rows of their quarter-hours, and move the cursor; without effect if another transaction has
    moved it since. Needs a writing transaction."""
    cursor, upto = _lock_cursor(connection), counted.sequence_to
    if cursor.sequence != counted.sequence_from:
        return FoldResult(cursor.sequence, cursor.sequence, True)
    if upto > cursor.sequence:
        _merge_stored(connection, counted.quarters)
        _add(connection, {key: each.counts for key, each in counted.quarters.items()}, counted.quarters)
        values = {"sequence": upto, "folded_at": clock(connection)}
        connection.execute(sa.update(_cursor).where(_cursor.c.id == 1).values(values))
    return FoldResult(cursor.sequence, upto, upto < counted.newest)


def _lock_cursor(connection: sa.Connection) -> SlaCursor:
    return SlaCursor(*connection.execute(sa.select(_cursor).where(_cursor.c.id == 1).with_for_update()).one())


def count_unserved(connection: sa.Connection, unserved: Mapping[QuarterKey, UnservedCount]) -> None:
    """Add requests that have no usage row to their quarter-hours, and to the sums of all tenants. A key with the tenant
    NONE counts for all tenants only: the tenant is not known. Needs a writing transaction."""
    summed: dict[QuarterKey, dict[str, int]] = {}
    for key, count in unserved.items():
        for tenant_id in {key.tenant_id, NONE}:
            counts = summed.setdefault(msgspec.structs.replace(key, tenant_id=tenant_id), dict.fromkeys(SLA_COUNTS, 0))
            counts["refused"] += count.refused
            counts["unanswered"] += count.unanswered
    _add(connection, summed, {})


def delete_quarters(connection: sa.Connection, before: int, limit: int) -> int:
    """Delete at most `limit` rows of quarter-hours before a moment. Returns their number."""
    oldest = sa.select(*_KEY).where(_quarters.c.quarter < before).order_by(_quarters.c.quarter).limit(limit)
    keys = [tuple(row) for row in connection.execute(oldest)]
    for at in range(0, len(keys), KEYS_AT_ONCE):
        connection.execute(sa.delete(_quarters).where(sa.tuple_(*_KEY).in_(keys[at : at + KEYS_AT_ONCE])))
    return len(keys)


def _merge_stored(connection: sa.Connection, found: Mapping[QuarterKey, SlaCounts]) -> None:
    """Add the stored sketches to the sketches of `found`. The cursor is locked, so no other transaction writes a
    sketch."""
    keys = [msgspec.structs.astuple(key) for key in found]
    stored = sa.select(*_KEY, *(_quarters.c[name] for name in SKETCHES))
    for at in range(0, len(keys), KEYS_AT_ONCE):
        for row in connection.execute(stored.where(sa.tuple_(*_KEY).in_(keys[at : at + KEYS_AT_ONCE]))):
            sketches = found[QuarterKey(*row[: len(_KEY)])].sketches
            for name in SKETCHES:
                sketches[name].merge_encoded(getattr(row, name))


def _add(
    connection: sa.Connection, counts: Mapping[QuarterKey, Mapping[str, int]], found: Mapping[QuarterKey, SlaCounts]
) -> None:
    """Add counts to their rows; where `found` has sketches, they replace the stored ones. In the order of the keys, so
    that two transactions do not wait for each other."""
    rows = []
    for key in sorted(counts):
        row = msgspec.structs.asdict(key) | dict(counts[key])
        if key in found:
            row |= {name: sketch.encoded() for name, sketch in found[key].sketches.items()}
        rows.append(row)
    if rows:
        names = SKETCHES if found else ()
        connection.execute(_upsert(connection, names), rows)


def _upsert(connection: sa.Connection, sketches: Iterable[str]) -> sa.Insert:
    insert: sqlite.Insert | postgresql.Insert = (
        sqlite.insert(_quarters) if connection.dialect.name == "sqlite" else postgresql.insert(_quarters)
    )
    added = {name: _quarters.c[name] + insert.excluded[name] for name in SLA_COUNTS}
    replaced = {name: insert.excluded[name] for name in sketches}
    return insert.on_conflict_do_update(index_elements=list(_KEY), set_=added | replaced)
