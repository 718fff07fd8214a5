"""Erasures after restores: no order of archives, hosts and replaced databases brings an erased tenant back."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import sqlalchemy as sa

from billing import tables as billing
from billing.accounts import budgets, tenants, webhooks
from billing.database import Database
from gateway import tables
from gateway.access import people
from gateway.access.people import Grant, Identity
from gateway.admin import erasure_file
from gateway.admin.erasure_file import Erasure
from gateway.config.file import parse_gateway_config
from gateway.recovery.erasures import replay
from migrations.upgrade import upgrade
from support.gateway.command_line import Laneway


@pytest.fixture
def laneway(tmp_path: Path, sqlite_url: str) -> Laneway:
    upgrade(sqlite_url)
    made = Laneway(tmp_path, f'[gateway]\ndatabase_url = "{sqlite_url}"\n')
    made.text("tenants", "create", "acme", "--tier", "standard")
    return made


def host_file(laneway: Laneway) -> Path:
    return laneway.file.parent / ".laneway" / "erasures.jsonl"


def alone(archive: str, folder: Path) -> Path:
    """The archive on another host, without the file of erasures beside it."""
    folder.mkdir()
    return Path(shutil.copy(archive, folder))


def test_a_restore_writes_the_hosts_file(laneway: Laneway, tmp_path: Path) -> None:
    """An older archive may be restored on this host later."""
    old = alone(laneway.json("backup")["file"], tmp_path / "old")
    laneway.text("tenants", "erase", "acme", "--confirm", "acme")
    new = alone(laneway.json("backup", str(tmp_path / "second"))["file"], tmp_path / "new")
    kept = host_file(laneway).read_bytes()
    host_file(laneway).unlink()
    laneway.json("restore", str(new), "--replace")
    assert host_file(laneway).read_bytes() == kept
    assert laneway.json("restore", str(old), "--replace")["erased"] == 1


def test_the_replaced_database_names_its_erasures(laneway: Laneway, tmp_path: Path) -> None:
    old = alone(laneway.json("backup")["file"], tmp_path / "old")
    laneway.text("tenants", "erase", "acme", "--confirm", "acme")
    host_file(laneway).unlink()
    assert laneway.json("restore", str(old), "--replace")["erased"] == 1
    assert [tenant["name"] for tenant in laneway.json("tenants", "list")] == ["erased"]


def test_the_archive_names_erasures_that_its_database_lacks(laneway: Laneway, tmp_path: Path) -> None:
    """The process ended between the file and the database, and the backup was taken before the next start."""
    tenant_id = laneway.json("tenants", "list")[0]["id"]
    erasure_file.append_erasures(host_file(laneway), [Erasure("era_1", tenant_id, 1)])
    archive = alone(laneway.json("backup")["file"], tmp_path / "elsewhere")
    host_file(laneway).unlink()
    assert laneway.json("restore", str(archive), "--replace")["erased"] == 1


def test_people_who_lost_their_role_before_are_erased(laneway: Laneway, sqlite_url: str) -> None:
    tenant_id = laneway.json("tenants", "list")[0]["id"]
    database = Database(sqlite_url)

    def lose_roles(connection: sa.Connection) -> None:
        roles = {"ada": Grant("tenant_admin", tenant_id), "grace": Grant("owner", None)}
        for subject, grant in roles.items():
            identity = Identity(issuer="https://sso.example", subject=subject, name=subject, email=None, groups=())
            person = people.sign_in(connection, identity, grant, "req_1")
            people.update_person(connection, person, identity, None, "req_2")

    database.write_sync(lose_roles)
    laneway.text("tenants", "erase", "acme", "--confirm", "acme")
    found = database.read_sync(lambda c: list(c.execute(sa.select(tables.people.c.name)).scalars()))
    assert sorted(found, key=str) == [None, "grace"]
    database.close()


def test_errors_of_deliveries_are_erased(laneway: Laneway, sqlite_url: str) -> None:
    """An error of TLS names the webhook's host."""
    tenant_id = laneway.json("tenants", "list")[0]["id"]
    database = Database(sqlite_url)

    def fail_delivery(connection: sa.Connection) -> None:
        webhook = webhooks.create_webhook(connection, url="https://hooks.acme.example/", tenant_id=tenant_id).webhook
        budget = budgets.create_budget(
            connection,
            tenant_id=tenant_id,
            scope="tenant",
            scope_id=tenant_id,
            unit="tokens",
            period="day",
            limit_amount=10,
        )
        alert = {"id": "alr_1", "tenant_id": tenant_id, "budget_id": budget.id}
        numbers = dict.fromkeys(("window_start", "threshold", "limit_amount", "used", "crossed_at"), 1)
        connection.execute(sa.insert(billing.alerts).values(**alert, **numbers))
        failed = {"state": "failed", "attempts": 9, "last_error": "certificate is not valid for 'hooks.acme.example'"}
        connection.execute(
            sa.insert(billing.alert_deliveries).values(alert_id="alr_1", webhook_id=webhook.id, **failed)
        )

    database.write_sync(fail_delivery)
    laneway.text("tenants", "erase", "acme", "--confirm", "acme")
    errors = database.read_sync(lambda c: list(c.execute(sa.select(billing.alert_deliveries.c.last_error)).scalars()))
    assert errors == [None]
    database.close()


def test_gateways_that_start_at_once_replay_one_after_the_other(laneway: Laneway, sqlite_url: str) -> None:
    """On PostgreSQL each saw the erasure missing, and all but one failed to start."""
    config = parse_gateway_config(laneway.file.read_bytes(), laneway.file.parent, "test", {})
    database = Database(sqlite_url)
    statements: list[str] = []

    def replay_noted(connection: sa.Connection) -> int:
        tenant = tenants.by_slug(connection, "acme")
        assert tenant is not None
        sa.event.listen(
            connection, "before_cursor_execute", lambda _c, _k, statement, *_more: statements.append(statement)
        )
        return replay(connection, config, [Erasure("era_1", tenant.id, 1)])

    assert database.write_sync(replay_noted) == 1
    database.close()
    locked = next(index for index, text in enumerate(statements) if "FROM revision" in text)
    read_again = [index for index, text in enumerate(statements) if "FROM erasures" in text and index > locked]
    written = next(index for index, text in enumerate(statements) if "INSERT INTO erasures" in text)
    assert read_again
    assert read_again[0] < written


def test_a_full_disk_leaves_no_part_of_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, whole = tmp_path / "erasures.jsonl", os.write
    erasure_file.append_erasures(path, [Erasure("era_1", "ten_1", 1)])
    monkeypatch.setattr(os, "write", lambda descriptor, data: whole(descriptor, data[:10]))
    with pytest.raises(OSError, match="10 of"):
        erasure_file.append_erasures(path, [Erasure("era_2", "ten_2", 2)])
    monkeypatch.undo()
    erasure_file.append_erasures(path, [Erasure("era_3", "ten_3", 3)])
    assert [erasure.id for erasure in erasure_file.read_erasures(path)] == ["era_1", "era_3"]
