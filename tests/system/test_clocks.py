"""Hosts whose clocks are wrong by ten minutes, and step while they serve: the database's clock is what counts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from billing import tables
from billing.clock import SECOND, database_now
from billing.database import Database
from billing.proofs.ledger_audit import audit_ledger
from support.paths import TESTS
from support.ports import free_port
from support.stack import Stack, body
from support.waiting import PATIENCE_S, eventually

MakeStack = Callable[..., Stack]
STEP_S = 600
LEASE = "[lease]\nlength_s = 3.0\nrenew_s = 0.5\nexpire_s = 0.3\n"


class HostClock:
    """The clock of the processes that are started with `environ`."""

    def __init__(self, file: Path, off_s: int) -> None:
        self._file = file
        self.set(off_s)
        tools = TESTS / "support" / "stepped_clock"
        self.environ = {"PYTHONPATH": str(tools), "LANEWAY_TEST_CLOCK": str(file)}

    def set(self, off_s: int) -> None:
        beside = self._file.with_suffix(".new")
        beside.write_text(str(off_s))
        beside.replace(self._file)


@pytest.fixture
def clock(tmp_path: Path) -> HostClock:
    return HostClock(tmp_path / "clock", STEP_S)


@pytest.fixture
def second_gateway(tmp_path: Path) -> Iterator[Callable[[Stack, HostClock], str]]:
    """Starts another gateway of the stack, on another port and with another clock; gives its URL."""
    started: list[subprocess.Popen[bytes]] = []

    def start(stack: Stack, clock: HostClock) -> str:
        port = free_port()
        environ = {**os.environ, **clock.environ, "LANEWAY_PORT": str(port)}
        argv = [sys.executable, "-m", "gateway", "--config", str(stack.config_file)]
        with (tmp_path / "second.log").open("wb") as log:
            started.append(subprocess.Popen(argv, env=environ, stdout=log, stderr=log))
        url = f"http://127.0.0.1:{port}"

        def is_ready() -> bool:
            assert started[-1].poll() is None, (tmp_path / "second.log").read_text()
            return ready(url)

        eventually(is_ready, timeout_s=60)
        return url

    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


def ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health/ready").status_code == 200
    except httpx.TransportError:
        return False


def stream(stack: Stack, url: str, max_tokens: int, steps: list[Callable[[], None]]) -> str:
    """One stream to its end, with `steps` evenly in it; its request id."""
    asked = body(stream=True, max_tokens=max_tokens)
    with httpx.stream("POST", f"{url}/v1/chat/completions", headers=stack.headers(), json=asked, timeout=30) as answer:
        chunks = 0
        every = max_tokens // (len(steps) + 1)
        last = ""
        for line in answer.iter_lines():
            if line.startswith("data"):
                chunks += 1
                last = line
                if steps and chunks % every == 0:
                    steps.pop(0)()
        assert last == "data: [DONE]"
        assert not steps
    return answer.headers["x-request-id"]


def test_two_gateways_twenty_minutes_apart(
    make_stack: MakeStack, postgres_url: str, clock: HostClock, tmp_path: Path, second_gateway: Callable[..., str]
) -> None:
    """Neither thinks the other dead, whose answer takes longer than a lease, before and after both clocks step."""
    other_clock = HostClock(tmp_path / "other", -STEP_S)
    stack = make_stack(database_url=postgres_url, fake={"step_ms": 20.0}, toml=LEASE, environ=clock.environ)
    other = second_gateway(stack, other_clock)
    steps = [lambda: clock.set(-STEP_S), lambda: other_clock.set(STEP_S), lambda: clock.set(STEP_S)]
    request_ids = [stream(stack, stack.url, 300, list(steps)), stream(stack, other, 300, [lambda: clock.set(0)])]
    now = stack.read(database_now)
    for request_id in request_ids:
        row = stack.usage(request_id)
        assert row is not None
        assert (row.completion_tokens, row.ending) == (300, "length")
        assert now - 60 * SECOND < row.started_at < row.finished_at <= now
    states = stack.read(lambda c: list(c.execute(sa.select(tables.holds.c.state)).scalars()))
    assert states == ["settled", "settled"]
    assert stack.read(audit_ledger).sound


@pytest.mark.parametrize("off_s", [STEP_S, -STEP_S])
def test_a_key_expires_by_the_databases_clock(
    make_stack: MakeStack, postgres_url: str, clock: HostClock, off_s: int
) -> None:
    stack = make_stack(database_url=postgres_url, environ=clock.environ)
    clock.set(off_s)
    now_s = int(time.time())
    good, expired = stack.new_key("acme", expires_at=now_s + 300), stack.new_key("acme", expires_at=now_s - 300)
    stack.known()
    for made, status in ((good, 200), (expired, 401)):
        headers = {"Authorization": f"Bearer {made.secret}"}
        answer = httpx.post(f"{stack.url}/v1/chat/completions", headers=headers, json=body(), timeout=30)
        assert answer.status_code == status


@pytest.fixture
def step_database(postgres_url: str) -> Callable[[int], None]:
    """Offsets the clock of the database at `postgres_url` by seconds."""
    database = Database(postgres_url)
    name = database.url.database

    def run(connection: sa.Connection) -> None:
        connection.exec_driver_sql("CREATE TABLE clock_step (seconds int)")
        connection.exec_driver_sql("INSERT INTO clock_step VALUES (0)")
        connection.exec_driver_sql(
            "CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS "
            "'SELECT pg_catalog.clock_timestamp() + make_interval(secs => seconds) FROM clock_step'"
        )
        connection.exec_driver_sql(f'ALTER DATABASE "{name}" SET search_path = public, pg_catalog')

    database.write_sync(run)
    database.close()

    def step(seconds: int) -> None:
        stepping = Database(postgres_url)
        stepping.write_sync(lambda c: c.execute(sa.text("UPDATE clock_step SET seconds = :s"), {"s": seconds}))
        stepping.close()

    return step


def test_the_databases_clock_is_set_back(
    make_stack: MakeStack, postgres_url: str, step_database: Callable[[int], None]
) -> None:
    """By two hours, to before its prices were published. Running requests end, new ones are served, and the holds of a
    gateway that died before are released after a lease's length, not after two hours."""
    stack = make_stack(database_url=postgres_url, fake={"step_ms": 20.0}, toml=LEASE)
    stack.start_more_gateways(1)
    assert stack.chat().status_code == 200
    dying = stack.more_gateways[0]
    asked = body(stream=True, max_tokens=500)
    url = f"{stack.urls[1]}/v1/chat/completions"
    with httpx.stream("POST", url, headers=stack.headers(), json=asked, timeout=30) as answer:
        next(answer.iter_lines())
        dying.kill()
        dying.wait(30)
    stack.more_gateways.clear()
    del stack.urls[1:]
    assert stack.open_holds() == 1
    request_id = stream(stack, stack.url, 150, [lambda: step_database(-7200)])
    row = stack.usage(request_id)
    assert row is not None
    assert (row.completion_tokens, row.ending) == (150, "length")
    for _ in range(5):
        answered = stack.chat()
        assert answered.status_code == 200, answered.text
    eventually(lambda: stack.open_holds() == 0)
    step_database(0)
    assert stack.chat().status_code == 200
    findings = stack.read(audit_ledger)
    assert findings.sound
    assert findings.open_holds == 0


def test_sqlite_under_a_clock_that_steps(make_stack: MakeStack, clock: HostClock) -> None:
    """SQLite uses the host's clock. Running requests end and new ones are served wherever it steps to, also to before
    the prices were published."""
    stack = make_stack(fake={"step_ms": 20.0}, toml=LEASE, environ=clock.environ)
    steps = [lambda: clock.set(2 * STEP_S), lambda: clock.set(STEP_S)]
    row = stack.usage(stream(stack, stack.url, 150, list(steps)))
    assert row is not None
    assert (row.completion_tokens, row.ending) == (150, "length")
    for off_s in (2 * STEP_S, STEP_S, 0, STEP_S, -2 * STEP_S):
        clock.set(off_s)
        assert stack.chat().status_code == 200
    findings = stack.read(audit_ledger)
    assert findings.sound
    assert findings.open_holds == 0
