"""The commands of the README and of each guide, typed in their order on a demo that runs.

Each page works by itself: a reader begins with any of them. All of them share one demo.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.documents import GUIDES, SNIPPET_PAGES, commands, name
from support.paths import REPO

PAGES = [page for page in GUIDES if commands(page) and page not in SNIPPET_PAGES]
# tests/repository/test_docs.py has a test of make's targets, tests/system/test_first_run.py one of the installation.
PROLOGUE = """
laneway() { "$PYTHON" -m gateway.cli "$@"; }
python() { "$PYTHON" "$@"; }
pip() { :; }
make() { :; }
set -e
set -o pipefail
"""
# What the commands of a page print, where a page promises it.
PRINTED = {
    "README.md": ["data: [DONE]"],
    "docs/finance/exports.md": ["FOCUS 1.2 holds"],
    "docs/users/limits.md": ["idempotent-replayed: true"],
    "docs/users/quickstart.md": ["data: [DONE]", '"parent"', '"type":"message"'],
}
LEFT = {"examples", "output.txt", "laneway.toml", ".laneway", ".venv"}


def wait_for_usage(serve: Any) -> None:
    """Let a tenant have usage in this month's period, which the pages of finance export: a reader has tried the README
    before."""
    key = json.loads((serve.data / "demo.json").read_text())["keys"]["globex"]
    body = {"model": "laneway-tiny", "prompt": "Once", "max_tokens": 4}
    url, headers = f"http://127.0.0.1:{serve.port}/v1/completions", {"Authorization": f"Bearer {key}"}
    httpx.post(url, json=body, headers=headers, timeout=60).raise_for_status()
    month = time.strftime("%Y-%m", time.gmtime())
    command = [sys.executable, "-m", "gateway.cli", "billing", "export", "--month", month, "--tenant", "globex"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")])}

    def exported() -> bool:
        return subprocess.run(command, cwd=serve.directory, env=environ, capture_output=True).returncode == 0

    serve.until(exported, 60.0)


@pytest.fixture(scope="module")
def demo(module_serve: Callable[..., Any]) -> Iterator[Any]:
    serve = module_serve('[[models]]\nname = "laneway-tiny"\npackage = "laneway"\n')
    serve.start("--demo", "--fake")
    (serve.directory / "examples").symlink_to(REPO / "examples")
    activate = serve.directory / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.write_text("")
    wait_for_usage(serve)
    yield serve
    assert json.loads((serve.data / "demo.json").read_text())["keys"]
    serve.stop()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_commands_of_a_page_work_on_a_demo(page: Path, demo: Any) -> None:
    script = "\n".join([PROLOGUE, *commands(page)]).replace("127.0.0.1:8080", f"127.0.0.1:{demo.port}")
    environ = {
        **os.environ,
        "PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")]),
        "LANEWAY_PORT": str(demo.port),
    }
    done = subprocess.run(
        ["bash", "-x", "-c", script], cwd=demo.directory, env=environ, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    for words in PRINTED.get(name(page), []):
        assert words in done.stdout, done.stdout[-4000:]
    left = {path.name for path in demo.directory.iterdir()}
    assert left <= LEFT, "commands leave nothing in the checkout"
