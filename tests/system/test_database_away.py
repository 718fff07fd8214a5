"""The database goes away under a serving gateway: what runs ends well and is charged once, nothing new begins."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from billing import tables
from billing.ledger import expiry
from billing.ledger.journal import RECORD_BYTES_MAX, paths
from billing.proofs.ledger_audit import audit_ledger
from support.cut_proxy import ProxyThread
from support.ports import free_port
from support.processes import stopped
from support.services import missing_service
from support.stack import Stack, body, retries_after
from support.waiting import PATIENCE_S, eventually

MakeStack = Callable[..., Stack]
LEASE = "[lease]\nlength_s = 3.0\nrenew_s = 0.3\nexpire_s = 0.3\n"
SLOW = {"step_ms": 20.0}
AWAY_S = float(os.environ.get("LANEWAY_TEST_AWAY_S", "4"))  # longer than the lease


class Reader(threading.Thread):
    """Reads one stream to its end; `first` is set with its first token."""

    def __init__(self, stack: Stack, max_tokens: int) -> None:
        super().__init__(daemon=True)
        self._stack = stack
        self._asked = body(stream=True, max_tokens=max_tokens, stream_options={"include_usage": True})
        self.first = threading.Event()
        self.request_id = ""
        self.lines: list[str] = []
        self.start()

    def run(self) -> None:
        try:
            with httpx.stream(
                "POST",
                f"{self._stack.url}/v1/chat/completions",
                headers=self._stack.headers("globex"),
                json=self._asked,
                timeout=60,
            ) as answer:
                self.request_id = answer.headers["x-request-id"]
                for line in answer.iter_lines():
                    if line.startswith("data"):
                        self.lines.append(line)
                        self.first.set()
        except httpx.TransportError:
            pass

    def ended_well(self) -> int:
        """The completion tokens that its caller was told."""
        self.join(60)
        assert self.lines[-1] == "data: [DONE]"
        return int(json.loads(self.lines[-2][6:])["usage"]["completion_tokens"])


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[ProxyThread]:
    with ProxyThread(postgres_url) as made:
        yield made


def behind(make_stack: MakeStack, proxy: ProxyThread, **settings: Any) -> Stack:
    """A stack whose gateway reaches the database through the proxy alone."""
    return make_stack(database_url=proxy.url, fake=SLOW, toml=LEASE, **settings)


def assert_sound(stack: Stack) -> None:
    findings = stack.read(audit_ledger)
    assert findings.sound, findings
    assert findings.open_holds == 0
    held = stack.read(lambda c: c.execute(sa.select(sa.func.sum(tables.budget_windows.c.held))).scalar())
    assert not held


def test_streams_end_well_and_new_work_is_refused_while_it_is_away(make_stack: MakeStack, proxy: ProxyThread) -> None:
    place = f"127.0.0.1:{free_port()}"
    stack = behind(make_stack, proxy, gateway_toml=f'metrics_address = "{place}"')
    readers = [Reader(stack, max_tokens) for max_tokens in (150, 160, 170)]
    for reader in readers:
        assert reader.first.wait(PATIENCE_S)
    proxy.cut()
    told = [reader.ended_well() for reader in readers]
    assert told == [150, 160, 170]

    refused = stack.chat()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "budget_unavailable")
    assert int(refused.headers["retry-after"]) >= 1
    assert stack.log_lines("admission.stale") or stack.log_lines("ledger")
    problems = httpx.get(f"{stack.url}/health/ready").json()["problems"]
    assert "database" in problems
    assert "laneway_settlements_journaled_total 3.0" in httpx.get(f"http://{place}/metrics").text

    proxy.restore()
    eventually(lambda: stack.open_holds() == 0)
    rows = [stack.usage(reader.request_id) for reader in readers]
    assert [row.completion_tokens for row in rows if row is not None] == told
    eventually(lambda: stack.chat().status_code == 200)
    assert_sound(stack)


def test_away_for_longer_than_a_lease_nobody_is_thought_dead(make_stack: MakeStack, proxy: ProxyThread) -> None:
    """Two gateways, whose leases run out meanwhile: on its return neither expires what the other has running."""
    stack = behind(make_stack, proxy, workers=2)
    tokens = round((AWAY_S + 6) * 1000 / SLOW["step_ms"])
    readers = [Reader(stack, tokens) for _ in range(6)]
    for reader in readers:
        assert reader.first.wait(PATIENCE_S)
    time.sleep(3)  # their audits watch without a gap by now
    proxy.cut()
    time.sleep(AWAY_S)
    proxy.restore()
    assert [reader.ended_well() for reader in readers] == [tokens] * len(readers)
    eventually(lambda: stack.open_holds() == 0)
    rows = [stack.usage(reader.request_id) for reader in readers]
    assert [row.completion_tokens for row in rows if row is not None] == [tokens] * len(readers)
    assert_sound(stack)


def test_one_that_hangs_counts_as_away(make_stack: MakeStack, proxy: ProxyThread) -> None:
    """Nothing answers and nothing breaks: the settlement waits for its time, and no longer."""
    stack = behind(make_stack, proxy)
    reader = Reader(stack, 100)
    assert reader.first.wait(PATIENCE_S)
    proxy.mute()
    with ThreadPoolExecutor() as pool:  # let in before anybody could know: one by a known key, one by another
        early = [pool.submit(stack.chat, tenant) for tenant in ("globex", "acme")]
    for asked in early:
        answer = asked.result()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "budget_unavailable")
    assert reader.ended_well() == 100
    refused = stack.chat()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "budget_unavailable")
    assert stack.log_lines("admission.stale")[-1]["revision_age_s"] > 1  # a busy machine may have logged it before
    proxy.cut()
    proxy.restore()
    eventually(lambda: stack.usage(reader.request_id) is not None)
    eventually(lambda: stack.open_holds() == 0)
    assert_sound(stack)


@pytest.mark.parametrize("returns", ["with the next gateway", "after the lease"])
def test_a_gateway_that_is_killed_meanwhile(make_stack: MakeStack, proxy: ProxyThread, returns: str) -> None:
    """Its journal is there for the next one. Did its holds expire before that, nobody pays, and the tokens show."""
    stack = behind(make_stack, proxy)
    done, cut_off = Reader(stack, 100), Reader(stack, 4000)
    assert done.first.wait(PATIENCE_S)
    assert cut_off.first.wait(PATIENCE_S)
    proxy.cut()
    assert done.ended_well() == 100
    assert stack.gateway is not None
    stack.gateway.kill()
    stack.gateway.wait(PATIENCE_S)
    assert len(paths(stack.config.journal_dir)) == 1
    proxy.restore()
    if returns == "after the lease":
        expire_everything(stack)
    stack.start_gateway()
    stack.wait_ready()
    eventually(lambda: stack.open_holds() == 0)
    assert len(paths(stack.config.journal_dir)) == 1, "the new one's own"
    hold = stack.hold(done.request_id)
    if returns == "after the lease":
        assert (hold.state, hold.lost_tokens, stack.usage(done.request_id)) == ("expired", 100, None)
    else:
        row = stack.usage(done.request_id)
        assert row is not None
        assert (hold.state, row.completion_tokens) == ("settled", 100)
    assert stack.hold(cut_off.request_id).state == "expired"
    assert_sound(stack)


def expire_everything(stack: Stack) -> None:
    """As the audit of another host's gateway would, a lease after the database's return."""

    def run(connection: sa.Connection) -> None:
        expiry.expire_dead(connection, "gw_elsewhere", 2**62)

    stack.write(run)


def test_a_stop_in_order_leaves_it_for_the_next_start(make_stack: MakeStack, proxy: ProxyThread) -> None:
    stack = behind(make_stack, proxy)
    reader = Reader(stack, 30)
    assert reader.first.wait(PATIENCE_S)
    proxy.cut()
    assert reader.ended_well() == 30
    assert stack.gateway is not None
    stack.gateway.terminate()
    stack.gateway.wait(PATIENCE_S)
    proxy.restore()
    stack.start_gateway()
    stack.wait_ready()
    row = stack.usage(reader.request_id)
    assert row is not None
    assert row.completion_tokens == 30
    eventually(lambda: stack.open_holds() == 0)
    assert_sound(stack)


def test_under_its_mark_the_disk_refuses_paid_work_alone(make_stack: MakeStack) -> None:
    stack = make_stack()
    assert stack.chat().status_code == 200
    restart_with(stack, "[journal]\ndisk_free_min_bytes = 1000000000000000\n")
    refused = stack.chat()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "budget_unavailable")
    assert retries_after(refused, 5)
    assert stack.holds() == 1, "of the one before"
    assert "bytes left, fewer than" in httpx.get(f"{stack.url}/health/ready").json()["problems"]["journal"]
    assert httpx.get(f"{stack.url}/v1/models", headers=stack.headers()).status_code == 200
    assert "bytes left, fewer than" in stack.log_lines("admission.unrecordable")[0]["reason"]


def test_a_disk_without_room_for_the_journal_is_told_at_the_start(make_stack: MakeStack, small_disk: Path) -> None:
    stack = make_stack()
    assert stack.gateway is not None
    stack.gateway.terminate()
    stack.gateway.wait(PATIENCE_S)
    shutil.rmtree(stack.config.journal_dir)
    stack.config.journal_dir.symlink_to(small_disk)
    stack.config_file.write_text(stack.config_file.read_text() + "[journal]\nbytes_max = 100000000\n")
    stack.start_gateway()
    assert stack.gateway.wait(30) == 1
    assert "No space left" in stack.log_lines("gateway.cannot_start")[0]["reason"]


def restart_with(stack: Stack, toml: str) -> None:
    assert stack.gateway is not None
    stack.gateway.terminate()
    stack.gateway.wait(PATIENCE_S)
    stack.config_file.write_text(stack.config_file.read_text() + toml)
    stack.start_gateway()
    eventually(lambda: answers(stack), timeout_s=60)


def answers(stack: Stack) -> bool:
    try:
        return httpx.get(f"{stack.url}/health/live").status_code == 200
    except httpx.TransportError:
        return False


# ---- a disk that is full


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "laneway-test", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        missing_service("a small file system", f"mounting one takes root: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Until nothing more fits."""
    file = folder / "filler"
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(64 * 1024))
    with contextlib.suppress(OSError), file.open("ab", buffering=0) as filler:
        while True:
            filler.write(b"x")
    return file


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_full_disk_ends_what_runs_well_and_lets_nothing_begin(
    make_stack: MakeStack, small_disk: Path, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """SQLite: database and journal on it. PostgreSQL: the journal, while the database is away."""
    proxy: ProxyThread | None = request.getfixturevalue("proxy") if kind == "postgres" else None
    stack = make_stack(
        database_url=f"sqlite:///{small_disk}/laneway.db" if proxy is None else proxy.url,
        fake=SLOW,
        toml=f'{LEASE}[journal]\ndisk_free_min_bytes = 20000000\n[engine]\nsocket = "{tmp_path}/engine.sock"\n',
        data_dir=str(small_disk),
    )
    readers = [Reader(stack, max_tokens) for max_tokens in (350, 360, 370)]  # of seven seconds
    for reader in readers:
        assert reader.first.wait(PATIENCE_S)
    assert stack.engine is not None
    with stopped(stack.engine.pid):
        filler = fill(small_disk)
    eventually(lambda: stack.chat().status_code == 503)
    refused = stack.chat()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "budget_unavailable")
    assert all(reader.is_alive() for reader in readers), "they were to end after the disk was full"
    if proxy is not None:
        proxy.cut()
    assert [reader.ended_well() for reader in readers] == [350, 360, 370]
    eventually(lambda: bool(stack.log_lines("journal.begins")))
    if proxy is not None:
        proxy.restore()
    filler.unlink()
    eventually(lambda: stack.open_holds() == 0)
    eventually(lambda: stack.chat().status_code == 200)
    rows = [stack.usage(reader.request_id) for reader in readers]
    assert [row.completion_tokens for row in rows if row is not None] == [350, 360, 370]
    assert_sound(stack)


def test_no_more_runs_at_once_than_the_journal_could_take(make_stack: MakeStack, redis_url: str) -> None:
    """Also when all come together and each waits for Redis."""
    places = 65536 // RECORD_BYTES_MAX
    redis = f'[redis]\nurl = "{redis_url}"\n'
    stack = make_stack(fake=SLOW, toml=f"[journal]\nbytes_max = 65536\n{redis}")
    with ThreadPoolExecutor(3 * places) as pool:
        asked = [pool.submit(stack.chat, max_tokens=400) for _ in range(3 * places)]
    answers = [one.result() for one in asked]
    assert [answer.status_code for answer in answers].count(200) == places
    refused = [answer.json()["error"]["code"] for answer in answers if answer.status_code == 503]
    assert refused == ["budget_unavailable"] * 2 * places
    assert stack.chat().status_code == 200
