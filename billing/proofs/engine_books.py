"""What engines say they made, beside what the ledger has: made = usage + discarded + lost. At quiet moments exactly;
while requests run, between two bounds.

Nothing tells which engine a usage row came from, so the sums of all are compared. It reads no engine: whoever does,
brings the numbers.
"""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.books import rollups
from billing.clock import SECOND, Clock, database_now
from billing.proofs.equalities import Imbalance

# An engine that was not heard of for so long is gone, and what it had in flight with it.
SILENT_S = 180
# What a hold that expired may still be reported to have made, or be counted as lost by its engine.
UNTOLD_S = 3600

_counts = tables.engine_counts
_holds = tables.holds
_usage = tables.usage


class EngineCount(msgspec.Struct, frozen=True):
    """Of one engine process, named by its epoch, since it began: completion ids it made, of those the overrun, and
    those lost with a gateway. `idle`: nothing runs or waits in it."""

    epoch: str
    made_tokens: int
    overrun_tokens: int
    lost_tokens: int
    idle: bool


class LedgerCount(msgspec.Struct, frozen=True):
    """Tokens made for requests that were settled, or (`late`) whose hold had expired when they were; the holds open;
    and what those, and the ones that expired lately, may have made that nobody has said yet (`untold`)."""

    tokens: int
    open_holds: int
    late: int = 0
    untold: int = 0

    @property
    def settled(self) -> int:
        return self.tokens - self.late


class Bounds(msgspec.Struct, frozen=True):
    """What is known of one number that never changes, the ledger's tokens less those of these engines, from all looks
    at them: at least `floor`; and, without what they count as lost, at most `ceiling`. `short`: the last look found
    less than the floor, which the next one must confirm."""

    engines: tuple[str, ...]
    floor: int
    ceiling: int
    short: bool = False


def ledger_count(connection: sa.Connection, clock: Clock = database_now) -> LedgerCount:
    """In one unchanging view."""
    cursor = rollups.read_cursor(connection)
    tail = sa.select(sa.func.coalesce(sa.func.sum(_usage.c.made_tokens), 0)).where(_usage.c.sequence > cursor.sequence)
    late = sa.select(sa.func.coalesce(sa.func.sum(_holds.c.lost_tokens), 0)).where(_holds.c.lost_tokens > 0)
    most = sa.func.coalesce(sa.func.sum(_holds.c.max_tokens), 0)
    still = sa.select(sa.func.count(), most).where(_holds.c.state == "held")
    lately = _holds.c.ended_at > clock(connection) - UNTOLD_S * SECOND
    expired = sa.select(most).where(_holds.c.state == "expired", _holds.c.lost_tokens == 0, lately)
    after, told_late, untold = (int(connection.execute(query).scalar_one()) for query in (tail, late, expired))
    open_holds, running = map(int, connection.execute(still).one())
    return LedgerCount(cursor.made_tokens + after + told_late, open_holds, told_late, untold + running)


def record_count(
    connection: sa.Connection,
    before: LedgerCount,
    engine: EngineCount,
    after: LedgerCount,
    clock: Clock = database_now,
) -> None:
    """Keep what an engine said between two looks at the ledger; forget engines that are gone."""
    now = clock(connection)
    quiet = engine.idle and before == after and not after.open_holds
    row = {
        "made_tokens": engine.made_tokens,
        "overrun_tokens": engine.overrun_tokens,
        "lost_tokens": engine.lost_tokens,
        "ledger_tokens": after.tokens if quiet else None,
        "ledger_before": before.settled,
        "ledger_bound": after.settled + after.untold,
        "read_at": now,
    }
    updated = connection.execute(sa.update(_counts).where(_counts.c.epoch == engine.epoch).values(row))
    if not updated.rowcount:
        connection.execute(sa.insert(_counts).values(row | {"epoch": engine.epoch}))
    connection.execute(sa.delete(_counts).where(_counts.c.read_at < now - SILENT_S * SECOND))


def token_gap(connection: sa.Connection) -> int | None:
    """The ledger's tokens less what all engines made, without overrun and what they lost. None unless each engine was
    quiet when it was read and the ledger has not moved since."""
    rows = connection.execute(sa.select(_counts)).all()
    ledger = ledger_count(connection)
    if not rows or ledger.open_holds or any(row.ledger_tokens != ledger.tokens for row in rows):
        return None
    return ledger.tokens - sum(int(row.made_tokens - row.overrun_tokens - row.lost_tokens) for row in rows)


def lost_by_epoch(connection: sa.Connection) -> dict[str, int]:
    """By epoch."""
    query = sa.select(_counts.c.epoch, _counts.c.lost_tokens).order_by(_counts.c.epoch)
    return {row.epoch: row.lost_tokens for row in connection.execute(query)}


def compare_gaps(
    gap_then: int, engines_then: dict[str, int], gap_now: int, engines_now: dict[str, int]
) -> list[Imbalance]:
    """Between two quiet moments with the same engines the gap stays. An engine may count as lost what a gateway had
    settled when it was killed, before it said so: by that much, at most, the gap may have grown."""
    if engines_then.keys() != engines_now.keys():
        return []
    grown = sum(engines_now.values()) - sum(engines_then.values())
    if 0 <= gap_now - gap_then <= grown:
        return []
    return [Imbalance("tokens settled, less those made", " ".join(engines_now), gap_then, gap_now)]


def update_bounds(connection: sa.Connection, before: Bounds | None) -> tuple[Bounds | None, list[Imbalance]]:
    """What the newest look at the engines adds to what was known, whatever runs. Each token that was settled or counted
    as lost before an engine was asked is among those that it made (but may be counted twice, once as lost); and each
    that it made is settled after, counted as lost, or of a hold that is open or expired lately. So each look bounds
    the same number from below and from above, and looks that contradict each other are an imbalance."""
    rows = connection.execute(sa.select(_counts).order_by(_counts.c.read_at, _counts.c.epoch)).all()
    if not rows or any(row.ledger_before is None for row in rows):
        return None, []
    made = sum(int(row.made_tokens - row.overrun_tokens) for row in rows)
    gone = sum(int(row.lost_tokens) for row in rows)
    # Of several engines: the ledger from before the first was read, and from after the last.
    least, most = rows[0].ledger_before - made, rows[-1].ledger_bound - made
    seen = Bounds(tuple(sorted(row.epoch for row in rows)), least + gone, most)
    if before is None or before.engines != seen.engines:
        return seen, []
    words = " ".join(seen.engines)
    if least > before.ceiling:
        return seen, [Imbalance("tokens settled that no engine made", words, before.ceiling, least)]
    bound = most + gone + ledger_count(connection).late
    short = bound < before.floor
    if short and before.short:  # a connection that breaks is known to one side first: once is no proof
        return seen, [Imbalance("tokens made that are nobody's", words, before.floor, bound)]
    ceiling = before.ceiling if short else min(before.ceiling, most)
    return Bounds(seen.engines, max(before.floor, seen.floor), ceiling, short), []
