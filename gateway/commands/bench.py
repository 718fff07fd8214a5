"""`laneway bench`: replaces this process by the load tool (`python -m benchmarks.load`), with all arguments."""

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
    """The pip command that installs the load tool's libraries: for the checkout, else for the installed package."""
    python = Path(sys.executable)
    pip = python.with_name("pip")
    shown = pip.relative_to(Path.cwd()) if pip.is_relative_to(Path.cwd()) else pip
    name = shown if pip.exists() else f"{python} -m pip"
    package = f"-e '{CHECKOUT_FILE.parent}[bench]'" if CHECKOUT_FILE.exists() else "'laneway[bench]'"
    if CHECKOUT_FILE.parent == Path.cwd():
        package = "-e '.[bench]'"
    return f"{name} install {package}"


@click.command(
    "bench",
    add_help_option=False,  # the tool answers --help
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="Drive a server with load and report latencies, throughput and errors.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench_command(arguments: tuple[str, ...]) -> None:
    """Drive any OpenAI-compatible server with load and report latencies, throughput, goodput and errors."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        fail(f"the load tool needs {', '.join(missing)}. Install them with: {install_line()}")
    os.execv(sys.executable, [sys.executable, "-m", TOOL, *arguments])
