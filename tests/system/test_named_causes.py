"""A database that is read-only, a full disk and an expired certificate: /health, the answer to a client and the log
each name the cause."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from support.engine.certificates import ENGINE, GATEWAY, expire
from support.gateway.monitored_stack import MonitoredStack
from support.services import missing_service
from support.stack import Stack
from support.waiting import eventually

MakeStack = Callable[..., Stack]
LEASE = "[lease]\nlength_s = 30.0\nrenew_s = 0.3\nexpire_s = 0.3\n"


def problems(stack: Stack) -> dict[str, str]:
    try:
        return dict(httpx.get(f"{stack.url}/health", timeout=30).json()["problems"])
    except httpx.TransportError:
        return {}


def refused(stack: Stack, cause: str) -> dict[str, Any]:
    """The error of a chat, once it is a 503 with this cause; its log line has the same message."""
    answers: list[httpx.Response] = []

    def is_named() -> bool:
        answers.append(stack.chat())
        return answers[-1].status_code == 503 and f"The cause: {cause}." in answers[-1].text

    eventually(is_named)
    error = answers[-1].json()["error"]
    assert stack.request_line(answers[-1].headers["x-request-id"])["message"] == error["message"]
    return dict(error)


def set_read_only(url: str, value: str) -> None:
    """For all connections that are opened from now on; those that are open are closed."""
    name = sa.make_url(url).database
    engine = sa.create_engine(sa.make_url(url).set(database="postgres"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = {value}'))
        closing = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"
        connection.execute(sa.text(closing), {"name": name})
    engine.dispose()


def test_a_read_only_database_is_named(make_stack: MakeStack, postgres_url: str) -> None:
    stack = make_stack(postgres_url, toml=LEASE)
    assert stack.chat().status_code == 200
    set_read_only(postgres_url, "on")
    error = refused(stack, "the database is read-only")
    assert error["code"] == "budget_unavailable"
    eventually(lambda: problems(stack) == {"database": "the database is read-only, so no budget can be held"})
    eventually(
        lambda: any(line["cause"] == "the database is read-only" for line in stack.log_lines("lease.not_renewed"))
    )
    set_read_only(postgres_url, "off")
    eventually(lambda: problems(stack) == {} and stack.chat().status_code == 200)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "laneway-test", str(folder)]
    done = subprocess.run(mount, capture_output=True, check=False)
    if done.returncode:
        missing_service("a small file system", f"mounting one takes root: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_named(make_stack: MakeStack, small_disk: Path, tmp_path: Path, postgres_url: str) -> None:
    """The journal's. tests/billing/test_database.py has that of an SQLite database."""
    toml = f'{LEASE}[journal]\ndisk_free_min_bytes = 20000000\n[engine]\nsocket = "{tmp_path}/engine.sock"\n'
    stack = make_stack(postgres_url, toml=toml, data_dir=str(small_disk))
    assert stack.chat().status_code == 200
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(64 * 1024))
    assert refused(stack, "the gateway's disk is full")["code"] == "budget_unavailable"
    eventually(lambda: f"the disk of {small_disk}" in problems(stack).get("journal", ""))

    def is_logged() -> bool:
        stack.chat()
        return any("disk" in line["reason"] for line in stack.log_lines("admission.unrecordable"))

    eventually(is_logged)
    filler.unlink()
    eventually(lambda: stack.chat().status_code == 200)


@pytest.mark.parametrize("name", [ENGINE, GATEWAY])
def test_an_expired_certificate_is_named(tmp_path: Path, postgres_url: str, model_dir: Path, name: str) -> None:
    stack = MonitoredStack(tmp_path / "stack", postgres_url, model_dir)
    stack.workers = 1
    stack.prepare()
    expire(stack.certificates, name)
    stack.start_engine()
    try:
        stack.start_gateway()
        cause = "a certificate between gateway and engine has expired"
        eventually(lambda: problems(stack) == {"engine": f"no engine is connected and loaded: {cause}"})
        assert refused(stack, cause)["code"] == "engine_unavailable"
        assert "expired" in stack.log_lines("engine.connect_failed")[0]["reason"]
    finally:
        stack.stop()
