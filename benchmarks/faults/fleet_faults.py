"""The faults of a fleet, one at a time: the broken part, the duration, and the checks after recovery."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.fleet_books import difference_of, open_requests
from benchmarks.faults.fleet_clients import FleetClients
from benchmarks.faults.fleet_stage import KEEP_ALIVE_S, LEASE_S, EngineHost, FleetStage
from benchmarks.rows import REPO
from engine.protocol.client import SILENCE_S
from gateway.views.engines import FleetEngineView

PARTITION_S = LEASE_S + 3.0  # an engine ends a lease within LEASE_S * 9 / 8 of the last sign of life
HOLD_S = SILENCE_S + 1.5  # gateways count the engine as lost; it has not ended their leases yet
DELAY_S = (0.05, 0.4)
DELAYED_S = 8.0
OLD_S = 8.0  # seconds with only an engine of version 4 in the list; gateways follow the list within 4 s
SKEW_S = 600
FREE_S_MAX = 10.0  # limit until all holds of a killed gateway have ended
SILENT_S_MAX = KEEP_ALIVE_S + 1.5  # longest silence of a stream, on a busy machine
RESUME_S_MAX = 5.0
TEXT_S_MAX = 20.0
STREAMS_MIN = 3  # streams that a gateway has before it loses its engines
LOOK_S = 0.1
Fault = Callable[["FaultRun"], Awaitable[None]]


@dataclass
class FaultRun:
    """The engines, gateways and clients of the faults."""

    stage: FleetStage
    clients: FleetClients
    chance: random.Random
    clock: Path  # seconds by which the first gateway's clock is wrong
    old_code: Path | None  # code whose engine speaks version 4

    async def engine(self) -> EngineHost:
        """A random engine among the engines that have texts; without such an engine, any engine."""
        streams = await self.streams()
        busy = [engine for engine in self.stage.engines if streams[engine.name] > 0]
        return self.chance.choice(busy or self.stage.engines)

    async def relayed_with_text(self) -> EngineHost:
        """The engine behind the relay, once it has a text."""
        engine, began = self.stage.relayed, time.monotonic()
        while not (await self.streams())[engine.name]:
            assert time.monotonic() - began < TEXT_S_MAX, "the engine behind the relay receives no text"
            await asyncio.sleep(LOOK_S)
        return engine

    async def streams(self) -> Counter[str]:
        """The streams of all gateways, by engine."""
        streams = Counter[str]()
        for gateway in self.stage.gateways:
            streams.update({name: view.streams for name, view in (await self.stage.views(gateway)).items()})
        return streams


async def kill_engine(run: FaultRun) -> None:
    engine = await run.engine()
    await engine.end(signal.SIGKILL)
    await asyncio.sleep(1.0)
    engine.start()
    await run.stage.all_ready()


async def partition_engine(run: FaultRun) -> None:
    """Both ends run on, and neither receives the other's packets."""
    engine = await run.engine()
    engine.namespace.set_link("engines", up=False)
    await asyncio.sleep(PARTITION_S)
    engine.namespace.set_link("engines", up=True)
    await run.stage.all_ready()


async def delay_engine(run: FaultRun) -> None:
    """All bytes of one engine take long, both ways."""
    await run.relayed_with_text()
    run.stage.relay.set_delay(*DELAY_S)
    await asyncio.sleep(DELAYED_S)
    run.stage.relay.set_delay(0.0, 0.0)
    await run.stage.all_ready()


async def silence_engine(run: FaultRun) -> None:
    """Hold all bytes to and from one engine without ending a connection; deliver them later."""
    engine = await run.relayed_with_text()
    ended = engine.ended_leases()
    run.stage.relay.hold()
    await asyncio.sleep(HOLD_S)
    assert engine.ended_leases() == ended, "the engine's streams were closed before the late frames"
    run.stage.relay.release()
    await run.stage.all_ready()


async def drain_engine(run: FaultRun) -> None:
    """SIGTERM: the engine ends its texts, which other engines resume, and exits; a new process replaces it."""
    engine = await run.engine()
    await engine.end(signal.SIGTERM)
    engine.start()
    await run.stage.all_ready()


async def upgrade_engine(run: FaultRun) -> None:
    """An engine of protocol version 4 joins the list, serves, leaves the list and ends. Its successor, of the present
    code, joins under the same name."""
    assert run.old_code is not None
    stage, engine = run.stage, await run.engine()
    listed = stage.addresses()
    others = {name: address for name, address in listed.items() if name != engine.name}
    old = {engine.name: f"unix:{engine.socket}"}

    def serves_old(views: dict[str, FleetEngineView]) -> bool:
        view = views.get(engine.name)
        return view is not None and (view.protocol_version, view.state) == (4, "ready")

    stage.write_roster(others)
    await stage.until(lambda views: engine.name not in views, "an engine does not leave the list")
    await engine.end(signal.SIGTERM)
    engine.code = run.old_code
    engine.start(old=True)
    stage.write_roster({**others, **old})
    await stage.until(serves_old, "no engine of version 4 is ready")
    stage.write_roster(old)  # alone, because gateways prefer engines that report their load
    await asyncio.sleep(OLD_S)
    stage.write_roster({**others, **old})
    await stage.all_ready()
    await stage.until(serves_old, "the engine of version 4 is not ready any more")
    stage.write_roster(others)
    await stage.until(lambda views: engine.name not in views, "an engine of version 4 does not leave the list")
    report = await stage.status(engine, local=True)
    assert report.tokens_made > 0, "the engine of version 4 made no token"
    difference = difference_of(stage, report)
    assert difference == 0, f"the engine of version 4: the ledger has {difference} tokens more than {report}"
    await engine.end(signal.SIGTERM)
    engine.code = REPO
    engine.start()
    stage.write_roster(listed)
    await stage.all_ready()
    for gateway in stage.gateways:
        version = (await stage.views(gateway))[engine.name].protocol_version
        assert version == 5, f"after the upgrade the engine speaks version {version}"


async def drain_gateway(run: FaultRun) -> None:
    """SIGTERM as in a rolling upgrade: a gateway lingers, finishes its streams and ends; a new process replaces it."""
    gateway = run.chance.choice(run.stage.gateways)
    await gateway.drain()
    gateway.start()
    await gateway.wait_ready()


async def kill_gateway(run: FaultRun) -> None:
    gateway = run.stage.gateways[-1]
    held = open_requests(run.stage)
    gateway.kill()
    began = time.monotonic()
    # A text ends well within FREE_S_MAX, so a hold that is open for longer belongs to the killed gateway.
    while held & open_requests(run.stage):
        assert time.monotonic() - began < FREE_S_MAX, "the holds of a killed gateway are not free"
        await asyncio.sleep(LOOK_S)
    gateway.start()
    await gateway.wait_ready()


async def partition_gateway(run: FaultRun) -> None:
    """One gateway reaches its clients and the database, and no engine, for longer than the engines' leases."""
    stage, seen = run.stage, run.clients.seen
    gateway = stage.gateways[-1]
    await stage.until(
        lambda views: sum(view.streams for view in views.values()) >= STREAMS_MIN,
        "the gateway has no streams",
        [gateway],
    )
    ended = {engine.name: engine.ended_leases() for engine in stage.engines}
    before = await stage.fleet(gateway)
    kept_alive = seen.keep_alives
    gateway.note_down(PARTITION_S)
    gateway.namespace.set_link("engines", up=False)
    await asyncio.sleep(PARTITION_S)
    for engine in stage.engines:
        assert engine.ended_leases() > ended[engine.name], f"{engine.name} keeps a silent gateway's stream"
    assert seen.keep_alives > kept_alive, "no stream of the gateway received a keep-alive"
    gateway.namespace.set_link("engines", up=True)
    await stage.all_ready()
    began = time.monotonic()
    while (after := await stage.fleet(gateway)).resumed <= before.resumed:
        assert time.monotonic() - began < RESUME_S_MAX, "no text was resumed"
        await asyncio.sleep(LOOK_S)
    assert after.lost == before.lost, f"{after.lost - before.lost} texts were lost"
    assert seen.longest_silence_s < SILENT_S_MAX, f"a stream was silent for {seen.longest_silence_s:.1f} s"


async def skew_clock(run: FaultRun) -> None:
    """The first gateway's clock is SKEW_S ahead for 3 s, then SKEW_S behind for 3 s."""
    run.clock.write_text(str(SKEW_S))
    await asyncio.sleep(3.0)
    run.clock.write_text(str(-SKEW_S))
    await asyncio.sleep(3.0)
    run.clock.write_text("0")


UPGRADE = "engine upgrade from version 4"
KILL_GATEWAY = "gateway kill -9"
FAULTS: dict[str, Fault] = {
    "engine kill -9": kill_engine,
    "engine partition": partition_engine,
    "engine behind 50 to 400 ms": delay_engine,
    "engine silent, then late": silence_engine,
    "engine drain": drain_engine,
    UPGRADE: upgrade_engine,
    "gateway drain and restart": drain_gateway,
    "gateway partition": partition_gateway,
    KILL_GATEWAY: kill_gateway,
    "clock skew of 10 min": skew_clock,
}
