"""A whole Laneway for tests: a fake engine process, a gateway process on a free port, a real database with tenants."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import sqlalchemy as sa

from adapters.files.facts import Facts
from billing import revision, tables
from billing.accounts import budgets, prices, tenants
from billing.database import Database
from gateway import errors
from gateway.access import keys
from gateway.access.keys import Key, MadeKey
from gateway.catalog import adapters as adapter_rows
from gateway.config.file import Config, parse_gateway_config
from migrations.upgrade import upgrade
from support.forked import StartedProcess, start_process
from support.ports import free_port
from support.waiting import PATIENCE_S, eventually

MODEL = "smollm2-135m-instruct"
TIERS = {"acme": "premium", "globex": "standard", "initech": "batch"}
START_S_MAX = 60.0
QUICK_STOP = {"linger_s": 0.0, "shutdown_grace_s": 2.0}  # settings of [gateway] that a test may override
# The answer of /health/ready while the only engine serves.
SERVING = {"ready": True, "problems": {}, "engines": {"ready": 1, "listed": 1}}
T = TypeVar("T")


@dataclass
class Stack:
    """Runs from `start()` to `stop()`. `fake` overrides settings of the fake engine, `engine_json` the other settings
    of engine.json; `toml` is appended to laneway.toml."""

    directory: Path
    database_url: str
    model_dir: Path
    fake: dict[str, Any] = field(default_factory=dict)
    engine_json: dict[str, Any] = field(default_factory=dict)
    gateway_toml: str = ""
    toml: str = ""
    data_dir: str = "data"
    workers: int = 1
    environ: dict[str, str] = field(default_factory=dict)  # of the gateway, beside this process's own
    code: Path | None = None  # a folder with another version's packages, which then run
    engine: StartedProcess | None = None
    gateway: StartedProcess | None = None
    more_gateways: list[StartedProcess] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)  # of every gateway
    tenants: dict[str, str] = field(default_factory=dict)  # slug → id
    keys: dict[str, str] = field(default_factory=dict)  # slug → secret
    key_ids: dict[str, str] = field(default_factory=dict)
    adapters: dict[str, str] = field(default_factory=dict)  # name → id
    metrics_key: str | None = None  # made at the first call of `metrics`

    # ---- start and stop

    def start(self) -> None:
        self.prepare()
        self.start_engine()
        self.start_gateway()
        self.wait_ready()
        self.urls.append(self.url)

    def prepare(self) -> None:
        """Write the files, the tables and the tenants. Starts no process."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        # Another version may not know these settings.
        quick = {} if self.code else QUICK_STOP
        stop = "".join(f"{name} = {value}\n" for name, value in quick.items() if name not in self.gateway_toml)
        # A text ends with its engine unless a test allows more attempts: most tests have one engine.
        fleet = "" if self.code or "[fleet]" in self.toml else "\n[fleet]\nresume_wait_s = 0\n"
        self.config_file.write_text(
            f'[gateway]\nport = {self.port}\ndata_dir = "{self.data_dir}"\ndatabase_url = "{self.database_url}"\n'
            f'{stop}{self.gateway_toml}\n[[models]]\nname = "{MODEL}"\npath = "{self.model_dir}"\n{self.toml}{fleet}'
        )
        self.config.data_dir.mkdir(exist_ok=True)
        upgrade(self.database_url)
        self.database = Database(self.database_url)
        self.seed()

    def point_gateway_at(self, url: str) -> None:
        """Let gateways that start from now on connect to the same database by `url`."""
        text = self.config_file.read_text()
        self.config_file.write_text(text.replace(f'"{self.database_url}"', f'"{url}"'))

    @property
    def config_file(self) -> Path:
        return self.directory / "laneway.toml"

    @property
    def config(self) -> Config:
        return parse_gateway_config(self.config_file.read_bytes(), self.directory, "test", {})

    @property
    def log_file(self) -> Path:
        return self.directory / "gateway.log"

    def seed(self) -> None:
        def run(connection: sa.Connection) -> None:
            for slug, tier in TIERS.items():
                tenant = tenants.create_tenant(connection, slug=slug, name=slug, tier=tier)
                made = keys.create_key(connection, tenant_id=tenant.id, name="test")
                self.tenants[slug], self.keys[slug], self.key_ids[slug] = tenant.id, made.secret, made.key.id
            prices.publish(
                connection,
                subject=MODEL,
                input=100_000,
                cached_input=50_000,
                output=400_000,
                multipliers={"premium": 3, "standard": 1, "batch": "0.5"},
            )
            for name, owner in (("acme-style", "acme"), ("globex-style", "globex"), ("shared-style", None)):
                row = register(
                    connection,
                    name=name,
                    tenant_id=self.tenants[owner] if owner else None,
                    digest=name.encode().hex().ljust(64, "0"),  # the fake engine reads no weights
                )
                self.adapters[name] = row.id

        self.database.write_sync(run)

    def start_engine(self) -> None:
        file = self.directory / "engine.json"
        settings = {"step_ms": 2.0, "prefill_ms_per_1k_tokens": 1.0, **self.fake}
        models = [{"name": MODEL, "path": str(self.model_dir)}]
        file.write_text(json.dumps({"models": models, "fake": settings, **self.engine_json}))
        arguments = ["--socket", str(self.config.socket_path), "--config", str(file), "--fake"]
        log = self.directory / "engine.log"
        if self.code is None:
            self.engine = start_process("engine", arguments, environ=self.process_environ(), log=log)
        else:
            self.engine = self._start_other_version("engine", arguments, log)

    def start_gateway(self) -> None:
        module, arguments = "gateway", ["--config", str(self.config_file)]
        # Without a terminal, as a service: a supervisor with one takes SIGHUP for the terminal's end.
        own_session = self.workers > 1
        if own_session:
            module, arguments = "gateway.cli", [*arguments, "gateway", "--workers", str(self.workers)]
        if self.code is None:
            environ = {**self.process_environ(), **self.environ}
            self.gateway = start_process(module, arguments, environ=environ, log=self.log_file, own_session=own_session)
        else:
            self.gateway = self._start_other_version(module, arguments, self.log_file, own_session)

    def _start_other_version(
        self, module: str, arguments: list[str], log: Path, own_session: bool = False
    ) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", module, *arguments]
        environ = {**self.process_environ(), **self.environ}
        with log.open("ab") as output:
            return subprocess.Popen(
                argv, stdout=output, stderr=output, cwd=self.code, env=environ, start_new_session=own_session
            )

    def process_environ(self) -> dict[str, str]:
        return {**os.environ, **({"PYTHONPATH": str(self.code)} if self.code else {})}

    def start_more_gateways(self, count: int) -> None:
        """Further gateways beside the first, on their own ports, with the same configuration, database and engine."""
        for _ in range(count):
            port = free_port()
            environ = {**os.environ, "LANEWAY_PORT": str(port)}
            log = self.directory / f"gateway-{port}.log"
            arguments = ["--config", str(self.config_file)]
            self.more_gateways.append(start_process("gateway", arguments, environ=environ, log=log))
            self.urls.append(f"http://127.0.0.1:{port}")
        for url in self.urls[-count:]:
            self.wait_ready(url=url)

    def wait_ready(self, timeout_s: float = START_S_MAX, url: str = "") -> None:
        deadline = time.monotonic() + timeout_s
        why = "nothing listens"
        while time.monotonic() < deadline:
            for gateway in (self.gateway, *self.more_gateways):
                assert gateway is not None
                assert gateway.poll() is None, self.log_file.read_text()
            try:
                answer = httpx.get(f"{url or self.url}/health/ready", timeout=10)
            except httpx.TransportError:
                pass
            else:
                why = answer.text
                if answer.status_code == 200:
                    return
            time.sleep(0.02)
        raise AssertionError(f"not ready: {why}\n{self.log_file.read_text()}")

    def stop(self) -> None:
        processes = (self.gateway, *self.more_gateways, self.engine)
        for process in processes:
            if process is not None and process.poll() is None:
                process.terminate()
        for process in processes:
            if process is not None:
                process.wait(PATIENCE_S)
        self.database.close()

    def kill_engine(self) -> None:
        assert self.engine is not None
        os.kill(self.engine.pid, signal.SIGKILL)
        self.engine.wait(PATIENCE_S)

    # ---- speaking to it

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def headers(self, tenant: str = "acme") -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[tenant]}"}

    def chat(self, tenant: str = "acme", **fields: Any) -> httpx.Response:
        return httpx.post(
            f"{self.url}/v1/chat/completions", headers=self.headers(tenant), json=body(**fields), timeout=60
        )

    def metrics(self, url: str = "") -> str:
        """GET /metrics of a gateway, with an admin key of the role read_only."""
        if self.metrics_key is None:
            made = self.write(
                lambda c: keys.create_key(c, tenant_id=None, name="metrics", kind="admin", role="read_only")
            )
            self.metrics_key = made.secret
        headers = {"Authorization": f"Bearer {self.metrics_key}"}
        answer = httpx.get(f"{url or self.url}/metrics", headers=headers, timeout=PATIENCE_S)
        assert answer.status_code == 200, answer.text
        return answer.text

    # ---- looking into it

    def read(self, function: Callable[[sa.Connection], T]) -> T:
        return self.database.read_sync(function)

    def write(self, function: Callable[[sa.Connection], T]) -> T:
        return self.database.write_sync(function)

    def open_holds(self) -> int:
        query = sa.select(sa.func.count()).select_from(tables.holds).where(tables.holds.c.state == "held")
        return self.read(lambda connection: int(connection.execute(query).scalar_one()))

    def holds(self) -> int:
        query = sa.select(sa.func.count()).select_from(tables.holds)
        return self.read(lambda connection: int(connection.execute(query).scalar_one()))

    def hold(self, request_id: str) -> sa.Row[Any]:
        query = sa.select(tables.holds).where(tables.holds.c.request_id == request_id)
        return self.read(lambda connection: connection.execute(query).one())

    def usage(self, request_id: str) -> sa.Row[Any] | None:
        query = sa.select(tables.usage).where(tables.usage.c.request_id == request_id)
        return self.read(lambda connection: connection.execute(query).one_or_none())

    def new_key(self, tenant: str, **fields: Any) -> MadeKey:
        """A further key; it works within 250 ms, as any administrative write does."""
        return self.write(
            lambda connection: keys.create_key(connection, tenant_id=self.tenants[tenant], name="more", **fields)
        )

    def known(self) -> None:
        """Wait until every gateway has applied all earlier writes: each must refuse a key that was revoked last."""
        probe = self.new_key("acme")
        headers = {"Authorization": f"Bearer {probe.secret}"}

        def answers(url: str, status: int) -> bool:
            return httpx.get(f"{url}/v1/models", headers=headers, timeout=30).status_code == status

        for url in self.urls:
            eventually(lambda url=url: answers(url, 200))
        self.write(lambda connection: keys.revoke(connection, probe.key.id))
        for url in self.urls:
            eventually(lambda url=url: answers(url, 401))

    def budget(self, key: Key, unit: budgets.Unit, limit: int) -> budgets.Budget:
        assert key.tenant_id is not None
        tenant_id = key.tenant_id
        return self.write(
            lambda connection: budgets.create_budget(
                connection,
                tenant_id=tenant_id,
                scope="key",
                scope_id=key.id,
                unit=unit,
                period="total",
                limit_amount=limit,
            )
        )

    def log_lines(self, event: str) -> list[dict[str, Any]]:
        whole, _, _ = self.log_file.read_text().rpartition("\n")  # the last line may be half written
        lines = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def request_line(self, request_id: str) -> dict[str, Any]:
        """The only log line of a request. It is written after the request has ended, a moment after the answer."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            found[:] = [line for line in self.log_lines("request") if line["request_id"] == request_id]
            return bool(found)

        eventually(look)
        [line] = found
        return line


def register(
    connection: sa.Connection, *, name: str, tenant_id: str | None, digest: str, model: str = MODEL
) -> adapter_rows.Adapter:
    """A name for an adapter whose contents do not matter, served at once."""
    revision.bump(connection)
    wanted = adapter_rows.Registration(name=name, tenant_id=tenant_id, base_model=model, promote=True)
    return adapter_rows.add_version(connection, wanted, Facts(digest), taken={MODEL: "a base model"})[0]


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "Say something."}], "max_tokens": 8, **fields}


def events(text: str) -> list[Any]:
    """The events of a stream: decoded JSON, "[DONE]", and ":" for a comment."""
    found: list[Any] = []
    for block in text.split("\n\n"):
        if block.startswith(":"):
            found.append(":")
        elif block == "data: [DONE]":
            found.append("[DONE]")
        elif block:
            found.append(json.loads(block.removeprefix("data: ")))
    return found


def retries_after(answer: httpx.Response, seconds: int) -> bool:
    """Whether Retry-After is `seconds` plus at most the jitter of a refusal."""
    told = int(answer.headers["retry-after"])
    return seconds <= told <= seconds + max(errors.JITTER_S_MIN, math.ceil(seconds * errors.JITTER_PART))
