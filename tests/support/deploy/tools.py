"""The programs that deploy/ is tested with: Helm, kubernetes-validate and four proxies. CI installs them (.ci/run)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from support.services import missing_service

# Debian has nginx and HAProxy, the others are in wheels, which .ci/run installs into a separate environment.
FOLDER = Path(os.environ.get("LANEWAY_TEST_DEPLOY", "/tmp/laneway-deploy"))


def find_tool(name: str) -> str:
    """The path of a program. Without it the test is skipped, and fails where CI promised that it is there."""
    path = os.pathsep.join((str(FOLDER / "bin"), os.environ.get("PATH", ""), "/usr/sbin"))
    return shutil.which(name, path=path) or missing_service(name, f"it is neither in {FOLDER}/bin nor on PATH")
