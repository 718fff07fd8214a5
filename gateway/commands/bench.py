"""`laneway bench`: starts the load tool, which is a program of its own. Its arguments are its own matter."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import click

from gateway.commands.console import CHECKOUT_FILE, fail

TOOL = "benchmarks.load"
NEEDED = ("benchmarks", "aiohttp", "matplotlib")


def install_line() -> str:
    """A command that works as it is: in a checkout, from its directory; else of the installed package."""
    python = Path(sys.executable)
    pip = python.with_name("pip")
    shown = pip.relative_to(Path.cwd()) if pip.is_relative_to(Path.cwd()) else pip
    name = shown if pip.exists() else f"{python} -m pip"
    what = f"-e '{CHECKOUT_FILE.parent}[bench]'" if CHECKOUT_FILE.exists() else "'laneway[bench]'"
    if CHECKOUT_FILE.parent == Path.cwd():
        what = "-e '.[bench]'"
    return f"{name} install {what}"


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
        fail(f"the load tool needs {', '.join(missing)}. Install them with: {install_line()}")
    os.execv(sys.executable, [sys.executable, "-m", TOOL, *arguments])
