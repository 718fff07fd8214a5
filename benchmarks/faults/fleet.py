"""Kills, partitions, drains and upgrades of a fleet under load, and then its books.

    python -m benchmarks.faults.fleet [--model fake|tiny] [--minutes 30] [--engines 4] [--gateways 2] [--clients 12]

Four engines in network namespaces, two gateways, PostgreSQL, clients of the openai SDK whose texts are known from a run
without faults. Each fault once, then faults at random for `--minutes`. It prints and appends to
benchmarks/results/fleet_faults.csv: fault, requests, failed, other text, longest gap, difference of the books. Linux,
root and `ip` are needed. Exit status 1 when a stream failed, a text differed or a book does not add up.
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
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from benchmarks.faults.fleet_clients import FleetClients, Seen, make_specs
from benchmarks.faults.fleet_stage import EngineHost, FleetStage, fleet_stage
from benchmarks.rows import REPO, RESULTS, append_table
from billing import tables
from billing.proofs import reconcile
from billing.proofs.ledger_audit import audit_ledger
from support.paths import TESTS

SMOLLM = Path(os.environ.get("LANEWAY_TEST_MODEL", REPO / ".laneway" / "models" / "smollm2-135m-instruct"))
TINY = REPO / "examples" / "models" / "laneway-tiny"
POSTGRES_ADMIN = os.environ.get("LANEWAY_TEST_POSTGRES", "postgresql+psycopg://postgres@127.0.0.1:5432/postgres")
# The last commit whose engine speaks protocol version 4 alone.
VERSION_4_COMMIT = "8eccad2b"
PARTITION_S = 8.0
BEFORE_S, AFTER_S = 1.5, 2.5
QUIET_S_MAX = 90.0
SKEW_S = 600
FREE_S_MAX = 10.0  # within which the holds of a killed gateway are free
Fault = Callable[["FaultRun"], Awaitable[None]]


@dataclass
class FaultRun:
    """What the faults work on."""

    stage: FleetStage
    chance: random.Random
    clock: Path  # seconds by which the first gateway's clock is wrong
    old_code: Path | None  # whose engine speaks version 4

    def engine(self) -> EngineHost:
        return self.chance.choice(self.stage.engines)


async def kill_engine(run: FaultRun) -> None:
    engine = run.engine()
    engine.send_signal(signal.SIGKILL)
    await asyncio.sleep(1.0)
    engine.start()
    await run.stage.status(engine)


async def partition_engine(run: FaultRun) -> None:
    """Both ends live on, and neither hears the other."""
    engine = run.engine()
    engine.set_link(up=False)
    await asyncio.sleep(PARTITION_S)
    engine.set_link(up=True)
    await run.stage.status(engine)


async def drain_engine(run: FaultRun) -> None:
    """SIGTERM: the engine hands its texts over and ends; a new process takes its place."""
    engine = run.engine()
    engine.send_signal(signal.SIGTERM)
    engine.start()
    await run.stage.status(engine)


async def upgrade_engine(run: FaultRun) -> None:
    """An engine of the version before joins, serves, leaves the list, ends, and comes back as today's code."""
    assert run.old_code is not None
    engine = run.engine()
    listed = run.stage.addresses()
    run.stage.write_roster({name: address for name, address in listed.items() if name != engine.name})
    await asyncio.sleep(6.0)  # its texts end
    engine.send_signal(signal.SIGTERM)
    engine.code = run.old_code
    engine.start(listens=False)
    run.stage.write_roster({**listed, engine.name: f"unix:{engine.socket}"})
    await asyncio.sleep(12.0)
    run.stage.write_roster({name: address for name, address in listed.items() if name != engine.name})
    await asyncio.sleep(8.0)
    engine.send_signal(signal.SIGTERM)
    engine.code = REPO
    engine.start()
    run.stage.write_roster(listed)
    await run.stage.status(engine)


async def drain_gateway(run: FaultRun) -> None:
    """SIGTERM as of a rolling upgrade: it lingers, finishes its streams and ends; a new process takes its place."""
    gateway = run.chance.choice(run.stage.gateways)
    await gateway.drain()
    gateway.start()
    await gateway.wait_ready()


async def kill_gateway(run: FaultRun) -> None:
    gateway = run.stage.gateways[-1]
    gateway.kill()
    began = time.monotonic()
    while open_holds_of_the_dead(run.stage):
        assert time.monotonic() - began < FREE_S_MAX, "the holds of a killed gateway are not free"
        await asyncio.sleep(0.2)
    gateway.start()
    await gateway.wait_ready()


async def skew_clock(run: FaultRun) -> None:
    """The first gateway's clock is ten minutes wrong for a while."""
    run.clock.write_text(str(SKEW_S))
    await asyncio.sleep(3.0)
    run.clock.write_text(str(-SKEW_S))
    await asyncio.sleep(3.0)
    run.clock.write_text("0")


FAULTS: dict[str, Fault] = {
    "engine kill -9": kill_engine,
    "engine partition": partition_engine,
    "engine drain": drain_engine,
    "engine upgrade from version 4": upgrade_engine,
    "gateway drain and restart": drain_gateway,
    "gateway kill -9": kill_gateway,
    "clock skew of 10 min": skew_clock,
}


def open_holds_of_the_dead(stage: FleetStage) -> int:
    """Holds whose gateway's lease has ended."""

    def count(connection: sa.Connection) -> int:
        leases, holds = tables.leases.c, tables.holds.c
        live = sa.select(leases.gateway_id).where(leases.expires_at > sa.func.extract("epoch", sa.func.now()) * 10**6)
        query = sa.select(sa.func.count()).where(holds.state == "held", holds.gateway_id.not_in(live))
        return int(connection.execute(query).scalar_one())

    return stage.stack.read(count)


async def check_books(stage: FleetStage, *, gateways_killed: bool) -> tuple[int, list[str]]:
    """The largest difference of an engine's made tokens and the ledger's, and what does not add up."""
    stack = stage.stack
    began = time.monotonic()
    while stack.open_holds():
        assert time.monotonic() - began < QUIET_S_MAX, "holds stay open"
        await asyncio.sleep(0.2)
    await asyncio.sleep(1.0)
    faults: list[str] = []
    worst = 0
    for engine in stage.engines:
        report = await stage.status(engine)
        made = report.tokens_made - report.tokens_overrun
        settled = stack.read(lambda connection, epoch=report.epoch: tokens_of(connection, epoch))
        difference = settled - (made - report.tokens_lost)
        worst = max(worst, abs(difference))
        # A gateway that is killed between a settlement and its confirmation leaves tokens that count as lost too.
        limit = report.tokens_lost if gateways_killed else 0
        if not 0 <= difference <= limit:
            faults.append(
                f"{engine.name}: made {made}, lost {report.tokens_lost}, billed and discarded {settled}: {difference}"
            )
    audit = stack.read(audit_ledger)
    if not audit.sound or audit.overshot:
        faults.append(f"the ledger: {audit}")
    for result in stack.read(reconcile.listing):
        faults += [f"a reconciliation beside the load: {found}" for found in result.imbalances]
    minute = stack.read(reconcile.reconcile_minute)
    faults += [str(found) for found in minute.imbalances] + [f"overshot: {window}" for window in minute.overshot]
    twice = sa.select(tables.usage.c.request_id).group_by(tables.usage.c.request_id).having(sa.func.count() > 1)
    faults += [f"billed twice: {row.request_id}" for row in stack.read(lambda c: c.execute(twice).all())]
    return worst, faults


def tokens_of(connection: sa.Connection, epoch: str) -> int:
    """Tokens that the ledger has of one engine process: of usage rows whose last engine it was, without those of other
    engines, and of the attempts that moved on."""
    usage, attempts = tables.usage.c, tables.usage_attempts.c
    own = sa.select(sa.func.coalesce(sa.func.sum(usage.made_tokens), 0)).where(usage.engine_epoch == epoch)
    others = sa.select(sa.func.coalesce(sa.func.sum(attempts.made_tokens), 0)).where(
        attempts.request_id.in_(sa.select(usage.request_id).where(usage.engine_epoch == epoch)),
        attempts.epoch != epoch,
    )
    moved = sa.select(sa.func.coalesce(sa.func.sum(attempts.made_tokens), 0)).where(attempts.epoch == epoch)
    own_tokens, other_tokens, moved_tokens = (int(connection.execute(q).scalar_one()) for q in (own, others, moved))
    return own_tokens - other_tokens + moved_tokens


def old_checkout(directory: Path) -> Path | None:
    """The code whose engine speaks version 4, from the repository's history; None: the history is not here."""
    target = directory / "version-4"
    made = subprocess.run(
        ["git", "-C", str(REPO), "worktree", "add", "--detach", str(target), VERSION_4_COMMIT],
        capture_output=True,
        text=True,
        check=False,
    )
    return target if made.returncode == 0 else None


def remove_checkout(directory: Path) -> None:
    subprocess.run(["git", "-C", str(REPO), "worktree", "remove", "--force", str(directory)], check=False)


async def run_fault(name: str, fault: Fault, run: FaultRun, clients: FleetClients) -> Seen:
    print(f"... {name}", flush=True)
    clients.start_load()
    await asyncio.sleep(BEFORE_S)
    await fault(run)
    await asyncio.sleep(AFTER_S)
    return await clients.stop_load()


async def run_at_random(minutes: float, faults: dict[str, Fault], run: FaultRun, clients: FleetClients) -> Seen:
    print(f"... at random for {minutes:g} min", flush=True)
    until = time.monotonic() + minutes * 60
    clients.start_load()
    while time.monotonic() < until:
        await faults[run.chance.choice(sorted(faults))](run)
        await asyncio.sleep(run.chance.uniform(0, 2))
    return await clients.stop_load()


async def run_all(options: argparse.Namespace, database_url: str, directory: Path) -> int:
    chance = random.Random(options.seed)
    clock = directory / "clock"
    clock.write_text("0")
    environ = {"PYTHONPATH": f"{TESTS / 'support' / 'stepped_clock'}:{REPO}", "LANEWAY_TEST_CLOCK": str(clock)}
    fake = options.model == "fake"
    old_code = old_checkout(directory)
    faults = dict(FAULTS)
    if old_code is None:
        del faults["engine upgrade from version 4"]
        print("LEFT OUT: the upgrade from version 4, whose code is not in this checkout's history")
    if options.faults:
        faults = {name: fault for name, fault in faults.items() if name in options.faults}
    rows: list[dict[str, object]] = []
    bad: list[str] = []
    try:
        async with fleet_stage(
            directory,
            database_url,
            SMOLLM if fake else TINY,
            fake=fake,
            engines=options.engines,
            gateways=options.gateways,
            environ=environ,
        ) as stage:
            run = FaultRun(stage, chance, clock, old_code)
            specs = make_specs(options.texts, sorted(stage.stack.keys), options.seed)
            clients = FleetClients(stage, specs, options.clients, options.seed)
            await clients.learn_texts()
            names = [*faults, "at random"] if options.minutes else list(faults)
            killed = False
            for name in names:
                if name == "at random":
                    seen = await run_at_random(options.minutes, faults, run, clients)
                    killed = True
                else:
                    seen = await run_fault(name, faults[name], run, clients)
                    killed = killed or name == "gateway kill -9"
                difference, found = await check_books(stage, gateways_killed=killed)
                bad += [f"{name}: {fault}" for fault in found + seen.failed]
                if seen.other_text:
                    bad.append(f"{name}: {seen.other_text} texts differ")
                rows.append(
                    {
                        "engines": f"{options.engines} {options.model}",
                        "fault": name,
                        "requests": seen.requests,
                        "failed": len(seen.failed),
                        "retried": seen.broken_with_gateway,
                        "other_text": seen.other_text,
                        "longest_gap_s": round(seen.longest_gap_s, 2),
                        "books_difference_tokens": difference,
                    }
                )
                print(rows[-1], flush=True)
            await clients.close()
    finally:
        if old_code is not None:
            remove_checkout(old_code)
    if not options.no_rows:
        append_table(rows, RESULTS / "fleet_faults.csv")
    print("\n".join(bad) or "no stream failed, every text is the same, every book adds up")
    return 1 if bad else 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.fleet", description=__doc__)
    parser.add_argument("--model", choices=["fake", "tiny"], default="fake", help="fake ids, or laneway-tiny on CPUs")
    parser.add_argument("--minutes", type=float, default=1.0, help="of faults at random; 0: none")
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--texts", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", nargs="*", default=[], help="only these, by name")
    parser.add_argument("--no-rows", action="store_true", help="append nothing to benchmarks/results")
    options = parser.parse_args(argv)
    name = f"laneway_fleet_{os.getpid()}"
    admin = sa.create_engine(POSTGRES_ADMIN, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    try:
        with tempfile.TemporaryDirectory(prefix="laneway-fleet-") as directory:
            url = POSTGRES_ADMIN.rsplit("/", 1)[0] + f"/{name}"
            return asyncio.run(run_all(options, url, Path(directory)))
    finally:
        with admin.connect() as connection:
            connection.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))
        admin.dispose()


if __name__ == "__main__":
    sys.exit(main())
