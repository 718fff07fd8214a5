"""Endings while the database is away: kept, settled once when it is back, by this process or by the next."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from billing import tables
from billing.accounts.prices import REQUEST_TOKENS_MAX
from billing.books import usage
from billing.clock import SECOND, database_now
from billing.database import Database, DatabaseUnavailable
from billing.ledger import expiry
from billing.ledger import journal as journals
from billing.ledger.journal import RECORD_BYTES_MAX, REJECTED, Journal, JournalFailed, paths
from billing.ledger.ledger import Held, Ledger, LedgerUnavailable
from billing.ledger.messages import Recompute
from billing.ledger.settler import ENGINES_MAX, Settler
from billing.ledger.transaction import LedgerTransaction
from billing.proofs import engine_books
from support.billing.books import CANNOT_SERVE, Books, beginning_with, settlement
from support.cut_proxy import CutProxy
from support.paths import REPO
from support.waiting import eventually_async

ROOM = 128 * 1024


@asynccontextmanager
async def gateway(
    url: str, folder: Path, name: str = "gw_1", *, bytes_max: int = ROOM, **settings: Any
) -> AsyncIterator[tuple[Ledger, Settler]]:
    """What one process has. At its end it stops in order."""
    database = Database(url)
    ledger = Ledger(database, name)
    settler = Settler(ledger, folder, name, bytes_max=bytes_max, **{"disk_free_min_bytes": 0, **settings})
    try:
        await settler.start()
        yield ledger, settler
    finally:
        await ledger.close(patience_s=1.0)
        await settler.close()
        database.close()


def states(books: Books) -> dict[str, tuple[str, int, int]]:
    """By request: its hold's state, what was settled, and the tokens reported as lost."""
    holds = tables.holds.c
    query = sa.select(holds.request_id, holds.state, holds.settled_picos, holds.lost_tokens)
    rows = books.database.read_sync(lambda connection: connection.execute(query).all())
    return {row[0]: (row[1], row[2], row[3]) for row in rows}


async def test_with_the_database_there_nothing_is_kept(books: Books, tmp_path: Path) -> None:
    budget = books.budget(1_000)
    async with gateway(books.url, tmp_path) as (ledger, settler):
        one, other = books.request(), books.request()
        await ledger.hold(one)
        await ledger.hold(other)
        assert (await settler.settle(settlement(one, 7))).outcome == "settled"
        assert (await settler.void(other.request_id, "refused")).outcome == "voided"
        assert (settler.bytes_used, settler.journaled) == (0, 0)
    assert books.state(budget) == (17, 0)
    assert paths(tmp_path) == [], "an empty one goes with its process"


async def test_away_and_back(postgres_books: Books, tmp_path: Path) -> None:
    """Each ending once: those that were under way when it went, and those that came while it was away."""
    books = postgres_books
    budget = books.budget(10_000)
    async with CutProxy(books.url) as proxy, gateway(proxy.url, tmp_path) as (ledger, settler):
        requests = [books.request() for _ in range(40)]
        await asyncio.gather(*map(ledger.hold, requests))
        proxy.cut()
        ended = await asyncio.gather(
            *(settler.settle(settlement(request, 5)) for request in requests[:30]),
            *(settler.void(request.request_id, "refused") for request in requests[30:]),
        )
        assert {answer.outcome for answer in ended} == {"journaled"}
        assert settler.journaled == 40
        waiting_s = settler.waiting_s
        assert waiting_s > 0
        with pytest.raises(LedgerUnavailable):
            await settler.settle_journals()
        assert settler.waiting_s > waiting_s
        proxy.restore()
        await settler.settle_journals()
        assert (settler.bytes_used, settler.replayed, settler.waiting_s) == (0, 40, 0)
        after = books.request()
        await ledger.hold(after)
        assert (await settler.settle(settlement(after, 5))).outcome == "settled"
    assert books.state(budget) == (31 * 15, 0)
    books.assert_sound()


async def test_a_journal_names_the_engines_of_each_settlement(books: Books, tmp_path: Path) -> None:
    """A journal of an earlier version names none, and a request of very many engines has no space for their names."""
    async with gateway(books.url, tmp_path) as (ledger, settler):
        named, many, old = (books.request() for _ in range(3))
        for request in (named, many, old):
            await ledger.hold(request)
        settler.journal_settlement(settlement(named, 7, engines={"epo_1": 3, "epo_2": 4}))
        engines = {f"{number:064x}": 1 for number in range(ENGINES_MAX + 1)}
        settler.journal_settlement(settlement(many, len(engines), engines=engines))
        await settler._appends.wait_idle()
        fields = msgspec.to_builtins(settlement(old, 9))
        del fields["engines"]
        text = msgspec.json.encode(fields)
        assert settler._journal is not None
        record = journals._HEADER.pack(len(text), zlib.crc32(text)) + text
        journals._write(settler._journal._descriptor, record, settler._journal.used)
        settler._journal.used += len(record)
        await settler.settle_journals()
        assert settler.replayed == 3
    counted = books.database.read_sync(engine_books.ledger_count)
    assert counted.engines == {"epo_1": 3, "epo_2": 4}
    assert counted.unnamed == 9 + len(engines)


def test_a_record_has_space_for_the_most_engines_that_it_names() -> None:
    engines = {f"{number:064x}": REQUEST_TOKENS_MAX for number in range(ENGINES_MAX)}
    most = settlement("req_" + "f" * 60, REQUEST_TOKENS_MAX * ENGINES_MAX, engines=engines)
    recomputed = {f"tier-{number:027}": Recompute(REQUEST_TOKENS_MAX, 1 / 3) for number in range(8)}
    assert len(journals._record(msgspec.structs.replace(most, recomputed=recomputed))) <= RECORD_BYTES_MAX


async def test_one_whose_answer_was_lost_counts_once(postgres_books: Books, tmp_path: Path) -> None:
    """The commit took place and nobody heard of it: the journal has it too, and it is charged once."""
    books = postgres_books
    budget = books.budget(1_000)
    async with CutProxy(books.url) as proxy, gateway(proxy.url, tmp_path, wait_s=0.2) as (ledger, settler):
        request = books.request()
        await ledger.hold(request)
        proxy.mute()
        assert (await settler.settle(settlement(request, 7))).outcome == "journaled"
        proxy.cut()
        proxy.restore()
        await settler.settle_journals()
    assert states(books) == {request.request_id: ("settled", 10 * 100 + 7 * 400, 0)}
    assert books.state(budget) == (17, 0)
    books.assert_sound()


async def test_the_background_settles_by_itself(postgres_books: Books, tmp_path: Path) -> None:
    books = postgres_books
    async with CutProxy(books.url) as proxy, gateway(proxy.url, tmp_path, turn_s=0.05) as (ledger, settler):
        request = books.request()
        await ledger.hold(request)
        running = asyncio.create_task(settler.run())
        proxy.cut()
        await settler.settle(settlement(request, 7))
        await asyncio.sleep(0.3)
        assert settler.bytes_used > 0
        proxy.restore()
        await eventually_async(lambda: settler.bytes_used == 0)
        running.cancel()
    books.assert_sound()


async def test_whoever_is_cancelled_is_kept_all_the_same(postgres_books: Books, tmp_path: Path) -> None:
    """The end of a process cancels what waits: while the database hangs, and while it is known to be away."""
    books = postgres_books
    async with CutProxy(books.url) as proxy:
        async with gateway(proxy.url, tmp_path) as (ledger, settler):
            requests = [books.request() for _ in range(3)]
            await asyncio.gather(*map(ledger.hold, requests))
            proxy.mute()
            waiting = [asyncio.create_task(settler.settle(settlement(request, 7))) for request in requests]
            await asyncio.sleep(0.05)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            proxy.cut()
        [left] = paths(tmp_path)
        proxy.restore()
        async with gateway(proxy.url, tmp_path, "gw_2"):
            assert not left.exists()
    assert {state for state, _, _ in states(books).values()} == {"settled"}
    books.assert_sound()


GATEWAY_THAT_IS_KILLED = """
import asyncio, sys
from pathlib import Path
from billing.database import Database
from billing.ledger.ledger import HoldRequest, Ledger, LedgerUnavailable, Settlement
from billing.ledger.settler import Settler

async def main(url, folder, tenant_id):
    ledger = Ledger(Database(url), "gw_old")
    settler = Settler(ledger, Path(folder), "gw_old", bytes_max=65536, disk_free_min_bytes=0)
    await settler.start()
    for n in range(4):
        await ledger.hold(HoldRequest(f"req_old_{n}", tenant_id, "key_a", "model-a", None, "standard", 10, 90))

    async def away(*_):
        raise LedgerUnavailable("the database is away")

    ledger.settle = ledger.void = away
    for n in range(3):
        done = Settlement(request_id=f"req_old_{n}", prompt_tokens=10, cached_tokens=0, completion_tokens=5,
                          made_tokens=5, ending="stop", ttft_s=3.0, age_s=4.0)
        await settler.settle(done)
    print("kept", flush=True)
    await asyncio.sleep(60)

asyncio.run(main(*sys.argv[1:]))
"""


async def killed_gateway(books: Books, folder: Path) -> None:
    """It held four times, kept three settlements, and got SIGKILL."""
    command = [sys.executable, "-c", GATEWAY_THAT_IS_KILLED, books.url, str(folder), books.tenant.id]
    old = await asyncio.create_subprocess_exec(*command, cwd=REPO, stdout=asyncio.subprocess.PIPE)
    assert old.stdout is not None
    assert await old.stdout.readline() == b"kept\n"
    os.kill(old.pid, signal.SIGKILL)
    await old.wait()


def expire_all(books: Books, now_plus_s: int = 3600) -> list[str]:
    def run(connection: sa.Connection) -> list[str]:
        return expiry.expire_dead(connection, "gw_auditor", database_now(connection) + now_plus_s * SECOND)

    return books.database.write_sync(run)


async def test_the_journal_of_a_killed_gateway_is_settled_at_the_next_start(books: Books, tmp_path: Path) -> None:
    budget = books.budget(1_000)
    await killed_gateway(books, tmp_path)
    assert books.state(budget) == (0, 400)
    async with gateway(books.url, tmp_path, "gw_new"):
        assert books.state(budget) == (45, 100), "before any audit"
        assert [path.stem for path in paths(tmp_path)] == ["gw_new"]
    for number in range(3):
        row = books.database.read_sync(lambda c, number=number: usage.get_usage_row(c, f"req_old_{number}"))
        assert row is not None
        assert row.ttft_s * SECOND == 3 * SECOND < row.finished_at - row.started_at == 4 * SECOND
    assert expire_all(books) == ["req_old_3"], "what was never settled expires"
    assert books.state(budget) == (45, 0)
    books.assert_sound()


async def test_a_living_gateway_beside_it_settles_it_too(postgres_books: Books, tmp_path: Path) -> None:
    books = postgres_books
    budget = books.budget(1_000)
    async with gateway(books.url, tmp_path, "gw_beside") as (_, settler):
        await killed_gateway(books, tmp_path)
        await settler.settle_journals()
        assert books.state(budget) == (45, 100)
    books.assert_sound(open_holds=1)


async def test_a_journal_that_comes_after_its_holds_expired_is_lost_and_said(
    books: Books, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The host was away for longer than the lease: nobody pays, the budget was whole meanwhile, the tokens show."""
    budget = books.budget(1_000)
    await killed_gateway(books, tmp_path)
    assert len(expire_all(books)) == 4
    assert books.state(budget) == (0, 0)
    for name in ("gw_new", "gw_newer"):
        async with gateway(books.url, tmp_path, name):
            pass
    assert states(books) == {f"req_old_{n}": ("expired", 0, 5 if n < 3 else 0) for n in range(4)}
    assert caplog.text.count("settlement.too_late") == 3
    assert books.state(budget) == (0, 0)
    books.assert_sound()


async def test_a_replay_that_was_broken_off_begins_again(postgres_books: Books, tmp_path: Path) -> None:
    """Killed between the database's commit and the journal's clearing: settled twice, charged once."""
    books = postgres_books
    budget = books.budget(1_000)
    await killed_gateway(books, tmp_path)
    [left] = paths(tmp_path)
    copy = left.read_bytes()
    async with gateway(books.url, tmp_path, "gw_2"):
        pass
    left.write_bytes(copy)
    async with gateway(books.url, tmp_path, "gw_3"):
        pass
    assert books.state(budget) == (45, 100)
    books.assert_sound(open_holds=1)


async def test_a_start_without_a_database_keeps_what_is_left(postgres_books: Books, tmp_path: Path) -> None:
    books = postgres_books
    await killed_gateway(books, tmp_path)
    async with CutProxy(books.url) as proxy:
        proxy.cut()
        with pytest.raises(DatabaseUnavailable):
            async with gateway(proxy.url, tmp_path, "gw_2"):
                pass
    assert [path.stem for path in paths(tmp_path)] == ["gw_old"]


async def test_an_ending_that_can_never_be_settled_is_no_obstacle(
    books: Books, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A database put back from a backup does not know the hold. A person may look at it later."""
    request = books.request()
    async with gateway(books.url, tmp_path) as (ledger, settler):
        await ledger.hold(request)
        journal = settler._journal
        assert journal is not None
        journal.append([settlement("req_of_another_world", 3), settlement(request, 7)])
        await settler.settle_journals()
        assert settler.bytes_used == 0
    assert "ending.lost" in caplog.text
    [row] = [json.loads(line) for line in (tmp_path / REJECTED).read_text().splitlines()]
    assert (row["ending"]["request_id"], row["ending"]["made_tokens"]) == ("req_of_another_world", 3)
    assert "it has no hold" in row["reason"]
    assert states(books)[request.request_id][0] == "settled"


@pytest.mark.parametrize("setting", CANNOT_SERVE)
async def test_a_database_that_refuses_to_write_is_away(postgres_books: Books, tmp_path: Path, setting: str) -> None:
    """Nothing is lost: not what ends meanwhile, and not what is tried again meanwhile."""
    books = postgres_books
    budget = books.budget(1_000)
    async with gateway(books.url, tmp_path) as (ledger, settler):
        one, other = books.request(), books.request()
        await ledger.hold(one)
        await ledger.hold(other)
        with beginning_with(ledger._database, setting):
            assert (await settler.settle(settlement(one, 7))).outcome == "journaled"
            assert (await settler.void(other.request_id, "refused")).outcome == "journaled"
            used = settler.bytes_used
            with pytest.raises(LedgerUnavailable):
                await settler.settle_journals()
            assert (settler.bytes_used, settler.replayed) == (used, 0)
        await settler.settle_journals()
        assert settler.bytes_used == 0
    assert not (tmp_path / REJECTED).exists()
    assert books.state(budget) == (17, 0)
    books.assert_sound()


async def test_whatever_else_goes_wrong_an_ending_is_kept(
    books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake of ours in the ledger's transaction is no reason to forget what was used."""

    def broken(*_: object) -> None:
        raise RuntimeError("a mistake")

    async with gateway(books.url, tmp_path) as (ledger, settler):
        request = books.request()
        await ledger.hold(request)
        with monkeypatch.context() as patched:
            patched.setattr(LedgerTransaction, "run", broken)
            assert (await settler.settle(settlement(request, 7))).outcome == "journaled"
            with pytest.raises(LedgerUnavailable, match="a mistake"):
                await settler.settle_journals()
            assert settler.bytes_used > 0
        await settler.settle_journals()
    assert states(books)[request.request_id][0] == "settled"
    books.assert_sound()


async def test_no_new_work_when_the_journal_might_not_hold_it(postgres_books: Books, tmp_path: Path) -> None:
    """Refused while there is still room for everything that runs; and all that runs is kept."""
    books = postgres_books
    places = 40
    async with (
        CutProxy(books.url) as proxy,
        gateway(proxy.url, tmp_path, bytes_max=places * RECORD_BYTES_MAX) as (ledger, settler),
    ):
        running = 0
        requests = []
        while settler.refuses(running) is None:
            requests.append(books.request(most=1, prompt=1))
            assert isinstance(await ledger.hold(requests[-1]), Held)
            running += 1
        assert running == places
        assert "40 requests run" in (settler.refuses(running) or "")
        proxy.cut()
        for request in requests:
            assert (await settler.settle(settlement(request, 1, prompt=1))).outcome == "journaled"
            running -= 1
        assert settler.refuses(0) is None, "records are smaller than their share"
        proxy.restore()
        await settler.settle_journals()
    books.assert_sound()


@pytest.mark.parametrize(("free", "refused"), [(999, True), (1_000, False)])
async def test_no_new_work_when_the_disk_is_below_its_mark(
    books: Books, tmp_path: Path, free: int, refused: bool
) -> None:
    async with gateway(books.url, tmp_path, disk_free_min_bytes=1_000, free=lambda folder: free) as (ledger, settler):
        assert (settler.refuses(0) is not None) is refused
        request = books.request()
        await ledger.hold(request)
        assert (await settler.settle(settlement(request, 7))).outcome == "settled", "what runs ends all the same"


def refuse(*_: object) -> None:
    raise OSError(5, "Input/output error")


async def test_neither_database_nor_journal(
    postgres_books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk refuses: whoever asked is told, and nothing new begins."""
    books = postgres_books
    async with CutProxy(books.url) as proxy, gateway(proxy.url, tmp_path) as (ledger, settler):
        request = books.request()
        await ledger.hold(request)
        proxy.cut()

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", refuse)
            with pytest.raises(LedgerUnavailable, match="Input/output error"):
                await settler.settle(settlement(request, 7))
        assert "Input/output error" in (settler.refuses(0) or "")
        proxy.restore()
        assert (await ledger.settle(settlement(request, 7))).outcome == "settled"


async def test_after_its_journal_failed_a_gateway_still_settles(
    postgres_books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs ends in the database as soon as it is back, and so does what the journal took before, once."""
    books = postgres_books
    async with CutProxy(books.url) as proxy, gateway(proxy.url, tmp_path) as (ledger, settler):
        before, during, after = books.request(), books.request(), books.request()
        await asyncio.gather(*map(ledger.hold, (before, during, after)))
        proxy.cut()
        assert (await settler.settle(settlement(before, 7))).outcome == "journaled"
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", refuse)
            with pytest.raises(LedgerUnavailable, match="Input/output error"):
                await settler.settle(settlement(during, 7))
        with pytest.raises(LedgerUnavailable):
            await settler.settle_journals()
        proxy.restore()
        assert (await settler.settle(settlement(after, 7))).outcome == "settled"
        await settler.settle_journals()
        await settler.settle_journals()
        assert settler.replayed == 1
        assert {states(books)[request.request_id][0] for request in (before, after)} == {"settled"}
        assert states(books)[during.request_id][0] == "held"
        assert settler.refuses(0) is not None
        await settler.settle_own_journal()
    assert [path.stem for path in paths(tmp_path)] == ["gw_1"], "the next start looks at it"


async def test_a_record_that_cannot_be_read_ends_the_trust_in_the_journal(books: Books, tmp_path: Path) -> None:
    """What lies before it is settled; nothing is tried for ever."""
    one, other, third = books.request(), books.request(), books.request()
    async with gateway(books.url, tmp_path) as (ledger, settler):
        await asyncio.gather(*map(ledger.hold, (one, other, third)))
        journal = settler._journal
        assert journal is not None
        journal.append([settlement(one, 7)])
        whole = journal.used
        journal.append([settlement(other, 7)])
        os.pwrite(journal._descriptor, b"X", whole + 20)
        async with asyncio.timeout(10):
            with pytest.raises(JournalFailed, match="cannot be read"):
                await settler.settle_journals()
            await settler.settle_journals()
        assert "cannot be read" in (settler.refuses(0) or "")
        assert states(books)[one.request_id][0] == "settled"
        assert (await settler.settle(settlement(third, 7))).outcome == "settled"


async def test_whoever_waits_for_a_journal_that_breaks_is_told(
    books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a mistake")

    async with gateway(books.url, tmp_path) as (ledger, settler), asyncio.timeout(10):
        request = books.request()
        await ledger.hold(request)
        settler._database_down = True
        with monkeypatch.context() as patched:
            patched.setattr(Journal, "append", broken)
            with pytest.raises(LedgerUnavailable, match="a mistake"):
                await settler.settle(settlement(request, 7))
        assert "journal.broken" in caplog.text
        assert (await settler.settle(settlement(request, 7))).outcome == "journaled"
        await settler.settle_journals()
    books.assert_sound()


async def test_whoever_is_cancelled_and_cannot_be_kept_is_in_the_log(
    postgres_books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    books = postgres_books
    async with CutProxy(books.url) as proxy, gateway(proxy.url, tmp_path) as (ledger, settler):
        request = books.request()
        await ledger.hold(request)
        proxy.mute()
        waiting = asyncio.create_task(settler.settle(settlement(request, 7)))
        await asyncio.sleep(0.05)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", refuse)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await eventually_async(lambda: settler.refuses(0) is not None)
        proxy.cut()
        await eventually_async(lambda: "ending.lost" in caplog.text)


def test_an_old_journal_is_still_read(tmp_path: Path) -> None:
    """Records name their fields, so that a newer gateway reads what an older one kept."""
    journal = Journal.create(tmp_path / "gw_1.journal", ROOM)
    journal.append([settlement("req_1", 7)])
    text = journal.path.read_bytes()[8:].split(b"\0")[0]
    assert text.startswith(b'{"type":"settlement","request_id":"req_1","prompt_tokens":10,')
    journal.close()
