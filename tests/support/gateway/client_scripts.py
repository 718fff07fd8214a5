"""Runs the scripts of tests/programs/clients, each by its client's own interpreter."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any

CLIENT_S_MAX = 300


def run_script(argv: Sequence[str], url: str, key: str) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The versions of the packages, and the result of each case."""
    environ = {**os.environ, "CLIENT_URL": url, "CLIENT_KEY": key}
    done = subprocess.run(argv, env=environ, stdout=subprocess.PIPE, text=True, check=True, timeout=CLIENT_S_MAX)
    lines = [line for line in done.stdout.splitlines() if line.startswith(('{"versions"', '{"case"'))]
    first, *results = [json.loads(line) for line in lines]
    return first["versions"], results
