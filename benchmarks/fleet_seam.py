"""The cost of a fleet of one engine in a gateway, compared with that engine alone: CPU time of a request.

    python -m benchmarks.fleet_seam [--rounds 40] [--requests 500] [--note TEXT]

One fake engine in a separate process. The same requests (200 tokens in, 32 out, 64 at once) are sent in turn through
`LocalEngine`, as before there were fleets, and through `Fleet`; each is read, its attempts are read and confirmed, and
`ready` and `models` are read as often as by the gateway. The figures are this process's CPU time, medians over the
rounds, and the part of a whole gateway request that the difference is: `--request-us`, from
`benchmarks.gateway_capacity`. Appends rows to benchmarks/results/fleet_seam.csv.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.rows import REPO, append_rows, cpu_name

sys.path.insert(0, str(REPO / "tests"))

from engine.protocol.frames import Sampling
from gateway.engines.engine import EngineRequest, TokenStream
from gateway.engines.local import LocalEngine
from gateway.fleet.fleet import Fleet
from support.gateway.small_fleet import MODEL, small_fleet

AT_ONCE, PROMPT_TOKENS, NEW_TOKENS = 64, 200, 32
READY_ASKED, MODELS_ASKED = 2, 4  # by gateway/generation/planning.py, for one request
REQUEST_US = 2170.0  # of the gateway, everything on, 2026-11-27
READY_S_MAX = 30.0
PROMPT = list(range(300, 300 + PROMPT_TOKENS))


class Round:
    """Requests of one kind of engine, at most AT_ONCE in flight."""

    def __init__(self, engine: LocalEngine | Fleet, requests: int, name: str) -> None:
        self._engine = engine
        self._left = requests
        self._name = name
        self._running = 0
        self._done = asyncio.Event()

    async def run(self) -> float:
        """CPU seconds of this process a request."""
        requests = self._left
        began = time.process_time()
        for _ in range(min(AT_ONCE, requests)):
            self._submit()
        await self._done.wait()
        return (time.process_time() - began) / requests

    def _submit(self) -> None:
        self._left -= 1
        self._running += 1
        for _ in range(READY_ASKED):
            assert self._engine.ready
        for _ in range(MODELS_ASKED):
            assert MODEL in self._engine.models
        stream = self._engine.submit(
            EngineRequest(
                request_id=f"{self._name}_{self._left}",
                model=MODEL,
                adapter=None,
                namespace="n",
                tier="standard",
                share="s",
                weight=1.0,
                prompt_ids=PROMPT,
                prompt=None,
                max_tokens=NEW_TOKENS,
                sampling=Sampling(seed=1),
                stop_ids=[],
                stops=[],
            )
        )
        stream.listen(self._reader(stream))

    def _reader(self, stream: TokenStream) -> Callable[[], None]:
        made = 0

        def read() -> None:
            nonlocal made
            made += len(stream.take_output())
            if stream.final is None:
                return
            assert made == NEW_TOKENS
            assert sum(stream.attempts.values()) == NEW_TOKENS
            stream.confirm_recorded()
            self._running -= 1
            if self._left:
                self._submit()
            elif not self._running:
                self._done.set()

        return read


async def measure(rounds: int, requests: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as scratch:
        fake = {"step_ms": 1.0, "prefill_ms_per_1k_tokens": 0.0}
        limits = {"sequences_max": AT_ONCE, "step_tokens_max": 16_384}
        async with small_fleet(Path(scratch), 1, fake=fake, engine=limits) as made:
            (name,) = made.engines
            alone = LocalEngine(made.address(name).address, gateway="gw_alone")
            await alone.start()
            await alone.wait_ready(READY_S_MAX)
            kinds: dict[str, LocalEngine | Fleet] = {"alone": alone, "fleet": made.fleet}
            found: dict[str, list[float]] = {kind: [] for kind in kinds}
            for number in range(rounds + 2):
                order = list(kinds) if number % 2 else list(reversed(kinds))
                for kind in order:
                    gc.collect()
                    taken = await Round(kinds[kind], requests, f"{kind}_{number}").run()
                    if number >= 2:  # the first two warm up
                        found[kind].append(taken)
            await alone.close()
    alone_us, fleet_us = (1e6 * statistics.median(found[kind]) for kind in ("alone", "fleet"))
    pairs = [fleet - alone for fleet, alone in zip(found["fleet"], found["alone"], strict=True)]
    return {"alone_us": alone_us, "fleet_us": fleet_us, "difference_us": 1e6 * statistics.median(pairs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--requests", type=int, default=500, help="of a round")
    parser.add_argument("--request-us", type=float, default=REQUEST_US, help="CPU time of a whole gateway request")
    parser.add_argument("--note", default="")
    given = parser.parse_args()
    found = asyncio.run(measure(given.rounds, given.requests))
    found["part_of_a_request"] = found["difference_us"] / given.request_us
    workload = f"{PROMPT_TOKENS} in, {NEW_TOKENS} out, {AT_ONCE} at once, {given.rounds} rounds of {given.requests}"
    append_rows("fleet_seam", found, cpu_name(), workload, given.note)


if __name__ == "__main__":
    main()
