"""Batches while gateways and engines get SIGKILL at random moments: one output and one charge for each line.

    python tests/programs/batch_kills.py [--kills 100] [--lines 5000] [--batches 4] [--seed 1]

Real processes: two gateways, two `engine --fake` behind both, one PostgreSQL database. A budget covers most of the
lines at first and is raised on the way. Before the last kill a batch that ends early is followed by another. It fails
unless at the end

- each batch is completed, and each of its lines has exactly one output, without an error;
- the charged requests are the requests of the outputs, each for the tokens in its output;
- used + held of the budget was never over its limit, no hold is open, and the ledger is sound;
- each engine's tokens = billed + discarded + lost, and no reconciliation on the way found an imbalance.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # beside support/, and beside the packages where those are not installed
    sys.path[:0] = [str(directory) for directory in Path(__file__).resolve().parents[1:3]]

import httpx
import sqlalchemy as sa

from benchmarks.faults.fleet_books import tokens_of
from billing import tables
from billing.accounts import budgets
from billing.proofs import reconcile
from billing.proofs.ledger_audit import audit_ledger
from engine.protocol.client import EngineClient
from engine.protocol.frames import StatusReport
from gateway.batch_tables import batches
from support.fleet_stack import TwoEngines
from support.gateway.batch_client import BatchClient, chat_line, usage_of
from support.paths import MODEL_DIR
from support.services import fresh_postgres
from support.waiting import eventually

TENANT = "globex"
GATEWAYS = 2
ENGINE_PART = 0.25  # part of the kills that hit an engine; the others hit a gateway
KILL_WAIT_S = (0.0, 0.5)
WORK_S = (0.0, 2.0)  # how long a ready gateway works before its kill
PAUSE_PART = 0.1  # part of the killed gateways that are first suspended until their lease has expired
PAUSE_S = (4.0, 6.0)
PAUSED_WORK_S = 1.0  # how long a suspended gateway runs again before its kill
TOKENS = (1, 40)  # range of `max_tokens` of a line
LINE_TOKENS_MAX = 100  # with its prompt
COVERED_PART = 0.6  # part of the lines that the first limit of the budget covers
QUIET_S_MAX = 300.0
LOOK_S = 0.1
CONFIRMED_S = 1.0  # time for the confirmations of settlements to reach the engines
TOML = """
[lease]
length_s = 3.0
renew_s = 0.5
expire_s = 0.5
[billing]
reconcile_s = 1.0
"""


@dataclass
class KillReport:
    """Counts of the run. `faults`: the counts that contradict each other."""

    killed: Counter[str] = field(default_factory=Counter)
    paused: int = 0  # gateways that were suspended until their lease had expired
    batches: int = 0
    lines: int = 0
    epochs: int = 0  # claims of batches
    charged: int = 0
    zero_cost: int = 0  # requests of lines that were recorded without a charge
    expired: int = 0  # holds that expired
    lost_tokens: int = 0
    overshoot: int = 0
    looks: int = 0
    wall_s: float = 0.0
    faults: list[str] = field(default_factory=list)

    def show(self) -> None:
        kills = ", ".join(f"{count} {name}" for name, count in sorted(self.killed.items()))
        print(f"killed     {sum(self.killed.values())} ({kills}; {self.paused} paused before) in {self.wall_s:.0f} s")
        print(f"batches    {self.batches} of {self.lines} lines, claimed {self.epochs} times")
        print(f"requests   {self.charged} charged, {self.zero_cost} ended without a charge, {self.expired} expired")
        print(f"budget     overshoot {self.overshoot} in {self.looks} looks; lost tokens {self.lost_tokens}")
        print("\n".join(f"FAULT: {fault}" for fault in self.faults) or "each line has one output and one charge")


class Stage:
    """The processes, and the client of one tenant."""

    def __init__(self, stack: KilledStack, seed: int) -> None:
        self.stack = stack
        self.chance = random.Random(seed)
        self.report = KillReport()
        self.created: dict[str, int] = {}  # lines by batch
        self._limit = 0
        self._budget = ""
        self._done = threading.Event()

    def start(self, lines: int) -> None:
        self.stack.prepare()
        self.set_budget(round(lines * COVERED_PART) * LINE_TOKENS_MAX // 2)
        self.stack.start_engine()
        self.stack.start_gateway()
        self.stack.wait_ready()
        self.stack.urls.append(self.stack.url)
        self.stack.start_more_gateways(GATEWAYS - 1)

    def set_budget(self, limit: int) -> None:
        self._limit = limit
        tenant = self.stack.tenants[TENANT]

        def write(connection: sa.Connection) -> str:
            if self._budget:
                return budgets.change_budget(connection, self._budget, limit_amount=limit).id
            of = {"tenant_id": tenant, "scope": "tenant", "scope_id": tenant, "unit": "tokens", "period": "total"}
            return budgets.create_budget(connection, **of, limit_amount=limit).id  # type: ignore[arg-type]

        self._budget = self.stack.write(write)

    def create_batch(self, lines: int) -> None:
        """Create a batch at a random gateway; repeat it at another while the gateway does not answer."""
        made = [
            chat_line(number, max_tokens=self.chance.randint(*TOKENS), stop=["sphinx"])
            for number in range(1, lines + 1)
        ]
        while True:
            with BatchClient(self.stack, self.stack.keys[TENANT], self.chance.choice(self.stack.urls)) as client:
                try:
                    self.created[client.create(made)] = lines
                    return
                except (httpx.TransportError, AssertionError):
                    time.sleep(LOOK_S)

    def watch_budget(self) -> None:
        """Until `_done` is set, note the largest amount by which the budget's counter exceeded its limit."""
        windows = tables.budget_windows.c
        query = sa.select(windows.posted + windows.held)
        while not self._done.wait(LOOK_S):
            limit = self._limit
            for used in self.stack.read(
                lambda c: list(c.execute(query.where(windows.budget_id == self._budget)).scalars())
            ):
                self.report.overshoot = max(self.report.overshoot, int(used) - limit)
            self.report.looks += 1

    # ---- kills

    def kill_at_random(self, kills: int, lines: int) -> None:
        for count in range(1, kills + 1):
            time.sleep(self.chance.uniform(*KILL_WAIT_S))
            if count == kills // 2:
                self.set_budget(10**12)
            if not self.unended():
                self.create_batch(max(1, lines // 10))
            if self.chance.random() < ENGINE_PART:
                name = self.chance.choice(sorted(self.stack.processes))
                self.stack.kill_named_engine(name)
                self.stack.processes[name].start()
                self.report.killed["engines"] += 1
            else:
                self.disturb_gateway(self.chance.randrange(GATEWAYS))
            if count % 20 == 0:
                print(f"{count} killed", flush=True)

    def disturb_gateway(self, number: int) -> None:
        """Kill a ready gateway after WORK_S, and start it again. A part of them (PAUSE_PART) is suspended first."""
        stack = self.stack
        process = stack.gateway if number == 0 else stack.more_gateways[number - 1]
        assert process is not None
        stack.wait_ready(url=stack.urls[number])
        time.sleep(self.chance.uniform(*WORK_S))
        if self.chance.random() < PAUSE_PART:
            process.send_signal(signal.SIGSTOP)
            time.sleep(self.chance.uniform(*PAUSE_S))
            process.send_signal(signal.SIGCONT)
            time.sleep(PAUSED_WORK_S)
            self.report.paused += 1
        process.kill()
        self.report.killed["gateways"] += 1
        process.wait()
        port = stack.port if number == 0 else int(stack.urls[number].rpartition(":")[2])
        argv = [sys.executable, "-m", "gateway", "--config", str(stack.config_file)]
        with (stack.directory / f"gateway-{number}.log").open("ab") as log:
            environ = {**os.environ, "LANEWAY_PORT": str(port)}
            started = subprocess.Popen(argv, stdout=log, stderr=log, env=environ)
        if number == 0:
            stack.gateway = started
        else:
            stack.more_gateways[number - 1] = started

    def unended(self) -> list[str]:
        query = sa.select(batches.c.id).where(batches.c.ended_at.is_(None))
        return self.stack.read(lambda c: list(c.execute(query).scalars()))

    # ---- the end

    def run(self, kills: int, lines: int, count: int) -> KillReport:
        began = time.monotonic()
        self.start(lines)
        for _ in range(count):
            self.create_batch(lines // count)
        watching = threading.Thread(target=self.watch_budget)
        watching.start()
        try:
            self.kill_at_random(kills, lines)
            self.set_budget(10**12)
            for url in self.stack.urls:
                self.stack.wait_ready(url=url)
            eventually(lambda: not self.unended(), QUIET_S_MAX)
            eventually(lambda: self.stack.open_holds() == 0, QUIET_S_MAX)
        finally:
            self._done.set()
            watching.join()
        time.sleep(CONFIRMED_S)
        self.report.wall_s = time.monotonic() - began
        for batch_id, size in self.created.items():
            self.check_batch(batch_id, size)
        self.check_books()
        return self.report

    def check_batch(self, batch_id: str, lines: int) -> None:
        report = self.report
        with BatchClient(self.stack, self.stack.keys[TENANT], self.stack.urls[0]) as client:
            batch = client.get(batch_id)
            outputs, errors = client.outputs(batch), client.errors(batch)
        report.batches, report.lines = report.batches + 1, report.lines + lines
        counts = {"total": lines, "completed": lines, "failed": 0}
        if batch["status"] != "completed" or batch["request_counts"] != counts:
            some = next(iter(errors.values()), None)
            report.faults.append(f"{batch_id}: {batch['status']}, {batch['request_counts']}, {some}")
        if missing := {f"line-{number}" for number in range(1, lines + 1)} - outputs.keys():
            report.faults.append(f"{batch_id}: {len(missing)} lines have no output")
        rows = {row.request_id: row for row in usage_of(self.stack, batch_id)}
        charged = {id_: row for id_, row in rows.items() if row.cost_picos}
        report.charged, report.zero_cost = report.charged + len(charged), report.zero_cost + len(rows) - len(charged)
        answered: dict[str, Any] = {line["response"]["request_id"]: line["response"] for line in outputs.values()}
        if charged.keys() != answered.keys():
            report.faults.append(
                f"{batch_id}: {len(charged.keys() - answered.keys())} charges without an output, "
                f"{len(answered.keys() - charged.keys())} outputs without a charge"
            )
        for id_ in charged.keys() & answered.keys():
            if charged[id_].completion_tokens != answered[id_]["body"]["usage"]["completion_tokens"]:
                report.faults.append(f"{id_} is charged other tokens than its output has")

    def check_books(self) -> None:
        report, stack = self.report, self.stack
        holds = tables.holds.c
        expired = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(holds.lost_tokens), 0))
        count, lost = stack.read(lambda c: c.execute(expired.where(holds.state == "expired")).one())
        report.expired, report.lost_tokens = count, int(lost)
        report.epochs = stack.log_text().count('"batch.claimed"')
        findings = stack.read(audit_ledger)
        if not findings.sound or findings.overshot or findings.open_holds:
            report.faults.append(f"the ledger: {findings}")
        if report.overshoot > 0:
            report.faults.append(f"the budget was exceeded by {report.overshoot}")
        for look in stack.read(reconcile.list_reconciliations):
            report.faults += [f"a reconciliation on the way: {found}" for found in look.imbalances]
        for name, process in sorted(stack.processes.items()):
            engine = asyncio.run(status_of(process.socket))
            settled = stack.read(lambda c, epoch=engine.epoch: tokens_of(c, epoch))
            # A paused gateway settles too late: the ledger has the tokens as lost, and confirms them to the engine.
            late = tables.lost_attempts.c
            query = sa.select(sa.func.coalesce(sa.func.sum(late.lost_tokens), 0)).where(late.epoch == engine.epoch)
            settled += int(stack.read(lambda c, query=query: c.execute(query).scalar_one()))
            difference = settled - (engine.tokens_made - engine.tokens_overrun - engine.tokens_lost)
            # A gateway that is killed between a settlement and its confirmation leaves tokens that count as lost too.
            if not 0 <= difference <= engine.tokens_lost:
                report.faults.append(f"engine {name}: the ledger has {difference} tokens more than it made")


class KilledStack(TwoEngines):
    """Two engines, and gateways that are killed and started again. `log_text` has the lines of all gateways."""

    def log_text(self) -> str:
        return "".join(path.read_text() for path in self.directory.glob("gateway*.log"))


async def status_of(socket: Path) -> StatusReport:
    client = EngineClient(socket)
    await client.start()
    await client.wait_ready(30)
    try:
        return await client.status()
    finally:
        await client.close()


def make_stage(directory: Path, url: str, model_dir: Path, seed: int) -> Stage:
    listed = "".join(f'[[engines]]\nname = "{name}"\naddress = "unix:{directory}/{name}.sock"\n' for name in ("a", "b"))
    toml = f"{listed}[fleet]\nresume_wait_s = 5\n{TOML}"
    return Stage(KilledStack(directory, url, model_dir, fake={"step_ms": 10.0}, toml=toml), seed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--lines", type=int, default=5000)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a new directory for the logs; without it they are deleted")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, fresh_postgres() as url:
        stage = make_stage(given.keep or Path(name) / "stack", url, MODEL_DIR, given.seed)
        try:
            found = stage.run(given.kills, given.lines, given.batches)
        finally:
            stage.stack.stop()
    found.show()
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
