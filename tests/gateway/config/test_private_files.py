"""Files of the data directory are readable by their owner only, also if they were readable by others before."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from adapters.files.generate import Recipe, write_random
from adapters.files.spec import BaseShape
from gateway.access import keys
from gateway.config.private_files import close_to_others, make_private
from support.gateway.adapter_uploads import AdapterOperator
from support.paths import REPO
from support.stack import MODEL, Stack
from support.waiting import eventually

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def open_to_others(root: Path) -> list[str]:
    found = [root, *(Path(folder) / name for folder, folders, files in os.walk(root) for name in (*folders, *files))]
    return [f"{mode(path):o} {path.relative_to(root)}" for path in found if mode(path) & OTHERS]


@pytest.fixture
def loose_umask() -> Iterator[None]:
    """The umask of a login shell, for the processes that the test starts."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("loose_umask")
def test_all_that_a_gateway_keeps_is_its_own(make_stack: Callable[..., Stack], model_dir: Path, tmp_path: Path) -> None:
    stack = make_stack(database_url=f"sqlite:///{tmp_path}/stack0/data/laneway.db")
    base = BaseShape.from_config(json.loads((model_dir / "config.json").read_bytes()))
    made = write_random(tmp_path / "made", base, Recipe(1, 1, ("k_proj",)), MODEL)
    secret = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="me", kind="admin")).secret
    operator = AdapterOperator(stack.url, secret)
    digest = operator.upload(made, "mine")["digest"]
    operator.close()
    assert stack.chat().status_code == 200
    folder = stack.config.adapters_dir / digest
    eventually(lambda: len(list(folder.iterdir())) == 4)  # its two files, what was resolved of them, and the slab
    data_dir = stack.config.data_dir
    assert {"laneway.db", "laneway.db-wal", "laneway.db-shm"} <= {path.name for path in data_dir.iterdir()}
    assert open_to_others(data_dir) == []


@pytest.mark.usefixtures("loose_umask")
def test_what_was_open_is_closed_at_the_next_start(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack()
    assert stack.gateway is not None
    stack.gateway.terminate()
    stack.gateway.wait()
    database = stack.directory / "laneway.db"
    stack.config.data_dir.chmod(0o755)
    database.chmod(0o644)
    stack.start_gateway()
    stack.wait_ready()
    assert (mode(stack.config.data_dir), mode(database)) == (0o700, 0o600)


@pytest.mark.usefixtures("loose_umask")
def test_a_database_is_made_private(tmp_path: Path) -> None:
    environ = {**os.environ, "LANEWAY_DATABASE_URL": f"sqlite:///{tmp_path}/db/laneway.db"}
    subprocess.run([sys.executable, "-m", "migrations"], env=environ, check=True)
    assert open_to_others(tmp_path / "db") == []


def test_directories_for_all_stay_as_they_are(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    make_private(shared)
    assert mode(shared) == 0o777 | stat.S_ISVTX
    close_to_others(tmp_path / "own", "postgresql+psycopg://db/laneway")
    assert mode(tmp_path / "own") == 0o700


def test_the_units_close_what_systemd_makes() -> None:
    for unit in REPO.glob("deploy/systemd/*.service"):
        lines = unit.read_text().splitlines()
        assert "StateDirectoryMode=0700" in lines
        assert "UMask=0077" in lines
