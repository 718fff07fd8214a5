"""Compares the engines' tokens with the ledger's: made = billed + discarded + lost. While no request runs they are
compared exactly; while requests run, the difference must be between two bounds.

A usage row does not name its engine, so sums over all engines are compared. This module reads no engine: callers pass
counts.
"""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.books import rollups
from billing.clock import SECOND, Clock, database_now
from billing.proofs.imbalances import Imbalance

# After this time without a report an engine counts as ended, with its requests in flight.
SILENT_S = 180
# For this time after a hold expired, its gateway may still settle it, or its engine may count its tokens as lost.
UNREPORTED_S = 3600

_counts = tables.engine_counts
_holds = tables.holds
_usage = tables.usage


class EngineCount(msgspec.Struct, frozen=True):
    """Tokens that one engine process, named by its epoch, has counted since it started: made; overrun and lost are
    parts of them. `idle`: no request runs or waits in the engine."""

    epoch: str
    made_tokens: int
    overrun_tokens: int
    lost_tokens: int
    idle: bool


class LedgerCount(msgspec.Struct, frozen=True):
    """`tokens`: made for settled requests, including `late`, the tokens of holds that had expired before. `unreported`:
    the most that open and recently expired holds may have made in addition."""

    tokens: int
    open_holds: int
    late: int = 0
    unreported: int = 0

    @property
    def settled(self) -> int:
        return self.tokens - self.late


class Bounds(msgspec.Struct, frozen=True):
    """Bounds of the ledger's tokens less the tokens of these engines, a number that does not change while the engines
    are the same. It is at least `floor` and, if lost tokens count as made, at most `ceiling`. `short`: the last
    comparison found less than the floor; the next comparison must confirm it."""

    engines: tuple[str, ...]
    floor: int
    ceiling: int
    short: bool = False


def ledger_count(connection: sa.Connection, clock: Clock = database_now) -> LedgerCount:
    """Call it in one unchanging view."""
    cursor = rollups.read_cursor(connection)
    tail = sa.select(sa.func.coalesce(sa.func.sum(_usage.c.made_tokens), 0)).where(_usage.c.sequence > cursor.sequence)
    late = sa.select(sa.func.coalesce(sa.func.sum(_holds.c.lost_tokens), 0)).where(_holds.c.lost_tokens > 0)
    most = sa.func.coalesce(sa.func.sum(_holds.c.max_tokens), 0)
    still = sa.select(sa.func.count(), most).where(_holds.c.state == "held")
    lately = _holds.c.ended_at > clock(connection) - UNREPORTED_S * SECOND
    expired = sa.select(most).where(_holds.c.state == "expired", _holds.c.lost_tokens == 0, lately)
    after, late_tokens, expired_max = (int(connection.execute(query).scalar_one()) for query in (tail, late, expired))
    open_holds, running = map(int, connection.execute(still).one())
    return LedgerCount(cursor.made_tokens + after + late_tokens, open_holds, late_tokens, expired_max + running)


def record_count(
    connection: sa.Connection,
    before: LedgerCount,
    engine: EngineCount,
    after: LedgerCount,
    clock: Clock = database_now,
) -> None:
    """Store an engine's count, read between the ledger counts `before` and `after`; delete silent engines' counts."""
    now = clock(connection)
    quiet = engine.idle and before == after and not after.open_holds
    row = {
        "made_tokens": engine.made_tokens,
        "overrun_tokens": engine.overrun_tokens,
        "lost_tokens": engine.lost_tokens,
        "ledger_tokens": after.tokens if quiet else None,
        "ledger_before": before.settled,
        "ledger_bound": after.settled + after.unreported,
        "read_at": now,
    }
    updated = connection.execute(sa.update(_counts).where(_counts.c.epoch == engine.epoch).values(row))
    if not updated.rowcount:
        connection.execute(sa.insert(_counts).values(row | {"epoch": engine.epoch}))
    connection.execute(sa.delete(_counts).where(_counts.c.read_at < now - SILENT_S * SECOND))


def token_gap(connection: sa.Connection) -> int | None:
    """The ledger's tokens less the tokens that all engines made, without overrun and lost ones. None unless each
    engine was idle when it was read and the ledger has not changed since."""
    rows = connection.execute(sa.select(_counts)).all()
    ledger = ledger_count(connection)
    if not rows or ledger.open_holds or any(row.ledger_tokens != ledger.tokens for row in rows):
        return None
    return ledger.tokens - sum(int(row.made_tokens - row.overrun_tokens - row.lost_tokens) for row in rows)


def lost_by_epoch(connection: sa.Connection) -> dict[str, int]:
    """Lost tokens by engine epoch."""
    query = sa.select(_counts.c.epoch, _counts.c.lost_tokens).order_by(_counts.c.epoch)
    return {row.epoch: row.lost_tokens for row in connection.execute(query)}


def compare_gaps(
    gap_then: int, engines_then: dict[str, int], gap_now: int, engines_now: dict[str, int]
) -> list[Imbalance]:
    """Compare the gaps of two moments without requests, with the same engines: the gap does not change. But a gateway
    may be killed after it settled a request and before it reported that to the engine, which then counts the tokens as
    lost. The gap may grow by these lost tokens."""
    if engines_then.keys() != engines_now.keys():
        return []
    grown = sum(engines_now.values()) - sum(engines_then.values())
    if 0 <= gap_now - gap_then <= grown:
        return []
    return [Imbalance("tokens settled, less those made", " ".join(engines_now), gap_then, gap_now)]


def update_bounds(connection: sa.Connection, before: Bounds | None) -> tuple[Bounds | None, list[Imbalance]]:
    """Narrow the bounds by the newest counts, also while requests run. Each token that was settled or lost before an
    engine was read is among the tokens that it made (but may count twice, once as lost). Each token that it made is
    settled later, lost, or made for a hold that is open or expired recently. So each count bounds the same number from
    below and from above; bounds that contradict each other are an imbalance."""
    rows = connection.execute(sa.select(_counts).order_by(_counts.c.read_at, _counts.c.epoch)).all()
    if not rows or any(row.ledger_before is None for row in rows):
        return None, []
    made = sum(int(row.made_tokens - row.overrun_tokens) for row in rows)
    lost = sum(int(row.lost_tokens) for row in rows)
    # With several engines: the ledger's count before the first engine was read, and after the last.
    least, most = rows[0].ledger_before - made, rows[-1].ledger_bound - made
    seen = Bounds(tuple(sorted(row.epoch for row in rows)), least + lost, most)
    if before is None or before.engines != seen.engines:
        return seen, []
    epochs = " ".join(seen.engines)
    if least > before.ceiling:
        return seen, [Imbalance("tokens settled that no engine made", epochs, before.ceiling, least)]
    bound = most + lost + ledger_count(connection).late
    short = bound < before.floor
    if short and before.short:  # found twice: the two sides of a broken connection do not detect it at the same time
        return seen, [Imbalance("tokens made and not accounted for", epochs, before.floor, bound)]
    ceiling = before.ceiling if short else min(before.ceiling, most)
    return Bounds(seen.engines, max(before.floor, seen.floor), ceiling, short), []
