"""Many requests at once, through several gateway processes, on one budget that is nearly empty: does it hold?

    python tests/programs/budget_edge.py [--requests 1000] [--gateways 4] [--seed 1] [--levels tenant,project,key]

Real processes: gateways, `engine --fake`, one PostgreSQL database. At each level of the hierarchy one budget has little
left, and those of the other levels have plenty, so that every hold locks them all. Clients ask, and ask again until
they are refused; rounds of them are played until one in which nobody is served. Meanwhile the budget is looked at. Then
the books are printed, and it fails unless

- used + held was never over the limit, and at the end nothing is held and no hold is open;
- what is left is less than the smallest request that was asked;
- what clients were told they used, the usage rows and the budget's counter are one and the same amount;
- what the engine made = billed + discarded + overrun, to the token.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # beside support/, and beside the packages where those are not installed
    sys.path[:0] = [str(directory) for directory in Path(__file__).resolve().parents[1:3]]

import aiohttp
import sqlalchemy as sa

from billing import tables
from billing.accounts import budgets, tenants
from billing.proofs.ledger_audit import audit_ledger
from engine.protocol.client import EngineClient
from engine.protocol.frames import StatusReport
from gateway.access import keys
from support.paths import MODEL_DIR
from support.services import fresh_postgres
from support.stack import MODEL, TIERS, Stack
from support.waiting import eventually

LEVELS = ("tenant", "project", "key")
UNITS = ("tokens", "money")
INPUT, CACHED, OUTPUT = 100_000, 50_000, 400_000  # picos a token, as the stack's price list has them for tier standard
PLENTY = 10**15
REQUESTS_IN_BUDGET = 20  # requests of mean size that the tight budget covers
MAX_TOKENS = 12
ROUNDS_MAX = 20
LOOK_S = 0.1
RETRY_S = 0.5
TENANT = "globex"
LIMITS = "".join(
    f"[{section}]\nrequests_per_minute = 100000000\ntokens_per_minute = 1000000000\nconcurrency = 100000\n"
    for section in ("limits", "tenant_limits")
)
ENGINE = {"sequences_max": 256, "step_tokens_max": 4096}


class NotKept(AssertionError):
    """The budget did not hold."""


@dataclass
class Books:
    """The counts of one run, for a budget at `level`. Amounts are in `unit`."""

    level: str
    unit: str
    limit: int = 0
    used: int = 0
    held: int = 0
    smallest: int = 0  # cost of the smallest admissible request
    served: int = 0
    clamped: int = 0
    refused: int = 0
    retried: int = 0  # requests sent again after a 503, as the SDKs do: an overloaded gateway admits none
    other: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    most_seen: int = 0  # largest used + held in any look
    looks: int = 0
    told: int = 0  # cost of the usage that all answers reported
    wall_s: float = 0.0

    @property
    def overshoot(self) -> int:
        return max(0, max(self.most_seen, self.used + self.held) - self.limit)

    def check(self, in_rows: int) -> None:
        """Raises NotKept."""
        faults = {
            "overshot": self.overshoot > 0,
            "something is held": self.held != 0,
            "left is enough for a request": self.limit - self.used >= self.smallest,
            "counter, rows and answers differ": not self.used == in_rows == self.told,
            "answered otherwise": bool(self.other),
            "nobody was refused": self.refused == 0,
        }
        if broken := [name for name, is_so in faults.items() if is_so]:
            raise NotKept(f"{', '.join(broken)}: {self}")

    def line(self) -> str:
        return (
            f"{self.level:8} {self.unit:7} limit {self.limit:>12} used {self.used:>12} "
            f"left {self.limit - self.used:>9} (smallest request {self.smallest:>8}) held {self.held} "
            f"overshoot {self.overshoot} served {self.served:>4} of them clamped {self.clamped:>3} "
            f"refused {self.refused:>5} retried {self.retried} rounds {self.rounds} looks {self.looks} "
            f"{self.wall_s:.1f} s"
        )


@dataclass
class Client:
    """One caller: the length of its prompt, its `max_tokens`, its key and its gateway."""

    url: str
    secret: str
    words: int
    max_tokens: int
    prompt_tokens: int = 0


class Edge:
    """A run over one budget that is nearly used up. All random choices are drawn from `seed`."""

    def __init__(self, stack: Stack, level: str, unit: str, requests: int, seed: int) -> None:
        self.stack = stack
        self.books = Books(level, unit)
        self.random = random.Random(f"{seed} {level} {unit}")
        self.since = stack.read(lambda c: int(c.execute(sa.select(sa.func.max(tables.usage.c.sequence))).scalar() or 0))
        self.secrets, self.budget = stack.write(lambda c: self.make(c, level, unit))
        self.clients = [
            Client(
                url=stack.urls[number % len(stack.urls)],
                secret=self.random.choice(self.secrets),
                words=self.random.randint(1, 8),
                max_tokens=self.random.randint(2, MAX_TOKENS),
            )
            for number in range(requests)
        ]

    def make(self, connection: sa.Connection, level: str, unit: str) -> tuple[list[str], str]:
        """Create a tenant, a project, keys in it, and a budget at every level. Returns the keys' secrets and the id of
        the budget at `level`, whose limit `measure_prompts` lowers."""
        slug = f"edge-{level}-{unit}-{self.since}"
        tenant = tenants.create_tenant(connection, slug=slug, name=slug, tier="standard", time_zone="America/New_York")
        project = tenants.create_project(connection, tenant_id=tenant.id, name="edge")
        made = [
            keys.create_key(connection, tenant_id=tenant.id, name="edge", project_id=project.id)
            for _ in range(1 if level == "key" else 4)
        ]
        scopes = [("tenant", tenant.id), ("project", project.id), *(("key", key.key.id) for key in made)]
        tight = ""
        for scope, scope_id in scopes:
            budget = budgets.create_budget(
                connection,
                tenant_id=tenant.id,
                scope=scope,  # type: ignore[arg-type]
                scope_id=scope_id,
                unit=unit,  # type: ignore[arg-type]
                period="month",
                limit_amount=PLENTY,
            )
            tight = budget.id if scope == level else tight
        return [key.secret for key in made], tight

    def cost(self, prompt: int, completion: int, cached: int = 0) -> int:
        if self.books.unit == "tokens":
            return prompt + completion
        return (prompt - cached) * INPUT + cached * CACHED + completion * OUTPUT

    def cost_of(self, usage: dict[str, Any]) -> int:
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return self.cost(usage["prompt_tokens"], usage["completion_tokens"], cached)

    async def run(self) -> Books:
        began = time.monotonic()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await self.measure_prompts(session)
            looking = asyncio.create_task(self.look())
            try:
                while self.books.rounds < ROUNDS_MAX:
                    self.books.rounds += 1
                    served = self.books.served
                    await asyncio.gather(*(self.ask_until_refused(session, client) for client in self.clients))
                    await asyncio.to_thread(eventually, lambda: self.stack.open_holds() == 0, 30.0)
                    if self.books.served == served:
                        break
            finally:
                looking.cancel()
                await asyncio.wait([looking])
        self.books.used, self.books.held = await asyncio.to_thread(self.counters)
        self.books.wall_s = time.monotonic() - began
        self.books.check(await asyncio.to_thread(self.in_rows))
        return self.books

    async def measure_prompts(self, session: aiohttp.ClientSession) -> None:
        """Measure each prompt's length while the limit is PLENTY. Then lower the limit to the used amount plus the cost
        of about REQUESTS_IN_BUDGET requests."""
        lengths: dict[int, int] = {}
        for words in {client.words for client in self.clients}:
            status, answer, _ = await self.post(session, Client(self.stack.urls[0], self.secrets[0], words, 2))
            assert status == 200, answer
            lengths[words] = answer["usage"]["prompt_tokens"]
            self.books.told += self.cost_of(answer["usage"])
        for client in self.clients:
            client.prompt_tokens = lengths[client.words]
        shortest, longest = min(lengths.values()), max(lengths.values())
        self.books.smallest = self.cost(shortest, 1)
        room = REQUESTS_IN_BUDGET * self.cost((shortest + longest) // 2, MAX_TOKENS // 2)
        self.books.limit = self.books.told + room + self.random.randrange(self.cost(longest, 1))

        def tighten(connection: sa.Connection) -> None:
            budgets.change_budget(connection, self.budget, limit_amount=self.books.limit)

        await asyncio.to_thread(eventually, lambda: self.stack.open_holds() == 0)
        await asyncio.to_thread(self.stack.write, tighten)

    async def ask_until_refused(self, session: aiohttp.ClientSession, client: Client) -> None:
        while True:
            status, answer, granted = await self.post(session, client)
            if status == 200:
                self.books.served += 1
                self.books.clamped += granted < client.max_tokens
                usage = answer["usage"]
                assert usage["completion_tokens"] <= granted
                self.books.told += self.cost_of(usage)
                continue
            code = answer["error"]["code"]
            if (status, code) == (429, f"{self.books.level}_budget_exceeded"):
                self.books.refused += 1
            elif status == 503:
                self.books.retried += 1
                await asyncio.sleep(RETRY_S)
                continue
            else:
                self.books.other[f"{status} {code}"] += 1
            return

    async def post(self, session: aiohttp.ClientSession, client: Client) -> tuple[int, Any, int]:
        """Status, answer, and the tokens granted."""
        asked = {
            "model": MODEL,
            "max_tokens": client.max_tokens,
            "messages": [{"role": "user", "content": f"{self.random.randrange(10, 99)} " + "word " * client.words}],
        }
        headers = {"Authorization": f"Bearer {client.secret}"}
        async with session.post(f"{client.url}/v1/chat/completions", json=asked, headers=headers) as answer:
            granted = int(answer.headers.get("x-laneway-max-tokens-granted", 0))
            return answer.status, json.loads(await answer.read()), granted

    def counters(self) -> tuple[int, int]:
        windows = tables.budget_windows.c
        query = sa.select(windows.posted, windows.held).where(windows.budget_id == self.budget)
        [(posted, held)] = self.stack.read(lambda connection: connection.execute(query).all())
        return posted, held

    async def look(self) -> None:
        while True:
            used, held = await asyncio.to_thread(self.counters)
            self.books.most_seen = max(self.books.most_seen, used + held)
            self.books.looks += 1
            await asyncio.sleep(LOOK_S)

    def in_rows(self) -> int:
        usage = tables.usage.c
        tokens = usage.prompt_tokens + usage.completion_tokens
        query = sa.select(sa.func.sum(tokens if self.books.unit == "tokens" else usage.cost_picos))
        return self.stack.read(lambda c: int(c.execute(query.where(usage.sequence > self.since)).scalar() or 0))


def engine_status(stack: Stack) -> StatusReport:
    async def ask() -> StatusReport:
        client = EngineClient(stack.config.socket_path)
        await client.start()
        try:
            await client.wait_ready(10)
            return await client.status()
        finally:
            await client.close()

    return asyncio.run(ask())


def check_tokens(stack: Stack) -> str:
    """made = billed + discarded + overrun, over everything that ran. Raises NotKept."""
    usage = tables.usage.c
    query = sa.select(sa.func.sum(usage.completion_tokens), sa.func.sum(usage.discarded_tokens))
    billed, discarded = stack.read(lambda connection: connection.execute(query).one())
    report = engine_status(stack)
    metrics = [line for line in report.metrics.decode().splitlines() if line.startswith("laneway_tokens_overrun_total")]
    overrun = sum(int(float(line.rsplit(" ", 1)[1])) for line in metrics)
    books = f"made {report.tokens_made} = billed {billed} + discarded {discarded} + overrun {overrun}"
    if report.tokens_made != billed + discarded + overrun:
        raise NotKept(books)
    findings = stack.read(audit_ledger)
    if not findings.sound or findings.overshot or findings.open_holds:
        raise NotKept(f"the audit: {findings}")
    return f"{books}; the audit finds nothing"


def settings() -> dict[str, Any]:
    """Settings of a Stack in which only the budget refuses requests."""
    tiers = [
        {"name": name, "service_tier": service, "queue_max": 4096, "inter_token_ms": 1000.0}
        for name, service in (("premium", "priority"), ("standard", "default"), ("batch", "flex"))
    ]
    assert {tier["name"] for tier in tiers} == set(TIERS.values())
    return {"toml": LIMITS, "fake": {"step_ms": 1.0, "stop_after": 4}, "engine_json": {**ENGINE, "tiers": tiers}}


def play(stack: Stack, levels: list[str], units: list[str], requests: int, seed: int) -> list[Books]:
    """Raises NotKept."""
    played: list[Books] = []
    for level in levels:
        for unit in units:
            played.append(asyncio.run(Edge(stack, level, unit, requests, seed).run()))
            print(played[-1].line(), flush=True)
    print(check_tokens(stack))
    return played


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--gateways", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--levels", default=",".join(LEVELS))
    parser.add_argument("--units", default=",".join(UNITS))
    given = parser.parse_args()
    print(f"{given.requests} requests at once, {given.gateways} gateways, seed {given.seed}, PostgreSQL, engine --fake")
    with fresh_postgres() as url, tempfile.TemporaryDirectory() as directory:
        stack = Stack(Path(directory), url, MODEL_DIR, **settings())
        try:
            stack.start()
            stack.start_more_gateways(given.gateways - 1)
            play(stack, given.levels.split(","), given.units.split(","), given.requests, given.seed)
        except NotKept as error:
            print(f"NOT KEPT: {error}")
            return 1
        finally:
            stack.stop()
    print("kept")
    return 0


if __name__ == "__main__":
    sys.exit(main())
