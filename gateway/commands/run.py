"""`laneway serve`, `laneway gateway` and `laneway engine`: the processes, together or alone."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import click

from gateway import config as configuration
from gateway import supervisor
from gateway.commands.console import Console, fail, pass_console
from gateway.commands.database import upgrade
from gateway.config import Config

fake_option = click.option("--fake", is_flag=True, help="An engine without a model: its words mean nothing.")


@click.command("serve")
@click.option("--demo", is_flag=True, help="With a demo model, example adapters, three tenants and their keys.")
@fake_option
@pass_console
def serve_command(console: Console, demo: bool, fake: bool) -> None:
    """Run the engine and the gateway, and start again whichever dies. Ctrl-C stops both."""
    try:
        with supervisor.only_one(console.config.data_dir):
            if demo:
                from gateway.demo import Demo  # what only the demo needs is loaded only for it

                Demo(console.config, say=click.echo).run(specs(console.config, console.file, fake=fake))
            else:
                _serve(console, fake=fake)
    except supervisor.CannotStart as error:
        fail(str(error))


def _serve(console: Console, *, fake: bool) -> None:
    config = console.config
    supervisor.check_port(config.gateway.host, config.gateway.port)
    upgrade(config)
    asyncio.run(
        supervisor.Supervisor(specs(config, console.file, fake=fake), click.echo, changed=lambda pids: None).run(
            on_ready=lambda: click.echo(f"Laneway serves at {config.base_url}; Ctrl-C stops it.")
        )
    )


def specs(config: Config, file: Path | None, *, fake: bool) -> list[supervisor.ChildSpec]:
    """The gateway and the engine of this configuration, in the order in which they stop."""
    environ = child_environ(file)
    return [
        supervisor.gateway_spec(
            config.gateway.host, config.gateway.port, grace_s=config.gateway.shutdown_grace_s, environ=environ
        ),
        supervisor.engine_spec(config.socket_path, configuration.write_engine_file(config), fake=fake, environ=environ),
    ]


def child_environ(file: Path | None) -> dict[str, str]:
    """A child reads the same configuration file as its parent, wherever that came from."""
    located = configuration.locate(file)
    return {**os.environ, "LANEWAY_CONFIG": str(located.resolve())} if located else dict(os.environ)


@click.command("gateway")
@pass_console
def gateway_command(console: Console) -> None:
    """Run a gateway alone. It takes requests once an engine answers on the socket."""
    _ = console.config  # a bad file is refused here, in one sentence
    os.execve(sys.executable, [sys.executable, "-m", "gateway"], child_environ(console.file))


@click.command("engine")
@fake_option
@pass_console
def engine_command(console: Console, fake: bool) -> None:
    """Run an engine alone, on its socket."""
    config = console.config
    spec = supervisor.engine_spec(
        config.socket_path, configuration.write_engine_file(config), fake=fake, environ=child_environ(console.file)
    )
    os.execve(spec.argv[0], spec.argv, spec.environ)
