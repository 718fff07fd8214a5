"""`laneway apply`: makes tenants, keys, budgets, limits, aliases and prices as a state file has them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

import click
import msgspec
import sqlalchemy as sa

from billing.errors import InvalidValue
from billing.texts import visible
from gateway.admin.state.apply import StateApplier
from gateway.admin.state.changes import NewSecret, lines_of
from gateway.admin.state.document import WantedState, read_state
from gateway.commands.console import CommandRefused, Console, fail, json_option, pass_console, show_json
from gateway.commands.database import sentence, write_database

EXIT_DRIFT = 2
EXIT_REFUSED = 1  # differs from other commands, so that a script can tell a refusal from drift


class ApplyRefused(CommandRefused):
    """A refusal with a different exit status."""

    exit_code = EXIT_REFUSED


class _Planned(Exception):
    """Rolls a plan back."""

    def __init__(self, applier: StateApplier) -> None:
        super().__init__("planned")
        self.applier = applier


@click.command("apply")
@click.option("-f", "--file", "file", type=click.Path(path_type=Path), required=True, help="The state, YAML; -: stdin.")
@click.option("--plan", is_flag=True, help="Show what would change, and change nothing. Exit status 2: there is drift.")
@click.option(
    "--prune",
    is_flag=True,
    help="End the objects that a list of the file does not name: revoke keys, archive tenants and projects.",
)
@click.option(
    "--secrets",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the secrets of new keys to this new file instead of the output: one JSON object a line.",
)
@json_option
@pass_console
def apply_command(console: Console, file: Path, plan: bool, prune: bool, secrets: Path | None, as_json: bool) -> None:
    """Make tenants, projects, keys, budgets, limits, aliases and prices as FILE has them, in one transaction. A field
    that FILE leaves out is not changed. A second run changes nothing. A refusal has exit status 1."""
    try:
        _apply(console, file, plan, prune, secrets, as_json)
    except CommandRefused as refused:
        raise ApplyRefused(refused.message) from None


def _apply(console: Console, file: Path, plan: bool, prune: bool, secrets: Path | None, as_json: bool) -> None:
    state = _read(file)
    descriptor = None if plan or secrets is None else _new_file(secrets)
    administration = console.administration

    def change(connection: sa.Connection) -> StateApplier:
        applier = StateApplier(connection, administration, prune=prune)
        applier.apply(state)
        if plan:
            raise _Planned(applier)
        return applier

    try:
        applier = write_database(console, change)
    except _Planned as planned:
        applier = planned.applier
    except BaseException:
        if descriptor is not None and secrets is not None:  # nothing was made: the file would be empty
            os.close(descriptor)
            secrets.unlink()
        raise
    made = [] if plan else applier.secrets
    if descriptor is not None:
        _write_secrets(descriptor, made)
        made = []
    _show(applier, made, plan=plan, as_json=as_json)
    if plan and applier.changes:
        sys.exit(EXIT_DRIFT)


def _read(file: Path) -> WantedState:
    try:
        text = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return read_state(text)
    except InvalidValue as error:
        _refuse(file, sentence(error))
    except OSError as error:
        _refuse(file, error.strerror or str(error))


def _refuse(file: Path, reason: str) -> NoReturn:
    fail(f"{file}: {reason}")


def _new_file(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        fail(f"--secrets {path}: {error.strerror}; it must be a new file")


def _write_secrets(descriptor: int, made: list[NewSecret]) -> None:
    with os.fdopen(descriptor, "wb") as file:
        for secret in made:
            file.write(msgspec.json.encode(secret) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _show(applier: StateApplier, made: list[NewSecret], *, plan: bool, as_json: bool) -> None:
    changes = applier.changes
    if as_json:
        show_json({"plan": plan, "changes": msgspec.to_builtins(changes), "keys": msgspec.to_builtins(made)})
        return
    for change in changes:
        for line in lines_of(change):
            click.echo(visible(line))
    counts = {action: sum(change.action == action for change in changes) for action in ("add", "change", "remove")}
    verb = "would be" if plan else "were"
    if changes:
        click.echo(f"{counts['add']} {verb} added, {counts['change']} changed, {counts['remove']} ended")
    else:
        click.echo("no change: everything is as the file has it")
    for secret in made:
        click.echo(f"secret of {secret.tenant}/{secret.name}, shown only now: {secret.key}")
