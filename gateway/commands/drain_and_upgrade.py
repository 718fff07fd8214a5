"""`laneway drain` and `laneway upgrade`: take gateways out of service, and replace them, without a failed request."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import click

from gateway.commands.console import Console, fail, pass_console
from gateway.commands.fleet_status import drain_engine_command
from gateway.commands.run import NOT_ROLLED, rolls
from gateway.host.control import UPGRADE, UPGRADE_ENGINE, NoSupervisor, ask_supervisor
from gateway.host.migrate import upgrade
from gateway.host.stop_state import stop_s
from gateway.host.supervisor import CannotStart
from gateway.host.workers import DRAIN, WorkerState, ask_state, worker_sockets

EXIT_NOT_DRAINED = 1
EXIT_FAILED = 1
CHECK_S = 0.5
# Beyond the time that a gateway has itself.
MARGIN_S = 5.0


@click.group("drain")
def drain_group() -> None:
    """Take processes out of service: what runs may end, and nothing new begins."""


@drain_group.command("gateway")
@click.option("--worker", type=click.IntRange(0), help="Only the worker of this index. Default: all of this host.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0),
    help="Seconds to wait. Default: gateway.linger_s + gateway.shutdown_grace_s + 5.",
)
@pass_console
@click.pass_context
def drain_gateway_command(
    context: click.Context, console: Console, worker: int | None, timeout_s: float | None
) -> None:
    """Drain the gateway of this host, and wait until no request runs.

    /health/ready answers 503 at once. New requests are served for gateway.linger_s, until load balancers have noticed;
    then the gateway listens no more. It cuts no stream, and ends when the service is stopped. Exit status 1 if requests
    are left at the end of the waiting time. A container's preStop hook may call it.
    """
    config = console.config
    if timeout_s is None:
        timeout_s = stop_s(config.gateway) + MARGIN_S
    if not asyncio.run(_drain(config.data_dir, worker, timeout_s)):
        context.exit(EXIT_NOT_DRAINED)


drain_group.add_command(drain_engine_command)


async def _drain(data_dir: Path, worker: int | None, timeout_s: float) -> bool:
    """Begin the drain and show its progress. False: requests are left after `timeout_s`."""
    states = await _draining(data_dir, worker)
    if not states:
        which = "no gateway" if worker is None else f"no worker {worker}"
        fail(f"{which} answers in {data_dir}: it does not run, or is of a version without `laneway drain`")
    deadline = time.monotonic() + timeout_s
    shown: dict[Path, str] = {}
    while True:
        for path, state in states.items():
            if (line := _progress(state)) != shown.get(path):
                shown[path] = line
                click.echo(f"worker {state.number} (pid {state.pid}): {line}")
        left = [path for path, state in states.items() if state.phase != "drained"]
        if not left:
            return True
        if time.monotonic() >= deadline:
            requests = sum(states[path].requests for path in left)
            click.echo(f"requests left after {timeout_s:g} s: {requests}; stopping the service cuts them", err=True)
            return False
        await asyncio.sleep(CHECK_S)
        for path in left:
            state_now = await ask_state(path)
            # A process that has ended serves nothing any more.
            states[path] = state_now or WorkerState(
                pid=states[path].pid, number=states[path].number, phase="drained", seconds=states[path].seconds
            )


async def _draining(data_dir: Path, worker: int | None) -> dict[Path, WorkerState]:
    """Ask the gateways of this data directory to drain; the states of those that answer, by socket."""
    answers = {path: await ask_state(path) for path in worker_sockets(data_dir)}
    wanted = [path for path, state in answers.items() if state is not None and worker in (None, state.number)]
    drained = {path: await ask_state(path, DRAIN) for path in wanted}
    return {path: state for path, state in drained.items() if state is not None}


def _progress(state: WorkerState) -> str:
    if state.phase == "drained":
        return f"drained after {state.seconds:.1f} s"
    accepts = "still accepts requests" if state.phase == "lingering" else "accepts none"
    return f"requests left: {state.requests}; it {accepts}"


@click.command("upgrade")
@click.option("--engine", is_flag=True, help="Then restart the engine too.")
@pass_console
@click.pass_context
def upgrade_command(context: click.Context, console: Console, engine: bool) -> None:
    """Replace the running processes of this host by processes of the code that is installed now.

    First the migrations run, which only add to the schema. Then the supervisor (`laneway serve`, or `laneway gateway`
    with several workers) starts a new worker beside an old one, waits until it is ready, and lets the old one end its
    requests; one worker after another. The port stays open. Changes of laneway.toml take effect too, except host, port,
    data_dir and the number of workers. Exit status 1 if a new worker does not become ready; the old ones continue to
    serve then.
    """
    config = console.config
    if not rolls(config):
        fail(f"laneway upgrade is refused: {NOT_ROLLED}")
    try:
        upgrade(config)
    except CannotStart as error:
        fail(str(error))
    click.echo("the schema is the newest")
    command = UPGRADE_ENGINE if engine else UPGRADE
    if not asyncio.run(_upgrade(config.data_dir, command)):
        context.exit(EXIT_FAILED)


async def _upgrade(data_dir: Path, command: str) -> bool:
    """Show the supervisor's progress. False: it failed."""
    try:
        async for line in ask_supervisor(data_dir, command):
            if line.kind == "done":
                return True
            click.echo(line.text, err=line.kind == "failed")
            if line.kind == "failed":
                return False
    except NoSupervisor:
        fail(
            f"no supervisor answers in {data_dir}: start the service with `laneway serve`, or `laneway gateway` with "
            "--workers 2 or more"
        )
    click.echo("the supervisor ended before the upgrade was complete", err=True)
    return False
