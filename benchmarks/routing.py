"""A gateway's cost of one routing decision, and the memory of the index of cached pages.

    python -m benchmarks.routing [--engines 1,8,64,1000] [--pages N] [--note TEXT]

Requests of 64 full pages: `cached` (one engine has all pages, all have the system prompt, and the gateway routed
the conversation before), `unseen` (the same, but the gateway sees the conversation for the first time), `shared` (all
engines have all pages), `new` (no engine has a page), `adapter` (as `cached`, of an adapter on every eighth engine).
Loads differ by engine. `first` ranks the first 4 engines, as a gateway does; `all` ranks all. Between two decisions a
request is submitted and a heartbeat arrives. `names` computes the names of the 64 pages, as `unseen` must.
Times are the thread's own. Appends rows to benchmarks/results/routing.csv.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import random
import statistics
import time
import tracemalloc

from benchmarks.rows import append_rows
from engine.protocol.frames import ModelInfo, PagesChanged
from engine.protocol.page_names import Chain
from engine.protocol.snapshot_parts import EngineLoad
from engine.routing.router import EngineRouter, RoutableRequest

PAGE_TOKENS, PAGES, SYSTEM_PAGES, PROMPTS = 16, 64, 16, 64
TIERS = ("premium", "standard", "batch")
INFO = ModelInfo("m", "digest", 131_072, 128_256, PAGE_TOKENS, 49_152, kv_identity="bfloat16/1")
RANKED = 4


def prompt(number: int) -> list[int]:
    system, own = PAGE_TOKENS * SYSTEM_PAGES, PAGE_TOKENS * (PAGES - SYSTEM_PAGES) + 1
    return [*range(1000, 1000 + system), *range(100_000 + 10_000 * number, 100_000 + 10_000 * number + own)]


def heads(ids: list[int], adapter: str | None, pages: int) -> bytes:
    chain = Chain("digest", adapter, "ns", PAGE_TOKENS, kv_identity=INFO.kv_identity)
    return b"".join(name[:8] for name in chain.names_between(0, pages, lambda start, stop: ids[start:stop]))


def load(draws: random.Random, adapters: list[str]) -> EngineLoad:
    wait = draws.choice((0.0, 0.0, draws.expovariate(20)))
    return EngineLoad(
        {"premium": wait, "standard": 2 * wait, "batch": 8 * wait},
        prefill_token_s={"m": 27e-6 * draws.uniform(0.95, 1.05)},
        adapters=adapters,
        adapter_load_s=0.014,
    )


def fleet(count: int, requests: list[RoutableRequest], kind: str, draws: random.Random) -> EngineRouter:
    router = EngineRouter(TIERS)
    for index in range(count):
        name = f"engine-{index}"
        router.set_engine(name, {"m": INFO})
        router.note_load(name, load(draws, ["a" * 64] if index % 8 == 0 else []), False, 0.0)
        pages = []
        for number, request in enumerate(requests):
            if kind == "shared" or (kind != "new" and number % count == index):
                pages.append(heads(request.ids, request.adapter, PAGES))
            elif kind != "new":
                pages.append(heads(request.ids, request.adapter, SYSTEM_PAGES))
        router.note_pages(name, PagesChanged(1, b"".join(pages), full=True))
    return router


def measure(count: int, kind: str, engines_max: int | None, rounds: int) -> list[float]:
    """Seconds of each decision."""
    draws = random.Random(f"{count}/{kind}")
    adapter = "a" * 64 if kind == "adapter" else None
    requests = [
        RoutableRequest("m", adapter, "ns", TIERS[n % 2], prompt(n), f"conversation-{n}") for n in range(PROMPTS)
    ]
    router = fleet(count, requests, kind, draws)
    taken, now = [], 0.0
    for number in range(rounds):
        request = requests[number % PROMPTS]
        if kind == "unseen":
            request.conversation = f"unseen-{number}"
        began = time.thread_time()
        ranked = router.rank_engines(request, now, engines_max=engines_max)
        taken.append(time.thread_time() - began)
        best = ranked[0]
        router.note_submitted(best.name, request, len(request.ids) - best.cached_tokens, now)
        index = number % count
        router.note_load(f"engine-{index}", load(draws, ["a" * 64] if index % 8 == 0 else []), False, now)
        now += 1.0 / count
    return taken


def naming(rounds: int) -> list[float]:
    """Seconds to name the pages of one prompt."""
    ids, taken = prompt(0), []
    for _ in range(rounds):
        began = time.thread_time()
        heads(ids, None, PAGES)
        taken.append(time.thread_time() - began)
    return taken


def pages_of_index(pages: int, engines: int) -> dict[str, float]:
    """Bytes of a page in the index, and microseconds to add or remove a page."""
    router = EngineRouter(TIERS)
    names = [hashlib.sha256(str(n).encode()).digest()[:8] for n in range(pages * engines)]
    tracemalloc.start()
    for index in range(engines):
        own = b"".join(names[index * pages : (index + 1) * pages])
        router.note_pages(f"engine-{index}", PagesChanged(1, own, full=True))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    moved = 100
    began = time.thread_time()
    for step in range(200):
        index, at = step % engines, (step // engines) * moved
        old = b"".join(names[index * pages + at : index * pages + at + moved])
        added = hashlib.shake_256(str(step).encode()).digest(8 * moved)
        router.note_pages(f"engine-{index}", PagesChanged(2 + step // engines, added, old))
    return {
        "index_page_bytes": held / (pages * engines),
        "index_change_us": (time.thread_time() - began) / (200 * 2 * moved) * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="1,8,64,1000", help="how many engines, one measurement each")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--pages", type=int, default=20_000, help="cached pages of each of 8 engines, for the index")
    parser.add_argument("--note", default="")
    arguments = parser.parse_args()
    machine = f"{platform.machine()} {os.cpu_count()} cores, Python {platform.python_version()}"
    for count in map(int, arguments.engines.split(",")):
        found = {"names_us": statistics.median(naming(arguments.rounds)) * 1e6}
        for kind in ("cached", "unseen", "shared", "new", "adapter"):
            for which, engines_max in (("first", RANKED), ("all", None)):
                taken = measure(count, kind, engines_max, arguments.rounds)
                found[f"{kind}_{which}_us"] = statistics.median(taken) * 1e6
                found[f"{kind}_{which}_min_us"] = min(taken) * 1e6
        print(f"{count} engines:")
        workload = f"{count} engines, {PAGES} pages of {PAGE_TOKENS} tokens, {SYSTEM_PAGES} of them on all engines"
        append_rows("routing", found, machine, workload, arguments.note)
    workload = f"8 engines of {arguments.pages} pages"
    append_rows("routing", pages_of_index(arguments.pages, 8), machine, workload, arguments.note)


if __name__ == "__main__":
    main()
