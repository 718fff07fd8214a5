"""Export jobs: one after another, begun again after a crash, stopped when cancelled, and files within a bound."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from billing import tables
from billing.accounts import tenants
from billing.clock import database_now
from billing.errors import InvalidValue, RowNotFound
from billing.exports import jobs
from billing.exports.export import ExportSpec
from billing.exports.jobs import ATTEMPTS_MAX, EXIT_STOPPED, TENANT_WAITING_MAX, WAITING_MAX, ExportJob
from billing.focus.checker import check_focus_file
from billing.ledger import leases
from billing.proofs import reconcile
from billing.proofs.imbalances import Imbalance
from gateway.upkeep.exports import Exporter, ExportFileElsewhere
from support.billing.books import Books
from support.billing.exports import BYTES_MAX, january, run, second_tenant


@pytest.fixture
def asked(books: Books) -> ExportSpec:
    january(books, second_tenant(books))
    return ExportSpec(kind="focus", format="csv", month="2031-01", tenant_id=books.tenant.id)


def create(books: Books, spec: ExportSpec) -> ExportJob:
    return books.database.write_sync(lambda c: jobs.queue_export(c, spec, actor="me"))


def get(books: Books, job: ExportJob) -> ExportJob:
    return books.database.read_sync(lambda c: jobs.get_export(c, job.id))


def lease(books: Books, gateway_id: str, seconds: float = 60.0) -> None:
    books.database.write_sync(lambda c: leases.extend(c, gateway_id, seconds, database_now(c)))


def take(books: Books, gateway_id: str) -> ExportJob | None:
    return books.database.write_sync(lambda c: jobs.claim_export(c, gateway_id, "here"))


def exporter(books: Books, directory: Path, bytes_max: int = BYTES_MAX, host: str = "here") -> Exporter:
    lease(books, "gw_1")
    return Exporter(books.database, "gw_1", directory, bytes_max=bytes_max, provider="Laneway", host=host)


def test_jobs_are_taken_one_after_another_and_of_the_dead_again(books: Books, asked: ExportSpec) -> None:
    first, second = create(books, asked), create(books, asked)
    lease(books, "gw_1")
    lease(books, "gw_2")
    taken = take(books, "gw_1")
    assert taken is not None
    assert (taken.id, taken.state, taken.attempts, taken.spec) == (first.id, "running", 1, asked)
    assert take(books, "gw_2") is None
    assert not books.database.read_sync(jobs.has_waiting)
    lease(books, "gw_1", -1.0)  # dead
    again = take(books, "gw_2")
    assert again is not None
    assert (again.id, again.attempts, again.gateway_id) == (first.id, 2, "gw_2")
    # The first gateway was not dead after all: what it says counts no more.
    own = {"read_rows": 1, "all_rows": 2, "rows": 1}
    assert not books.database.write_sync(lambda c: jobs.record_progress(c, first.id, "gw_1", **own))
    assert books.database.write_sync(lambda c: jobs.record_progress(c, first.id, "gw_2", **own))
    books.database.write_sync(lambda c: jobs.release_claim(c, first.id, "gw_2"))
    for attempt in (2, 3):
        assert (take(books, "gw_2") or first).attempts == attempt
        books.database.write_sync(lambda c: jobs.fail_export(c, first.id, "gw_2", "no disk", again=True))
    assert attempt == ATTEMPTS_MAX
    assert (get(books, first).state, get(books, first).error) == ("failed", "no disk")
    assert (take(books, "gw_2") or first).id == second.id
    for _ in range(ATTEMPTS_MAX):  # whoever works on it dies, each time
        lease(books, "gw_2", -1.0)
        last = take(books, "gw_2")
    assert last is None
    assert get(books, second).state == "failed"
    assert "begun 3 times" in str(get(books, second).error)


def test_jobs_are_bounded_and_of_what_is_there(books: Books, asked: ExportSpec) -> None:
    with pytest.raises(RowNotFound, match="no period 2031-09"):
        create(books, ExportSpec(kind="focus", format="csv", month="2031-09", tenant_id=books.tenant.id))
    made = [create(books, asked) for _ in range(TENANT_WAITING_MAX)]
    with pytest.raises(InvalidValue, match="24 exports of the tenant are waiting already"):
        create(books, asked)
    assert books.database.write_sync(lambda c: jobs.cancel_export(c, made[0].id)).state == "cancelled"
    create(books, asked)
    listed = books.database.read_sync(lambda c: jobs.list_exports(c, tenant_id=books.tenant.id, limit=2))
    assert [job.sequence for job in listed] == [made[-1].sequence + 1, made[-1].sequence]
    rest = books.database.read_sync(lambda c: jobs.list_exports(c, before=listed[-1].sequence))
    assert len(rest) == TENANT_WAITING_MAX - 1


def test_nobody_uses_up_the_exports_of_others(books: Books, asked: ExportSpec) -> None:
    for _ in range(WAITING_MAX):
        with contextlib.suppress(InvalidValue):
            create(books, asked)
    other = books.database.read_sync(lambda c: tenants.by_slug(c, "globex"))
    assert other is not None
    create(books, msgspec.structs.replace(asked, tenant_id=other.id))
    everyones = msgspec.structs.replace(asked, tenant_id=None)
    for _ in range(WAITING_MAX):
        create(books, everyones)
    with pytest.raises(InvalidValue, match="100 exports of all tenants are waiting already"):
        create(books, everyones)


async def test_a_gateway_makes_the_file_and_keeps_to_its_bound(books: Books, asked: ExportSpec, tmp_path: Path) -> None:
    made = run(books, tmp_path / "by hand", asked)
    worker = exporter(books, tmp_path / "exports", bytes_max=made.size_bytes + made.size_bytes // 2)
    first = create(books, asked)
    assert await worker.export_next()
    done = get(books, first)
    assert (done.state, done.sha256, done.rows, done.read_rows) == ("done", made.sha256, made.rows, done.all_rows)
    path = worker.folder(first.id) / made.file
    assert path.read_bytes() == (tmp_path / "by hand" / made.file).read_bytes()
    assert check_focus_file(path).findings == []
    assert sorted(os.listdir(path.parent)) == [made.file, f"{made.file}.manifest.json"]
    (tmp_path / "exports" / "exp_of_nobody").mkdir()
    second = create(books, asked)
    assert await worker.export_next()
    assert (get(books, first).state, get(books, second).state) == ("removed", "done")
    assert os.listdir(tmp_path / "exports") == [second.id]
    books.database.write_sync(lambda c: jobs.cancel_export(c, second.id))
    assert get(books, second).state == "removed"
    assert not await worker.export_next()


async def test_hosts_that_share_a_folder_have_each_others_files(
    books: Books, asked: ExportSpec, tmp_path: Path
) -> None:
    """Tidying up keeps what another host finished there, within one bound, and drops what it left unfinished."""
    folder = tmp_path / "shared"
    size = run(books, tmp_path / "by hand", asked).size_bytes
    ours, theirs = (exporter(books, folder, 2 * size + size // 2, host) for host in ("here", "there"))
    made = []
    for worker in (ours, theirs, ours):
        made.append(create(books, asked))
        if len(made) == 3:
            left = theirs.folder(made[1].id).with_name("exp_unfinished")
            left.mkdir()
            (left / ".focus.csv.part").write_bytes(b"x")
        assert await worker.export_next()
        file = get(books, made[-1]).file
        assert file is not None
        for reader in (ours, theirs):
            assert reader.path(get(books, made[-1]), "").is_file()
    assert [get(books, job).state for job in made] == ["removed", "done", "done"]
    assert sorted(os.listdir(folder)) == sorted(job.id for job in made[1:])


async def test_a_file_that_is_not_here_is_refused_by_its_host(books: Books, asked: ExportSpec, tmp_path: Path) -> None:
    ours, theirs = exporter(books, tmp_path / "ours"), exporter(books, tmp_path / "theirs", host="there")
    job = create(books, asked)
    assert await theirs.export_next()
    with pytest.raises(ExportFileElsewhere, match=r"on the host 'there'.*on 'here'.*same bytes"):
        ours.path(get(books, job), "")
    shutil.rmtree(theirs.folder(job.id))
    with pytest.raises(ExportFileElsewhere, match="deleted from the host 'there'"):
        theirs.path(get(books, job), "")


async def test_what_an_export_came_to_is_held_to_its_invoice(books: Books, asked: ExportSpec, tmp_path: Path) -> None:
    job, files = create(books, asked), tables.export_invoices

    def proved() -> list[Imbalance]:
        return books.database.read_sync(lambda c: reconcile.reconcile_month(c, "2031-01").imbalances)

    assert await exporter(books, tmp_path).export_next()
    [(export_id, invoice_id, picos)] = books.database.read_sync(lambda c: c.execute(sa.select(files)).all())
    assert export_id == job.id
    assert proved() == []
    books.database.write_sync(lambda c: c.execute(sa.update(files).values(picos=picos - 1)))
    assert proved() == [Imbalance("export", f"{job.id} of {invoice_id}", picos, picos - 1)]


async def test_what_can_never_be_done_fails_at_once(books: Books, asked: ExportSpec, tmp_path: Path) -> None:
    job = create(books, asked)
    assert await exporter(books, tmp_path / "exports", bytes_max=1000).export_next()
    failed = get(books, job)
    assert (failed.state, failed.attempts) == ("failed", 1)
    assert failed.error == "the file would be larger than 1000 bytes"
    assert os.listdir(tmp_path / "exports") == []


# ---- a process that is in the middle of its work: it waits for a table that the test has locked


@contextlib.contextmanager
def locked(books: Books) -> Iterator[sa.Connection]:
    """No export gets past its first period meanwhile."""
    engine = sa.create_engine(books.url, poolclass=sa.pool.NullPool)
    with engine.begin() as connection:
        connection.execute(sa.text("LOCK TABLE invoices IN ACCESS EXCLUSIVE MODE"))
        yield connection


def wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_begun(folder: Path) -> None:
    """Until a part of a file is there."""
    wait(lambda: folder.is_dir() and any(name.endswith(".part") for name in os.listdir(folder)))


def children() -> list[int]:
    return [int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]


@contextlib.asynccontextmanager
async def turning(worker: Exporter) -> AsyncIterator[asyncio.Task[bool]]:
    task = asyncio.create_task(worker.export_next())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def postgres_asked(postgres_books: Books) -> ExportSpec:
    january(postgres_books, second_tenant(postgres_books))
    return ExportSpec(kind="focus", format="csv", month="2031-01", tenant_id=postgres_books.tenant.id)


async def test_a_killed_job_is_begun_again_and_gives_the_same_bytes(
    postgres_books: Books, postgres_asked: ExportSpec, tmp_path: Path
) -> None:
    books, asked = postgres_books, postgres_asked
    made = run(books, tmp_path / "by hand", asked)
    worker = exporter(books, tmp_path / "exports")
    job = create(books, asked)
    before = set(children())
    async with turning(worker) as task:
        with locked(books):
            await asyncio.to_thread(wait_begun, worker.folder(job.id))
            (child,) = set(children()) - before
            os.kill(child, signal.SIGKILL)
            assert await task
        waits = get(books, job)
        assert (waits.state, waits.attempts, waits.gateway_id) == ("queued", 1, None)
        assert os.listdir(tmp_path / "exports") == []
    assert await worker.export_next()
    done = get(books, job)
    assert (done.state, done.attempts, done.sha256, done.error) == ("done", 2, made.sha256, None)


async def test_a_cancelled_job_stops(postgres_books: Books, postgres_asked: ExportSpec, tmp_path: Path) -> None:
    books, asked = postgres_books, postgres_asked
    worker = exporter(books, tmp_path / "exports")
    job = create(books, asked)
    async with turning(worker) as task:
        with locked(books):
            await asyncio.to_thread(wait_begun, worker.folder(job.id))
            books.database.write_sync(lambda c: jobs.cancel_export(c, job.id))
        assert await task
    assert get(books, job).state == "cancelled"
    assert os.listdir(tmp_path / "exports") == []


async def test_a_gateway_that_stops_leaves_its_job_to_the_next(
    postgres_books: Books, postgres_asked: ExportSpec, tmp_path: Path
) -> None:
    books, asked = postgres_books, postgres_asked
    worker = exporter(books, tmp_path / "exports")
    job = create(books, asked)
    before = set(children())
    with locked(books):
        async with turning(worker):
            await asyncio.to_thread(wait_begun, worker.folder(job.id))
    assert set(children()) <= before
    assert os.listdir(tmp_path / "exports") == []
    assert (get(books, job).state, get(books, job).attempts) == ("queued", 0)


def test_a_job_ends_with_the_gateway_that_began_it(
    postgres_books: Books, postgres_asked: ExportSpec, tmp_path: Path
) -> None:
    """The gateway is killed: its job's process must not go on beside the one that takes the job over."""
    books, asked = postgres_books, postgres_asked
    run(books, tmp_path / "by hand", asked)  # the names are kept
    job = create(books, asked)
    lease(books, "gw_1")
    assert take(books, "gw_1") is not None
    directory = tmp_path / "exports"
    command = [sys.executable, "-m", "billing", job.id, "--gateway", "gw_1", "--directory", str(directory)]
    gateway = (
        "import subprocess, sys, time; subprocess.Popen(sys.argv[1:], stderr=open(sys.argv[8] + '/said', 'w'));"
        "time.sleep(600)"
    )
    directory.mkdir()
    with locked(books):
        parent = subprocess.Popen(
            [sys.executable, "-c", gateway, *command, "--bytes-max", str(BYTES_MAX)],
            env={**os.environ, "LANEWAY_DATABASE_URL": books.url},
        )
        try:
            wait_begun(directory)
        finally:
            parent.kill()
            parent.wait()
    wait(lambda: "the gateway has ended" in (directory / "said").read_text())
    assert get(books, job).state == "running"  # until the lease is over
    lease(books, "gw_1", -1.0)
    lease(books, "gw_2")
    taken = take(books, "gw_2")
    assert taken is not None
    assert taken.attempts == 2


def test_a_process_without_its_job_does_nothing(sqlite_books: Books, tmp_path: Path) -> None:
    books = sqlite_books
    january(books, second_tenant(books))
    spec = ExportSpec(kind="focus", format="csv", month="2031-01", tenant_id=books.tenant.id)
    run(books, tmp_path / "by hand", spec)
    job = create(books, spec)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "billing",
            job.id,
            "--gateway",
            "gw_9",
            "--directory",
            str(tmp_path),
            "--bytes-max",
            "1000000",
        ],
        env={**os.environ, "LANEWAY_DATABASE_URL": books.url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.strip()) == (EXIT_STOPPED, "it was cancelled, or another gateway claimed it")
    state = books.database.read_sync(lambda c: c.execute(sa.select(tables.exports.c.state)).scalar_one())
    assert state == "queued"
