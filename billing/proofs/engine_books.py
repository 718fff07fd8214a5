"""Compares each engine process's tokens with the ledger's: made = billed + discarded + lost, by epoch. While no request
runs they are compared exactly; while requests run, the difference must be between two bounds.

Usage rows name the engines that made their tokens. Tokens of rows without a name (of an earlier version) may be any
engine's: when their number changes, the comparison of every engine starts again. This module reads no engine: callers
pass counts.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.books import rollups
from billing.clock import SECOND, Clock, database_now
from billing.proofs.imbalances import Imbalance

# After this time without a report an engine counts as ended, with its requests in flight. Its made tokens are then
# taken to be the tokens that gateways received: its counts are closed, and no finding is raised.
SILENT_S = 180
# Seconds after a hold expired in which its gateway may still settle it, or its engine may count its tokens as lost.
UNREPORTED_S = 3600

_counts = tables.engine_counts
_readings = tables.engine_readings
_ledger = tables.engine_ledger
_holds = tables.holds
_lost = tables.lost_attempts
_usage = tables.usage


class EngineCount(msgspec.Struct, frozen=True):
    """Tokens that one engine process, named by its epoch, has counted since it started: made; overrun and lost are
    parts of them. `reclaimed`: counted as lost before, and not in `lost` any more. `idle`: no request runs or waits in
    the engine."""

    epoch: str
    made_tokens: int
    overrun_tokens: int
    lost_tokens: int
    idle: bool
    reclaimed_tokens: int = 0


class LedgerCount(msgspec.Struct, frozen=True):
    """`tokens`: made for settled requests, including `late`, the tokens of holds that had expired before. `open_tokens`
    and `expired_tokens`: the most that open and recently expired holds may have made in addition. `engines` and
    `late_engines`: by engine epoch, settled without the late ones, and late."""

    tokens: int
    open_holds: int
    late: int = 0
    open_tokens: int = 0
    expired_tokens: int = 0
    engines: Mapping[str, int] = {}
    late_engines: Mapping[str, int] = {}

    @property
    def settled(self) -> int:
        return self.tokens - self.late

    @property
    def unreported(self) -> int:
        return self.open_tokens + self.expired_tokens

    @property
    def unnamed(self) -> int:
        """Tokens of no known engine. These are rows of an earlier version, and rows that an earlier version folded."""
        return self.tokens - sum(self.engines.values()) - sum(self.late_engines.values())


class EngineBounds(msgspec.Struct, frozen=True):
    """Bounds of one engine process, from the readings up to `read_at`. An engine's gap is its tokens in the ledger
    (late tokens too) less the tokens that it made. For exact readings without fault

    - gap + lost + reclaimed never falls: at least `floor`;
    - gap + lost never falls below the first gap: at least `least`;
    - gap without the late tokens never grows: at most `ceiling`.

    `unnamed`: LedgerCount.unnamed. `short`: the last comparison found less than `floor` or `least`; the next one must
    confirm it."""

    epoch: str
    read_at: int
    unnamed: int
    floor: int
    least: int
    ceiling: int
    short: bool = False


def ledger_count(connection: sa.Connection, clock: Clock = database_now) -> LedgerCount:
    """Call it in one unchanging view."""
    cursor = rollups.read_cursor(connection)
    in_tail = _usage.c.sequence > cursor.sequence
    tail = sa.select(sa.func.coalesce(sa.func.sum(_usage.c.made_tokens), 0)).where(in_tail)
    late = sa.select(sa.func.coalesce(sa.func.sum(_holds.c.lost_tokens), 0)).where(_holds.c.lost_tokens > 0)
    most = sa.func.coalesce(sa.func.sum(_holds.c.max_tokens), 0)
    still = sa.select(sa.func.count(), most).where(_holds.c.state == "held")
    lately = _holds.c.ended_at > clock(connection) - UNREPORTED_S * SECOND
    expired = sa.select(most).where(_holds.c.state == "expired", _holds.c.lost_tokens == 0, lately)
    after, late_tokens, expired_max = (int(connection.execute(query).scalar_one()) for query in (tail, late, expired))
    open_holds, open_max = map(int, connection.execute(still).one())
    engines: dict[str, int] = {}
    for query in (sa.select(_ledger.c.epoch, _ledger.c.made_tokens), rollups.made_by_epoch(in_tail)):
        for epoch, tokens in connection.execute(query):
            engines[epoch] = engines.get(epoch, 0) + int(tokens)
    lost = sa.select(_lost.c.epoch, sa.func.sum(_lost.c.lost_tokens)).group_by(_lost.c.epoch)
    return LedgerCount(
        tokens=cursor.made_tokens + after + late_tokens,
        open_holds=open_holds,
        late=late_tokens,
        open_tokens=open_max,
        expired_tokens=expired_max,
        engines=engines,
        late_engines={epoch: int(tokens) for epoch, tokens in connection.execute(lost)},
    )


def record_count(
    connection: sa.Connection,
    before: LedgerCount,
    engine: EngineCount,
    after: LedgerCount,
    clock: Clock = database_now,
) -> None:
    """Store an engine's count, read between the ledger counts `before` and `after`; delete silent engines' counts."""
    now = clock(connection)
    epoch, quiet = engine.epoch, engine.idle and before == after and not after.open_holds
    row = {
        "made_tokens": engine.made_tokens - engine.overrun_tokens,
        "lost_tokens": engine.lost_tokens + engine.reclaimed_tokens,
        "reclaimed_tokens": engine.reclaimed_tokens,
        "settled_before": before.engines.get(epoch, 0),
        "settled_after": after.engines.get(epoch, 0),
        "late_before": before.late_engines.get(epoch, 0),
        "late_after": after.late_engines.get(epoch, 0),
        "open_tokens": after.open_tokens,
        "expired_tokens": after.expired_tokens,
        "unnamed_tokens": after.unnamed if before.unnamed == after.unnamed else None,
        "quiet": quiet and not after.expired_tokens,
    }
    sums = {
        "made_tokens": engine.made_tokens,
        "overrun_tokens": engine.overrun_tokens,
        "lost_tokens": engine.lost_tokens,
        "ledger_tokens": after.tokens if quiet else None,
        "ledger_before": before.settled,
        "ledger_bound": after.settled + after.unreported,
    }
    # A gateway of the version before compares sums over all engines, so it needs the counts of each.
    for table, values in ((_readings, row), (_counts, sums)):
        values |= {"read_at": now}
        updated = connection.execute(sa.update(table).where(table.c.epoch == epoch).values(values))
        if not updated.rowcount:
            connection.execute(sa.insert(table).values(values | {"epoch": epoch}))
        connection.execute(sa.delete(table).where(table.c.read_at < now - SILENT_S * SECOND))


def engine_gap(connection: sa.Connection) -> int | None:
    """The ledger's tokens of the engines that answer, less the tokens that they made and did not lose. None if any of
    the engines ran a request when it was read."""
    rows = connection.execute(sa.select(_readings)).all()
    if not rows or not all(row.quiet for row in rows):
        return None
    kept = (row.settled_after + row.late_after + row.lost_tokens - row.reclaimed_tokens for row in rows)
    return int(sum(kept) - sum(row.made_tokens for row in rows))


def compare_engines(
    connection: sa.Connection, before: list[EngineBounds]
) -> tuple[list[EngineBounds], list[Imbalance]]:
    """Narrow the bounds of each engine by its newest reading. The bounds of an engine that was not read again do not
    change; the bounds of a silent engine are dropped."""
    known = {bounds.epoch: bounds for bounds in before}
    bounds: list[EngineBounds] = []
    found: list[Imbalance] = []
    for row in connection.execute(sa.select(_readings).order_by(_readings.c.epoch)):
        last = known.get(row.epoch)
        if last is not None and last.read_at == row.read_at:
            bounds.append(last)
        elif row.unnamed_tokens is not None:
            seen = _bounds_of(row)
            narrowed, imbalance = (seen, None) if last is None or last.unnamed != seen.unnamed else _narrow(last, row)
            bounds.append(narrowed)
            found += [] if imbalance is None else [imbalance]
    return bounds, found


def _bounds_of(row: sa.Row[tuple[int, ...]]) -> EngineBounds:
    """The bounds from one reading. Each token that was settled before the engine was read is among its made tokens, and
    so is each lost token; a token may be both, if a gateway was killed after it settled and before it reported that to
    the engine. Each token that it made is settled after the reading, lost, or made for a hold that is open (then it may
    be settled later) or expired recently."""
    gap = row.settled_before + row.late_before - row.made_tokens
    ceiling = row.settled_after + row.open_tokens - row.made_tokens
    return EngineBounds(row.epoch, row.read_at, row.unnamed_tokens, gap + row.lost_tokens, gap, ceiling)


def _narrow(last: EngineBounds, row: sa.Row[tuple[int, ...]]) -> tuple[EngineBounds, Imbalance | None]:
    seen = _bounds_of(row)
    excess = row.settled_before - row.made_tokens
    if excess > last.ceiling:
        return seen, Imbalance("tokens settled that the engine did not make", row.epoch, last.ceiling, excess)
    accounted = row.settled_after + row.late_after + row.lost_tokens + row.open_tokens + row.expired_tokens
    most = accounted - row.made_tokens
    for floor, bound in ((last.floor, most), (last.least, most - row.reclaimed_tokens)):
        # The two sides of a broken connection do not detect it at the same time. While no request runs, no report is in
        # transit; otherwise a shortfall must be found twice.
        if bound < floor and (last.short or row.quiet):
            return seen, Imbalance("tokens made and not accounted for", row.epoch, floor, bound)
    short = most < last.floor or most - row.reclaimed_tokens < last.least
    return msgspec.structs.replace(
        seen,
        floor=max(last.floor, seen.floor),
        least=max(last.least, seen.least),
        ceiling=last.ceiling if short else min(last.ceiling, seen.ceiling),
        short=short,
    ), None
