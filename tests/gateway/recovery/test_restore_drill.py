"""The drill with `laneway backup` alone: the database is lost, later entries are lost with it, and the restore states
since when and, by the books of the surviving engine, how many tokens are missing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result

from billing import tables
from billing.database import Database
from gateway.cli import main
from support.stack import Stack
from support.waiting import PATIENCE_S, eventually

MakeStack = Callable[..., Stack]


def laneway(stack: Stack, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["--config", str(stack.config_file), *arguments], catch_exceptions=False)


def answer(stack: Stack, tenant: str = "acme") -> int:
    """The completion tokens of one request."""
    answered = stack.chat(tenant, max_tokens=7)
    assert answered.status_code == 200, answered.text
    return int(answered.json()["usage"]["completion_tokens"])


def lose_database(stack: Stack) -> None:
    """Everything that the database's host had."""
    path = stack.database.sqlite_path
    if path is not None:
        for file in path.parent.glob(path.name + "*"):
            file.unlink()
        return
    stack.write(lambda c: c.exec_driver_sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public"))


def stop_gateway(stack: Stack) -> None:
    assert stack.gateway is not None
    stack.gateway.kill()
    stack.gateway.wait(PATIENCE_S)


def usage_rows(stack: Stack) -> int:
    return stack.read(lambda c: int(c.execute(sa.select(sa.func.count()).select_from(tables.usage)).scalar_one()))


@pytest.mark.slow
def test_a_lost_database_is_restored_from_a_backup(make_stack: MakeStack, database_url: str, tmp_path: Path) -> None:
    stack = make_stack(database_url)
    backups = tmp_path / "backups"
    backups.mkdir()
    for _ in range(3):
        answer(stack)
    made = json.loads(laneway(stack, "backup", str(backups), "--json").stdout)
    assert made["usage"] == 3
    missing = sum(answer(stack, tenant) for tenant in ("acme", "globex", "acme"))
    erased = laneway(stack, "tenants", "erase", "initech", "--confirm", "initech")
    assert erased.exit_code == 0, erased.output
    # The file of erasures is with the backups, or else the list is lost with the host.
    shutil.copy(stack.config.erasures_file, backups / "erasures.jsonl")
    stack.config.erasures_file.unlink()
    assert usage_rows(stack) == 6
    stop_gateway(stack)
    stack.database.close()
    stack.database = Database(database_url)
    lose_database(stack)
    stack.database.close()

    done = laneway(stack, "restore", made["file"], "--verify")
    assert done.exit_code == 0, done.output
    assert "1/" in done.stderr, "it shows its progress"
    assert f"{missing} tokens made since the backup are missing" in done.stdout
    assert "Entries committed after 20" in done.stdout
    assert "sound" in done.stdout

    stack.database = Database(database_url)
    assert usage_rows(stack) == 3
    tenant = stack.read(
        lambda c: c.execute(sa.select(tables.tenants).where(tables.tenants.c.id == stack.tenants["initech"])).one()
    )
    assert (tenant.name, tenant.status) == ("erased", "suspended")
    stack.start_gateway()
    stack.wait_ready()
    assert stack.chat("initech").status_code == 401
    answer(stack)
    eventually(lambda: usage_rows(stack) == 4)
    for options in ((), ("--minute",)):
        reconciled = laneway(stack, "billing", "reconcile", *options)
        assert reconciled.exit_code == 0, reconciled.output
    verified = laneway(stack, "audit", "verify")
    assert verified.exit_code == 0, verified.output
    again: dict[str, Any] = json.loads(laneway(stack, "restore", "--verify", "--json").stdout)
    assert sum(again["report"]["missing_tokens"].values()) == missing
