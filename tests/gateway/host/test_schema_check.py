"""A gateway whose database is of an older version does not start, and says what to run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command

from gateway.host.schema_check import SchemaOutdated, check_schema, missing_names
from migrations.upgrade import _migrating, configuration, upgrade
from support.paths import REPO
from support.stack import MODEL


def upgrade_to(url: str, revision: str) -> None:
    with _migrating(url) as connection:
        command.upgrade(configuration(connection), revision)


def test_every_name_is_found_in_the_newest_schema(empty_database_url: str) -> None:
    engine = sa.create_engine(empty_database_url, poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        assert "usage" in missing_names(connection)
    upgrade_to(empty_database_url, "0023")
    with engine.connect() as connection:
        missing = missing_names(connection)
        assert {"base_models.kv_dtype", "base_models.quantize"} <= set(missing)
        with pytest.raises(SchemaOutdated, match=rf"lacks {missing[0]}, .* run `laneway db upgrade` first"):
            check_schema(connection)
    upgrade(empty_database_url)
    with engine.begin() as connection:
        assert missing_names(connection) == []
        connection.execute(sa.text("ALTER TABLE base_models ADD COLUMN of_a_newer_version VARCHAR(8)"))
        check_schema(connection)


def test_a_gateway_does_not_start_on_it(tmp_path: Path, model_dir: Path) -> None:
    url = f"sqlite:///{tmp_path}/laneway.db"
    upgrade_to(url, "0023")
    (tmp_path / "laneway.toml").write_text(
        f'[gateway]\ndatabase_url = "{url}"\n[[models]]\nname = "{MODEL}"\npath = "{model_dir}"\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "--config", str(tmp_path / "laneway.toml")],
        cwd=REPO,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    [line] = [found for found in map(json.loads, done.stderr.splitlines()) if found["event"] == "gateway.cannot_start"]
    assert "run `laneway db upgrade` first" in line["reason"]
