"""The set-up for measuring attacks: the gateway alone on one core; engine, victim and attacker on the other.

The gateway runs under watched_gateway.py. The victim is this process: its requests are due at a steady pace whether or
not earlier ones have ended, and latencies count from the due time. The attacker is a separate, niced process.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import math
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import sqlalchemy as sa

from benchmarks.faults import attackers
from benchmarks.faults.attackers import Report, Weapon
from benchmarks.faults.watched_gateway import STOPWATCH_FILE, Stopwatch
from benchmarks.pinned_stack import (
    GATEWAY_CORE,
    OTHER_CORE,
    REDIS_URL,
    TICKS_PER_S,
    fresh_postgres,
    pin,
    restart_engine,
    set_budgets,
)
from benchmarks.rows import REPO

sys.path.insert(0, str(REPO / "tests"))

from billing.accounts import budgets, tenants
from engine.models.packaged.own_model import OWN_MODEL, install_own_model
from engine.protocol.tiers import SHIPPED_TIERS
from gateway.access import keys
from gateway.limits import overrides
from support.stack import MODEL, Stack, body

STEP_MS = 5.0
VICTIM = "acme"
VICTIM_S_MAX = 60.0
HELD_PLACES = 4
STARVED, DEFAULT, AT_LIMIT, UNLIMITED = "starved", "default", "at-limit", "unlimited"
# Attackers, and the victims of F8: tier, limits if not the default ones, and whether the budget is 0.
ATTACKING: dict[str, tuple[str, overrides.LimitsChange | None, bool]] = {
    STARVED: ("standard", overrides.LimitsChange(requests_per_minute=1, concurrency=1), True),
    DEFAULT: ("standard", None, False),
    UNLIMITED: (
        "standard",
        overrides.LimitsChange(requests_per_minute=1_000_000, tokens_per_minute=1_000_000_000, concurrency=10_000),
        False,
    ),
    AT_LIMIT: ("standard", overrides.LimitsChange(concurrency=HELD_PLACES), False),
    **{f"{who}-{tier.name}": (tier.name, None, False) for tier in SHIPPED_TIERS for who in ("crowd", "single")},
}
# A gateway that uses less than IDLE_SHARE of its core has finished its work for the attack.
IDLE_SHARE, IDLE_LOOK_S, IDLE_S_MAX = 0.25, 0.2, 40.0
REFUSALS_MIN = 50
QUIET_START_S_MAX = 60.0
MIB = 1024 * 1024

Row = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """The stack that an attack needs. `disk_mib`: size of a small file system for the gateway's data; needs root."""

    real_engine: bool = False
    disk_mib: int | None = None


class WatchedStack(Stack):
    """A Stack with a stopwatch on the gateway's loop, and with an engine that computes if `real_engine`."""

    real_engine = False

    def start_gateway(self) -> None:
        argv = [sys.executable, "-m", "benchmarks.faults.watched_gateway", "--config", str(self.config_file)]
        environ = {**os.environ, **self.environ, STOPWATCH_FILE: str(self.directory / "stopwatch")}
        with self.log_file.open("ab") as log:
            self.gateway = subprocess.Popen(argv, stdout=log, stderr=log, env=environ)

    def start_engine(self) -> None:
        if not self.real_engine:
            super().start_engine()
            return
        file = self.directory / "engine.json"
        models = [{"name": MODEL, "path": str(self.model_dir)}]
        file.write_text(json.dumps({"models": models, "threads": 1, **self.engine_json}))
        argv = [sys.executable, "-m", "engine", "--socket", str(self.config.socket_path), "--config", str(file)]
        with (self.directory / "engine.log").open("ab") as log:
            self.engine = subprocess.Popen(argv, stdout=log, stderr=log)


# ---- processes


def tree(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    for parent in found:
        found += children.get(parent, [])
    return found


def tree_cpu_s(pid: int) -> float:
    """CPU seconds of a process and its descendants so far, including children that were waited for."""
    ticks = 0
    for one in tree(pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(value) for value in fields[11:15])
    return ticks / TICKS_PER_S


def reset_rss_peak(pid: int) -> None:
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def rss_peak_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return math.nan


def tree_rss_mib(pid: int) -> float:
    """Resident memory of a process and its descendants now; pages that they share count in each."""
    found = 0.0
    for one in tree(pid):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{one}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    found += int(line.split()[1]) / 1024
    return found


# ---- the victim


@dataclass
class Seen:
    """The victim's results: seconds of each served request, and the status or error of each other one."""

    seconds: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)

    def percentile_ms(self, percent: float) -> float:
        return float(np.percentile(self.seconds, percent)) * 1000 if self.seconds else math.nan

    @property
    def requests(self) -> int:
        return len(self.seconds) + self.refused.total()


Ask = Callable[[aiohttp.ClientSession, float, Seen], Awaitable[None]]


@dataclass(frozen=True)
class Victim:
    """Sends `per_s` requests a second, whether or not earlier ones have ended."""

    ask: Ask
    per_s: float = 25.0
    new_connections: bool = False

    async def run(self, seconds: float, over: asyncio.Event | None = None) -> Seen:
        """Run for `seconds`, and then until `over` is set."""
        seen = Seen()
        connector = aiohttp.TCPConnector(limit=0, force_close=self.new_connections)
        timeout = aiohttp.ClientTimeout(total=VICTIM_S_MAX)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session, asyncio.TaskGroup() as group:
            began = time.monotonic()
            for number in itertools.count():
                due = began + number / self.per_s
                if due - began >= seconds and (over is None or over.is_set()):
                    break
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                group.create_task(self._ask(session, due, seen))
        return seen

    async def _ask(self, session: aiohttp.ClientSession, due: float, seen: Seen) -> None:
        try:
            await self.ask(session, due, seen)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            seen.refused[type(error).__name__] += 1


async def note(answer: aiohttp.ClientResponse, due: float, seen: Seen) -> None:
    """Note a whole answer."""
    text = await answer.read()
    if answer.status in (200, 201):
        seen.seconds.append(time.monotonic() - due)
        return
    try:
        error = json.loads(text)["error"]
        seen.refused[f"{answer.status} {error.get('code') or error.get('type')}"] += 1
    except (ValueError, KeyError, TypeError):
        seen.refused[str(answer.status)] += 1


# ---- the stage


@dataclass
class Stage:
    """A started stack and its measurements."""

    stack: WatchedStack
    stopwatch: Stopwatch
    attackers: ProcessPoolExecutor
    quiet_port: int
    _keys: dict[str, str] = field(default_factory=dict)
    _admins: dict[str | None, str] = field(default_factory=dict)

    @property
    def gateway_pid(self) -> int:
        assert self.stack.gateway is not None
        return self.stack.gateway.pid

    # ---- attackers

    def prepare(self) -> None:
        """Make all tenants and keys, once, and wait until the gateway knows them."""
        self.stack.write(self._make_tenants)
        for slug in (None, *self.stack.tenants):
            tenant_id, role = (None, "owner") if slug is None else (self.stack.tenants[slug], "tenant_admin")
            self._admins[slug] = self.stack.write(
                functools.partial(keys.create_key, tenant_id=tenant_id, name="admin", kind="admin", role=role)
            ).secret
        self.stack.known()

    def _make_tenants(self, connection: sa.Connection) -> None:
        for slug, (tier, limits, has_no_money) in ATTACKING.items():
            tenant = tenants.create_tenant(connection, slug=slug, name=slug, tier=tier)
            if limits is not None:
                overrides.change_own_limits(
                    connection, scope="tenant", subject_id=tenant.id, tenant_id=tenant.id, change=limits
                )
            if has_no_money:
                of_all = {"scope": "tenant", "scope_id": tenant.id, "unit": "money", "period": "month"}
                budgets.create_budget(connection, tenant_id=tenant.id, limit_amount=0, **of_all)
            self._keys[slug] = keys.create_key(connection, tenant_id=tenant.id, name="attack").secret

    def key(self, slug: str) -> str:
        """The key of a tenant in ATTACKING."""
        return self._keys[slug]

    def admin(self, slug: str | None) -> str:
        """The secret of a tenant_admin's key of that tenant; without a tenant, of an owner's key."""
        return self._admins[slug]

    def request(self, secret: str, path: str, content: bytes, kind: str = "application/json") -> bytes:
        """The bytes of a POST."""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: laneway\r\nAuthorization: Bearer {secret}\r\n"
            f"Content-Type: {kind}\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        return head.encode() + content

    # ---- victims

    def chat_victim(
        self, per_s: float = 25.0, *, tenant: str = VICTIM, new_connections: bool = False, **fields: Any
    ) -> Victim:
        """A victim with short answers that do not stream."""
        asked, headers = body(**{"max_tokens": 4, **fields}), self.stack.headers(tenant)

        async def ask(session: aiohttp.ClientSession, due: float, seen: Seen) -> None:
            async with session.post(f"{self.stack.url}/v1/chat/completions", json=asked, headers=headers) as answer:
                await note(answer, due, seen)

        return Victim(ask, per_s, new_connections)

    # ---- measuring

    async def settle(self) -> None:
        """Wait until the gateway is idle."""
        until = time.monotonic() + IDLE_S_MAX
        while time.monotonic() < until:
            before = tree_cpu_s(self.gateway_pid)
            await asyncio.sleep(IDLE_LOOK_S)
            if tree_cpu_s(self.gateway_pid) - before < IDLE_SHARE * IDLE_LOOK_S:
                return

    def set_step(self, step_ms: float) -> None:
        """Set the fake engine's step time; restarts the engine."""
        if not self.stack.real_engine and self.stack.fake["step_ms"] != step_ms:
            restart_engine(self.stack, step_ms=step_ms)

    async def play(self, weapons: Sequence[Weapon], port: int, seconds: float) -> Report:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.attackers, attackers.play, weapons, port, seconds)

    async def assault(
        self, weapons: Sequence[Weapon], victim: Victim, seconds: float, quiet_s: float | None = None
    ) -> Row:
        """Attack for `seconds`, then run the quiet form. Returns the figures of one row."""
        attack = await self.half(weapons, victim, seconds, self.stack.port)
        calm = [attackers.quiet(weapon, attack.report) for weapon in weapons]
        quiet = await self.half(calm, victim, quiet_s or seconds, self.quiet_port)
        return figures(attack, quiet)

    async def half(self, weapons: Sequence[Weapon], victim: Victim, seconds: float, port: int) -> Half:
        await self.settle()
        pid, over = self.gateway_pid, asyncio.Event()
        self.stopwatch.reset()
        reset_rss_peak(pid)
        cpu = tree_cpu_s(pid)
        suffering = asyncio.create_task(victim.run(seconds, over))
        report = await self.play(weapons, port, seconds)
        await self.settle()  # the end of its connections may be an attack's largest cost
        over.set()
        seen = await suffering
        await self.settle()
        return Half(report, seen, tree_cpu_s(pid) - cpu, self.stopwatch.worst_s(), rss_peak_mib(pid))


@dataclass(frozen=True)
class Half:
    """The measurements of an attack, or of its quiet form."""

    report: Report
    seen: Seen
    cpu_s: float
    stall_s: float
    rss_peak_mib: float

    def with_more(self, other: Half) -> Half:
        """The sum of both."""
        report = Report(
            self.report.attempts + other.report.attempts,
            self.report.seconds + other.report.seconds,
            self.report.statuses + other.report.statuses,
            self.report.open_at_end + other.report.open_at_end,
        )
        seen = Seen(self.seen.seconds + other.seen.seconds, self.seen.refused + other.seen.refused)
        stall_s, peak = max(self.stall_s, other.stall_s), max(self.rss_peak_mib, other.rss_peak_mib)
        return Half(report, seen, self.cpu_s + other.cpu_s, stall_s, peak)


def figures(attack: Half, quiet: Half) -> Row:
    """The figures; without CPU per refusal where most of the attacker's requests were served, or fewer than
    REFUSALS_MIN were refused: CPU is known in ticks of 10 ms."""
    report, refused = attack.report, attack.report.refused()
    most_refused = refused > report.statuses.total() - refused
    counts = most_refused and refused >= REFUSALS_MIN
    own_s = quiet.cpu_s * attack.seen.requests / max(1, quiet.seen.requests)  # the victim's
    return {
        "loop_stall_ms": attack.stall_s * 1000,
        "cpu_ms_per_refusal": max(0.0, attack.cpu_s - own_s) * 1000 / refused if counts else math.nan,
        "victim_p99_ms": attack.seen.percentile_ms(99),
        "quiet_p99_ms": quiet.seen.percentile_ms(99),
        "refused": attack.seen.refused.total(),
        "victim_p50_ms": attack.seen.percentile_ms(50),
        "quiet_stall_ms": quiet.stall_s * 1000,
        "rss_peak_mib": attack.rss_peak_mib,
        "victim_requests": attack.seen.requests,
        "refusals": counted(attack.seen.refused),
        "attempts": report.attempts,
        "attack_s": report.seconds,
        "statuses": counted(report.statuses + Counter({"open": report.open_at_end})),
    }


def counted(counts: Counter[str]) -> str:
    return " ".join(f"{name}:{count}" for name, count in counts.most_common() if count)


# ---- starting the stack


@contextlib.contextmanager
def small_disk(mib: int, folder: Path) -> Iterator[Path]:
    """Mount a file system of this size in MiB. Raises PermissionError where this process may not mount."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "laneway-attacks", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        raise PermissionError(f"mounting a small disk takes root: {done.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def stage(setting: Setting, model_dir: Path, *, services: bool = False) -> Iterator[Stage]:
    """A started Stage; this process stays on the other core until the end."""
    cores = os.sched_getaffinity(0)
    pin(os.getpid(), OTHER_CORE)
    with contextlib.ExitStack() as exits:
        exits.callback(os.sched_setaffinity, 0, cores)
        directory = Path(exits.enter_context(tempfile.TemporaryDirectory()))
        stack = exits.enter_context(_stack(setting, directory, model_dir, services, exits))
        pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=attackers.begin)
        exits.callback(pool.shutdown, cancel_futures=True)
        pool.submit(os.getpid).result()
        quiet = exits.enter_context(_quiet_server())
        made = Stage(stack, Stopwatch(stack.directory / "stopwatch"), pool, quiet)
        made.prepare()
        yield made


@contextlib.contextmanager
def _stack(
    setting: Setting, directory: Path, model_dir: Path, services: bool, exits: contextlib.ExitStack
) -> Iterator[WatchedStack]:
    """A started stack with pinned processes and default limits."""
    data = directory / "data"
    data.mkdir()
    if setting.disk_mib is not None:
        exits.enter_context(small_disk(setting.disk_mib, data))
    url = exits.enter_context(fresh_postgres()) if services else f"sqlite:///{data}/laneway.db"
    if setting.real_engine:
        model_dir = directory / OWN_MODEL
        install_own_model(model_dir)
    # Steps may be slow on a busy machine, and the time between tokens is not measured here.
    tiers = [
        {"name": t.name, "service_tier": t.service_tier, "floor": t.floor, "inter_token_ms": 1000.0}
        for t in SHIPPED_TIERS
    ]
    toml = f'[redis]\nurl = "{REDIS_URL}"\n' if services else ""
    stack = WatchedStack(
        directory, url, model_dir, {"step_ms": STEP_MS}, {} if not setting.real_engine else {"tiers": tiers},
        toml=f'{toml}[engine]\nsocket = "{directory}/engine.sock"\n',
    )  # fmt: skip
    stack.real_engine = setting.real_engine
    try:
        stack.start()
        for pid in tree(stack.gateway.pid if stack.gateway else 0):
            pin(pid, GATEWAY_CORE)
        set_budgets(stack)
        yield stack
    finally:
        stack.stop()


@contextlib.contextmanager
def _quiet_server() -> Iterator[int]:
    """The port of a server that only reads, on the gateway's core. It is awaited: the start of a Python process takes
    seconds of that core."""
    context = multiprocessing.get_context("spawn")
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listening:
        ready = context.Event()
        reading = context.Process(target=attackers.serve_reads, args=(listening, ready), daemon=True)
        reading.start()
        try:
            assert reading.pid is not None
            pin(reading.pid, GATEWAY_CORE)
            if not ready.wait(QUIET_START_S_MAX):
                raise RuntimeError("the quiet server did not start")
            yield listening.getsockname()[1]
        finally:
            reading.kill()
            reading.join()


@contextlib.asynccontextmanager
async def held_places(stage: Stage, secret: str, count: int) -> AsyncIterator[None]:
    """Keep `count` long answers of a tenant in flight."""
    headers = {"Authorization": f"Bearer {secret}"}
    asked = body(max_tokens=8000)

    async def hold(session: aiohttp.ClientSession) -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.post(
                    f"{stage.stack.url}/v1/chat/completions", json=asked, headers=headers
                ) as answer:
                    await answer.read()
            await asyncio.sleep(0.05)

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        holding = [asyncio.create_task(hold(session)) for _ in range(count)]
        await asyncio.sleep(0.3)
        try:
            yield
        finally:
            for task in holding:
                task.cancel()
            await asyncio.wait(holding)
