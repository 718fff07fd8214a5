"""`python -m engine.simulate`, which `laneway simulate` starts: runs one simulation, and prints or writes its report.

This is the only module of the simulator that reads a real clock, for its progress lines.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import click
import msgspec

from engine.simulate.devices import BadInput
from engine.simulate.drawing import draw
from engine.simulate.fleet import ONE_ENGINE, FleetWorld
from engine.simulate.fleet_drawing import draw_fleet
from engine.simulate.fleet_report import FleetReport, fleet_report, fleet_text
from engine.simulate.options import FILE, fleet_settings, scenario, scenario_options
from engine.simulate.report import SimulationReport, make_report, text
from engine.simulate.world import World

EXIT_TARGET_FAILED = 1
PROGRESS_EVERY_S = 2.0


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@scenario_options
@click.option("--strict", is_flag=True, help="Exit status 1 when a target of a tier fails.")
@click.option("--by-tenant", is_flag=True, help="Print a line for each tenant too.")
@click.option(
    "--json", "json_file", type=FILE, help="Write the report as JSON; docs/contributors/simulator.md has its fields."
)
@click.option("--svg", "svg_file", type=FILE, help="Write a chart of the simulation.")
@click.option("--quiet", is_flag=True, help="No progress lines.")
def main(
    strict: bool, by_tenant: bool, json_file: Path | None, svg_file: Path | None, quiet: bool, **given: Any
) -> None:
    """Replay traffic through the real scheduler and arena on a virtual clock: which targets hold, how fast, which
    tenants wait.

    An hour takes less than a minute. The same seed makes the same report.
    """
    try:
        for option, path in (("--json", json_file), ("--svg", svg_file)):
            if path is not None and not path.resolve().parent.is_dir():
                raise BadInput(f"{option}: the folder of {path} does not exist")
        if given["engines"] is not None:
            simulate_fleet(given, json_file, svg_file, strict=strict, quiet=quiet)
            return
        simulation = scenario(given)
        world = simulation.world()
    except BadInput as error:
        raise click.UsageError(str(error)) from error
    began = time.monotonic()
    gc.disable()  # objects live to the end or have no cycles; collections would take 10 % of the time
    world.run(None if quiet else progress(world, sys.stderr, began))
    report = make_report(world, simulation.described())
    click.echo(text(report, by_tenant=by_tenant))
    if not quiet:
        click.echo(f"simulated in {time.monotonic() - began:.1f} s", err=True)
    write_files(report, json_file, svg_file, lambda: draw(world.measure, report, _title(report)))
    if strict and not report.holds:
        sys.exit(EXIT_TARGET_FAILED)


def simulate_fleet(
    given: dict[str, Any], json_file: Path | None, svg_file: Path | None, *, strict: bool, quiet: bool
) -> None:
    """`--engines`: the same traffic under each policy of `--routing`. Raises BadInput."""
    settings = fleet_settings(given)
    worlds: list[FleetWorld] = []
    gc.disable()
    for policy in dict.fromkeys(given["routing"] or ("predicted", ONE_ENGINE)):
        began = time.monotonic()
        worlds.append(FleetWorld(settings, policy))
        worlds[-1].run()
        if not quiet:
            click.echo(f"{policy}: simulated in {time.monotonic() - began:.1f} s", err=True)
    described: dict[str, Any] = msgspec.to_builtins(settings)
    described["traffic"]["rows"] = len(settings.traffic.rows)
    report = fleet_report(worlds, described)
    click.echo(fleet_text(report))
    write_files(report, json_file, svg_file, lambda: draw_fleet(worlds, report))
    if strict and not report.holds:
        sys.exit(EXIT_TARGET_FAILED)


def progress(world: World, stream: TextIO, began: float) -> Callable[[], None]:
    """A function that writes a progress line at most every PROGRESS_EVERY_S; on a terminal it overwrites the last
    line."""
    last, end = began, "\r" if stream.isatty() else "\n"

    def show() -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= PROGRESS_EVERY_S:
            last = now
            measure = world.measure
            share = min(1.0, world.clock.now / measure.duration_s)
            waiting = sum(world.scheduler.waiting().values())
            simulated = f"{world.clock.now:,.0f} s simulated, {measure.steps:,} steps"
            line = f"{100 * share:3.0f} %  {simulated}, {waiting:,} waiting"
            stream.write(f"{line:<80}{end}")
            stream.flush()

    return show


def write_files(
    report: SimulationReport | FleetReport, json_file: Path | None, svg_file: Path | None, drawn: Callable[[], str]
) -> None:
    try:
        if json_file is not None:
            json_file.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
        if svg_file is not None:
            svg_file.write_text(drawn())
    except OSError as error:
        raise click.ClickException(f"cannot write {error.filename}: {error.strerror}") from error


def _title(report: SimulationReport) -> str:
    count = sum(tier.group.requests for tier in report.tiers)
    return f"{count:,} requests in {report.duration_s:,.0f} s, {report.output_tokens_per_s:,.0f} tokens a second"


if __name__ == "__main__":
    main(prog_name="laneway simulate")
