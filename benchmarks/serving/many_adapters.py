"""A thousand adapters on one GPU, or a toy size on a CPU: the cost of registering and loading them.

    python -m benchmarks.serving.many_adapters [--cpu] [--no-slabs] [--seconds 4] [--directory DIR] [--note TEXT]

Llama-3.1-8B's shape with random weights in bfloat16, adapters of rank 16 on all seven modules (84 MB each), 1,000
digests of four files, capacity for 128 on the device and 300 in page-locked host memory; the rest is read from slab
files in the page cache (--no-slabs: from the adapters' files). The real loop, scheduler and runner, without a socket.
In this order:

- a request alone: how much later its first token comes with its adapter in host memory, in the page cache, on disk;
- while 100 requests with cold adapters arrive, one a step, beside 24 that decode: the longest step, and the same with
resident adapters;
- 32 requests in flight, their adapters drawn evenly from 5, 32 and 1,000 without one twice; beside that the bound: the
smaller of the rate with as many distinct resident adapters, and the rate at which reading and copying alone, measured
first on an idle engine, can load the missed adapters;
- the same by Zipf's law over 1,000, against all requests on 128 resident adapters: tokens a second, where the adapters
were when requests arrived, first tokens by that location.

Appends rows to benchmarks/results/serving_many_adapters.csv; not on a CPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from adapters.device.host_weights import READS_MAX, read_numbers
from adapters.files.spec import PARENTS, BaseShape
from adapters.files.store import AdapterStore
from benchmarks.rows import REPO, append_rows
from engine.__main__ import ServedRunner, build_scheduler
from engine.protocol.config import EngineConfig, ModelConfig
from engine.protocol.frames import Sampling
from engine.protocol.tiers import Tier
from engine.step import Pending, Sequence, Step

sys.path.insert(0, str(REPO / "tests"))

from support.adapters.directories import add_directory

FILES, RANK = 4, 16
ZIPF = 1.0
PATIENT_MS = 3_600_000.0
# No floors reserve capacity: the workload has no targets.
TIER = Tier(name="one", service_tier="default", ttft_base_ms=PATIENT_MS, inter_token_ms=PATIENT_MS, queue_max=100_000)
WEIGHTS = "adapter_model.safetensors"
LOOK_S = 0.0002  # with no step to run, between two polls of adapter loads
TOY = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    registered: tuple[int, ...]
    room: int  # on the device
    host: int
    in_flight: int
    background: int
    arrivals: int
    alone: int  # requests of each kind
    prompt: int
    new: int


GPU = Sizes((5, 32, 1000), 128, 300, 32, 24, 100, 30, 128, 128)
CPU = Sizes((5, 12, 40), 16, 24, 8, 2, 12, 5, 16, 16)


@dataclass
class Engine:
    """The loop without its sockets. `step_s`: the seconds between the results of two consecutive steps; `found`: where
    each request's adapter was when the request arrived."""

    runner: ServedRunner
    config: EngineConfig
    digests: list[str]
    step_s: list[float] = field(default_factory=list)
    found: dict[Sequence, str] = field(default_factory=dict)
    tokens: int = 0

    def __post_init__(self) -> None:
        self.scheduler = build_scheduler(self.config, self.runner)
        self._flights: deque[tuple[Step, Pending]] = deque()
        self._last = 0.0
        self._handles = itertools.count()
        self._dice = random.Random(1)
        (self.model,) = self.runner.models

    def submit(self, digest: str | None, prompt: int, new: int) -> Sequence:
        handle = next(self._handles)
        vocab = self.runner.models[self.model].vocab_size
        ids = [self._dice.randrange(10, vocab) for _ in range(prompt)]
        sequence = Sequence(
            handle, 0, f"r{handle}", self.model, digest, "", TIER.name, "", ids, new, Sampling(temperature=0.0),
            frozenset(), time.monotonic(),
        )  # fmt: skip
        self.found[sequence] = self.runner.adapters.adapter_location(digest) if digest is not None else "none"
        refusal = self.scheduler.submit(sequence)
        assert refusal is None, refusal
        return sequence

    def turn(self) -> int:
        """Begin the steps that can begin, and take one result. Returns how many requests ended."""
        while len(self._flights) <= self.runner.steps_ahead and (step := self.scheduler.schedule()) is not None:
            self._flights.append((step, self.runner.begin_step(step)))
            if len(self._flights) == 1:
                self._flights[0][1].draw(None)
        if not self._flights:
            self._last = 0.0
            time.sleep(LOOK_S)
            return 0
        step, pending = self._flights.popleft()
        result = pending.result()
        now = time.monotonic()
        if self._last:
            self.step_s.append(now - self._last)
        outcome = self.scheduler.complete(step, result, now - self._last if self._last else 0.0)
        if self._flights:
            self._flights[0][1].draw(None)
        self._last = now
        self.tokens += len(outcome.tokens)
        bad = [ended for ended in outcome.ended if ended.reason not in ("length", "aborted")]
        assert not bad, bad[0].message
        return len(outcome.ended)

    def drain(self) -> None:
        while self.scheduler.has_work() or self._flights:
            self.turn()
        self._last = 0.0

    def stop(self) -> None:
        self.scheduler.abort_gateway(0)
        self.drain()

    def forget(self, digest: str, *, host: bool) -> None:
        """Evict the adapter from the arena and from host memory."""
        self.scheduler.remove_adapter(digest)
        if host:
            self.runner.adapters.host.forget_adapter(digest)  # type: ignore[attr-defined]


def ttft_ms(requests: list[Sequence]) -> list[float]:
    return [1000 * (r.first_token_at - r.arrived_at) for r in requests if r.first_token_at is not None]


def p(values: list[float], q: float) -> float:
    return float(np.percentile(values, q)) if values else float("nan")


# ---- what is measured


def alone(engine: Engine, sizes: Sizes, files: list[Path]) -> dict[str, float]:
    """Medians over sequential requests, each on an idle engine."""
    (digest, *_), kinds = engine.digests, ("device", "host", "page_cache", "disk")
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(2):
        engine.submit(digest, sizes.prompt, 2)
        engine.drain()
    for index in range(sizes.alone):
        for kind in kinds if index < sizes.alone // 3 else kinds[:2]:
            if kind != "device":
                engine.forget(digest, host=kind != "host")
            if kind == "disk":
                for file in files[0].iterdir():
                    drop_cached(file)
            request = engine.submit(digest, sizes.prompt, 2)
            engine.drain()
            found[kind] += ttft_ms([request])
    medians = {kind: statistics.median(values) for kind, values in found.items()}
    result = {"ttft_alone_ms": medians["device"]}
    for kind in kinds[1:]:
        result[f"ttft_added_from_{kind}_ms"] = medians[kind] - medians["device"]
    return result


def drop_cached(file: Path) -> None:
    """Drop the files from the page cache, where the file system allows it."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def longest_step(engine: Engine, sizes: Sizes) -> dict[str, float]:
    """The longest step of 24 decoding requests: alone, and while requests of two prompt tokens and one output token
    arrive, one a step."""
    result = {}
    digests, rest = engine.digests[: sizes.background], engine.digests[sizes.background :]
    come = rest[: sizes.arrivals]
    background = [engine.submit(digest, sizes.prompt, 1900) for digest in digests]
    while any(request.first_token_at is None for request in background):
        engine.turn()
    for kind in ("none", "resident", "host", "page_cache"):
        for digest in come:
            if kind in ("host", "page_cache") and digest in engine.runner.adapters.resident():
                engine.forget(digest, host=kind == "page_cache")
            if kind in ("resident", "host"):
                engine.runner.adapters.bring(digest)  # type: ignore[attr-defined]
        if kind == "resident":
            for digest in come:
                engine.submit(digest, 2, 1)
            while sum(engine.scheduler.waiting().values()) or engine.scheduler.running > len(background):
                engine.turn()
        for _ in range(5):
            engine.turn()
        engine.step_s.clear()
        for digest in come:
            if kind != "none":
                engine.submit(digest, 2, 1)
            engine.turn()
        while kind != "none" and (
            sum(engine.scheduler.waiting().values()) or engine.scheduler.running > len(background)
        ):
            engine.turn()
        steps = [1000 * seconds for seconds in engine.step_s]
        result[f"step_p50_ms_arriving_{kind}"] = p(steps, 50)
        result[f"step_max_ms_arriving_{kind}"] = max(steps)
    engine.stop()
    return result


@dataclass(frozen=True)
class Load:
    tok_s: float
    requests: list[Sequence]


def keep_in_flight(engine: Engine, sizes: Sizes, draw: Callable[[], str], seconds: float) -> Load:
    """Keep a number of requests in flight for `seconds`, after a warm-up of half that time."""
    for _ in range(sizes.in_flight):
        engine.submit(draw(), sizes.prompt, sizes.new)
    requests: list[Sequence] = []
    for measured, until_s in ((False, seconds / 2), (True, seconds)):
        began, before = time.monotonic(), engine.tokens
        while time.monotonic() - began < until_s:
            ended = engine.turn()
            requests += [engine.submit(draw(), sizes.prompt, sizes.new) for _ in range(ended)]
        tok_s = (engine.tokens - before) / (time.monotonic() - began)
        if not measured:
            requests.clear()
    engine.stop()
    return Load(tok_s, requests)


def tier_rates(engine: Engine, sizes: Sizes) -> dict[str, float]:
    """Adapters a second on an idle engine: from files in the page cache by as many threads as the engine has, and from
    host memory to the device."""
    pool: Any = engine.runner.adapters
    digests = engine.digests[: 10 * READS_MAX]
    slabs = [pool.bring(digest) for digest in digests[:READS_MAX]]

    def read(index: int) -> None:
        for digest in digests[index::READS_MAX]:
            read_numbers(pool._known[digest].source, slabs[index], lambda: False)

    threads = [threading.Thread(target=read, args=(index,)) for index in range(READS_MAX)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result = {"bound_loads_s_from_files": len(digests) / (time.monotonic() - began)}
    if pool.staging is not None:
        target = torch.empty_like(slabs[0], device="cuda")
        began = time.monotonic()
        for _ in range(20):
            for slab in slabs:
                target.copy_(slab, non_blocking=True)
        torch.cuda.synchronize()
        result["bound_loads_s_to_device"] = 20 * len(slabs) / (time.monotonic() - began)
    for digest in digests:
        pool.host.forget_adapter(digest)
    return result


def registered(engine: Engine, sizes: Sizes, seconds: float) -> dict[str, float]:
    """Adapters drawn evenly, from adapters that no request in flight has if enough exist: as many distinct adapters are
    in flight with 1,000 as with 32."""
    result, comparable = tier_rates(engine, sizes), dict[int, float]()
    for count in sizes.registered:
        dice, distinct = random.Random(count), min(count, sizes.in_flight)
        recent: deque[str] = deque(maxlen=distinct - 1)

        def draw(dice: random.Random = dice, count: int = count, recent: deque[str] = recent) -> str:
            while (digest := engine.digests[dice.randrange(count)]) in recent:
                pass
            recent.append(digest)
            return digest

        before = engine.scheduler.residency.counts().hits
        load = keep_in_flight(engine, sizes, draw, seconds)
        result[f"tok_s_registered_{count}"] = load.tok_s
        result[f"ttft_p50_ms_registered_{count}"] = p(ttft_ms(load.requests), 50)
        result[f"distinct_in_flight_registered_{count}"] = float(distinct)
        hits = Counter(engine.scheduler.residency.counts().hits)
        hits.subtract(before)
        missed = {"files": hits["disk"] / sum(hits.values()), "device": 1 - hits["device"] / sum(hits.values())}
        bounds = [comparable.setdefault(distinct, load.tok_s)]
        for storage, rate in (("files", "bound_loads_s_from_files"), ("device", "bound_loads_s_to_device")):
            result[f"missed_{storage}_registered_{count}"] = missed[storage]
            if missed[storage] and rate in result:
                bounds.append(result[rate] * sizes.new / missed[storage])
        result[f"bound_tok_s_registered_{count}"] = min(bounds)
    return result


def zipf(engine: Engine, sizes: Sizes, seconds: float) -> dict[str, float]:
    """Adapters by Zipf's law over all, and over the adapters that fit on the device, each of which stands for several
    of all."""
    weights = [1 / (1 + rank) ** ZIPF for rank in range(len(engine.digests))]

    def draws(seed: int, fold: int) -> Callable[[], str]:
        drawn: Iterator[int] = iter(random.Random(seed).choices(range(len(weights)), weights, k=1_000_000))
        return lambda: engine.digests[next(drawn) % fold]

    resident = keep_in_flight(engine, sizes, draws(1, sizes.room - sizes.in_flight), seconds)
    before = engine.scheduler.residency.counts()
    load = keep_in_flight(engine, sizes, draws(1, len(weights)), 1.5 * seconds)
    after = engine.scheduler.residency.counts()
    result = {"zipf_tok_s": load.tok_s, "zipf_tok_s_all_resident": resident.tok_s}
    hits = Counter(after.hits)
    hits.subtract(before.hits)
    for storage, count in hits.items():
        result[f"zipf_hits_{storage}"] = count / max(1, sum(hits.values()))
        own = ttft_ms([request for request in load.requests if engine.found[request] == storage])
        result[f"zipf_ttft_p50_ms_{storage}"], result[f"zipf_ttft_p99_ms_{storage}"] = p(own, 50), p(own, 99)
    result["zipf_evicted_device"] = float(after.evicted_device - before.evicted_device)
    result["zipf_evicted_host"] = float(after.evicted_host - before.evicted_host)
    loads = engine.scheduler.residency.take_loads()
    for source in ("disk", "host"):
        took = [1000 * s for where, s in loads if where == source]
        result[f"load_p50_ms_from_{source}"] = p(took, 50)
    return result


# ---- the engine


def write_files(directory: Path, shape: BaseShape, dtype: torch.dtype, device: str, count: int = FILES) -> list[Path]:
    """Adapters as peft writes them."""
    paths = []
    for index in range(count):
        path = directory / f"adapter{index}"
        path.mkdir()
        tensors = {}
        for layer, (name, module) in itertools.product(range(shape.layers), shape.modules.items()):
            prefix = f"base_model.model.model.layers.{layer}.{PARENTS[name]}.{name}"
            for side, size in (("A", (RANK, module.in_features)), ("B", (module.out_features, RANK))):
                numbers = torch.empty(size, dtype=dtype, device=device).normal_(0, 0.02)
                tensors[f"{prefix}.lora_{side}.weight"] = numbers.cpu()
        config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": list(shape.modules)}
        (path / "adapter_config.json").write_text(json.dumps(config))
        save_file(tensors, path / WEIGHTS)
        paths.append(path)
    return paths


def adapter_bytes(shape: BaseShape, itemsize: int) -> int:
    each = sum(module.in_features + module.out_features for module in shape.modules.values())
    return shape.layers * RANK * each * itemsize


def gpu_runner(sizes: Sizes) -> tuple[ServedRunner, EngineConfig, BaseShape]:
    import msgspec

    from benchmarks.serving import llama

    shape = llama.base()
    each = adapter_bytes(shape, 2)
    config = llama.gpu_config((TIER,), 8 + sizes.room * each / 2**30, RANK, step_tokens=2048, sequences=sizes.room)
    config = msgspec.structs.replace(
        config, adapters_max=sizes.room, adapter_host_bytes=sizes.host * each, prefill_tokens_min=256
    )
    return llama.build(config), config, shape


def cpu_runner(sizes: Sizes) -> tuple[ServedRunner, EngineConfig, BaseShape]:
    from engine.cpu.runner import build_runner

    shape = BaseShape.from_config(TOY)
    each = adapter_bytes(shape, 4)
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "config.json").write_text(json.dumps(TOY))
        config = EngineConfig(
            models=(ModelConfig(name="toy", path=scratch, dummy=True),),
            tiers=(TIER,),
            arena_bytes=64 << 20,
            adapter_host_bytes=sizes.host * each,
            sequences_max=sizes.room,
            threads=1,
        )
        runner = build_runner(config)
    runner.pages = min(runner.pages, 60 + sizes.room * each // runner.page_bytes)
    return runner, config, shape


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="a toy, to see that it runs")
    parser.add_argument("--no-slabs", action="store_true", help="only the files as they were uploaded")
    parser.add_argument("--seconds", type=float, default=None, help="of each load that is measured")
    parser.add_argument("--directory", type=Path, default=None, help="where the adapters' files lie: on the disk")
    parser.add_argument("--note", default="")
    arguments = parser.parse_args()
    sizes, began = (CPU if arguments.cpu else GPU), time.monotonic()
    seconds = arguments.seconds or (1.0 if arguments.cpu else 4.0)
    runner, config, shape = cpu_runner(sizes) if arguments.cpu else gpu_runner(sizes)
    print(f"built in {time.monotonic() - began:.1f} s", flush=True)
    dtype, device = (torch.float32, "cpu") if arguments.cpu else (torch.bfloat16, "cuda")
    with tempfile.TemporaryDirectory(dir=arguments.directory) as scratch:
        store, files = AdapterStore(Path(scratch) / "store"), []
        for path in write_files(Path(scratch), shape, dtype, device):
            stored = add_directory(store, path, shape)
            if not arguments.no_slabs:
                store.add_slab(stored.digest, shape, str(dtype).removeprefix("torch."))
            shutil.rmtree(path)
            files.append(stored.path)
        digests = [f"{index:064x}" for index in range(sizes.registered[-1])]
        (model,) = runner.models
        at = time.monotonic()
        for index, digest in enumerate(digests):
            runner.load_adapter(digest, model, str(files[index % FILES]))
        print(f"{len(digests)} registered in {time.monotonic() - at:.1f} s", flush=True)
        engine = Engine(runner, config, digests)
        found = alone(engine, sizes, files)
        for measure in (lambda: longest_step(engine, sizes), lambda: registered(engine, sizes, seconds),
                        lambda: zipf(engine, sizes, seconds)):  # fmt: skip
            found |= measure()
            print(f"… {time.monotonic() - began:.0f} s", flush=True)
        engine.scheduler.check_integrity()
    if arguments.cpu:
        for name, value in found.items():
            print(f"{name:40} {value:12.3f}")
        return 0
    workload = f"llama-3.1-8b rank {RANK}, {sizes.prompt}+{sizes.new}, {sizes.in_flight} in flight, room {sizes.room}"
    workload += ", no slabs" if arguments.no_slabs else ""
    append_rows("serving_many_adapters", found, torch.cuda.get_device_name(), workload, arguments.note)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
