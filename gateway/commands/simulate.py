"""`laneway simulate`: replaces this process by the engine's simulator (`python -m engine.simulate`)."""

from __future__ import annotations

import os
import sys

import click

from gateway.commands.console import Console, pass_console
from gateway.config import file as configuration

TOOL = "engine.simulate"


@click.command(
    "simulate",
    add_help_option=False,  # the simulator answers --help
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="Replay traffic through the scheduler on a virtual clock: which targets hold.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@pass_console
def simulate_command(console: Console, arguments: tuple[str, ...]) -> None:
    """Replay traffic through the real scheduler on a virtual clock, with the tiers of the configuration file."""
    _ = console.config  # an invalid file ends the command here, with one sentence
    located = configuration.locate(console.file)
    tiers = ["--tiers", str(located)] if located else []  # a --tiers among the arguments overrides it
    os.execv(sys.executable, [sys.executable, "-m", TOOL, *tiers, *arguments])
