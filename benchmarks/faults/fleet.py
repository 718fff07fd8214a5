"""Kills, partitions, drains and upgrades of a fleet under load, and then its books.

    python -m benchmarks.faults.fleet [--model fake|tiny] [--minutes 30] [--engines 4] [--gateways 2] [--clients 12]

Four engines and two gateways in network namespaces, PostgreSQL, Redis, clients of the openai SDK whose texts are known
from a run without faults. Each fault once, then faults at random for `--minutes`. It prints and appends to
benchmarks/results/fleet_faults.csv: fault, requests, failed, other text, longest gap, difference of the books.
`--table` prints the newest row of each fault as Markdown. Linux, root and `ip` are needed. Exit status 1 when a stream
failed, a text differed or a book does not add up.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import sqlalchemy as sa

from benchmarks.faults.fleet_books import check_books
from benchmarks.faults.fleet_clients import FleetClients, Seen, make_specs
from benchmarks.faults.fleet_faults import FAULTS, KILL_GATEWAY, UPGRADE, Fault, FaultRun
from benchmarks.faults.fleet_stage import fleet_stage
from benchmarks.faults.fleet_table import AT_RANDOM, ROWS, fault_table
from benchmarks.rows import REPO, append_table
from engine.protocol.client import EngineNotConnected
from support.paths import TESTS

SMOLLM = Path(os.environ.get("LANEWAY_TEST_MODEL", REPO / ".laneway" / "models" / "smollm2-135m-instruct"))
TINY = REPO / "examples" / "models" / "laneway-tiny"
POSTGRES_ADMIN = os.environ.get("LANEWAY_TEST_POSTGRES", "postgresql+psycopg://postgres@127.0.0.1:5432/postgres")
# The last commit whose engine speaks protocol version 4 alone.
VERSION_4_COMMIT = "8eccad2b"
BEFORE_S, AFTER_S = 1.5, 2.5


def old_checkout(directory: Path) -> Path | None:
    """The code whose engine speaks version 4, from the repository's history; None: the history is not here."""
    target, archive = directory / "version-4", directory / "version-4.tar"
    target.mkdir()
    command = ["git", "-C", str(REPO), "archive", "-o", str(archive), VERSION_4_COMMIT]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        return None
    subprocess.run(["tar", "-xf", str(archive), "-C", str(target)], check=True)
    return target


async def apply_fault(name: str, fault: Fault, run: FaultRun) -> None:
    """Violations are recorded, and the load continues."""
    try:
        await fault(run)
    except (AssertionError, EngineNotConnected, TimeoutError) as error:
        run.clients.seen.violations.append(f"{name}: {type(error).__name__}: {error}")


async def run_fault(name: str, fault: Fault, run: FaultRun, clients: FleetClients) -> Seen:
    print(f"... {name}", flush=True)
    await clients.start_load()
    await asyncio.sleep(BEFORE_S)
    await apply_fault(name, fault, run)
    await asyncio.sleep(AFTER_S)
    return await clients.stop_load()


async def run_at_random(minutes: float, faults: dict[str, Fault], run: FaultRun, clients: FleetClients) -> Seen:
    print(f"... at random for {minutes:g} min", flush=True)
    until = time.monotonic() + minutes * 60
    await clients.start_load()
    while time.monotonic() < until:
        name = run.chance.choice(sorted(faults))
        print(f"    {name}", flush=True)
        await apply_fault(name, faults[name], run)
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
        del faults[UPGRADE]
        print("LEFT OUT: the upgrade from version 4, whose code is not in this checkout's history")
    if options.faults:
        faults = {name: fault for name, fault in faults.items() if name in options.faults}
    rows: list[dict[str, object]] = []
    bad: list[str] = []
    async with fleet_stage(
        directory,
        database_url,
        SMOLLM if fake else TINY,
        fake=fake,
        engines=options.engines,
        gateways=options.gateways,
        environ=environ,
    ) as stage:
        specs = make_specs(options.texts, sorted(stage.stack.keys), options.seed)
        clients = FleetClients(stage, specs, options.clients, options.seed)
        run = FaultRun(stage, clients, chance, clock, old_code)
        await clients.learn_texts()
        names = [*faults, AT_RANDOM] if options.minutes else list(faults)
        killed = False
        for name in names:
            if name == AT_RANDOM:
                seen = await run_at_random(options.minutes, faults, run, clients)
                killed = True
            else:
                seen = await run_fault(name, faults[name], run, clients)
                killed = killed or name == KILL_GATEWAY
            difference, found = await check_books(stage, clients, gateways_killed=killed)
            bad += [f"{name}: {fault}" for fault in found + seen.failed + seen.violations]
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
            print(rows[-1], f"refused by budget {seen.refused}, silence {seen.longest_silence_s:.2f} s", flush=True)
        await clients.close()
    if not options.no_rows:
        append_table(rows, ROWS)
    print("\n".join(bad) or "no stream failed, every text is the same, every book adds up")
    return 1 if bad else 0


def local_url(url: str, name: str) -> str:
    """`url` with the database `name`, over the Unix socket: gateways in namespaces have another loopback."""
    admin = sa.create_engine(url)
    with admin.connect() as connection:
        directories = connection.execute(sa.text("SHOW unix_socket_directories")).scalar_one()
        port = connection.execute(sa.text("SHOW port")).scalar_one()
    admin.dispose()
    user = sa.make_url(url).username
    return f"postgresql+psycopg://{user}@/{name}?host={directories.split(',')[0].strip()}&port={port}"


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
    parser.add_argument("--keep", type=Path, help="a new directory for logs and files, which is not removed")
    parser.add_argument(
        "--table", action="store_true", help="print the newest row of each fault as Markdown, run nothing"
    )
    options = parser.parse_args(argv)
    if options.table:
        print(fault_table(ROWS))
        return 0
    name = f"laneway_fleet_{os.getpid()}"
    admin = sa.create_engine(POSTGRES_ADMIN, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    try:
        url = local_url(POSTGRES_ADMIN, name)
        if options.keep is not None:
            options.keep.mkdir()
            return asyncio.run(run_all(options, url, options.keep.absolute()))
        with tempfile.TemporaryDirectory(prefix="laneway-fleet-") as directory:
            return asyncio.run(run_all(options, url, Path(directory)))
    finally:
        with admin.connect() as connection:
            connection.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))
        admin.dispose()


if __name__ == "__main__":
    sys.exit(main())
