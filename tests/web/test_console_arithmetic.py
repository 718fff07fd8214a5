"""The console's own tests, which need no browser: the arithmetic of money, JSON and CSV, and that its colours are told
apart."""

from __future__ import annotations

import shutil
import subprocess

from support.paths import REPO
from support.services import missing_service
from support.web.pages import AXE


def test_its_arithmetic_and_its_colours() -> None:
    node = shutil.which("node")
    if node is None or not AXE.exists():
        missing_service("node", "it or admin_ui/node_modules is not there; `make admin-ui` installs the latter")
    ran = subprocess.run([node, "scripts/test.mjs"], cwd=REPO / "admin_ui", capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
