"""made = billed + discarded + lost for each engine process: exactly while nothing runs, else between bounds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import sqlalchemy as sa
from prometheus_client import Gauge

from billing import tables
from billing.accounts.prices import PriceBook
from billing.books import rollups
from billing.clock import SECOND, database_now
from billing.ledger import expiry
from billing.ledger.checkpoints import Checkpoint, record_checkpoint
from billing.ledger.messages import Expire, HoldRequest, Settlement
from billing.ledger.transaction import LedgerTransaction
from billing.proofs import engine_books, reconcile
from billing.proofs.engine_books import EngineCount, LedgerCount
from billing.proofs.reconcile import Reconciliation
from engine.protocol.frames import StatusReport
from gateway.upkeep.bookkeeper import Bookkeeper
from support.billing.books import Books, settlement
from support.billing.finance import at, fold, run_group, use

JANUARY = at("2031-01-15T12:00")
ENGINE = EngineCount("epo_1", made_tokens=15, overrun_tokens=2, lost_tokens=3, idle=True)
MISSING, INVENTED = "tokens made and not accounted for", "tokens settled that the engine did not make"


def count(books: Books) -> LedgerCount:
    return books.database.read_sync(engine_books.ledger_count)


def note(books: Books, *engines: EngineCount, late_s: float = 0.0) -> None:
    """Read these engines, `late_s` after now."""

    def change(connection: sa.Connection) -> None:
        now = database_now(connection) + round(late_s * SECOND)
        ledger = engine_books.ledger_count(connection)
        for engine in engines:
            engine_books.record_count(connection, ledger, engine, ledger, lambda _connection: now)

    books.database.write_sync(change)


def minute(books: Books) -> Reconciliation:
    return books.database.write_sync(lambda c: reconcile.store_reconciliation(c, reconcile.reconcile_minute(c)))


def made_by(books: Books, **engines: int) -> HoldRequest:
    """A settled request whose tokens these engines made; the last one has the newest attempt."""
    return use(books, JANUARY, made=sum(engines.values()), engines=engines)


def rows(books: Books, table: sa.Table, *columns: str) -> list[tuple[Any, ...]]:
    query = sa.select(*(table.c[name] for name in columns)).order_by(*(table.c[name] for name in columns))
    return [tuple(row) for row in books.database.read_sync(lambda c: c.execute(query).all())]


def found_in(books: Books) -> list[tuple[str, str]]:
    return [(one.what, one.where) for one in minute(books).imbalances]


# ---- which engine made what


def test_a_usage_row_names_the_engine_of_its_newest_attempt(books: Books) -> None:
    """The common request has no further row."""
    made_by(books, epo_1=7)
    moved = made_by(books, epo_1=4, epo_2=0, epo_3=6)
    unknown = use(books, JANUARY, made=5)
    usage = tables.usage
    named = {row[0]: row[1] for row in rows(books, usage, "request_id", "engine_epoch")}
    assert [named[moved.request_id], named[unknown.request_id]] == ["epo_3", None]
    assert rows(books, tables.usage_attempts, "request_id", "epoch", "made_tokens") == [(moved.request_id, "epo_1", 4)]
    assert sorted(filter(None, named.values())) == ["epo_1", "epo_3"]


def test_tokens_are_summed_by_engine_and_each_row_once(books: Books) -> None:
    for _ in range(3):
        made_by(books, epo_1=7)
        made_by(books, epo_1=4, epo_2=6)
    use(books, JANUARY, made=5)
    tail = count(books)
    assert (tail.engines, tail.tokens, tail.unnamed) == ({"epo_1": 33, "epo_2": 18}, 56, 5)
    [first, *_] = rows(books, tables.usage, "sequence")  # the cursor is at 0
    for limit in (first[0] + 1, 100, 100):
        books.database.write_sync(lambda c, limit=limit: rollups.fold_usage(c, limit=limit))
        assert count(books) == tail
    assert rows(books, tables.engine_ledger, "epoch", "made_tokens") == [("epo_1", 33), ("epo_2", 18)]
    made_by(books, epo_2=1, epo_1=2)
    assert count(books).engines == {"epo_1": 35, "epo_2": 19}
    fold(books, JANUARY)
    assert rows(books, tables.engine_ledger, "epoch", "made_tokens") == [("epo_1", 35), ("epo_2", 19)]
    books.assert_sound()


def expire(books: Books, *requests: HoldRequest) -> None:
    now = books.database.read_sync(database_now)
    group = LedgerTransaction("gw_1", 60.0, lambda _connection: now, PriceBook())
    books.database.write_sync(lambda c: group.run(c, [], [Expire(request.request_id) for request in requests]))


def settle_late(books: Books, *late: Settlement) -> None:
    group = LedgerTransaction("gw_1", 60.0, database_now, PriceBook())
    books.database.write_sync(lambda c: group.run(c, [], late))


def test_late_tokens_are_counted_by_engine_and_once(books: Books) -> None:
    request, unknown = books.request(), books.request()
    run_group(books, JANUARY, [request, unknown])
    expire(books, request, unknown)
    late = settlement(request, 30, engines={"epo_1": 10, "epo_2": 20})
    for _ in range(2):
        settle_late(books, late, settlement(unknown, 5))
    ledger = count(books)
    assert (ledger.late, ledger.late_engines, ledger.engines) == (35, {"epo_1": 10, "epo_2": 20}, {})
    assert (ledger.settled, ledger.unnamed) == (0, 5)


def test_a_checkpoint_names_the_engines_of_the_tokens_that_can_be_read(books: Books) -> None:
    """Its request moved to another engine, and made tokens that nobody can read. They are late, if they are settled."""
    request, unnamed = books.request(), books.request()
    run_group(books, JANUARY, [request, unnamed])
    checkpoints = [
        Checkpoint(request.request_id, 10, 4, 20, {"epo_1": 15, "epo_2": 5}),
        Checkpoint(request.request_id, 10, 4, 25, {"epo_1": 15, "epo_2": 30}),
        Checkpoint(unnamed.request_id, 10, 4, 9),
    ]
    for checkpoint in checkpoints:
        assert books.database.write_sync(lambda c, one=checkpoint: record_checkpoint(c, one))
    later = JANUARY + 2_000_000_000 * SECOND  # after the lease of `run_group`
    assert len(books.database.write_sync(lambda c: expiry.expire_dead(c, "gw_auditor", later))) == 2
    assert count(books).engines == {"epo_1": 15, "epo_2": 10}
    assert count(books).unnamed == 9
    settle_late(books, settlement(request, 50, engines={"epo_1": 15, "epo_2": 35}))
    settle_late(books, settlement(unnamed, 12, engines={"epo_1": 12}))
    ledger = count(books)
    assert (ledger.late, ledger.late_engines) == (28, {"epo_1": 3, "epo_2": 25})
    assert ledger.tokens == 62
    books.assert_sound()


# ---- while nothing runs


def test_what_an_engine_made_is_what_the_ledger_has(books: Books) -> None:
    made_by(books, epo_1=10)
    assert minute(books).engine_gap is None, "no engine was read"
    note(books, ENGINE)
    assert (minute(books).engine_gap, minute(books).imbalances) == (0, [])
    made_by(books, epo_1=7)
    note(books, msgspec.structs.replace(ENGINE, made_tokens=23, overrun_tokens=3))
    assert (minute(books).engine_gap, minute(books).imbalances) == (0, [])
    note(books, msgspec.structs.replace(ENGINE, made_tokens=24, overrun_tokens=3))
    [found] = minute(books).imbalances
    assert (found.what, found.where, found.expected, found.found) == (MISSING, "epo_1", 0, -1)
    note(books, msgspec.structs.replace(ENGINE, made_tokens=24, overrun_tokens=3))
    assert (minute(books).engine_gap, minute(books).imbalances) == (-1, []), "it is found once"


def test_two_engines_do_not_make_up_for_each_other(books: Books) -> None:
    """The sum over both is right all the time."""
    first, second = EngineCount("epo_1", 10, 0, 0, idle=True), EngineCount("epo_2", 20, 0, 0, idle=True)
    made_by(books, epo_1=10, epo_2=20)
    note(books, first, second)
    assert (minute(books).engine_gap, found_in(books)) == (0, [])
    made_by(books, epo_1=5)
    note(books, first, msgspec.structs.replace(second, made_tokens=25))
    result = minute(books)
    assert result.engine_gap == 0
    assert [(one.what, one.where) for one in result.imbalances] == [(INVENTED, "epo_1"), (MISSING, "epo_2")]


class Engines:
    """What the bookkeeper needs of gateway.engines.engine.Engine."""

    def __init__(self, **made: int) -> None:
        self.made = made

    async def reports(self) -> list[StatusReport]:
        return [
            StatusReport(epoch, 0, 0, {}, 0, 0, 0, 0, [], made, b"", 1, tokens_lost=2, tokens_reclaimed=3)
            for epoch, made in self.made.items()
        ]


async def test_the_bookkeeper_records_each_engine_that_answers(books: Books) -> None:
    made_by(books, epo_1=10, epo_2=20)
    metrics: Any = SimpleNamespace(
        **{name: Gauge(name, "-", registry=None) for name in ("imbalances", "overshoot", "reconciled_at")}
    )
    engines: Any = Engines(epo_1=13, epo_2=23)
    keeper = Bookkeeper(books.database, engines, metrics, every_s=0.0)
    await keeper.run_once()
    columns = ("epoch", "made_tokens", "lost_tokens", "reclaimed_tokens", "settled_after", "quiet")
    assert rows(books, tables.engine_readings, *columns) == [
        ("epo_1", 12, 5, 3, 10, True),
        ("epo_2", 22, 5, 3, 20, True),
    ]
    engines.made = {"epo_2": 24}
    await keeper.run_once()
    newest = books.database.read_sync(reconcile.newest_result)
    assert newest is not None
    assert [(one.what, one.where, one.expected - one.found) for one in newest.imbalances] == [(MISSING, "epo_2", 1)]


def test_an_engine_that_runs_or_is_new_is_not_compared_exactly(books: Books) -> None:
    made_by(books, epo_1=10)
    note(books, ENGINE)
    minute(books)
    note(books, msgspec.structs.replace(ENGINE, made_tokens=99, idle=False))
    assert minute(books).engine_gap is None
    books.database.write_sync(lambda c: c.execute(sa.delete(tables.engine_readings)).rowcount)
    note(books, EngineCount("epo_2", 0, 0, 0, idle=True))
    later = minute(books)
    assert (later.engine_gap, later.imbalances) == (0, [])


def test_tokens_counted_as_lost_and_settled_nonetheless(books: Books) -> None:
    """A gateway that is killed between its settlement and its report to the engine."""
    made_by(books, epo_1=10)
    note(books, ENGINE)
    minute(books)
    note(books, msgspec.structs.replace(ENGINE, lost_tokens=10))
    result = minute(books)
    assert (result.engine_gap, result.imbalances) == (7, [])
    note(books, msgspec.structs.replace(ENGINE, made_tokens=16, lost_tokens=10))
    assert found_in(books) == [(MISSING, "epo_1")]


def test_tokens_that_are_reclaimed_are_lost_no_more(books: Books) -> None:
    """A text that moved: the first engine counted 8 tokens as lost, and its gateway received 5 of them."""
    note(books, EngineCount("epo_1", 0, 0, 0, idle=True))
    minute(books)
    made_by(books, epo_1=5, epo_2=3)
    note(books, EngineCount("epo_1", 8, 0, 8, idle=True))
    assert (minute(books).engine_gap, found_in(books)) == (5, [])
    note(books, EngineCount("epo_1", 8, 0, 3, idle=True, reclaimed_tokens=5))
    assert (minute(books).engine_gap, found_in(books)) == (0, [])
    note(books, EngineCount("epo_1", 8, 0, 1, idle=True, reclaimed_tokens=7))
    assert found_in(books) == [(MISSING, "epo_1")], "two tokens more were reclaimed than the ledger has"


def test_an_expired_hold_is_waited_for(books: Books) -> None:
    """Its gateway finished it while the database was unavailable, and has it in its journal: nothing runs, the engine
    lost nothing, and the ledger does not have the tokens yet."""
    note(books, EngineCount("epo_1", 0, 0, 0, idle=True))
    minute(books)
    request = books.request(most=90)
    run_group(books, JANUARY, [request])
    expire(books, request)
    for _ in range(3):
        note(books, EngineCount("epo_1", 40, 0, 0, idle=True))
        assert found_in(books) == []
    settle_late(books, settlement(request, 40, engines={"epo_1": 40}))
    note(books, EngineCount("epo_1", 40, 0, 0, idle=True))
    assert (minute(books).engine_gap, found_in(books)) == (0, [])


# ---- while requests run


def running(books: Books, made: int, *, overrun: int = 0, lost: int = 0) -> list[str]:
    """Reads an engine while it works; returns what the minute that follows finds."""
    note(books, EngineCount("epo_1", made, overrun, lost, idle=False))
    result = minute(books)
    assert result.engine_gap is None
    return [one.what for one in result.imbalances]


def test_engines_are_compared_while_they_run(books: Books) -> None:
    """A request of at most 90 tokens runs all the time: what is settled and what it may have made are the bounds."""
    held = books.request(most=90)
    assert running(books, 0) == []
    run_group(books, JANUARY, [held])
    assert running(books, 40) == []
    made_by(books, epo_1=10)
    assert running(books, 60, overrun=3) == []
    made_by(books, epo_1=20)
    assert running(books, 33 + 90, overrun=3) == [], "all that the request may have is under way"
    assert running(books, 34 + 90, overrun=3) == [], "once is no proof"
    assert running(books, 34 + 90, overrun=3) == [MISSING]


def test_one_reading_is_no_second_proof(books: Books) -> None:
    """The engine was killed right after it: it is not read again, and nothing is found."""
    assert running(books, 0) == []
    for _ in range(3):
        assert running(books, 1) == []
        assert minute(books).imbalances == [], "the same reading"
        made_by(books, epo_1=1)
        assert running(books, 1) == []
        assert running(books, 2) == []
        made_by(books, epo_1=1)
        assert running(books, 2) == []
        assert running(books, 2) == []
        books.database.write_sync(lambda c: c.execute(sa.delete(tables.engine_readings)).rowcount)
        assert minute(books).engine_bounds == []
        assert running(books, 0) == []


def test_more_settled_than_made_is_found_while_an_engine_runs(books: Books) -> None:
    held = books.request(most=90)
    run_group(books, JANUARY, [held])
    assert running(books, 90) == []
    made_by(books, epo_1=100)
    assert running(books, 100) == [], "what was under way may have been all of it"
    made_by(books, epo_1=91)
    assert running(books, 101) == [INVENTED]
    assert running(books, 101) == [], "it is found once"


def test_lost_tokens_are_accounted_for_while_an_engine_runs(books: Books) -> None:
    """A gateway dies with 50 tokens: its hold expires, and whether the engine says so first, or settles them too, or a
    report comes late, nothing is missing and nothing too much."""
    dead, alive = books.request(most=90), books.request(most=5)
    run_group(books, JANUARY, [dead, alive])
    assert running(books, 50) == []
    assert running(books, 52, lost=50) == []
    expire(books, dead)
    for _ in range(2):
        assert running(books, 55, lost=50) == []
    settle_late(books, settlement(dead, 50, engines={"epo_1": 50}))
    for _ in range(2):
        assert running(books, 55, lost=50) == []


def test_a_shortfall_of_one_of_several_running_engines_is_found(books: Books) -> None:
    """Both have a request of the 90 tokens that may be under way; the other engine's settlements hide nothing."""
    run_group(books, JANUARY, [books.request(most=90)])
    other = EngineCount("epo_2", 0, 0, 0, idle=False)
    for made, settled, found in (
        (0, 0, []),
        (60, 50, []),
        (200, 100, []),
        (241, 0, []),
        (241, 0, [(MISSING, "epo_1")]),
    ):
        if settled:
            made_by(books, epo_1=settled)
            made_by(books, epo_2=1000)
            other = msgspec.structs.replace(other, made_tokens=other.made_tokens + 1000)
        note(books, EngineCount("epo_1", made, 0, 0, idle=False), other)
        assert found_in(books) == found, made


# ---- engines that are gone, and earlier versions


def test_an_engine_that_never_returns_is_closed(books: Books) -> None:
    """It was killed with 500 tokens that no gateway received, after its last report."""
    made_by(books, epo_1=10, epo_2=10)
    lost, other = EngineCount("epo_1", 510, 0, 0, idle=False), EngineCount("epo_2", 10, 0, 0, idle=True)
    note(books, msgspec.structs.replace(lost, made_tokens=10), other)
    minute(books)
    note(books, lost, other)
    made_by(books, epo_1=40)
    assert found_in(books) == []
    late_s = engine_books.SILENT_S + 1
    note(books, other, late_s=late_s)
    result = minute(books)
    assert (result.imbalances, [bounds.epoch for bounds in result.engine_bounds]) == ([], ["epo_2"])
    assert result.engine_gap == 0
    assert count(books).engines == {"epo_1": 50, "epo_2": 10}, "what gateways received"
    note(books, msgspec.structs.replace(lost, made_tokens=600, lost_tokens=90), other, late_s=late_s + 1)
    assert found_in(books) == [], "a host that was cut off: the comparison starts again"


def test_rows_without_a_name_start_the_comparison_again(books: Books) -> None:
    """A gateway of the version before settles beside this one, and folds rows: nothing is known of either engine."""
    note(books, EngineCount("epo_1", 0, 0, 0, idle=True))
    minute(books)
    use(books, JANUARY, made=10)
    note(books, EngineCount("epo_1", 10, 0, 0, idle=True))
    assert (minute(books).engine_gap, found_in(books)) == (-10, [])
    made_by(books, epo_1=5)
    note(books, EngineCount("epo_1", 15, 0, 0, idle=True))
    assert (minute(books).engine_gap, found_in(books)) == (-10, [])
    fold(books, JANUARY)
    books.database.write_sync(lambda c: c.execute(sa.delete(tables.engine_ledger)).rowcount)  # it would not be filled
    note(books, EngineCount("epo_1", 15, 0, 0, idle=True))
    assert (minute(books).engine_gap, found_in(books)) == (-15, [])
    made_by(books, epo_1=5)
    note(books, EngineCount("epo_1", 19, 0, 0, idle=True))
    assert found_in(books) == [(INVENTED, "epo_1")]


def test_rows_that_change_between_two_readings_of_the_ledger(books: Books) -> None:
    note(books, EngineCount("epo_1", 0, 0, 0, idle=True))
    before = count(books)
    use(books, JANUARY, made=10)
    after = count(books)
    engine = EngineCount("epo_1", 10, 0, 0, idle=True)
    books.database.write_sync(lambda c: engine_books.record_count(c, before, engine, after))
    assert (minute(books).engine_bounds, found_in(books)) == ([], [])


def test_a_result_of_the_version_before_is_read(books: Books) -> None:
    """And the version before reads results of this one: its columns are null."""
    note(books, ENGINE)
    minute(books)
    results = tables.reconciliations
    old = {"engine_books": None, "engine_gap": 7, "engines": "{}", "engine_bounds": '{"engines":["e"],"floor":1}'}
    assert rows(books, results, "engine_gap", "engines", "engine_bounds") == [(None, None, None)]
    books.database.write_sync(lambda c: c.execute(sa.update(results).values(old)).rowcount)
    newest = books.database.read_sync(reconcile.newest_result)
    assert newest is not None
    assert (newest.engine_gap, newest.engine_bounds) == (7, [])
    assert minute(books).sound


def test_the_version_before_has_the_sums_of_all_engines(books: Books) -> None:
    made_by(books, epo_1=10, epo_2=20)
    note(books, *(EngineCount(epoch, 30, 0, 0, idle=True) for epoch in ("epo_1", "epo_2")))
    columns = ("epoch", "made_tokens", "ledger_tokens", "ledger_before", "ledger_bound")
    assert rows(books, tables.engine_counts, *columns) == [
        ("epo_1", 30, 30, 30, 30),
        ("epo_2", 30, 30, 30, 30),
    ]
