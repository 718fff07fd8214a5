"""`laneway fleet status` and `laneway drain engine`: the engines of the roster, asked directly."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import click
import msgspec

from engine.protocol.tls import CurrentContext, client_context
from gateway.commands.console import Console, fail, json_option, pass_console, show_rows
from gateway.config.file import Config
from gateway.engines.engine import EngineUnavailable
from gateway.engines.local import LocalEngine
from gateway.fleet.roster import EngineAddress, build_roster

LIST_S_MAX = 10.0
CONNECT_S_MAX = 5.0
# An engine sends a heartbeat every second.
BEAT_S_MAX = 2.5
CHECK_S = 0.1
EXIT_NOT_READY = 1
COLUMNS = ("name", "state", "address", "protocol_version", "running", "waiting", "tokens_per_s", "prefix_hit_rate")


class EngineLine(msgspec.Struct, frozen=True, kw_only=True):
    """The line of `laneway fleet status` for one engine. `state`: "ready", "draining", "stuck" or "unreachable"."""

    name: str
    address: str
    state: str
    protocol_version: int | None = None
    running: int = 0
    waiting: int = 0
    tokens_per_s: float = 0.0
    prefix_hit_rate: float | None = None
    adapters_resident: int = 0
    models: list[str] = []


@click.command("status")
@json_option
@pass_console
@click.pass_context
def status_command(context: click.Context, console: Console, as_json: bool) -> None:
    """The engines of the roster: state, load and models. Exit status 1 if one of them is not ready."""
    lines = asyncio.run(_status(console.config))
    show_rows([msgspec.to_builtins(line) for line in lines], COLUMNS, as_json=as_json)
    if not lines or any(line.state != "ready" for line in lines):
        context.exit(EXIT_NOT_READY)


@click.command("engine")
@click.argument("name")
@click.option("--undo", is_flag=True, help="Let it serve again.")
@pass_console
def drain_engine_command(console: Console, name: str, undo: bool) -> None:
    """Have the engine NAME refuse new requests and finish running ones. All gateways send new requests to other engines
    within a second. A restarted engine serves again."""
    asyncio.run(_drain(console.config, name, draining=not undo))
    click.echo(f"{name} {'serves again' if undo else 'drains'}")


async def _status(config: Config) -> list[EngineLine]:
    return list(await asyncio.gather(*[_line(config, address) for address in await listed_engines(config)]))


async def listed_engines(config: Config) -> Sequence[EngineAddress]:
    """The roster's first list."""
    roster = build_roster(config)
    listed: asyncio.Future[Sequence[EngineAddress]] = asyncio.get_running_loop().create_future()

    def take_list(engines: Sequence[EngineAddress]) -> None:
        if not listed.done():
            listed.set_result(engines)

    following = asyncio.create_task(roster.follow_engines(take_list))
    try:
        async with asyncio.timeout(LIST_S_MAX):
            return await listed
    except TimeoutError:
        fail(f"the roster ({config.fleet.driver}) did not answer within {LIST_S_MAX:g} s")
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


@contextlib.asynccontextmanager
async def connected_engine(config: Config, address: EngineAddress) -> AsyncIterator[LocalEngine]:
    """Raises EngineUnavailable."""
    files = config.certificates
    engine = LocalEngine(
        address.address,
        tls=None if files is None else CurrentContext(files, client_context).current,
        server_name=address.server_name or None,
    )
    await engine.start()
    try:
        await engine.wait_ready(CONNECT_S_MAX)
        yield engine
    finally:
        await engine.close()


async def _line(config: Config, address: EngineAddress) -> EngineLine:
    try:
        async with connected_engine(config, address) as engine:
            for _ in range(int(BEAT_S_MAX / CHECK_S)):
                if engine.last_heartbeat is not None:
                    break
                await asyncio.sleep(CHECK_S)
            beat = engine.last_heartbeat
            load = None if beat is None else beat.load
            draining = beat is not None and beat.draining
            return EngineLine(
                name=address.name,
                address=address.address,
                state="draining" if draining else "stuck" if engine.stuck else "ready",
                protocol_version=engine.protocol_version,
                running=0 if beat is None else beat.running,
                waiting=0 if beat is None else beat.waiting,
                tokens_per_s=0.0 if load is None else load.tokens_per_s,
                prefix_hit_rate=None if load is None or not load.queries else load.hits / load.queries,
                adapters_resident=0 if load is None else len(load.adapters),
                models=sorted(engine.models),
            )
    except EngineUnavailable:
        return EngineLine(name=address.name, address=address.address, state="unreachable")


async def _drain(config: Config, name: str, *, draining: bool) -> None:
    listed = {address.name: address for address in await listed_engines(config)}
    if name not in listed:
        fail(f"there is no engine {name!r}; the engines are {', '.join(sorted(listed)) or 'none'}")
    try:
        async with connected_engine(config, listed[name]) as engine:
            engine.drain_engine(draining)
            for _ in range(int(BEAT_S_MAX / CHECK_S)):
                beat = engine.last_heartbeat
                if beat is not None and beat.draining == draining:
                    return
                await asyncio.sleep(CHECK_S)
    except EngineUnavailable as error:
        fail(f"the engine {name!r} cannot drain: {error}")
    fail(f"the engine {name!r} has not confirmed it within {BEAT_S_MAX:g} s")
