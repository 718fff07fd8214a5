"""`laneway serve`, `laneway gateway` and `laneway engine`: the processes, together or alone."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from pathlib import Path

import click
import sqlalchemy as sa

from billing.database import Database, DatabaseUnavailable
from engine.protocol import log_output
from gateway.catalog.base_models import BaseModel, configured_models, list_models
from gateway.commands.console import CHECKOUT_FILE, Console, checkout_config, fail, pass_console
from gateway.commands.start_steps import StartProgress
from gateway.config import file as configuration
from gateway.config.file import Config
from gateway.config.private_files import make_private
from gateway.host import supervisor
from gateway.host.children import ChildSpec
from gateway.host.migrate import upgrade
from gateway.host.packaged_models import check_free, install_models, missing_models, size_of
from gateway.host.pulse import EnginePulse, WorkerPulse
from gateway.host.stop_state import quick_stop_s, stop_s
from gateway.host.workers import socket_path

WORKERS_MAX = 32
NOT_ROLLED = (
    "it needs PostgreSQL (gateway.database_url): SQLite permits one gateway process at a time, and two run while one "
    "replaces the other; stop and start the service instead"
)
EXIT_INTERRUPTED = 130  # a shell's status for a command that SIGINT ended

workers_option = click.option(
    "--workers",
    type=click.IntRange(1, WORKERS_MAX),
    default=1,
    show_default=True,
    help="Gateway processes that share the port. More than one needs PostgreSQL.",
)
host_option = click.option("--host", help="The address to listen on, instead of gateway.host.")
port_option = click.option(
    "--port", type=click.IntRange(1, 65535), help="The port to listen on, instead of gateway.port."
)
fake_option = click.option("--fake", is_flag=True, help="An engine without a model: its answers are meaningless.")


@click.command("serve")
@click.option("--demo", is_flag=True, help="With a demo model, example adapters, three tenants and their keys.")
@click.option("--new", is_flag=True, help="With --demo: make a second demo, though the checkout has one.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="text: JSON lines go to files in <data_dir>/logs, and warnings to the terminal. json: JSON lines to stderr. "
    "Default: text with --demo or at a terminal, else json.",
)
@host_option
@port_option
@fake_option
@workers_option
@pass_console
def serve_command(
    console: Console,
    demo: bool,
    new: bool,
    log_format: str | None,
    host: str | None,
    port: int | None,
    fake: bool,
    workers: int,
) -> None:
    """Run the engine and the gateway, and restart a process that ends. Ctrl-C stops both."""
    _listen_at(host, port)
    config = console.config
    _check_workers(config, workers)
    if demo and workers > 1:
        fail(f"--demo runs one gateway process, not --workers {workers}")
    if demo and not new:
        _check_no_other_demo(console)
    text = log_format == "text" or (log_format is None and (demo or sys.stderr.isatty()))
    try:
        with supervisor.lock_data_dir(config.data_dir):
            log_dir = _made_log_dir(config) if text else None
            if demo:
                from gateway.commands.demo_seed import Demo  # imported only for the demo

                children = logging_to(log_dir, specs(config, console.file, fake=fake, demo=True))
                Demo(config, click.echo, log_dir).run(children)
            else:
                _serve(console, fake=fake, workers=workers, log_dir=log_dir)
    except supervisor.CannotStart as error:
        fail(str(error))
    except KeyboardInterrupt:  # before the supervisor handled SIGINT
        click.echo("stopped")
        sys.exit(EXIT_INTERRUPTED)
    click.echo("stopped")


def _listen_at(host: str | None, port: int | None) -> None:
    """Override gateway.host and gateway.port, through the environment, for the child processes too."""
    if host is not None:
        os.environ["LANEWAY_HOST"] = host
    if port is not None:
        os.environ["LANEWAY_PORT"] = str(port)


def _check_no_other_demo(console: Console) -> None:
    """Refuse to make a second demo, with a second copy of its model, if the checkout has one: a user who starts it in
    another directory most likely looks for the first."""
    checkout = checkout_config()
    if console.located is not None or checkout is None or checkout.data_dir == console.config.data_dir:
        return
    made = {model.package for model in checkout.models} - {model.package for model in missing_models(checkout)}
    if not made & {model.package for model in missing_models(console.config)}:
        return
    fail(
        f"this directory has no laneway.toml and no demo, and {checkout.data_dir} has one. Start that one with: "
        f"laneway --config {CHECKOUT_FILE} serve --demo. Make another here "
        f"({size_of(missing_models(console.config))}) with: laneway serve --demo --new"
    )


def _made_log_dir(config: Config) -> Path:
    """Make the directory of the log files. Raises CannotStart."""
    directory = config.data_dir / "logs"
    try:
        make_private(directory)
    except OSError as error:
        raise supervisor.CannotStart(f"the logs' directory {directory} cannot be made: {error.strerror}") from error
    return directory


def logging_to(log_dir: Path | None, children: list[ChildSpec]) -> list[ChildSpec]:
    """The same processes, each with its own log file in `log_dir`; None: all log to stderr."""

    def environ(spec: ChildSpec) -> dict[str, str]:
        others = {name: value for name, value in spec.environ.items() if name != log_output.VARIABLE}
        if log_dir is None:
            return others
        return {**others, log_output.VARIABLE: str(log_dir / f"{spec.name.replace(' ', '-')}.jsonl")}

    return [dataclasses.replace(spec, environ=environ(spec)) for spec in children]


def _check_workers(config: Config, workers: int) -> None:
    """Check that the configuration permits several workers; if not, end the command with one sentence."""
    if workers == 1:
        return
    if config.database_url.startswith("sqlite"):
        fail(f"--workers {workers} needs PostgreSQL (gateway.database_url): SQLite permits one gateway process")
    longest = socket_path(config.data_dir, WORKERS_MAX - 1, "next")
    if len(os.fsencode(longest)) > configuration.SOCKET_PATH_BYTES_MAX:
        fail(f"gateway.data_dir: {longest} is over {configuration.SOCKET_PATH_BYTES_MAX} bytes, a Unix socket's limit")


def _serve(console: Console, *, fake: bool, workers: int, log_dir: Path | None) -> None:
    config = console.config
    supervisor.check_port(config.gateway.host, config.gateway.port)
    missing = missing_models(config)
    check_free(missing)
    steps = StartProgress(click.echo, 3 if missing else 2)
    with steps.step("the database"):
        upgrade(config)
    if missing:
        with steps.step(f"the models, once: {size_of(missing)}"):
            install_models(config, click.echo)
    start = steps.begin_start_step("the engine and the gateway start")

    def ready() -> None:
        start.end_start_step(quiet=True)
        if log_dir is not None:
            click.echo(f"The log, a JSON object a line: {log_dir}")
        click.echo(f"Laneway serves at {config.base_url}; Ctrl-C stops it.")

    children = logging_to(log_dir, specs(config, console.file, fake=fake, workers=workers))
    try:
        asyncio.run(_supervisor(config, children).run(on_ready=ready))
    finally:
        start.end_start_step(quiet=True)


def _supervisor(config: Config, children: list[ChildSpec]) -> supervisor.Supervisor:
    return supervisor.Supervisor(
        children, click.echo, data_dir=config.data_dir, why_not_rolled="" if rolls(config) else NOT_ROLLED
    )


def rolls(config: Config) -> bool:
    """Whether a gateway process may be replaced while it serves: two run for a moment."""
    return not config.database_url.startswith("sqlite")


def _install(config: Config) -> None:
    try:
        install_models(config, click.echo)
    except supervisor.CannotStart as error:
        fail(str(error))


def specs(config: Config, file: Path | None, *, fake: bool, workers: int = 1, demo: bool = False) -> list[ChildSpec]:
    """The gateway and the engine of this configuration, in the order in which they stop. `demo`: the engine raises the
    tiers' targets that the machine cannot meet."""
    environ = child_environ(file)
    health = (config.gateway.host, config.gateway.port)
    return [
        *gateway_specs(config, workers, health, environ, rolls=rolls(config) and not demo),
        supervisor.engine_spec(
            config.socket_path,
            engine_file(config),
            fake=fake,
            environ=environ,
            pulse=EnginePulse(config.socket_path, still_s) if (still_s := config.engine.still_s_max) else None,
            on_gpu=config.engine.device == "cuda" and not fake,
            raise_targets=demo,
            arguments=configuration.engine_arguments(config),
        ),
    ]


def engine_file(config: Config) -> Path:
    """Write the engine's configuration, with the active models of the database; without a database, with the models of
    laneway.toml. A gateway registers later changes with the running engine."""
    database = Database(config.database_url)
    models: list[BaseModel] = configured_models(config)
    try:
        if database.sqlite_path is None or database.sqlite_path.exists():
            models = database.read_sync(lambda connection: list_models(connection, config))
    except (DatabaseUnavailable, sa.exc.DatabaseError) as error:
        reason = str(error).splitlines()[0]
        click.echo(f"the database cannot be read, so the models are those of laneway.toml: {reason}", err=True)
    finally:
        database.close()
    for name in [model.name for model in models if not model.active and model.origin == "config"]:
        click.echo(f"{name} of laneway.toml is removed; restore it with: laneway models restore {name}", err=True)
    return configuration.write_engine_file(config, [model for model in models if model.active])


def gateway_specs(
    config: Config, workers: int, health: tuple[str, int] | None, environ: dict[str, str], *, rolls: bool
) -> list[ChildSpec]:
    """The gateway's processes, without an engine. `rolls`: they may be replaced while they serve."""
    still_s = config.gateway.still_s_max
    return supervisor.gateway_specs(
        workers,
        health,
        stop_s=stop_s(config.gateway),
        quick_stop_s=quick_stop_s(config.gateway),
        environ=environ,
        rolls=rolls,
        pulse=(lambda number: WorkerPulse(socket_path(config.data_dir, number), still_s)) if still_s else None,
    )


def child_environ(file: Path | None) -> dict[str, str]:
    """The environment of a child: LANEWAY_CONFIG names the file that this process read, if any."""
    located = configuration.locate(file)
    return {**os.environ, "LANEWAY_CONFIG": str(located.resolve())} if located else dict(os.environ)


@click.command("gateway")
@host_option
@port_option
@workers_option
@pass_console
def gateway_command(console: Console, host: str | None, port: int | None, workers: int) -> None:
    """Run a gateway alone. It accepts requests when an engine answers on the socket. A worker that ends, or makes no
    progress for gateway.still_s_max, is restarted."""
    _listen_at(host, port)
    config = console.config  # an invalid file ends the command here, with one sentence
    _check_workers(config, workers)
    _install(config)
    if workers > 1:
        _keep_workers(config, console.file, workers)
        return
    os.execve(sys.executable, [sys.executable, "-m", "gateway"], child_environ(console.file))


def _keep_workers(config: Config, file: Path | None, workers: int) -> None:
    try:
        with supervisor.lock_data_dir(config.data_dir, "gateway-lock"):
            supervisor.check_port(config.gateway.host, config.gateway.port)
            children = gateway_specs(config, workers, None, child_environ(file), rolls=rolls(config))
            asyncio.run(
                _supervisor(config, children).run(
                    on_ready=lambda: click.echo(f"{workers} workers listen at {config.base_url}; Ctrl-C stops them.")
                )
            )
    except supervisor.CannotStart as error:
        fail(str(error))


@click.command("engine")
@fake_option
@pass_console
def engine_command(console: Console, fake: bool) -> None:
    """Run an engine alone, on its socket and at engine.listen."""
    config = console.config
    if not fake:
        _install(config)
    spec = supervisor.engine_spec(
        config.socket_path,
        engine_file(config),
        fake=fake,
        environ=child_environ(console.file),
        arguments=configuration.engine_arguments(config),
    )
    os.execve(spec.argv[0], spec.argv, spec.environ)
