"""Premium first tokens alone and beside a batch, of the gateway alone: the engine is fake.

    python -m benchmarks.premium_beside_batch [--turns 3] [--seconds 20] [--services] [--code DIR] [--sections]

The gateway process has one core, all else the other. Premium: Poisson, 4 requests a second of 512 tokens in and 16
streamed out. The batch: lines of 256 to 1,000 tokens in and 128 out, `--lines` of them at once. A step of the engine
takes 12.5 ms whatever is in it, as a full step on an H200. In turns: premium alone, then beside the batch.

- ttft_ms: at the client, from when the request was due. `before_submit`: at the gateway, from the request's arrival to
  its Submit, which contains parsing, counting and the hold. `engine`: of requests that this process sends to the
  engine's own socket at the same time, which is what a gateway without any delay would show;
- `hold`: the part of before_submit from which the request waits for its hold;
- loop_late_ms: lateness of a timer of 5 ms on the gateway's event loop; `collector`: its longest run in ms;
- core: CPU seconds of the gateway process for each second.

`--sections` prints the callbacks of the event loop with the most CPU and the longest wall time; its loop is slower, so
no rows are appended. `--code DIR` runs the gateway and the engine of another tree, to compare two versions in turn.
Appends rows to benchmarks/results/premium_beside_batch.csv.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import msgspec
import numpy as np
import sqlalchemy as sa

from benchmarks import pinned_stack
from benchmarks.load.words import Prompts
from benchmarks.pinned_stack import MODEL, Stack, cpu_s, gateway_pid, lacks, machine
from benchmarks.probes import Probes
from benchmarks.rows import REPO, RESULTS, append_table
from benchmarks.timed_gateway import LONG_S, SECTIONS, TIMES_FILE, LoopTimes
from billing import tables

STEP_MS = 12.5
PREMIUM, BATCH = "acme", "initech"
RATE, PROMPT_TOKENS, NEW_TOKENS = 4.0, 512, 16
LINE_TOKENS, LINE_NEW_TOKENS = (256, 1000), 128
LEAD_S = 14.0  # seconds of a batch before its window, in which the worker raises its pace
REST_S = 2.0  # after a batch was cancelled
POLL_S = 0.2
WAIT_S_MAX = 60.0
LISTED, SLOWEST = 20, 6


class TimedStack(Stack):
    """Its gateway runs under timed_gateway.py."""

    sections = False

    def start_gateway(self) -> None:
        program = REPO / "benchmarks" / "timed_gateway.py"
        argv = [sys.executable, str(program), "--config", str(self.config_file)]
        environ = {**os.environ, "PYTHONPATH": str(self.code or REPO), TIMES_FILE: str(self.times_file)}
        if self.sections:
            environ[SECTIONS] = "1"
        with self.log_file.open("ab") as log:
            self.gateway = subprocess.Popen(argv, stdout=log, stderr=log, cwd=self.code, env=environ)

    @property
    def times_file(self) -> Path:
        return self.directory / "loop-times.json"


@dataclass
class Window:
    """The measurements while premium requests arrived. Times in seconds; moments by time.monotonic."""

    began: float
    ended: float = 0.0
    core: float = 0.0
    lines: int = 0  # lines that ended
    ttft_s: list[float] = field(default_factory=list)
    engine_s: list[float] = field(default_factory=list)
    before_submit_s: list[float] = field(default_factory=list)
    hold_s: list[float] = field(default_factory=list)
    arrived_at: list[float] = field(default_factory=list)  # arrival of each request in the two lists above

    @property
    def seconds(self) -> float:
        return self.ended - self.began


def batch_input(count: int, seed: int) -> bytes:
    dice = random.Random(seed)
    prompts = Prompts(random.Random(0), dice, 0)
    lines = []
    for number in range(count):
        content = prompts.make(dice.randint(*LINE_TOKENS))
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": LINE_NEW_TOKENS,
            "temperature": 0,
        }
        line = {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        lines.append(json.dumps(line).encode() + b"\n")
    return b"".join(lines)


@contextlib.contextmanager
def batch_running(stack: Stack, lines: bytes) -> Iterator[None]:
    """A batch that has been in progress for LEAD_S when the block begins, and is cancelled at its end."""
    headers = {"Authorization": f"Bearer {stack.keys[BATCH]}"}
    with httpx.Client(base_url=f"{stack.url}/v1", headers=headers, timeout=WAIT_S_MAX) as client:

        def until(*statuses: str) -> dict[str, Any]:
            deadline = time.monotonic() + WAIT_S_MAX
            while (found := checked(client.get(f"/batches/{batch_id}")))["status"] not in statuses:
                assert time.monotonic() < deadline, found
                time.sleep(POLL_S)
            return found

        form = {"file": ("lines.jsonl", lines, "application/jsonl")}
        file = checked(client.post("/files", data={"purpose": "batch"}, files=form))
        asked = {
            "input_file_id": file["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        batch_id = checked(client.post("/batches", json=asked))["id"]
        until("in_progress")
        time.sleep(LEAD_S)
        yield
        found = checked(client.get(f"/batches/{batch_id}"))
        assert found["status"] == "in_progress", f"the batch is too short: {found}"
        assert not found["request_counts"]["failed"], found
        checked(client.post(f"/batches/{batch_id}/cancel"))
        until("cancelled")
        time.sleep(REST_S)


def checked(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, f"{answer.status_code}: {answer.text[:500]}"
    found: dict[str, Any] = answer.json()
    return found


class Premium:
    """Sends premium requests by a Poisson process."""

    def __init__(self, stack: Stack, seed: int) -> None:
        self._url = f"{stack.url}/v1/chat/completions"
        self._headers = {"Authorization": f"Bearer {stack.keys[PREMIUM]}"}
        self._dice = random.Random(seed)
        self._prompts = Prompts(random.Random(1), self._dice, 0)
        self.ttft_s: list[float] = []

    async def arrive(self, seconds: float) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            aiohttp.ClientSession(connector=connector, headers=self._headers) as session,
            asyncio.TaskGroup() as group,
        ):
            due = time.perf_counter()
            until = due + seconds
            while (due := due + self._dice.expovariate(RATE)) < until:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                group.create_task(self._ask(session, due))

    async def _ask(self, session: aiohttp.ClientSession, due: float) -> None:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": self._prompts.make(PROMPT_TOKENS)}],
            "max_tokens": NEW_TOKENS,
            "temperature": 0,
            "stream": True,
        }
        first: float | None = None
        async with session.post(self._url, json=body) as response:
            assert response.status == 200, await response.text()
            async for part in response.content.iter_any():
                if first is None and b'"content":"' in part.replace(b'"content":""', b""):
                    first = time.perf_counter()
        assert first is not None
        self.ttft_s.append(first - due)


def read_usage(stack: Stack, window: Window, since_us: int) -> None:
    """Fill the times that the gateway recorded of premium requests since a moment."""
    usage, holds = tables.usage.c, tables.holds.c
    before_hold = (holds.held_at - usage.started_at).label("before_hold_us")
    query = sa.select(usage.submitted_s, before_hold, usage.started_at).join(
        tables.holds, holds.request_id == usage.request_id
    )
    query = query.where(usage.tier == "premium", usage.started_at >= since_us, usage.submitted_s.is_not(None))
    clock_s = time.time() - time.monotonic()
    for submitted_s, before_hold_us, started_at in stack.read(lambda connection: list(connection.execute(query))):
        window.before_submit_s.append(float(submitted_s))
        window.hold_s.append(float(submitted_s) - before_hold_us / 1e6)
        window.arrived_at.append(started_at / 1e6 - clock_s)


def lines_done(stack: Stack) -> int:
    query = sa.select(sa.func.count()).select_from(tables.usage).where(tables.usage.c.tier == "batch")
    return stack.read(lambda connection: int(connection.execute(query).scalar_one()))


def measure(stack: Stack, seconds: float, seed: int) -> Window:
    premium, probes = Premium(stack, seed), Probes(str(stack.config.socket_path), PROMPT_TOKENS)

    async def arrive() -> None:
        await asyncio.gather(premium.arrive(seconds), probes.arrive(RATE, seconds, NEW_TOKENS))

    pid, since_us = gateway_pid(stack), int(time.time() * 1e6)
    cpu, lines = cpu_s(pid), lines_done(stack)
    window = Window(time.monotonic())
    asyncio.run(arrive())
    window.ended = time.monotonic()
    window.core = (cpu_s(pid) - cpu) / window.seconds
    window.lines = lines_done(stack) - lines
    window.ttft_s, window.engine_s = premium.ttft_s, probes.ttft_s
    read_usage(stack, window, since_us)
    return window


def row_of(phase: str, windows: list[Window], times: LoopTimes, place: str, note: str) -> dict[str, object]:
    """The windows of all turns as one, except `turns_p99`: the median of the turns' p99."""
    late = [late for at, late in times.ticks if any(w.began <= at < w.ended for w in windows)]
    pauses = [took for at, _, took in times.collections if any(w.began <= at < w.ended for w in windows)]
    seconds = sum(window.seconds for window in windows)
    row: dict[str, object] = {
        "machine": machine(),
        "database": place,
        "phase": phase,
        "requests": sum(len(window.ttft_s) for window in windows),
        "lines_per_s": f"{sum(window.lines for window in windows) / seconds:.1f}",
        "core": f"{sum(window.core * window.seconds for window in windows) / seconds:.3f}",
    }
    for name in ("ttft", "engine", "before_submit", "hold"):
        values = [value for window in windows for value in getattr(window, f"{name}_s")]
        for mark in (50, 95, 99):
            row[f"{name}_p{mark}_ms"] = f"{percentile_ms(values, mark):.1f}"
    of_turns = [percentile_ms(window.ttft_s, 99) for window in windows]
    row["ttft_turns_p99_ms"] = f"{float(np.median(of_turns)):.1f}"
    row["loop_late_p99_ms"] = f"{percentile_ms(late, 99):.1f}"
    row["loop_late_max_ms"] = f"{max(late, default=0.0) * 1000:.1f}"
    row["collector_max_ms"] = f"{max(pauses, default=0.0) * 1000:.1f}"
    row["note"] = note
    return row


def percentile_ms(seconds: list[float], percent: float) -> float:
    return float(np.percentile(seconds, percent)) * 1000 if seconds else 0.0


def show_sections(times: LoopTimes, windows: list[Window]) -> None:
    total = sum(window.seconds for window in windows)
    print(f"\ncallbacks with the most CPU since the start, of which {total:.0f} s beside a batch:")
    for name, found in sorted(times.totals.items(), key=lambda item: -item[1].cpu_s)[:LISTED]:
        each = found.cpu_s / found.count * 1e6
        print(f"  {found.cpu_s:8.2f} s  {found.count:8} × {each:7.0f} µs  {name}")
    inside = [one for one in times.sections if any(w.began <= one.began < w.ended for w in windows)]
    print(f"callbacks of the longest wall time beside a batch; {len(inside)} took over 2 ms:")
    for one in sorted(inside, key=lambda one: -one.wall_s)[:LISTED]:
        print(f"  {one.wall_s * 1000:7.1f} ms wall {one.cpu_s * 1000:7.1f} ms CPU  {one.name}")
    print("and how often, of these, by name:")
    for name, count in Counter(one.name for one in inside).most_common(LISTED):
        worst = max(one.cpu_s for one in inside if one.name == name)
        print(f"  {count:6} ×, at most {worst * 1000:6.1f} ms CPU  {name}")

    print("the slowest requests before their Submit, and what overlapped them:")
    requests = [row for w in windows for row in zip(w.before_submit_s, w.hold_s, w.arrived_at, strict=True)]
    for before_s, hold_s, at in sorted(requests, reverse=True)[:SLOWEST]:
        print(f"  {before_s * 1000:6.1f} ms, of which the hold {hold_s * 1000:6.1f} ms")
        found = [(one, "loop") for one in inside if one.wall_s > LONG_S]
        found += [(one, "write") for one in times.writes]
        for one, kind in sorted(found, key=lambda pair: pair[0].began):
            if one.began < at + before_s and one.began + one.wall_s > at:
                print(f"      at {(one.began - at) * 1000:6.1f}: {one.wall_s * 1000:5.1f} ms {kind} {one.name}")
        for ended, generation, took in times.collections:
            if at < ended < at + before_s + took:
                print(f"      collector, generation {generation}: {took * 1000:.1f} ms")
    pauses = [
        (generation, took)
        for at, generation, took in times.collections
        if any(w.began <= at < w.ended for w in windows)
    ]
    for generation in range(3):
        own = [took for which, took in pauses if which == generation]
        print(f"collector, generation {generation}: {len(own)} times, at most {max(own, default=0.0) * 1000:.1f} ms")
    writes = [one for one in times.writes if any(w.began <= one.began < w.ended for w in windows)]
    print("transactions that write, beside a batch:")
    for name, count in Counter(one.name for one in writes).most_common(LISTED):
        own = [one for one in writes if one.name == name]
        mean, worst = sum(one.wall_s for one in own) / count, max(one.wall_s for one in own)
        cpu = sum(one.cpu_s for one in own) / count
        print(f"  {count:6} × {mean * 1000:6.1f} ms, {cpu * 1000:5.1f} ms CPU, at most {worst * 1000:6.1f} ms  {name}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of premium in each half of a turn")
    parser.add_argument("--lines", type=int, default=96, help="lines at once")
    parser.add_argument("--services", action="store_true", help="on PostgreSQL and Redis of this machine")
    parser.add_argument("--code", type=Path, help="a tree with another version of the packages")
    parser.add_argument("--sections", action="store_true", help="time the callbacks of the event loop; appends no rows")
    parser.add_argument("--note", default="", help="stands in the rows")
    options = parser.parse_args()
    if missing := lacks():
        sys.exit(f"this machine lacks {missing}")
    per_s = options.lines / (LINE_NEW_TOKENS * STEP_MS / 1000)
    lines = batch_input(int(per_s * (options.seconds + LEAD_S + 10) * 1.2), 1)
    TimedStack.sections, TimedStack.code = options.sections, options.code and options.code.resolve()
    pinned_stack.Stack = TimedStack  # type: ignore[misc]
    alone: list[Window] = []
    beside: list[Window] = []
    toml = f"[batches]\noutstanding_max = {options.lines}\n"
    fake = {"step_ms": STEP_MS, "prefill_ms_per_1k_tokens": 0.0, "steps_ahead": 1}
    with pinned_stack.pinned_stack(fake, toml=toml, services=options.services) as stack:
        assert isinstance(stack, TimedStack)
        measure(stack, 4.0, 0)
        for turn in range(1, options.turns + 1):
            alone.append(measure(stack, options.seconds, turn))
            with batch_running(stack, lines):
                beside.append(measure(stack, options.seconds, turn))
            print(f"turn {turn}: {[round(percentile_ms(w[-1].ttft_s, 99), 1) for w in (alone, beside)]}", flush=True)
        stack.stop()
        times = msgspec.json.decode(stack.times_file.read_bytes(), type=LoopTimes)
    place = "PostgreSQL" if options.services else "SQLite"
    rows = [row_of(*named, times, place, options.note) for named in (("alone", alone), ("beside", beside))]
    for row in rows:
        print(json.dumps(row))
    ratio = percentile_ms([s for w in beside for s in w.ttft_s], 99) / percentile_ms(
        [s for w in alone for s in w.ttft_s], 99
    )
    print(f"premium's TTFT p99 beside a batch is {ratio:.2f} × its TTFT p99 alone")
    if options.sections:
        show_sections(times, beside)
    else:
        append_table(rows, RESULTS / "premium_beside_batch.csv")
    return 0


if __name__ == "__main__":
    sys.exit(main())
