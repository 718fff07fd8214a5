"""Engines and gateways in separate network namespaces, over TCP with mutual TLS: the target of `fleet.py`. One engine
is behind a relay. It needs Linux, root, the `ip` command, redis-server, and a PostgreSQL with a Unix socket here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec

from benchmarks.rows import REPO

sys.path.insert(0, str(REPO / "tests"))

from benchmarks.faults.fleet_network import NETWORKS, Namespace, RelayProcess, bridges, own_address
from engine.protocol.client import EngineClient
from engine.protocol.frames import StatusReport
from engine.protocol.tls import CertificateFiles, client_context
from gateway.access import keys
from gateway.host.children import healthy
from gateway.host.fleet_certificates import MemberNames, make_certificates
from gateway.views.engines import FleetEngineView, FleetView
from support.ports import free_port
from support.redis_server import RedisServer
from support.stack import MODEL, Stack

START_S_MAX = 120.0
STATUS_S_MAX = 60.0
PORT, RELAY_PORT = 7801, 7802
LINGER_S = 1.5
LEASE_S = 9.0  # of engines: longer than a gateway waits for a silent engine, so that late frames find an open stream
KEEP_ALIVE_S = 1.0
NOTICE_S = 2.0  # in which a load balancer may send requests to a gateway that is killed or without an engine
LOOK_S = 0.1


@dataclass
class EngineHost:
    """One engine, alone in a namespace."""

    number: int
    directory: Path
    config: dict[str, Any]
    flags: tuple[str, ...]
    namespace: Namespace
    process: subprocess.Popen[bytes] | None = None
    code: Path = REPO  # whose engine is run

    @property
    def name(self) -> str:
        return f"e{self.number}"

    @property
    def host(self) -> str:
        return self.namespace.addresses["engines"]

    @property
    def socket(self) -> Path:
        return self.directory / f"{self.name}.sock"

    @property
    def log_file(self) -> Path:
        return self.directory / f"{self.name}.log"

    def start(self, *, old: bool = False) -> None:
        """`old`: of protocol version 4, which has its Unix socket alone."""
        file = self.directory / f"{self.name}.json"
        file.write_text(json.dumps(self.config))
        argv = [sys.executable, "-m", "engine", "--socket", str(self.socket), "--config", str(file), *self.flags]
        if not old:
            files = [str(self.directory / "certificates" / name) for name in (f"{self.name}.pem", f"{self.name}.key")]
            argv += ["--listen", f"{self.host}:{PORT}", "--certificate", files[0], "--key", files[1]]
            argv += ["--authority", str(self.directory / "certificates" / "authority.pem")]
            argv += ["--lease-s", str(LEASE_S)]
        with self.log_file.open("ab") as log:
            environ = {**os.environ, "PYTHONPATH": str(self.code)}
            self.process = self.namespace.start(argv, cwd=self.code, env=environ, stdout=log, stderr=log)

    async def end(self, number: signal.Signals) -> None:
        """Send the signal, and wait until the process has ended."""
        assert self.process is not None
        self.process.send_signal(number)
        await asyncio.to_thread(self.process.wait, 30)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)

    def ended_leases(self) -> int:
        """How many streams the engine closed because their gateway was silent."""
        return sum('"stream.cut"' in line and "its lease" in line for line in self.log_file.read_text().splitlines())


@dataclass
class GatewayProcess:
    """One gateway in a namespace, which reaches engines and clients over different links."""

    number: int
    config_file: Path
    namespace: Namespace
    environ: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    kills: int = 0
    unusable_until: float = 0.0

    @property
    def host(self) -> str:
        return self.namespace.addresses["clients"]

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def start(self) -> None:
        argv = [sys.executable, "-m", "gateway", "--config", str(self.config_file)]
        with (self.config_file.parent / f"gateway-{self.number}.log").open("ab") as log:
            environ = {**os.environ, **self.environ, "LANEWAY_HOST": self.host, "LANEWAY_PORT": str(self.port)}
            self.process = self.namespace.start(argv, stdout=log, stderr=log, env=environ)

    async def ready(self) -> bool:
        return await healthy(self.host, self.port)

    async def wait_ready(self) -> None:
        async with asyncio.timeout(START_S_MAX):
            while not await self.ready():
                assert self.process is not None
                assert self.process.poll() is None, f"gateway {self.number} ended"
                await asyncio.sleep(LOOK_S)

    @property
    def serves(self) -> bool:
        """False from `note_down` on, until a load balancer would send it no request, or send it requests again."""
        return time.monotonic() >= self.unusable_until

    def note_down(self, seconds: float = 0.0) -> None:
        """Note that a gateway is killed, or will have no engine for `seconds`."""
        self.unusable_until = time.monotonic() + seconds + NOTICE_S

    def kill(self) -> None:
        assert self.process is not None
        self.kills += 1
        self.note_down()
        self.process.kill()
        self.process.wait(30)

    async def drain(self) -> None:
        """SIGTERM, and wait until it has ended."""
        assert self.process is not None
        self.process.terminate()
        await asyncio.to_thread(self.process.wait, 120)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)


@dataclass
class FleetStage:
    """`stack` has the database, the tenants and laneway.toml; it runs no process itself."""

    stack: Stack
    engines: list[EngineHost]
    gateways: list[GatewayProcess]
    relay: RelayProcess  # in front of the first engine
    toml: str  # laneway.toml without [[engines]]
    admin_key: str

    @property
    def relayed(self) -> EngineHost:
        return self.engines[0]

    def write_roster(self, engines: dict[str, str]) -> None:
        """The engines of laneway.toml by name, with their addresses; gateways follow the file."""
        listed = "".join(f'[[engines]]\nname = "{name}"\naddress = "{address}"\n' for name, address in engines.items())
        self.stack.config_file.write_text(f"{self.toml}\n{listed}")

    def addresses(self) -> dict[str, str]:
        listed = {engine.name: f"tls://{engine.host}:{PORT}" for engine in self.engines}
        return {**listed, self.relayed.name: f"tls://{own_address('engines')}:{RELAY_PORT}"}

    async def status(self, engine: EngineHost, *, local: bool = False) -> StatusReport:
        """`local`: over its Unix socket. Raises TimeoutError, EngineNotConnected."""
        certificates = self.stack.directory / "certificates"
        files = CertificateFiles(
            certificates / "watcher.pem", certificates / "watcher.key", certificates / "authority.pem"
        )
        address = f"unix:{engine.socket}" if local else f"tls://{engine.host}:{PORT}"
        client = EngineClient(address, tls=client_context(files))
        await client.start()
        try:
            await client.wait_ready(STATUS_S_MAX)
            return await client.status()
        finally:
            await client.close()

    async def views(self, gateway: GatewayProcess) -> dict[str, FleetEngineView]:
        """The engines by name, as GET /v1/admin/engines of one gateway has them."""
        view = await self.fleet(gateway)
        return {engine.name: engine for engine in view.data}

    async def fleet(self, gateway: GatewayProcess) -> FleetView:
        headers = {"Authorization": f"Bearer {self.admin_key}"}
        async with httpx.AsyncClient(timeout=STATUS_S_MAX) as client:
            answer = await client.get(f"{gateway.url}/v1/admin/engines", headers=headers)
        assert answer.status_code == 200, answer.text
        return msgspec.json.decode(answer.content, type=FleetView)

    async def until(
        self,
        check: Callable[[dict[str, FleetEngineView]], bool],
        why: str,
        gateways: list[GatewayProcess] | None = None,
    ) -> None:
        """Wait until `check` holds for the engines of every gateway. Raises AssertionError with `why`."""
        deadline = time.monotonic() + STATUS_S_MAX
        for gateway in gateways or self.gateways:
            while not check(await self.views(gateway)):
                assert time.monotonic() < deadline, why
                await asyncio.sleep(LOOK_S)

    async def all_ready(self, gateways: list[GatewayProcess] | None = None) -> None:
        """Whether every gateway can use every engine."""
        names = {engine.name for engine in self.engines}
        await self.until(
            lambda views: names == views.keys() and all(view.state == "ready" for view in views.values()),
            "an engine is not ready again",
            gateways,
        )


@asynccontextmanager
async def fleet_stage(
    directory: Path,
    database_url: str,
    model_dir: Path,
    *,
    fake: bool,
    engines: int = 4,
    gateways: int = 2,
    step_ms: float = 10.0,
    environ: dict[str, str] | None = None,
) -> AsyncIterator[FleetStage]:
    """All processes run and are ready. `environ`: of the first gateway."""
    certificates = directory / "certificates"
    prefix = f"lw{os.getpid() % 1000}"
    at, to = NETWORKS["engines"], NETWORKS["clients"]
    engine_spaces = [Namespace(prefix, f"e{n}", {"engines": f"{at}.1.{n + 1}"}) for n in range(engines)]
    gateway_spaces = [
        Namespace(prefix, f"g{n}", {"engines": f"{at}.2.{n + 1}", "clients": f"{to}.2.{n + 1}"})
        for n in range(gateways)
    ]
    relay_host = own_address("engines")
    make_certificates(
        certificates,
        [
            *[
                MemberNames(f"e{number}", (space.addresses["engines"], relay_host), is_engine=True)
                for number, space in enumerate(engine_spaces)
            ],
            MemberNames("gateway", is_gateway=True),
            MemberNames("watcher", is_gateway=True),
        ],
        30,
    )
    with contextlib.ExitStack() as leave:
        leave.enter_context(bridges(prefix, [*engine_spaces, *gateway_spaces]))
        redis = RedisServer(directory, own_address("clients"))
        leave.callback(redis.kill)
        stack = Stack(directory, database_url, model_dir)
        stack.gateway_toml = f"linger_s = {LINGER_S}\nshutdown_grace_s = 60.0\nkeep_alive_s = {KEEP_ALIVE_S}\n"
        stack.toml = (
            f'[fleet]\ncertificate_file = "{certificates}/gateway.pem"\nkey_file = "{certificates}/gateway.key"\n'
            f'authority_file = "{certificates}/authority.pem"\n[redis]\nurl = "{redis.url}"\n'
            "[lease]\nlength_s = 6.0\nrenew_s = 1.0\nexpire_s = 0.5\n[billing]\nreconcile_s = 2.0\n"
        )
        stack.prepare()
        leave.callback(stack.database.close)
        model = {"name": MODEL, "path": str(model_dir)}
        config: dict[str, Any] = {"models": [model]} if fake else {"models": [model], "threads": 1}
        if fake:
            config["fake"] = {"step_ms": step_ms, "prefill_ms_per_1k_tokens": 5.0}
        flags = ("--fake",) if fake else ("--raise-targets",)
        made = [EngineHost(n, directory, config, flags, space) for n, space in enumerate(engine_spaces)]
        processes = [
            GatewayProcess(n, stack.config_file, space, environ or {} if not n else {})
            for n, space in enumerate(gateway_spaces)
        ]
        relay = RelayProcess(f"{relay_host}:{RELAY_PORT}", f"{made[0].host}:{PORT}")
        leave.callback(relay.stop)
        admin = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="fleet", kind="admin", role="read_only"))
        stage = FleetStage(stack, made, processes, relay, stack.config_file.read_text(), admin.secret)
        stage.write_roster(stage.addresses())
        for engine in made:
            leave.callback(engine.stop)
            engine.start()
        for gateway in processes:
            leave.callback(stop_gateway, gateway)
            gateway.start()
        for gateway in processes:
            await gateway.wait_ready()
        await stage.all_ready()
        yield stage


def stop_gateway(gateway: GatewayProcess) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        gateway.stop()
