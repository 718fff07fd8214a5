"""SIGKILL to gateways at random moments under load, and then the books: made = billed + discarded + lost, to the token.

    python -m benchmarks.faults.kill_gateways [--kills 200] [--seed 1] [--workers 3] [--database sqlite] [--cuts 0.2]

Real processes: an engine without a model, gateways on one port, PostgreSQL (made and dropped here) behind a proxy that
is cut before some of the kills, so that journals are in play. Exit status 1 when a book does not add up.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import sqlalchemy as sa

from benchmarks.faults.background_responses import check_background, read_background
from benchmarks.rows import REPO

sys.path.insert(0, str(REPO / "tests"))

from billing import tables
from billing.accounts import budgets
from billing.clock import SECOND
from billing.ledger.journal import paths
from billing.ledger.messages import GATEWAY_DEAD
from billing.proofs import reconcile
from billing.proofs.ledger_audit import audit_ledger
from engine.protocol.client import EngineClient
from engine.protocol.frames import StatusReport
from gateway.host.children import healthy
from support.cut_proxy import CutProxy
from support.gateway.stored import opt_in
from support.stack import MODEL, Stack, body

MODEL_DIR = Path(os.environ.get("LANEWAY_TEST_MODEL", REPO / ".laneway" / "models" / "smollm2-135m-instruct"))
POSTGRES_ADMIN = os.environ.get("LANEWAY_TEST_POSTGRES", "postgresql+psycopg://postgres@127.0.0.1:5432/postgres")
LEASE_S, RENEW_S, EXPIRE_S = 6.0, 1.0, 0.5
BOOKS = "[billing]\nreconcile_s = 1.0\n"  # engine and ledger are compared each second
STEP_MS = 5.0
CUT_S_MAX = 0.6
KILL_WAIT_S_MAX = 0.6
ANSWER_S_MAX = 30.0  # limit until a request is answered after the last kill
QUIET_S_MAX = 60.0
BACKOFF_S, BROKEN_S = 0.05, 0.2
BACKGROUND_SHARE = 0.25  # part of the requests that are responses in the background
LIMIT = 10**12  # limit of each budget, which holds count against and never reach


@dataclass(frozen=True)
class Plan:
    kills: int = 200
    seed: int = 1
    workers: int = 3
    clients: int = 24
    cuts: float = 0.2  # the share of kills before which the database is briefly unavailable


@dataclass
class Told:
    """The clients' observations. `whole`: request id → completion tokens of a whole answer."""

    whole: dict[str, int] = field(default_factory=dict)
    background: dict[str, str] = field(default_factory=dict)  # tenant by id of a response in the background
    refused: int = 0
    broken: int = 0
    left: int = 0


@dataclass(frozen=True)
class Books:
    """Tokens of the engine and of the ledger, and the faults of the books."""

    made: int
    billed: int
    discarded: int
    overrun: int
    lost: int
    requests: dict[str, int]
    blocked_s_max: float  # longest time from a dead gateway's last hold to the end of a hold that it left
    faults: list[str]

    def show(self) -> None:
        total = self.billed + self.discarded + self.overrun + self.lost
        print(f"made       {self.made:10d}   by the engine")
        print(f"billed     {self.billed:10d}")
        print(f"discarded  {self.discarded:10d}   by gateways, and {self.overrun} by the engine")
        print(f"lost       {self.lost:10d}   with the gateways")
        print(f"difference {self.made - total:10d}")
        print("requests  ", ", ".join(f"{count} {name}" for name, count in self.requests.items()))
        print(
            f"a dead gateway's hold blocked its budget for {self.blocked_s_max:.1f} s at most; a lease is {LEASE_S:g} s"
        )
        print("\n".join(f"FAULT: {fault}" for fault in self.faults) or "every book adds up")


class Fleet:
    """The gateways: each is restarted whenever it ends."""

    def __init__(self, stack: Stack, workers: int) -> None:
        self._stack = stack
        self._workers = workers
        self._processes: list[asyncio.subprocess.Process | None] = [None] * workers
        self._keepers: list[asyncio.Task[None]] = []
        self._stopping = False
        self.ready = [asyncio.Event() for _ in range(workers)]

    async def start(self) -> None:
        self._keepers = [asyncio.create_task(self._keep(number)) for number in range(self._workers)]
        await asyncio.gather(*(ready.wait() for ready in self.ready))

    async def _keep(self, number: int) -> None:
        argv = [sys.executable, "-m", "gateway", "--config", str(self._stack.config_file)]
        if self._workers > 1:
            argv += ["--workers", str(self._workers), "--worker", str(number)]
        with self._stack.log_file.open("ab") as log:
            while not self._stopping:
                self._processes[number] = process = await asyncio.create_subprocess_exec(
                    *argv, stdout=asyncio.subprocess.PIPE, stderr=log
                )
                becoming = asyncio.create_task(self._become_ready(number, process))
                await process.wait()
                becoming.cancel()
                self.ready[number].clear()
                await asyncio.sleep(BACKOFF_S)

    async def _become_ready(self, number: int, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        if self._workers > 1:
            if await process.stdout.readline():
                self.ready[number].set()
            return
        while not await healthy("127.0.0.1", self._stack.port):  # noqa: ASYNC110 - another process sets no event
            await asyncio.sleep(BACKOFF_S)
        self.ready[number].set()

    async def any_ready(self) -> list[int]:
        """The gateways that serve now, once at least two do, so that one can be killed."""
        while True:
            serving = [number for number, ready in enumerate(self.ready) if ready.is_set()]
            if len(serving) >= min(2, self._workers):
                return serving
            await asyncio.sleep(BACKOFF_S)

    def kill(self, number: int) -> None:
        process = self._processes[number]
        assert process is not None
        self.ready[number].clear()
        process.kill()

    async def stop(self) -> None:
        self._stopping = True
        for process in self._processes:
            if process is not None and process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
        await asyncio.gather(*self._keepers)


class Client:
    """Sends one request after another: streams and whole answers, long and short, with keys of all tenants. It
    leaves some streams before their end."""

    def __init__(self, stack: Stack, session: aiohttp.ClientSession, seed: str, told: Told) -> None:
        self._stack = stack
        self._session = session
        self._chance = random.Random(seed)
        self._told = told

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                await self._ask()
            except (aiohttp.ClientError, TimeoutError, OSError):
                self._told.broken += 1
                await asyncio.sleep(BROKEN_S)

    async def _ask(self) -> None:
        chance = self._chance
        tenant = chance.choice(sorted(self._stack.keys))
        if chance.random() < BACKGROUND_SHARE:
            await self._ask_in_background(tenant)
            return
        asked = body(max_tokens=chance.randint(1, 80), stream=chance.random() < 0.7, n=chance.choice([1, 1, 1, 2]))
        if chance.random() < 0.3:
            asked["stop"] = ["sphinx", "a"]
        if asked["stream"]:
            asked["stream_options"] = {"include_usage": True}
        leaves_after = chance.randint(0, 20) if chance.random() < 0.1 else None
        url = f"{self._stack.url}/v1/chat/completions"
        async with self._session.post(url, json=asked, headers=self._stack.headers(tenant)) as answer:
            if answer.status != 200:
                self._told.refused += 1
                await asyncio.sleep(BACKOFF_S)
                return
            request_id = answer.headers["x-request-id"]
            if asked["stream"]:
                await self._read(answer, request_id, leaves_after)
            else:
                self._told.whole[request_id] = (await answer.json())["usage"]["completion_tokens"]

    async def _ask_in_background(self, tenant: str) -> None:
        """Create a response in the background. Of half of them, read the first bytes of the events as a stream."""
        chance, stack = self._chance, self._stack
        asked = {"model": MODEL, "input": "Hello", "max_output_tokens": chance.randint(20, 120), "background": True}
        url = f"{stack.url}/v1/responses"
        async with self._session.post(url, json=asked, headers=stack.headers(tenant)) as answer:
            if answer.status != 200:
                self._told.refused += 1
                await asyncio.sleep(BACKOFF_S)
                return
            id_ = (await answer.json())["id"]
        self._told.background[id_] = tenant
        if chance.random() < 0.5:
            events = f"{url}/{id_}?stream=true"
            async with self._session.get(events, headers=stack.headers(tenant)) as answer:
                await answer.content.read(chance.randint(1, 4000))

    async def _read(self, answer: aiohttp.ClientResponse, request_id: str, leaves_after: int | None) -> None:
        usage: dict[str, Any] | None = None
        lines = 0
        async for line in answer.content:
            if line.startswith(b"data: [DONE]") and usage is not None:
                self._told.whole[request_id] = usage["completion_tokens"]
            elif line.startswith(b"data: {"):
                usage = json.loads(line[6:]).get("usage")
                lines += 1
                if lines == leaves_after:
                    self._told.left += 1
                    return


async def kill_at_random(plan: Plan, fleet: Fleet, proxy: CutProxy | None, chance: random.Random) -> None:
    for count in range(1, plan.kills + 1):
        await asyncio.sleep(chance.uniform(0, KILL_WAIT_S_MAX))
        number = chance.choice(await fleet.any_ready())
        cut = proxy is not None and chance.random() < plan.cuts
        if proxy is not None and cut:
            proxy.cut()
            await asyncio.sleep(chance.uniform(0, CUT_S_MAX))
        fleet.kill(number)
        if proxy is not None and cut:
            await asyncio.sleep(chance.uniform(0, CUT_S_MAX))
            proxy.restore()
        if count % 20 == 0:
            print(f"{count} killed", flush=True)


async def run(plan: Plan, stack: Stack, proxy: CutProxy | None) -> Books:
    """Run the whole test on a stack whose engine runs and whose gateway does not."""
    chance = random.Random(plan.seed)
    fleet, told, stop = Fleet(stack, plan.workers), Told(), asyncio.Event()
    await fleet.start()
    timeout = aiohttp.ClientTimeout(total=30)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)  # a new connection each: over all workers
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        clients = [Client(stack, session, f"{plan.seed}/{index}", told) for index in range(plan.clients)]
        asking = [asyncio.create_task(client.run(stop)) for client in clients]
        await kill_at_random(plan, fleet, proxy, chance)
        await asyncio.gather(*(ready.wait() for ready in fleet.ready))
        # Gateways that started after the last kill serve, however early the others were killed.
        whole = len(told.whole)
        async with asyncio.timeout(ANSWER_S_MAX):
            while len(told.whole) == whole:  # noqa: ASYNC110 - the clients set no event
                await asyncio.sleep(BACKOFF_S)
        stop.set()
        await asyncio.gather(*asking)
    report = await quiescence(stack, plan.workers)
    stored = await asyncio.to_thread(read_background, stack, told.background)
    await fleet.stop()
    return await asyncio.to_thread(books, stack, report, told, stored)


async def quiescence(stack: Stack, workers: int) -> StatusReport:
    """Wait until no hold is open, every dead gateway's journal is settled, and the engine is idle. Then its last
    report."""
    client = EngineClient(stack.config.socket_path)
    await client.start()
    await client.wait_ready(10)
    deadline = time.monotonic() + QUIET_S_MAX
    while True:
        report = await client.status()
        busy = report.running + sum(report.waiting.values())
        busy += await asyncio.to_thread(stack.open_holds) + len(paths(stack.config.journal_dir)) - workers
        if not busy or time.monotonic() > deadline:
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.5)  # time for the gateways' last confirmations, and for a step in flight
    report = await client.status()
    await client.close()
    return report


def books(stack: Stack, report: StatusReport, told: Told, stored: dict[str, Any]) -> Books:
    usage, holds = tables.usage.c, tables.holds.c
    rows = stack.read(
        lambda c: c.execute(
            sa.select(
                usage.request_id, usage.completion_tokens, usage.discarded_tokens, usage.made_tokens, usage.ending
            )
        ).all()
    )
    recorded = {row.request_id: row for row in rows}
    ends = stack.read(lambda c: c.execute(sa.select(holds.request_id, holds.state, holds.lost_tokens)).all())
    unrecorded: dict[str, int] = {}  # by request, the tokens that the engine logged as lost
    for line in engine_lines(stack, "tokens.lost"):
        unrecorded[line["request_id"]] = unrecorded.get(line["request_id"], 0) + line["tokens"]
    late = {row.request_id: row.lost_tokens for row in ends if row.lost_tokens}  # settled after their hold ended
    # A hold that was settled by its checkpoint counts the tokens that can be read; the others are lost.
    read = {id_: row.made_tokens for id_, row in recorded.items() if row.ending == GATEWAY_DEAD}
    known = recorded.keys() - read.keys()
    lost = {id_: late.get(id_, unrecorded.get(id_, 0) - read.get(id_, 0)) for id_ in {*late, *unrecorded} - known}
    overrun = sum(
        int(float(n)) for n in re.findall(r"laneway_tokens_overrun_total ([\d.e+]+)", report.metrics.decode())
    )
    billed = sum(row.completion_tokens for row in rows)
    discarded = sum(row.discarded_tokens for row in rows)
    states = [row.state for row in ends]
    counts = {state: states.count(state) for state in sorted(set(states))}
    counts |= {"in the background": len(stored), "of them failed": len(read)}
    counts |= {"told whole": len(told.whole), "broken": told.broken, "refused": told.refused, "left": told.left}
    counts |= {"kept in a journal": len(log_lines(stack, "journal.settled")), "settled too late": len(late)}
    faults = check(stack, recorded, unrecorded, told) + check_background(stack, recorded, stored)
    if report.tokens_made != billed + discarded + overrun + sum(lost.values()):
        faults.append("made is not billed + discarded + lost")
    return Books(
        report.tokens_made, billed, discarded, overrun, sum(lost.values()), counts, blocked_s_max(stack), faults
    )


def check(stack: Stack, recorded: dict[str, sa.Row[Any]], unrecorded: dict[str, int], told: Told) -> list[str]:
    """The faults of single requests, and of the ledger's audit and reconciliations."""
    faults = []
    for request_id, tokens in told.whole.items():
        row = recorded.get(request_id)
        if row is None:
            faults.append(f"{request_id} was served whole, and is not charged")
        elif row.completion_tokens != tokens:
            faults.append(f"{request_id} is charged {row.completion_tokens} tokens; its caller received {tokens}")
    for request_id, tokens in unrecorded.items():
        row = recorded.get(request_id)
        is_read = row is not None and row.ending == GATEWAY_DEAD and row.made_tokens <= tokens
        if row is not None and row.made_tokens != tokens and not is_read:
            faults.append(f"{request_id} made {tokens} tokens; its usage says {row.made_tokens}")
    findings = stack.read(audit_ledger)
    if not findings.sound or findings.overshot or findings.open_holds:
        faults.append(f"the ledger: {findings}")
    looks = stack.read(reconcile.list_reconciliations)
    faults += [f"reconciling beside it found {one}" for look in looks for one in look.imbalances]
    if len(recorded) > 50 and not any(look.engine_bounds and look.engine_gap is None for look in looks):
        faults.append("the engine was never observed while it ran")
    held = stack.read(lambda c: c.execute(sa.select(sa.func.sum(tables.budget_windows.c.held))).scalar())
    if held:
        faults.append(f"{held} units of budgets are still held")
    if left := paths(stack.config.journal_dir):
        faults.append(f"journals are left: {[path.name for path in left]}")
    return faults


def blocked_s_max(stack: Stack) -> float:
    """The longest time for which an expired hold blocked its budget after its gateway's death. It is counted from the
    gateway's last hold, which precedes the death, so it is never too short."""
    holds = tables.holds.c
    rows = stack.read(
        lambda c: c.execute(sa.select(holds.gateway_id, holds.state, holds.held_at, holds.ended_at)).all()
    )
    last: dict[str, int] = {}
    for row in rows:
        last[row.gateway_id] = max(last.get(row.gateway_id, 0), row.held_at)
    blocked = [row.ended_at - last[row.gateway_id] for row in rows if row.state == "expired"]
    return max(blocked, default=0) / SECOND


def engine_lines(stack: Stack, event: str) -> Iterator[dict[str, Any]]:
    return _lines(stack.directory / "engine.log", event)


def log_lines(stack: Stack, event: str) -> list[dict[str, Any]]:
    return list(_lines(stack.log_file, event))


def _lines(file: Path, event: str) -> Iterator[dict[str, Any]]:
    """The log lines of this event, without half a line that a killed process left."""
    for text in file.read_bytes().splitlines():
        if event.encode() in text:
            with contextlib.suppress(ValueError):
                line = json.loads(text)
                if line["event"] == event:
                    yield line


@contextlib.contextmanager
def database(kind: str, directory: Path) -> Iterator[str]:
    """The URL of an empty one."""
    if kind == "sqlite":
        yield f"sqlite:///{directory}/laneway.db"
        return
    admin = sa.create_engine(POSTGRES_ADMIN, isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool)
    name = f"laneway_kills_{uuid.uuid4().hex[:12]}"
    with admin.connect() as connection:
        connection.execute(sa.text(f'CREATE DATABASE "{name}"'))
    yield admin.url.set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(sa.text(f'DROP DATABASE "{name}" WITH (FORCE)'))


async def rehearse(plan: Plan, url: str, directory: Path, model_dir: Path = MODEL_DIR) -> Books:
    """Start everything on an empty database, kill, stop everything; the books."""
    lease = f"[lease]\nlength_s = {LEASE_S}\nrenew_s = {RENEW_S}\nexpire_s = {EXPIRE_S}\n"
    wait = "[journal]\nsettle_wait_s = 0.3\n"
    proxy = None if url.startswith("sqlite") else CutProxy(url)
    async with contextlib.AsyncExitStack() as exits:
        if proxy is not None:
            await exits.enter_async_context(proxy)
        stack = Stack(directory, url, model_dir, {"step_ms": STEP_MS, "stop_after": 60}, toml=lease + wait + BOOKS)
        try:
            await asyncio.to_thread(stack.prepare)
            if proxy is not None:  # the gateways' connections to the database; this program's bypass it
                stack.point_gateway_at(proxy.url)
            set_budgets(stack)
            for tenant in stack.tenants:
                opt_in(stack, tenant, 3600)
            stack.start_engine()
            return await run(plan, stack, proxy)
        finally:
            await asyncio.to_thread(stack.stop)


def set_budgets(stack: Stack) -> None:
    def make(connection: sa.Connection) -> None:
        for tenant, id_ in stack.tenants.items():
            key = stack.key_ids[tenant]
            budgets.create_budget(
                connection,
                tenant_id=id_,
                scope="tenant",
                scope_id=id_,
                unit="money",
                period="month",
                limit_amount=LIMIT,
            )
            budgets.create_budget(
                connection, tenant_id=id_, scope="key", scope_id=key, unit="tokens", period="day", limit_amount=LIMIT
            )

    stack.write(make)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=Plan.kills)
    parser.add_argument("--seed", type=int, default=Plan.seed)
    parser.add_argument("--workers", type=int, default=Plan.workers, help="gateways at once; SQLite carries one")
    parser.add_argument("--clients", type=int, default=Plan.clients)
    parser.add_argument("--cuts", type=float, default=Plan.cuts, help="share of kills with the database unavailable")
    parser.add_argument("--database", choices=["postgres", "sqlite"], default="postgres")
    parser.add_argument("--keep", type=Path, help="a directory for the logs; without it they are deleted")
    given = parser.parse_args()
    workers = 1 if given.database == "sqlite" else given.workers
    plan = Plan(given.kills, given.seed, workers, given.clients, given.cuts)
    print(plan)
    with tempfile.TemporaryDirectory() as name:
        directory = given.keep or Path(name)
        with database(given.database, directory) as url:
            found = asyncio.run(rehearse(plan, url, directory))
    found.show()
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
