"""The README's commands, typed in their order on a fresh demo."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from support.paths import REPO

BLOCKS = re.findall(r"^```sh\n(.*?)^```", (REPO / "README.md").read_text(), re.MULTILINE | re.DOTALL)
# These have tests of their own: the load tool and the simulator take long, and pip installs.
APART = """
laneway() { case "$1" in bench|simulate) return 0;; esac; "$PYTHON" -m gateway.cli "$@"; }
pip() { :; }
make() { :; }
docker() { :; }
set -e
set -o pipefail
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_readme_works_on_a_fresh_demo_in_its_order(make_serve: Callable[..., Any]) -> None:
    serve = make_serve('[[models]]\nname = "laneway-tiny"\npackage = "laneway"\n')
    serve.start("--demo", "--fake")
    (serve.directory / "examples").symlink_to(REPO / "examples")
    activate = serve.directory / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.write_text("")
    script = "\n".join([APART, *BLOCKS]).replace("127.0.0.1:8080", f"127.0.0.1:{serve.port}")
    environ = {**os.environ, "PYTHON": sys.executable, "LANEWAY_PORT": str(serve.port)}
    done = subprocess.run(
        ["bash", "-x", "-c", script], cwd=serve.directory, env=environ, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert "data: [DONE]" in done.stdout
    assert "FOCUS 1.2 holds" in done.stdout
    left = {path.name for path in serve.directory.iterdir()} - {"examples", "output.txt", "laneway.toml"}
    assert left == {".laneway", ".venv"}, "commands leave nothing in the checkout"
    assert json.loads((serve.data / "demo.json").read_text())["keys"]
    serve.stop()
