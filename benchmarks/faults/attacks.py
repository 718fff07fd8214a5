"""Runs attacks by one tenant, or by a client without a key, and measures their effect on another tenant.

    python -m benchmarks.faults.attacks [--only F2a F4 …] [--seconds 5] [--services] [--note TEXT]

The gateway is alone on one core. Attacker, victim and engine share the other. Every attack is followed by its quiet
form: the same bytes at the same pace over as many connections, sent to a process on the gateway's core that only reads
them, while the victim sends its requests to the gateway.

- loop_stall_ms: the largest lateness of a timer on the gateway's event loop (watched_gateway.py). In F1, where the
  engine is attacked, the longest gap between two tokens of a stream.
- cpu_ms_per_refusal: CPU of the gateway and its child processes from the beginning of the attack until they are idle,
  less the cost of the victim's requests in the quiet form, per refused request of the attacker; none where most of the
  attack was served.
- rss_grew_mib, in `detail` of the attacks with large bodies: the growth of the memory of the gateway and its child
  processes.
- victim_p99_ms, quiet_p99_ms: latency of the victim's requests during the attack and during its quiet form, from when
  each was due. refused: requests of the victim that were refused or broken.

Each figure is printed with its limit; the exit status is 1 when a limit is missed. Appends rows to
benchmarks/results/attacks.csv. --seconds scales every attack; with the default all take about ten minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import functools
import itertools
import math
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults import attack_bodies, attack_connections, attack_requests
from benchmarks.faults.attack_stage import STEP_MS, Row, Setting, Stage, stage
from benchmarks.pinned_stack import MODEL_DIR, lacks, machine
from benchmarks.rows import RESULTS, stamp

SECONDS = 5.0
STALL_MS_MAX = 50.0
CPU_MS_MAX = 3.0
RSS_MIB_MAX = 512.0
SLOWER_MAX, SLOWER_MS_MAX = 1.5, 10.0  # limits of the victim's p99: a factor of the quiet p99, plus ms
COLUMNS = [
    *("date", "commit", "machine", "attack", "loop_stall_ms", "cpu_ms_per_refusal", "victim_p99_ms", "quiet_p99_ms"),
    *("refused", "missed", "target_ms", "victim_p50_ms", "quiet_stall_ms", "rss_peak_mib", "victim_requests"),
    *("refusals", "attempts", "attack_s", "statuses", "detail", "note"),
]
FAKE = Setting()
FAST_STEP_MS = 1.0
LONGER = 4


@dataclass(frozen=True)
class Attack:
    """`run` gets a stage with the `setting`, and seconds. It may return several rows, named in their "attack"."""

    name: str
    about: str
    run: Callable[[Stage, float], Awaitable[Row | list[Row]]]
    setting: Setting = FAKE
    step_ms: float = STEP_MS  # the engine's step time


async def _longer(stage: Stage, seconds: float, attack: Callable[[Stage, float], Awaitable[Row]]) -> Row:
    """An attack whose p99 would otherwise be that of its first requests."""
    return await attack(stage, LONGER * seconds)


def attacks() -> Iterator[Attack]:
    """All attacks in the order in which they run: attacks with equal settings together."""
    requests, connections, bodies = attack_requests, attack_connections, attack_bodies
    for name, about in requests.ABOUT_REFUSED.items():
        for who in requests.WHO:
            run = functools.partial(requests.refused_requests, name=name, who=who)
            yield Attack(f"{name}/{who}", f"{about}; the attacker's limits: {who}", run)
    for count, addresses in ((1, "one address"), (26, "26 addresses")):
        run = functools.partial(connections.endless_heads, addresses=count)
        name = "F4/one-address" if count == 1 else "F4/many-addresses"
        yield Attack(name, f"1,300 heads that never end, of {addresses}, and 1,024 descriptors", run)
    yield Attack("F5", "four trickled uploads; the victims have adapters checked", connections.trickled_uploads)
    for form in bodies.FORMS:
        run = functools.partial(_longer, attack=functools.partial(bodies.large_bodies, form=form))
        yield Attack(f"bodies/{form}", f"100 bodies of 32 MiB at once, {bodies.FORMS[form]}", run)
    for name, writes in (("F7/chat", False), ("F7/writes", True)):
        run = functools.partial(requests.administrative_writes, victim_writes=writes)
        yield Attack(name, "32 connections of a tenant's admin make keys", run)
    for name, count, unread in (("F3/whole", 1, False), ("F3/unread", 1, True), ("F3/four", 4, False)):
        run = functools.partial(requests.large_answers, count=count, unread=unread)
        yield Attack(name, "answers with n=8 and 20 top_logprobs", run, step_ms=FAST_STEP_MS)
    for tier in ("standard", "premium", "batch"):
        run = functools.partial(requests.crowded_tier, tier=tier)
        yield Attack(
            f"F8/{tier}", "256 requests of one tenant, first tokens of another", run, step_ms=requests.CROWD_STEP_MS
        )
    yield Attack("F6", "unfinished uploads on a small disk", connections.unfinished_uploads, connections.SMALL_DISK)
    yield Attack(
        "F1", "an adapter with an exponential rank_pattern", connections.stalling_adapter, connections.REAL_ENGINE
    )


def missed(row: Row) -> list[str]:
    """Names of the figures in a row that miss their limits."""
    found = []
    if row["loop_stall_ms"] > stall_ms_max(row):
        found.append("loop_stall_ms")
    if row["cpu_ms_per_refusal"] > CPU_MS_MAX:
        found.append("cpu_ms_per_refusal")
    if row["victim_p99_ms"] > victim_ms_max(row):
        found.append("victim_p99_ms")
    if row.get("rss_grew_mib", 0.0) > RSS_MIB_MAX:
        found.append("rss_grew_mib")
    if row["refused"]:
        found.append("refused")
    return found


def stall_ms_max(row: Row) -> float:
    """F1's stall is a gap between tokens, and steps of its quiet form may take longer than the limit."""
    return max(STALL_MS_MAX, row["quiet_stall_ms"]) if row["attack"] == "F1" else STALL_MS_MAX


def victim_ms_max(row: Row) -> float:
    return float(row.get("target_ms") or SLOWER_MAX * row["quiet_p99_ms"] + SLOWER_MS_MAX)


def show(row: Row) -> None:
    limits = {
        "loop_stall_ms": stall_ms_max(row),
        "cpu_ms_per_refusal": CPU_MS_MAX,
        "victim_p99_ms": victim_ms_max(row),
        "refused": 0.0,
    }
    figures = "  ".join(
        f"{name} {row[name]:.1f} (<= {limit:.0f}{', MISSED' if name in missed(row) else ''})"
        for name, limit in limits.items()
        if not math.isnan(row[name])
    )
    print(f"{row['attack']:20} {figures}  quiet {row['quiet_p99_ms']:.1f}", flush=True)
    told = ("statuses", "refusals", "detail")
    print(" " * 20, "; ".join(f"{name}: {row[name]}" for name in told if row.get(name)), flush=True)


def append(file: Path, rows: Iterable[Row], note: str) -> None:
    date, commit = stamp()
    fresh = not file.exists()
    with file.open("a", newline="") as out:
        writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
        if fresh:
            writer.writeheader()
        for row in rows:
            told = {name: text(value) for name, value in row.items() if name in COLUMNS}
            writer.writerow({"date": date, "commit": commit, "machine": machine(), "note": note, **told})


def text(value: object) -> object:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4g}"
    return value


def run(
    names: list[str], seconds: float, model_dir: Path, *, services: bool = False, keep: Callable[[Row], None] = show
) -> list[Row]:
    """Run the attacks whose names begin with one of `names`; all without names. Skips what cannot run here."""
    chosen = [one for one in attacks() if not names or one.name.startswith(tuple(names))]
    found: list[Row] = []
    for setting, group in itertools.groupby(chosen, key=lambda attack: attack.setting):
        try:
            with stage(setting, model_dir, services=services) as made:
                for attack in group:
                    made.set_step(attack.step_ms)
                    for row in asyncio.run(_rows(attack, made, seconds)):
                        keep(row)
                        found.append(row)
        except PermissionError as error:
            print(f"left out: {error}", flush=True)
    return found


async def _rows(attack: Attack, made: Stage, seconds: float) -> list[Row]:
    """The rows of one attack, each with the limits that it missed."""
    rows = await attack.run(made, seconds)
    if isinstance(rows, dict):
        rows = [rows]
    rows = [{"attack": attack.name, **row} for row in rows]
    return [row | {"missed": " ".join(missed(row))} for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="beginnings of attacks' names")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of an attack of F2; the others' scale with it")
    parser.add_argument("--services", action="store_true", help="on this machine's PostgreSQL and Redis")
    parser.add_argument("--note", default="", help="stands in the rows")
    parser.add_argument("--list", action="store_true", help="show the attacks, run none")
    given = parser.parse_args()
    if given.list:
        print("\n".join(f"{one.name:20} {one.about}" for one in attacks()))
        return 0
    model_dir = Path(os.environ.get("LANEWAY_TEST_MODEL", MODEL_DIR))
    if missing := lacks(model_dir):
        sys.exit(f"this machine lacks {missing}")

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the small disk is unmounted

    def keep(row: Row) -> None:
        show(row)
        append(RESULTS / "attacks.csv", [row], given.note)

    rows = run(given.only, given.seconds, model_dir, services=given.services, keep=keep)
    bad = [row["attack"] for row in rows if row["missed"]]
    print(f"{len(rows)} rows; limits are missed in {', '.join(bad) or 'none'}")
    return 1 if bad or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
