"""`laneway serve`, `laneway gateway` and `laneway engine`: the processes, together or alone."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import click
import sqlalchemy as sa

from billing.database import Database, DatabaseUnavailable
from gateway import config as configuration
from gateway import supervisor
from gateway.commands.console import Console, fail, pass_console
from gateway.commands.database import upgrade
from gateway.config import Config
from gateway.model_rows import BaseModel, configured, list_models
from gateway.packaged import install_models
from gateway.pulse import EnginePulse, WorkerPulse
from gateway.siblings import socket_path

WORKERS_MAX = 32

workers_option = click.option(
    "--workers",
    type=click.IntRange(1, WORKERS_MAX),
    default=1,
    show_default=True,
    help="Gateway processes on the one port. More than one need PostgreSQL.",
)
fake_option = click.option("--fake", is_flag=True, help="An engine without a model: its words mean nothing.")


@click.command("serve")
@click.option("--demo", is_flag=True, help="With a demo model, example adapters, three tenants and their keys.")
@fake_option
@workers_option
@pass_console
def serve_command(console: Console, demo: bool, fake: bool, workers: int) -> None:
    """Run the engine and the gateway, and start again whichever dies. Ctrl-C stops both."""
    _check_workers(console.config, workers)
    if demo and workers > 1:
        fail(f"--demo runs one gateway process, not --workers {workers}")
    try:
        with supervisor.only_one(console.config.data_dir):
            if demo:
                from gateway.demo import Demo  # what only the demo needs is loaded only for it

                Demo(console.config, say=click.echo).run(specs(console.config, console.file, fake=fake, demo=True))
            else:
                _serve(console, fake=fake, workers=workers)
    except supervisor.CannotStart as error:
        fail(str(error))


def _check_workers(config: Config, workers: int) -> None:
    """What several processes of one gateway need is refused here, in one sentence."""
    if workers == 1:
        return
    if config.database_url.startswith("sqlite"):
        fail(f"--workers {workers} needs PostgreSQL (gateway.database_url): SQLite carries one gateway process")
    longest = socket_path(config.data_dir, WORKERS_MAX - 1)
    if len(os.fsencode(longest)) > configuration.SOCKET_PATH_BYTES_MAX:
        fail(f"gateway.data_dir: {longest} is over {configuration.SOCKET_PATH_BYTES_MAX} bytes, a Unix socket's limit")


def _serve(console: Console, *, fake: bool, workers: int) -> None:
    config = console.config
    supervisor.check_port(config.gateway.host, config.gateway.port)
    upgrade(config)
    install_models(config, click.echo)
    asyncio.run(
        supervisor.Supervisor(
            specs(config, console.file, fake=fake, workers=workers), click.echo, changed=lambda pids: None
        ).run(on_ready=lambda: click.echo(f"Laneway serves at {config.base_url}; Ctrl-C stops it."))
    )


def _install(config: Config) -> None:
    try:
        install_models(config, click.echo)
    except supervisor.CannotStart as error:
        fail(str(error))


def specs(
    config: Config, file: Path | None, *, fake: bool, workers: int = 1, demo: bool = False
) -> list[supervisor.ChildSpec]:
    """The gateway and the engine of this configuration, in the order in which they stop. The targets of a `demo` are
    nobody's promise: its engine raises those that the machine cannot keep."""
    environ = child_environ(file)
    health = (config.gateway.host, config.gateway.port)
    return [
        *gateway_specs(config, workers, health, environ),
        supervisor.engine_spec(
            config.socket_path,
            engine_file(config),
            fake=fake,
            environ=environ,
            pulse=EnginePulse(config.socket_path, still_s) if (still_s := config.engine.still_s_max) else None,
            on_gpu=config.engine.device == "cuda" and not fake,
            raise_targets=demo,
        ),
    ]


def engine_file(config: Config) -> Path:
    """The engine's own configuration, with the models that are served by the database: without one, laneway.toml's. A
    gateway tells a running engine what came or went since."""
    database = Database(config.database_url)
    models: list[BaseModel] = configured(config)
    try:
        if database.sqlite_path is None or database.sqlite_path.exists():
            models = database.read_sync(lambda connection: list_models(connection, config))
    except (DatabaseUnavailable, sa.exc.DatabaseError) as error:
        reason = str(error).splitlines()[0]
        click.echo(f"the models are laneway.toml's, as the database cannot be read: {reason}", err=True)
    finally:
        database.close()
    for name in [model.name for model in models if not model.active and model.origin == "config"]:
        click.echo(f"{name} is removed, though laneway.toml has it; back with: laneway models restore {name}", err=True)
    return configuration.write_engine_file(config, [model for model in models if model.active])


def gateway_specs(
    config: Config, workers: int, health: tuple[str, int] | None, environ: dict[str, str]
) -> list[supervisor.ChildSpec]:
    """The gateway's processes alone."""
    still_s = config.gateway.still_s_max
    return supervisor.gateway_specs(
        workers,
        health,
        grace_s=config.gateway.shutdown_grace_s,
        environ=environ,
        pulse=(lambda number: WorkerPulse(socket_path(config.data_dir, number), still_s)) if still_s else None,
    )


def child_environ(file: Path | None) -> dict[str, str]:
    """A child reads the same configuration file as its parent, wherever that came from."""
    located = configuration.locate(file)
    return {**os.environ, "LANEWAY_CONFIG": str(located.resolve())} if located else dict(os.environ)


@click.command("gateway")
@workers_option
@pass_console
def gateway_command(console: Console, workers: int) -> None:
    """Run a gateway alone. It takes requests once an engine answers on the socket. Of several workers, one that dies,
    or stands still for gateway.still_s_max, is started again."""
    config = console.config  # a bad file is refused here, in one sentence
    _check_workers(config, workers)
    _install(config)
    if workers > 1:
        _keep_workers(config, console.file, workers)
        return
    os.execve(sys.executable, [sys.executable, "-m", "gateway"], child_environ(console.file))


def _keep_workers(config: Config, file: Path | None, workers: int) -> None:
    try:
        with supervisor.only_one(config.data_dir, "gateway-lock"):
            supervisor.check_port(config.gateway.host, config.gateway.port)
            kept = gateway_specs(config, workers, None, child_environ(file))
            asyncio.run(
                supervisor.Supervisor(kept, click.echo, changed=lambda pids: None).run(
                    on_ready=lambda: click.echo(f"{workers} workers listen at {config.base_url}; Ctrl-C stops them.")
                )
            )
    except supervisor.CannotStart as error:
        fail(str(error))


@click.command("engine")
@fake_option
@pass_console
def engine_command(console: Console, fake: bool) -> None:
    """Run an engine alone, on its socket."""
    config = console.config
    if not fake:
        _install(config)
    spec = supervisor.engine_spec(
        config.socket_path, engine_file(config), fake=fake, environ=child_environ(console.file)
    )
    os.execve(spec.argv[0], spec.argv, spec.environ)
