"""Upgrades the database's schema to the newest version, before the processes of a host start."""

from __future__ import annotations

import os
import subprocess
import sys

from gateway.config.file import Config
from gateway.config.private_files import close_to_others
from gateway.config.settings import safe_url
from gateway.host.supervisor import CannotStart


def upgrade(config: Config) -> None:
    """Run `python -m migrations`. Raises CannotStart with the last line of its output when it fails."""
    close_to_others(config.data_dir, config.database_url)
    upgrade_url(config.database_url)


def upgrade_url(url: str) -> None:
    """Like `upgrade`, for a database that is not the configuration's yet."""
    done = subprocess.run(
        [sys.executable, "-m", "migrations"],
        env={**os.environ, "LANEWAY_DATABASE_URL": url},  # not on argv: it may hold a password
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = _last_line(done.stderr or done.stdout)
        raise CannotStart(f"the migrations of {safe_url(url)} failed: {last}")


def _last_line(output: str) -> str:
    return next((line for line in reversed(output.splitlines()) if line.strip()), "no output")
