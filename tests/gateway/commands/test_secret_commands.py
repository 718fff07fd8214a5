"""`laneway secret`: a rotation, and a secret that is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from billing.database import Database
from gateway.access.deployment_secret import WrongSecret, check_secrets
from gateway.config.file import load_gateway_config
from gateway.config.server_secrets import ServerSecrets, read_server_secrets
from gateway.tables import server_secret
from migrations.upgrade import upgrade
from support.gateway.command_line import Laneway


def test_a_rotation_keeps_both_secrets_until_the_old_one_is_dropped(tmp_path: Path, database_url: str) -> None:
    upgrade(database_url)
    laneway = Laneway(tmp_path, f'[gateway]\ndatabase_url = "{database_url}"\n')
    file = tmp_path / ".laneway" / "server.secret"
    [old] = laneway.text("secret", "show").splitlines()
    assert old.endswith("encrypts and decrypts")
    assert "begin with add" in laneway.refusal("secret", "promote")
    assert "one secret" in laneway.refusal("secret", "drop")
    first = file.read_text().strip()
    assert "restart each gateway" in laneway.text("secret", "add")
    assert file.read_text().split()[0] == first
    assert file.stat().st_mode & 0o777 == 0o600
    assert "finish that rotation" in laneway.refusal("secret", "add")
    added = file.read_text().split()[1]
    laneway.text("secret", "promote")
    assert file.read_text().split() == [added, first]
    shown = laneway.text("secret", "show")
    assert shown.splitlines()[1].split()[0] == old.split()[0]
    assert first not in shown + added
    laneway.text("secret", "drop")
    assert file.read_text().split() == [added]


def test_the_database_knows_the_secret_of_its_gateways(tmp_path: Path, database_url: str) -> None:
    upgrade(database_url)
    laneway = Laneway(tmp_path, f'[gateway]\ndatabase_url = "{database_url}"\n')
    own, other = read_server_secrets(load_gateway_config(laneway.file)), ServerSecrets(bytes(32))
    database = Database(database_url)

    def check(secrets: ServerSecrets) -> str:
        database.write_sync(lambda connection: check_secrets(connection, secrets))
        return str(
            database.read_sync(lambda connection: connection.execute(sa.select(server_secret.c.fingerprint)).scalar())
        )

    try:
        assert check(own) == check(own) == own.fingerprints()[0]
        with pytest.raises(WrongSecret, match="laneway secret adopt"):
            check(other)
        assert check(ServerSecrets(own.current, other.current)) == own.fingerprints()[0], "added"
        assert check(ServerSecrets(other.current, own.current)) == other.fingerprints()[0], "promoted"
        with pytest.raises(WrongSecret):
            check(own)
        assert own.fingerprints()[0] in laneway.text("secret", "adopt")
        assert check(own) == own.fingerprints()[0]
    finally:
        database.close()
