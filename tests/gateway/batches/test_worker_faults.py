"""The worker of a gateway process while its database, its store or its lines fail: each batch still ends, and each line
has one output."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from test_claims import GATEWAY, OTHER, Stage

from billing.clock import SECOND, database_now
from billing.database import Database, DatabaseUnavailable
from billing.ledger.leases import extend
from billing.ledger.ledger import Ledger
from billing.ledger.messages import LineOutput
from billing.ledger.outputs import LeaseLost, record_unheld
from billing.output_tables import line_outputs
from gateway import errors
from gateway.batch_tables import batch_lines, batches
from gateway.batches import assembly, claims, worker
from gateway.batches import claimed as claimed_module
from gateway.batches.assembly import Assembler, RowsChanged
from gateway.batches.claimed import BATCHES_MAX, CLAIMED_MAX, ClaimedBatch, TargetQueue, claims_of
from gateway.batches.claims import Claimable, LineTask
from gateway.batches.lines import LineEnd, LineResult
from gateway.batches.preparation import BatchPreparer
from gateway.batches.rows import BatchRow
from gateway.batches.sealing import answered_line, line_request_id, seal_output
from gateway.batches.validation import ValidLine
from gateway.config.files_settings import FilesSection
from gateway.config.server_secrets import ServerSecrets
from gateway.files.backends import ContentDirectory
from gateway.files.contents import FileContents
from gateway.files.files import Files
from gateway.metrics import Metrics
from gateway.stored.texts import TextKeys, TextUnreadable
from gateway.tables import text_keys
from migrations.upgrade import upgrade
from support.billing.books import make_books, settlement

LINES = 4
EXPIRES_S = 86_400


class FaultyDatabase:
    """A database whose answer to a function of claims is lost, or that does not run it. By the function's name."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.lost: Counter[str] = Counter()  # answers after the commit
        self.refused: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def read(self, function: Callable[[sa.Connection], Any]) -> Any:
        self._refuse(function)
        return await self._database.read(function)

    async def write_in_background(self, function: Callable[[sa.Connection], Any]) -> Any:
        self._refuse(function)
        answer = await self._database.write_in_background(function)
        self._fail(self.lost, function)
        return answer

    def _refuse(self, function: Callable[[sa.Connection], Any]) -> None:
        self._fail(self.refused, function)

    def _fail(self, counts: Counter[str], function: Any) -> None:
        called = getattr(function, "func", function)
        names = {called.__name__, *called.__code__.co_names}
        for name in names & counts.keys():
            if counts[name]:
                counts[name] -= 1
                raise DatabaseUnavailable(name)


class Lines:
    """Runs lines as `run` says, and records outputs as LineRunner does."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.ids: list[str] = []  # of all attempts
        self.run: Callable[[ClaimedBatch, LineTask, str], Any] = self.answer

    async def run_line(self, batch: ClaimedBatch, line: LineTask) -> LineResult:
        request_id = line_request_id(batch.id, line.line, batch.epoch, batch.next_number(line.line))
        self.ids.append(request_id)
        result = self.run(batch, line, request_id)
        return await result if asyncio.iscoroutine(result) else result

    def answer(self, batch: ClaimedBatch, line: LineTask, request_id: str) -> LineResult:
        self.record(batch, line, request_id)
        return LineResult(LineEnd.RECORDED, request_id)

    def record(self, batch: ClaimedBatch, line: LineTask, request_id: str, *, is_error: bool = False) -> None:
        data = answered_line(f"line-{line.line}", request_id, 200, b"{}")
        sealed = seal_output(self._desk.stage.key, batch.id, line.line, data)
        output = LineOutput(batch.id, line.line, batch.epoch, sealed, is_error)
        assert self._desk.stage.write(lambda c: record_unheld(c, [(request_id, output)], 1)) == [True]

    async def record_error(self, batch: ClaimedBatch, line: LineTask, result: LineResult) -> LineResult:
        self.record(batch, line, result.request_id, is_error=True)
        return msgspec.structs.replace(result, end=LineEnd.RECORDED)


class Desk:
    """A worker on a real database and a real store, with lines that need no engine."""

    def __init__(self, database: Database, directory: Path) -> None:
        self.stage = Stage(database)
        self.database = FaultyDatabase(database)
        self.directory = directory / "files"
        self.contents = FileContents(ContentDirectory(self.directory))
        self.lines = Lines(self)
        self.damaged: list[int] = []  # outputs that each assembly replaced
        made: Any = self.database
        keys = TextKeys(ServerSecrets(b"s" * 32))
        files = Files(made, self.contents, keys, FilesSection(), Metrics())
        no: Any = None
        caller: Any = SimpleNamespace(key_id=self.stage.key_id, tenant_id=self.stage.tenant_id, share_weight=1.0)
        callers: Any = SimpleNamespace(of_key=lambda connection, key_id: caller)
        lines: Any = self.lines
        pace: Any = SimpleNamespace(limit=8, adjust=lambda outstanding: None)
        self.worker = worker.BatchWorker(
            made,
            GATEWAY,
            callers,
            BatchPreparer(made, files, no, no, no, "batch"),
            lines,
            Assembler(made, self.contents, EXPIRES_S, self.damaged.append),
            pace,
            on_budget=lambda connection, tenant_id: "wait",
            has_holds=lambda connection, tenant_id: False,
            note_ended=lambda succeeded: None,
        )

    async def create(self, *, validated: bool = True) -> BatchRow:
        """A batch without a worker, with its input file."""
        line = b'{"custom_id": "line-%d", "method": "POST", "url": "/v1/completions", "body": {}}\n'
        text = b"".join(line % number for number in range(1, LINES + 1))

        async def parts() -> AsyncIterator[bytes]:
            yield text

        await self.contents.write(self.stage.key, self.stage.file_id, parts())
        row = self.stage.create()
        if validated:
            claimed = self.stage.claim()
            assert claimed is not None
            size = len(text) // LINES
            found = [
                (ValidLine(number, (number - 1) * size, size - 1, "m", b""), "m") for number in range(1, LINES + 1)
            ]
            self.stage.write(lambda c: claims.insert_lines(c, row.id, claimed[1], 0, found))
            assert self.stage.write(lambda c: claims.begin_run(c, row, claimed[1], self.stage.key, LINES, 1, 9)) is None
            self.stage.write(lambda c: claims.release_batch(c, row.id, claimed[1]))
        return row

    async def until(self, condition: Callable[[], bool]) -> None:
        """Run the worker until then."""
        running = asyncio.create_task(self.worker.run())
        try:
            ends = time.monotonic() + 20.0
            while not condition():
                assert time.monotonic() < ends, "the batch does not end"
                assert not running.done(), running
                await asyncio.sleep(0.02)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def finish(self, row: BatchRow) -> BatchRow:
        await self.until(lambda: self.stage.read(row).ended_at is not None)
        return self.stage.read(row)

    async def text(self, file_id: str | None) -> list[Any]:
        assert file_id is not None
        parts = [part async for part in self.contents.stream(self.stage.key, file_id)]
        return [msgspec.json.decode(line) for line in b"".join(parts).splitlines()]


@pytest.fixture
def desk(sqlite_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setattr(worker, "POLL_S", 0.05)
    monkeypatch.setattr(worker, "RETRY_S_MIN", 0.01)
    monkeypatch.setattr(claimed_module, "PAUSE_S_MIN", 0.01)
    return Desk(sqlite_database, tmp_path)


async def check_completed(desk: Desk, row: BatchRow) -> None:
    ended = await desk.finish(row)
    assert (ended.status, ended.succeeded, ended.failed) == ("completed", LINES, 0)
    assert [line["custom_id"] for line in await desk.text(ended.output_file_id)] == [
        f"line-{number}" for number in range(1, LINES + 1)
    ]
    assert len(desk.lines.ids) == len(set(desk.lines.ids)), "no request id is used twice"


# ---- leases


async def test_an_output_whose_answer_was_lost_is_recorded(desk: Desk) -> None:
    def run(batch: ClaimedBatch, line: LineTask, request_id: str) -> LineResult:
        desk.lines.record(batch, line, request_id)
        return LineResult(LineEnd.LEASE_LOST, request_id)

    desk.lines.run = run
    await check_completed(desk, await desk.create())
    assert len(desk.lines.ids) == LINES


@pytest.mark.parametrize("function", ["claim_batch", "release_batch"])
async def test_a_claim_whose_answer_was_lost_is_repeated(desk: Desk, function: str) -> None:
    desk.database.lost[function] = 1
    row = await desk.create()
    await check_completed(desk, row)


async def test_a_cancellation_that_meets_a_new_batch_ends_the_worker(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `asyncio.wait_for` of Python 3.11 it would be lost, and the gateway would not stop."""
    monkeypatch.setattr(worker, "POLL_S", 60.0)
    polled = asyncio.Event()

    async def poll() -> None:
        polled.set()

    monkeypatch.setattr(desk.worker, "_poll", poll)
    running = asyncio.create_task(desk.worker.run())
    await polled.wait()
    await asyncio.sleep(0)
    desk.worker.notice_batch()
    running.cancel()
    await asyncio.wait([running], timeout=20.0)
    assert running.cancelled()


async def test_a_worker_without_an_end_releases_its_lease(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = [LeaseLost("a stage lost a race")]

    async def end_batch(self: Assembler, *args: Any) -> str:
        if fails:
            raise fails.pop()
        return await assembled(self, *args)

    assembled = Assembler.end_batch
    monkeypatch.setattr(Assembler, "end_batch", end_batch)
    await check_completed(desk, await desk.create())


async def test_the_end_of_an_unreadable_batch_is_repeated(desk: Desk) -> None:
    row = await desk.create()
    desk.stage.write(lambda c: c.execute(sa.update(text_keys).values(wrapped=None)))
    desk.database.refused["end_unreadable"] = 2
    ended = await desk.finish(row)
    assert ended.status == "failed"
    assert ended.errors is not None
    assert ended.errors[0]["code"] == "content_unavailable"


async def test_a_retained_lease_is_claimable_by_its_gateway(desk: Desk) -> None:
    row = await desk.create()
    _, epoch = desk.stage.claim() or pytest.fail("it is not claimed")

    def found_by(claimed: list[str], gateway_id: str) -> list[str]:
        view = desk.stage.write(lambda c: claims.worker_view(c, claimed, gateway_id))
        return [found.batch_id for found in view.claimable]

    assert found_by([row.id], GATEWAY) == []
    assert found_by([], GATEWAY) == [row.id]
    assert found_by([], OTHER) == []
    desk.stage.write(lambda c: claims.release_batch(c, row.id, epoch))
    assert found_by([], OTHER) == [row.id]


# ---- lines


async def test_a_repeated_stage_uses_no_request_id_again(desk: Desk) -> None:
    def run(batch: ClaimedBatch, line: LineTask, request_id: str) -> LineResult:
        if len(desk.lines.ids) > 3 * LINES:
            return desk.lines.answer(batch, line, request_id)
        if len(desk.lines.ids) % LINES == 0:
            desk.database.refused["next_lines"] = 1
            for queue in batch.queues:
                queue.is_read = False
        return LineResult(LineEnd.FAILED, request_id, error=errors.EngineDown("no engine"))

    desk.lines.run = run
    await check_completed(desk, await desk.create())


async def test_a_line_that_always_raises_ends_by_its_attempts(desk: Desk) -> None:
    def run(batch: ClaimedBatch, line: LineTask, request_id: str) -> LineResult:
        if line.line == 2:
            raise TextUnreadable("a chunk is damaged")
        return desk.lines.answer(batch, line, request_id)

    desk.lines.run = run
    row = await desk.create()
    desk.stage.write(lambda c: c.execute(sa.update(batch_lines).values(attempts=worker.ATTEMPTS_MAX - 2)))
    ended = await desk.finish(row)
    assert (ended.status, ended.succeeded, ended.failed) == ("completed", LINES - 1, 1)
    assert len(desk.lines.ids) == LINES + 1


async def test_a_refusal_is_final_once_no_line_of_the_tenant_has_a_hold(tmp_path: Path, desk: Desk) -> None:
    upgrade(url := f"sqlite:///{tmp_path}/books.db")
    books = make_books(url)
    request, ledger = books.request(), Ledger(books.database, OTHER)

    def has_holds(tier: str) -> bool:
        return books.database.read_sync(lambda c: claims.has_open_holds(c, books.tenant.id, tier))

    assert not has_holds(request.tier)
    await ledger.hold(request)
    assert has_holds(request.tier), "of a line at another gateway"
    assert not has_holds("another")
    await ledger.settle(settlement(request, 1))
    assert not has_holds(request.tier)
    books.database.close()
    batch = ClaimedBatch(await desk.create(), 1)
    batch.note_refusal(is_alone=True)
    assert not batch.is_out_of_budget, "a line with a hold may just have ended"
    batch.note_refusal(is_alone=False)
    batch.note_refusal(is_alone=True)
    assert not batch.is_out_of_budget
    batch.note_refusal(is_alone=True)
    assert batch.is_out_of_budget


# ---- the store


async def test_a_store_that_is_missing_for_a_while_ends_no_batch(desk: Desk, tmp_path: Path) -> None:
    row = await desk.create()
    desk.directory.rename(tmp_path / "unmounted")
    waits = asyncio.get_running_loop().time() + 0.5
    await desk.until(lambda: asyncio.get_running_loop().time() > waits)
    assert desk.stage.read(row).status == "in_progress"
    (tmp_path / "unmounted").rename(desk.directory)
    await check_completed(desk, row)


async def test_after_the_deadline_a_batch_ends_without_its_input(desk: Desk) -> None:
    row = await desk.create()

    async def run(batch: ClaimedBatch, line: LineTask, request_id: str) -> LineResult:
        if line.line == 1:
            return desk.lines.answer(batch, line, request_id)
        for path in desk.directory.glob("??/*"):
            path.unlink()
        desk.stage.write(lambda c: c.execute(sa.update(batches).values(deadline_at=database_now(c))))
        return LineResult(LineEnd.NO_INPUT, request_id, error=errors.EngineDown("the input file"))

    desk.lines.run = run
    ended = await desk.finish(row)
    assert (ended.status, ended.succeeded, ended.failed, ended.unrun) == ("expired", 1, LINES - 1, LINES - 1)
    assert [line["custom_id"] for line in await desk.text(ended.output_file_id)] == ["line-1"]
    refused = [line["error"] for line in await desk.text(ended.error_file_id)]
    assert {error["code"] for error in refused} == {claims.EXPIRED_CODE}
    assert "input file could not be read. This is its line 4." in refused[-1]["message"]


async def test_the_input_is_opened_again_after_a_line_could_not_be_read(desk: Desk) -> None:
    readers: list[Any] = []

    def run(batch: ClaimedBatch, line: LineTask, request_id: str) -> LineResult:
        readers.append(batch.reader)
        if len(readers) > LINES:
            return desk.lines.answer(batch, line, request_id)
        return LineResult(LineEnd.NO_INPUT, request_id, error=errors.EngineDown("a stale file handle"))

    desk.lines.run = run
    await check_completed(desk, await desk.create())
    assert readers[0] is not readers[-1]


# ---- files


async def test_a_late_assembler_leaves_the_files_of_the_next_worker(desk: Desk) -> None:
    row = await desk.create()
    stage = desk.stage
    first, epoch = stage.claim() or pytest.fail("it is not claimed")
    late = ClaimedBatch(stage.read(first), epoch)
    for number in range(1, LINES + 1):
        desk.lines.record(late, LineTask(number, 0, 0, "m", 0), f"req_{number}")
    reached, resumed = asyncio.Event(), asyncio.Event()

    class Stalled(Assembler):
        async def _read_outputs(self, *args: Any, **named: Any) -> list[tuple[int, bytes]]:
            found = await super()._read_outputs(*args, **named)
            reached.set()
            await resumed.wait()
            return found[:2]

    database: Any = desk.database
    stalled = asyncio.create_task(Stalled(database, desk.contents, EXPIRES_S).end_batch(late, stage.key))
    await reached.wait()
    stage.write(lambda c: extend(c, GATEWAY, 1.0, database_now(c) - 100 * SECOND))
    second, epoch = stage.claim(OTHER) or pytest.fail("it is not claimed")
    assert await Assembler(database, desk.contents, EXPIRES_S).end_batch(ClaimedBatch(second, epoch), stage.key)
    while stage.write(claims.delete_ended_rows):
        pass
    resumed.set()
    with pytest.raises(RowsChanged, match=f"for a file of {LINES} lines"):
        await stalled
    ended = stage.read(row)
    assert late.output_file_id != ended.output_file_id
    assert len(await desk.text(ended.output_file_id)) == LINES
    assert len(list(desk.directory.glob("??/*"))) == 2, "the input file and the output file"


async def test_outputs_are_read_by_their_bytes(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[list[int]] = []

    class Noted(Assembler):
        async def _read_outputs(self, *args: Any, **named: Any) -> list[tuple[int, bytes]]:
            found = await super()._read_outputs(*args, **named)
            reads.append([line for line, _ in found])
            return found

    monkeypatch.setattr(assembly, "SEALED_READ_BYTES_MAX", 300)
    desk.worker._assembler = Noted(desk.worker._database, desk.contents, EXPIRES_S)
    await check_completed(desk, await desk.create())
    sizes = desk.stage.write(lambda c: c.execute(sa.select(sa.func.length(line_outputs.c.sealed))).scalars().all())
    assert all(150 < size < 300 for size in sizes), sizes
    assert reads == [[1], [2], [3], [4], []]


# ---- outputs that cannot be decrypted


def damage(desk: Desk, *lines: int, sealed: bytes | None = None) -> None:
    """Change a byte of the outputs of these lines, or make `sealed` their output."""
    outputs = line_outputs.c

    def change(connection: sa.Connection) -> None:
        for line in lines:
            found = connection.execute(sa.select(outputs.sealed).where(outputs.line == line)).scalar_one()
            flipped = bytes(found[:-1]) + bytes([found[-1] ^ 1]) if sealed is None else sealed
            connection.execute(sa.update(line_outputs).where(outputs.line == line).values(sealed=flipped))

    desk.stage.write(change)


def damage_with_the_last(desk: Desk, *lines: int) -> None:
    """Once the last line is recorded. The second line has an error as its output."""

    def run(batch: ClaimedBatch, line: LineTask, request_id: str) -> LineResult:
        desk.lines.record(batch, line, request_id, is_error=line.line == 2)
        if line.line == LINES:
            damage(desk, *lines)
        return LineResult(LineEnd.RECORDED, request_id)

    desk.lines.run = run


async def test_a_damaged_output_is_an_error_of_its_line(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    damage_with_the_last(desk, 1)
    ended = await desk.finish(await desk.create())
    assert (ended.status, ended.succeeded, ended.failed, ended.unrun) == ("completed", LINES - 2, 2, 0)
    assert ended.errors is None
    assert ended.error_counts is not None
    assert ended.error_counts["output_unreadable"] == 1
    assert [line["custom_id"] for line in await desk.text(ended.output_file_id)] == ["line-3", "line-4"]
    first, second = await desk.text(ended.error_file_id)
    assert (first["custom_id"], second["custom_id"], first["error"]) == ("line-1", "line-2", None)
    response = first["response"]
    assert (response["status_code"], response["body"]["error"]["code"]) == (500, "output_unreadable")
    assert response["request_id"] == desk.lines.ids[0], "the id of the charge"
    assert "answered and charged" in response["body"]["error"]["message"]
    [logged] = [record for record in caplog.records if record.message == "batch.output_unreadable"]
    assert vars(logged)["fields"]["line"] == 1
    assert desk.damaged == [1]


async def test_all_outputs_are_damaged(desk: Desk) -> None:
    damage_with_the_last(desk, *range(1, LINES + 1))
    ended = await desk.finish(await desk.create())
    assert (ended.status, ended.succeeded, ended.failed) == ("completed", 0, LINES)
    assert ended.output_file_id is None
    messages = [line["response"]["body"]["error"]["message"] for line in await desk.text(ended.error_file_id)]
    assert ["was not charged" in message for message in messages] == [False, True, False, False]
    assert sum(desk.damaged) == LINES


async def test_a_damaged_output_and_a_damaged_input_file(desk: Desk) -> None:
    def run(batch: ClaimedBatch, line: LineTask, request_id: str) -> LineResult:
        desk.lines.record(batch, line, request_id)
        if line.line == LINES:
            damage(desk, 3, sealed=seal_output_of_other_bytes(desk, batch, 3))
            for path in desk.directory.glob("??/*"):
                content = path.read_bytes()
                path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        return LineResult(LineEnd.RECORDED, request_id)

    desk.lines.run = run
    ended = await desk.finish(await desk.create())
    assert (ended.status, ended.succeeded, ended.failed) == ("completed", LINES - 1, 1)
    [line] = await desk.text(ended.error_file_id)
    assert line["custom_id"] == ""
    assert line["response"]["body"]["error"]["message"].endswith("This is its line 3.")


def seal_output_of_other_bytes(desk: Desk, batch: ClaimedBatch, line: int) -> bytes:
    """It decrypts, and does not decompress."""
    return desk.stage.key.seal(b"no zlib", f"batch {batch.id} line {line}")


async def test_damaged_outputs_of_an_erased_tenant_are_not_replaced(desk: Desk) -> None:
    row = await desk.create()
    claimed, epoch = desk.stage.claim() or pytest.fail("it is not claimed")
    batch = ClaimedBatch(desk.stage.read(claimed), epoch)
    for number in range(1, LINES + 1):
        desk.lines.record(batch, LineTask(number, 0, 0, "m", 0), f"req_{number}")
    damage(desk, 1)
    desk.stage.write(lambda c: c.execute(sa.update(text_keys).values(wrapped=None)))
    database: Any = desk.database
    with pytest.raises(TextUnreadable, match="deleted"):
        await Assembler(database, desk.contents, EXPIRES_S).end_batch(batch, desk.stage.key)
    desk.stage.write(lambda c: claims.release_batch(c, row.id, epoch))
    ended = await desk.finish(row)
    assert (ended.status, ended.succeeded, ended.failed) == ("failed", 0, 0)
    assert ended.errors is not None
    assert ended.errors[0]["code"] == "content_unavailable"


# ---- claims


def claimable(tenant_id: str, count: int) -> list[Claimable]:
    return [Claimable(f"batch_{tenant_id}_{rank}", 0, tenant_id, rank) for rank in range(1, count + 1)]


def claimed(found: list[Claimable], row: BatchRow) -> list[ClaimedBatch]:
    return [ClaimedBatch(msgspec.structs.replace(row, id=one.batch_id, tenant_id=one.tenant_id), 1) for one in found]


async def test_a_tenant_with_many_batches_leaves_claims_to_others(desk: Desk) -> None:
    row = await desk.create()
    first = claims_of(claimable("a", 50), [])
    assert len(first) == BATCHES_MAX // 2
    have = claimed(first, row)
    second = claims_of([*claimable("a", 18), *claimable("b", 2)], have)
    assert {found.tenant_id for found in second} == {"b"}
    assert len(second) == 2
    both = claims_of([*claimable("a", 50), *claimable("b", 50)], [])
    assert Counter(found.tenant_id for found in both[:10]) == {"a": 5, "b": 5}, "round robin"


async def test_batches_that_only_wait_have_a_limit_of_their_own(desk: Desk) -> None:
    row = await desk.create()
    have = claimed(claims_of(claimable("a", 50), []), row)
    for batch in have:
        batch.budget_pause.extend(0.0, 0.0)
    assert len(claims_of(claimable("a", 50), have)) == BATCHES_MAX // 2
    many = claimed(claimable("a", CLAIMED_MAX // 2), row)
    for batch in many:
        batch.queues = [TargetQueue("m")]
        batch.queues[0].pause.extend(0.0, 0.0)
    assert claims_of(claimable("a", 1), many) == []
    assert len(claims_of(claimable("b", 1), many)) == 1
