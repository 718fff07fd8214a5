"""Engines in network namespaces of their own, and gateways that reach them over TCP with mutual TLS: what `fleet.py`
breaks. It needs Linux, root and the `ip` command."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.rows import REPO

sys.path.insert(0, str(REPO / "tests"))

from engine.protocol.client import EngineClient
from engine.protocol.frames import StatusReport
from engine.protocol.tls import CertificateFiles, client_context
from gateway.host.children import healthy
from gateway.host.fleet_certificates import MemberNames, make_certificates
from support.ports import free_port
from support.stack import MODEL, Stack

START_S_MAX = 120.0
STATUS_S_MAX = 60.0
PORT = 7801
NETWORK = "10.213"  # one /24 for each engine
LINGER_S = 1.5
NOTICE_S = 2.0  # in which connections that clients keep open to a killed gateway may still be used
LOOK_S = 0.1


def run_ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@dataclass
class EngineHost:
    """One engine, alone in a namespace. Its link to the gateways can be taken down."""

    number: int
    directory: Path
    config: dict[str, Any]
    flags: tuple[str, ...]
    prefix: str
    process: subprocess.Popen[bytes] | None = None
    code: Path = REPO  # whose engine is run

    @property
    def name(self) -> str:
        return f"e{self.number}"

    @property
    def namespace(self) -> str:
        return f"{self.prefix}{self.number}"

    @property
    def link(self) -> str:
        return f"{self.prefix}l{self.number}"

    @property
    def host(self) -> str:
        return f"{NETWORK}.{self.number + 1}.2"

    @property
    def socket(self) -> Path:
        return self.directory / f"{self.name}.sock"

    def make_network(self) -> None:
        inner = f"{self.prefix}i{self.number}"
        run_ip("netns", "add", self.namespace)
        run_ip("link", "add", self.link, "type", "veth", "peer", "name", inner)
        run_ip("link", "set", inner, "netns", self.namespace)
        run_ip("addr", "add", f"{NETWORK}.{self.number + 1}.1/24", "dev", self.link)
        run_ip("link", "set", self.link, "up")
        for command in (["addr", "add", f"{self.host}/24", "dev", inner], ["link", "set", inner, "up"]):
            run_ip("-n", self.namespace, *command)
        run_ip("-n", self.namespace, "link", "set", "lo", "up")

    def remove_network(self) -> None:
        for command in (["link", "del", self.link], ["netns", "del", self.namespace]):
            subprocess.run(["ip", *command], check=False, capture_output=True)

    def set_link(self, *, up: bool) -> None:
        run_ip("link", "set", self.link, "up" if up else "down")

    def start(self, *, listens: bool = True) -> None:
        """`listens`: over TCP too; an engine of an older version has its Unix socket alone."""
        file = self.directory / f"{self.name}.json"
        file.write_text(json.dumps(self.config))
        argv = [sys.executable, "-m", "engine", "--socket", str(self.socket), "--config", str(file), *self.flags]
        if listens:
            files = [str(self.directory / "certificates" / name) for name in (f"{self.name}.pem", f"{self.name}.key")]
            argv += ["--listen", f"{self.host}:{PORT}", "--certificate", files[0], "--key", files[1]]
            argv += ["--authority", str(self.directory / "certificates" / "authority.pem")]
        with (self.directory / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, *argv],
                cwd=self.code,
                env={**os.environ, "PYTHONPATH": str(self.code)},
                stdout=log,
                stderr=log,
            )

    def send_signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(30)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.send_signal(signal.SIGKILL)


@dataclass
class GatewayProcess:
    """One gateway on a port of its own."""

    number: int
    config_file: Path
    environ: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    kills: int = 0
    down_until: float = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        argv = [sys.executable, "-m", "gateway", "--config", str(self.config_file)]
        with (self.config_file.parent / f"gateway-{self.number}.log").open("ab") as log:
            environ = {**os.environ, **self.environ, "LANEWAY_PORT": str(self.port)}
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, env=environ)

    async def wait_ready(self) -> None:
        async with asyncio.timeout(START_S_MAX):
            while not await healthy("127.0.0.1", self.port):
                assert self.process is not None
                assert self.process.poll() is None, f"gateway {self.number} ended"
                await asyncio.sleep(LOOK_S)

    @property
    def serves(self) -> bool:
        """False from its kill on, until a load balancer would send it requests again."""
        return time.monotonic() >= self.down_until

    def kill(self) -> None:
        assert self.process is not None
        self.kills += 1
        self.down_until = time.monotonic() + NOTICE_S
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
    toml: str  # laneway.toml without [[engines]]

    def write_roster(self, engines: dict[str, str]) -> None:
        """The engines of laneway.toml by name, with their addresses; gateways follow the file."""
        listed = "".join(f'[[engines]]\nname = "{name}"\naddress = "{address}"\n' for name, address in engines.items())
        self.stack.config_file.write_text(f"{self.toml}\n{listed}")

    def addresses(self) -> dict[str, str]:
        return {engine.name: f"tls://{engine.host}:{PORT}" for engine in self.engines}

    async def status(self, engine: EngineHost) -> StatusReport:
        """Raises TimeoutError, EngineNotConnected."""
        certificates = self.stack.directory / "certificates"
        files = CertificateFiles(
            certificates / "watcher.pem", certificates / "watcher.key", certificates / "authority.pem"
        )
        client = EngineClient(f"tls://{engine.host}:{PORT}", tls=client_context(files))
        await client.start()
        try:
            await client.wait_ready(STATUS_S_MAX)
            return await client.status()
        finally:
            await client.close()


@contextmanager
def networks(engines: list[EngineHost]) -> Iterator[None]:
    try:
        for engine in engines:
            engine.remove_network()
            engine.make_network()
        yield
    finally:
        for engine in engines:
            engine.stop()
            engine.remove_network()


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
    names = [f"e{number}" for number in range(engines)]
    hosts = {name: f"{NETWORK}.{number + 1}.2" for number, name in enumerate(names)}
    make_certificates(
        certificates,
        [
            *[MemberNames(name, (hosts[name],), is_engine=True) for name in names],
            MemberNames("gateway", is_gateway=True),
            MemberNames("watcher", is_gateway=True),
        ],
        30,
    )
    stack = Stack(directory, database_url, model_dir)
    stack.gateway_toml = f"linger_s = {LINGER_S}\nshutdown_grace_s = 60.0\n"
    stack.toml = (
        f'[fleet]\ncertificate_file = "{certificates}/gateway.pem"\nkey_file = "{certificates}/gateway.key"\n'
        f'authority_file = "{certificates}/authority.pem"\n'
        "[lease]\nlength_s = 6.0\nrenew_s = 1.0\nexpire_s = 0.5\n[billing]\nreconcile_s = 2.0\n"
    )
    stack.prepare()
    model = {"name": MODEL, "path": str(model_dir)}
    config: dict[str, Any] = {"models": [model]} if fake else {"models": [model], "threads": 1}
    if fake:
        config["fake"] = {"step_ms": step_ms, "prefill_ms_per_1k_tokens": 5.0}
    prefix = f"lw{os.getpid() % 1000}"
    flags = ("--fake",) if fake else ("--raise-targets",)
    made = [EngineHost(number, directory, config, flags, prefix) for number in range(engines)]
    processes = [
        GatewayProcess(number, stack.config_file, environ or {} if not number else {}) for number in range(gateways)
    ]
    stage = FleetStage(stack, made, processes, stack.config_file.read_text())
    stage.write_roster(stage.addresses())
    with networks(made):
        try:
            for engine in made:
                engine.start()
            for gateway in processes:
                gateway.start()
            for gateway in processes:
                await gateway.wait_ready()
            for engine in made:
                await stage.status(engine)
            yield stage
        finally:
            for gateway in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    gateway.stop()
            stack.database.close()
