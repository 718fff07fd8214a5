"""Whether timing reveals that another tenant has an adapter: refusals of foreign names beside refusals of absent names.

    python -m benchmarks.foreign_names --demo .laneway/demo.json [--calls 2000] [--note TEXT]

Both kinds go over one connection each in one shuffled order, so whatever else the machine does meets both. The noise is
what the medians of the same calls differ by when their labels are dealt out at random. Appends rows to
benchmarks/results/foreign_names.csv.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.rows import append_rows

CALLS = 2000
WARM_UP = 50
DEALS = 1000  # random permutations of the labels
Ask = Callable[[httpx.Client, str], httpx.Response]


@dataclass(frozen=True)
class Found:
    """Medians in microseconds. `noise_us`: the difference of medians that 95 % of random permutations of the labels do
    not exceed; `likely`: the part of permutations whose medians differ at least as much as the true ones."""

    foreign_us: float
    absent_us: float
    noise_us: float
    likely: float
    same_body: bool

    @property
    def difference_us(self) -> float:
        return self.foreign_us - self.absent_us


def chat(client: httpx.Client, name: str) -> httpx.Response:
    message = {"role": "user", "content": "hi"}
    return client.post("/v1/chat/completions", json={"model": name, "max_tokens": 1, "messages": [message]})


def card(client: httpx.Client, name: str) -> httpx.Response:
    return client.get(f"/v1/models/{name}")


def absent_like(name: str) -> str:
    """A name of the same length that does not exist."""
    return "~" + name[1:]


def compare(url: str, key: str, foreign: str, ask: Ask, calls: int, seed: int = 1) -> Found:
    """Time `calls` calls for each of both names. Raises AssertionError for an answer other than 404."""
    absent = absent_like(foreign)
    dice = random.Random(seed)
    order = [foreign, absent] * calls
    dice.shuffle(order)
    taken: dict[str, list[float]] = {foreign: [], absent: []}
    bodies: set[bytes] = set()
    clients = {
        name: httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=30) for name in taken
    }
    try:
        for name in [foreign, absent] * WARM_UP:
            ask(clients[name], name)
        for name in order:
            began = time.perf_counter()
            answer = ask(clients[name], name)
            taken[name].append((time.perf_counter() - began) * 1e6)
            assert answer.status_code == 404, answer.text
            bodies.add(answer.content.replace(name.encode(), b"NAME"))
    finally:
        for client in clients.values():
            client.close()
    medians = {name: statistics.median(times) for name, times in taken.items()}
    true = medians[foreign] - medians[absent]
    deals = sorted(_dealt([*taken[foreign], *taken[absent]], dice) for _ in range(DEALS))
    return Found(
        foreign_us=medians[foreign],
        absent_us=medians[absent],
        noise_us=deals[int(DEALS * 0.95)],
        likely=sum(deal >= abs(true) for deal in deals) / DEALS,
        same_body=len(bodies) == 1,
    )


def _dealt(times: list[float], dice: random.Random) -> float:
    dice.shuffle(times)
    half = len(times) // 2
    return abs(statistics.median(times[:half]) - statistics.median(times[half:]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", type=Path, default=Path(".laneway/demo.json"))
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--foreign", default="support-triage", help="an adapter that --tenant may not call")
    parser.add_argument("--tenant", default="globex")
    parser.add_argument("--note", default="")
    options = parser.parse_args()
    demo: dict[str, Any] = json.loads(options.demo.read_text())
    url = demo["base_url"].removesuffix("/v1")
    fine = True
    for kind, ask in (("chat", chat), ("card", card)):
        found = compare(url, demo["keys"][options.tenant], options.foreign, ask, options.calls)
        assert found.same_body, "the bodies differ in more than the name"
        fine = fine and found.likely > 0.001
        figures = {
            f"{kind}_foreign_p50_us": found.foreign_us,
            f"{kind}_absent_p50_us": found.absent_us,
            f"{kind}_difference_us": found.difference_us,
            f"{kind}_noise_us": found.noise_us,
            f"{kind}_likely": found.likely,
        }
        append_rows("foreign_names", figures, platform.processor() or platform.machine(), f"{options.calls} calls each",
                    options.note)  # fmt: skip
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
