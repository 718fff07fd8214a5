"""`laneway db upgrade`, and the one way in which commands reach the database."""

from __future__ import annotations

import os
import subprocess
import sys

import click

from gateway.commands.console import Console, fail, pass_console
from gateway.config import Config, safe_url


@click.group("db")
def db_group() -> None:
    """The database."""


@db_group.command("upgrade")
@pass_console
def upgrade_command(console: Console) -> None:
    """Bring the schema to the newest version. Safe to run again."""
    upgrade(console.config)
    click.echo(f"{safe_url(console.config.database_url)}: the schema is the newest")


def upgrade(config: Config) -> None:
    """Run the migrations in their own room, as a process. Refused with their words when they fail."""
    config.data_dir.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "migrations"],
        env={**os.environ, "LANEWAY_DATABASE_URL": config.database_url},  # not on argv: it may hold a password
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        fail(f"the migrations of {safe_url(config.database_url)} failed: {last}")
