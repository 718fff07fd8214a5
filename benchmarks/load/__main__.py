"""`python -m benchmarks.load`, which `laneway bench` starts: one run of load, its report, and optionally files of
it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import click
import msgspec
import uvloop

from benchmarks.load.arrivals import read_trace
from benchmarks.load.client import CannotReach, Client
from benchmarks.load.options import FILE, run_options, settings_of
from benchmarks.load.progress import Progress
from benchmarks.load.report import Report, make_report, text
from benchmarks.load.run import Measured, Run
from benchmarks.load.settings import BadSetting, Settings
from benchmarks.load.workload import Workload

EXIT_NOTHING_ANSWERED = 1
EXIT_INTERRUPTED = 130
SPARE_FILES = 64  # beside the connections


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@run_options
@click.option(
    "--json", "json_file", type=FILE, help="Write the report as JSON; its schema is in docs/contributors/load-tool.md."
)
@click.option("--plot", "plot_file", type=FILE, help="Write a picture (PNG): TTFT over time, and distributions.")
@click.option("--quiet", is_flag=True, help="No progress lines.")
def main(json_file: Path | None, plot_file: Path | None, quiet: bool, **given: Any) -> None:
    """Drive an OpenAI-compatible server and report latencies, throughput, goodput and errors.

    Latency counts from when a request was due. Ctrl-C ends a run early and reports what was measured.
    """
    try:
        settings = settings_of(given)
        trace = read_trace(settings.trace) if settings.trace is not None else []
        for option, path in (("--json", json_file), ("--plot", plot_file)):
            if path is not None and not path.resolve().parent.is_dir():
                raise BadSetting(option, f"the folder of {path} does not exist")
        _allow_connections(settings)
    except BadSetting as error:
        raise click.BadParameter(error.message, param_hint=error.option) from error
    started_at = datetime.datetime.now(datetime.UTC)
    try:
        measured = uvloop.run(_run(settings, trace, quiet))
    except CannotReach as error:
        raise click.ClickException(str(error)) from error
    report = make_report(settings, measured, started_at)
    click.echo(text(report))
    _write_files(report, measured, json_file, plot_file)
    if report.interrupted:
        sys.exit(EXIT_INTERRUPTED)
    if report.total.succeeded == 0:
        sys.exit(EXIT_NOTHING_ANSWERED)


async def _run(settings: Settings, trace: list[Any], quiet: bool) -> Measured:
    """Raises CannotReach."""
    async with Client(settings) as client:
        models: dict[str, Any] = {tenant.name: settings.models for tenant in settings.tenants}
        if not settings.models:
            for name in models:
                models[name] = await client.models(name)
                if not models[name]:
                    raise CannotReach(f"{settings.base_url}/models lists nothing for {name!r}; name some with --models")
        run = Run(settings, Workload(settings, models, trace), client)
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signal_number, run.stop)
        progress = None if quiet else asyncio.create_task(Progress(run, sys.stderr).show())
        try:
            return await run.go()
        finally:
            if progress is not None:
                progress.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await progress


def _allow_connections(settings: Settings) -> None:
    """Raise the limit of open files to the number of connections. Raises BadSetting if the system does not allow it."""
    wanted = (settings.concurrency or settings.outstanding_max) + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            option = "--concurrency" if settings.concurrency else "--max-outstanding"
            raise BadSetting(option, f"needs {wanted} open files; the system's limit for this user is {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _write_files(report: Report, measured: Measured, json_file: Path | None, plot_file: Path | None) -> None:
    try:
        if json_file is not None:
            json_file.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
        if plot_file is not None:
            from benchmarks.load.plot import draw  # matplotlib takes half a second to load, so only for a plot

            draw(plot_file, report, measured)
    except OSError as error:
        raise click.ClickException(f"cannot write {error.filename}: {error.strerror}") from error


if __name__ == "__main__":
    main(prog_name="laneway bench")
