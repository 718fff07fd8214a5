"""`laneway doctor`: prints the result of each check of this host on one line."""

from __future__ import annotations

from collections.abc import Iterator

import click

from billing.texts import visible
from gateway.commands.console import Console, json_option, pass_console, show_json
from gateway.config import file as configuration
from gateway.doctor import checks as doctor

EXIT_FAILED = 1
NAME_WIDTH = 13


@click.command("doctor")
@json_option
@click.pass_context
@pass_console
def doctor_command(console: Console, context: click.Context, as_json: bool) -> None:
    """Check this host: Python, torch, GPU, memory, ports, database, clock, Redis, disk, secrets, models, console.

    One line each: ok, warn or fail, and what to do. Exit status 1 if a check fails, else 0. Nothing is changed.
    """
    checks: list[doctor.Check] = []
    for check in _checks(console):
        checks.append(check)
        if not as_json:
            advice = f"; {check.advice}" if check.advice else ""
            click.echo(visible(f"{check.status:<5}{check.name:<{NAME_WIDTH}} {check.detail}{advice}"))
    status = doctor.worst(checks)
    if as_json:
        show_json({"status": status, "checks": checks})
    context.exit(EXIT_FAILED if status == "fail" else 0)


def _checks(console: Console) -> Iterator[doctor.Check]:
    try:
        config = configuration.load_gateway_config(console.file)
    except configuration.ConfigError as error:
        yield doctor.fail("configuration", str(error), "correct it; laneway.toml documents every setting")
        return
    yield doctor.ok("configuration", str(console.located or "the defaults: no laneway.toml is in this directory"))
    yield from doctor.examine(config, console.located)
