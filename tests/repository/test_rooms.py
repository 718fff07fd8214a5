"""The import contracts of pyproject.toml really refuse what they say: a file in no room, an import upwards."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import REPO

PACKAGES = ("gateway", "engine", "adapters", "kernels", "billing", "migrations")
CONTRACT = {
    "gateway": "gateway: layers",
    "engine": "engine: layers",
    "adapters": "adapters: layers",
    "billing": "billing: layers",
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the product's packages and of pyproject.toml."""
    copy = tmp_path_factory.mktemp("checkout")
    for package in PACKAGES:
        shutil.copytree(REPO / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPO / "pyproject.toml", copy)
    return copy


def broken_contracts(checkout: Path) -> str:
    """What import-linter says of broken contracts; empty when all are kept."""
    argv = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    ran = subprocess.run(argv, cwd=checkout, capture_output=True, text=True, env={"PYTHONPATH": "."}, check=False)
    return "" if ran.returncode == 0 else ran.stdout.partition("Broken contracts")[2] or ran.stdout + ran.stderr


def test_all_contracts_are_kept(checkout: Path) -> None:
    assert broken_contracts(checkout) == ""


@pytest.mark.parametrize("package", sorted(CONTRACT))
def test_a_file_in_no_room_is_refused(checkout: Path, package: str) -> None:
    stray = checkout / package / "stray.py"
    stray.write_text('"""Stands in no room."""\n')
    try:
        broken = broken_contracts(checkout)
    finally:
        stray.unlink()
    assert CONTRACT[package] in broken
    assert "stray" in broken


@pytest.mark.parametrize(
    ("module", "statement", "contract"),
    [
        ("gateway/config/file.py", "import gateway.generation.generator", "gateway: layers"),
        ("engine/memory/arena.py", "import engine.scheduler.scheduler", "engine: layers"),
        ("billing/accounts/prices.py", "import billing.ledger.ledger", "billing: layers"),
        ("adapters/files/store.py", "import adapters.device.pool", "adapters: layers"),
        (
            "gateway/generation/generator.py",
            "import engine.scheduler.scheduler",
            "of the engine only protocol, text and routing",
        ),
        ("gateway/uploads/sweeper.py", "import adapters.device.pool", "of the engine only protocol, text and routing"),
    ],
)
def test_an_import_of_a_higher_room_is_refused(checkout: Path, module: str, statement: str, contract: str) -> None:
    path = checkout / module
    before = path.read_text()
    path.write_text(f"{before}\n{statement}\n")
    try:
        assert contract in " ".join(broken_contracts(checkout).split())
    finally:
        path.write_text(before)
