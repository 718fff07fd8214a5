"""`laneway bench`: starts the load tool, which is a program of its own. Its arguments are its own matter."""

from __future__ import annotations

import importlib.util
import os
import sys

import click

from gateway.commands.console import fail

TOOL = "benchmarks.load"
NEEDED = ("benchmarks", "aiohttp", "matplotlib")


@click.command(
    "bench",
    add_help_option=False,  # --help too is the tool's
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="Drive a server with load and report what it did.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench_command(arguments: tuple[str, ...]) -> None:
    """Drive any OpenAI-compatible server with load and report latencies, throughput, goodput and errors."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        fail(f"the load tool needs {', '.join(missing)}: install laneway[bench]")
    os.execv(sys.executable, [sys.executable, "-m", TOOL, *arguments])
