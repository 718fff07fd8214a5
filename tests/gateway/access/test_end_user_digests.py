"""Digests of end users' names: their key survives a rotation of the server secret, and a loss of it begins anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from billing.database import Database
from gateway.access.end_users import EndUserDigests
from gateway.access.sealed_values import ValueUnreadable
from gateway.config.server_secrets import ServerSecrets
from migrations.upgrade import upgrade
from support.gateway.command_line import Laneway


def test_a_digest_is_of_one_tenant_and_of_the_whole_name(database: Database) -> None:
    digests = EndUserDigests(ServerSecrets(bytes(32)))
    assert not database.read_sync(digests.load_key), "no gateway has started"
    database.write_sync(digests.make_key)
    found = {digests.digest(tenant, name) for tenant in ("ten_1", "ten_2") for name in ("ann", "ann ", "bob", "\ud800")}
    assert len(found) == 8
    assert all(len(digest) == 64 for digest in found)
    another = EndUserDigests(ServerSecrets(bytes(32)))
    database.write_sync(another.make_key)
    assert another.digest("ten_1", "ann") == digests.digest("ten_1", "ann"), "one key for all gateways"


def test_the_key_through_a_rotation_and_after_a_loss(tmp_path: Path, sqlite_url: str) -> None:
    upgrade(sqlite_url)
    database = Database(sqlite_url)
    laneway = Laneway(tmp_path, f'[gateway]\ndatabase_url = "{sqlite_url}"\n')
    laneway.text("secret", "show")  # makes the secret
    file = tmp_path / ".laneway" / "server.secret"

    def digest(*lines: str) -> str:
        digests = EndUserDigests(ServerSecrets(*map(bytes.fromhex, lines)))
        database.write_sync(digests.make_key)
        return digests.digest("ten_1", "ann")

    try:
        [old] = file.read_text().split()
        first = digest(old)
        laneway.text("secret", "add")
        laneway.text("secret", "promote")
        new, _ = file.read_text().split()
        assert digest(new, old) == digest(old, new) == first
        with pytest.raises(ValueUnreadable):
            digest(new)
        laneway.text("secret", "drop")
        assert digest(new) == first
        with pytest.raises(ValueUnreadable):
            digest(old)
        assert "end user" not in laneway.text("secret", "adopt"), "the secret decrypts the key"
        file.write_text("11" * 32)
        assert "every end user begins a new budget" in laneway.text("secret", "adopt")
        assert digest("11" * 32) != first
    finally:
        database.close()
