"""Greedy decoding of the demo model on this CPU: the engine beside transformers, and both beside the bound.

    python benchmarks/cpu_decode.py [--model DIR] [--threads N] [--rounds N] [--note TEXT]

The engine is the real scheduler and runner, without the gateway. The bound is the bare matrix products of the same
shapes. Rounds alternate between the variants, and the median counts, so that noise of the machine affects all variants
alike. Appends rows to benchmarks/results/cpu_decode.csv.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

# Before torch: waiting threads must sleep when another thread needs the core, as in `python -m engine`.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import transformers  # noqa: E402

from benchmarks import example_adapters  # noqa: E402
from benchmarks.rows import append_rows  # noqa: E402
from engine.cpu.runner import TorchRunner, build_runner  # noqa: E402
from engine.memory.arena import Arena  # noqa: E402
from engine.models.config import load_config  # noqa: E402
from engine.protocol.config import EngineConfig, ModelConfig  # noqa: E402
from engine.protocol.frames import Sampling  # noqa: E402
from engine.protocol.tiers import SHIPPED_TIERS  # noqa: E402
from engine.scheduler.scheduler import ModelLimits, Scheduler  # noqa: E402
from engine.step import Sequence, run_step  # noqa: E402

PROMPT_TOKENS, NEW_TOKENS, PREFIX_TOKENS = 32, 64, 500


class Bench:
    def __init__(self, directory: Path, threads: int) -> None:
        model = ModelConfig(name="demo", path=str(directory))
        self.directory = directory
        self.runner: TorchRunner = build_runner(EngineConfig(models=(model,), threads=threads))
        self.oracle = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self.vocab = self.runner.models["demo"].vocab_size
        self.adapters = example_adapters.load(self.runner, "demo", directory)
        self._seed = 0

    def prompt(self, tokens: int) -> list[int]:
        """Random ids, new ones each time: nothing is found in the prefix cache by accident."""
        self._seed += 1
        generator = torch.Generator().manual_seed(self._seed)
        return [int(i) for i in torch.randint(300, self.vocab, (tokens,), generator=generator)]

    def scheduler(self) -> Scheduler:
        for digest in self.runner.adapters.resident():
            self.runner.adapters.evict_adapter(digest)
        info = self.runner.models["demo"]
        limits = {"demo": ModelLimits(info.context_tokens, info.tokens_per_page, info.digest, info.vocab_size)}
        arena = Arena(self.runner.pages, self.runner.page_bytes)
        return Scheduler(SHIPPED_TIERS, limits, arena, self.runner.adapters, time.monotonic, step_tokens_max=1024)

    def engine(self, scheduler: Scheduler, prompts: list[tuple[list[int], str | None]], new_tokens: int) -> float:
        """Seconds until all have made `new_tokens`."""
        for handle, (ids, adapter) in enumerate(prompts):
            greedy = Sampling(temperature=0.0)
            name = "demo", adapter, "ns", "standard", "share"
            sequence = Sequence(handle, 0, "r", *name, ids, new_tokens, greedy, frozenset(), time.monotonic())
            assert scheduler.submit(sequence) is None
        began = time.perf_counter()
        while scheduler.has_work():
            step = scheduler.schedule()
            assert step is not None, "every adapter is in memory"
            at = time.perf_counter()
            scheduler.complete(step, run_step(self.runner, step), time.perf_counter() - at)
        return time.perf_counter() - began

    def streams(self, count: int, adapters: bool) -> float:
        """New tokens per second of `count` streams together; with `adapters`, over them and the base in turn."""
        names = [None, *self.adapters] if adapters else [None]
        prompts = [(self.prompt(PROMPT_TOKENS), names[i % len(names)]) for i in range(count)]
        return count * NEW_TOKENS / self.engine(self.scheduler(), prompts, NEW_TOKENS)

    def transformers(self) -> float:
        ids = torch.tensor([self.prompt(PROMPT_TOKENS)])
        began = time.perf_counter()
        with torch.inference_mode():
            self.oracle.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=NEW_TOKENS,
                min_new_tokens=NEW_TOKENS,
                do_sample=False,
            )
        return NEW_TOKENS / (time.perf_counter() - began)

    def first_tokens(self) -> tuple[float, float]:
        """Seconds to the first token of two requests that share PREFIX_TOKENS ids, one after the other."""
        scheduler, prefix = self.scheduler(), self.prompt(PREFIX_TOKENS)
        cold, warm = (self.engine(scheduler, [(prefix + self.prompt(12), None)], 1) for _ in range(2))
        return cold, warm


def bound(directory: Path, rows: int) -> Callable[[], float]:
    """Steps per second of nothing but the model's matrix products for `rows` tokens, in the better of two layouts."""
    config = load_config(directory)
    qkv = config.q_size + 2 * config.kv_size
    shapes = [(config.hidden, qkv), (config.q_size, config.hidden), (config.hidden, 2 * config.intermediate)]
    shapes.append((config.intermediate, config.hidden))
    layers = [[torch.randn(inner, out) for inner, out in shapes] for _ in range(config.layers)]
    head = torch.randn(config.hidden, config.vocab)
    inputs = {inner: torch.randn(rows, inner) for inner, _ in shapes}

    def run() -> float:
        times = []
        with torch.inference_mode():
            for transposed in (False, True):
                began = time.perf_counter()
                for weight in (weight for layer in [*layers, [head]] for weight in layer):
                    x = inputs[weight.shape[0]]
                    if transposed:
                        F.linear(x, weight.view(weight.shape[1], weight.shape[0]))
                    else:
                        torch.mm(x, weight)
                times.append(time.perf_counter() - began)
        return 1 / min(times)

    return run


def measure(bench: Bench, rounds: int) -> dict[str, float]:
    one_bound, eight_bound = bound(bench.directory, 1), bound(bench.directory, 8)
    first = [bench.first_tokens() for _ in range(rounds)]
    samples: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, run in (
            ("transformers", bench.transformers),
            ("one_stream", lambda: bench.streams(1, adapters=False)),
            ("eight_streams_base", lambda: bench.streams(8, adapters=False)),
            ("eight_streams_mixed", lambda: bench.streams(8, adapters=True)),
            ("bound_1", one_bound),
            ("bound_8", lambda: 8 * eight_bound()),
        ):
            samples.setdefault(f"{name}_tokens_per_s", []).append(run())
    found = {name: statistics.median(values) for name, values in samples.items()}
    cold, warm = (statistics.median(values) for values in zip(*first, strict=True))
    one = found["one_stream_tokens_per_s"]
    return found | {
        "one_stream_over_transformers": one / found["transformers_tokens_per_s"],
        "one_stream_of_bound": one / found["bound_1_tokens_per_s"],
        "eight_mixed_over_one": found["eight_streams_mixed_tokens_per_s"] / one,
        "eight_mixed_of_bound": found["eight_streams_mixed_tokens_per_s"] / found["bound_8_tokens_per_s"],
        "ttft_cold_ms": cold * 1e3,
        "ttft_prefix_hit_ms": warm * 1e3,
        "ttft_hit_over_cold": warm / cold,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=REPO / ".laneway" / "models" / "smollm2-135m-instruct")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--note", default="")
    arguments = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    bench = Bench(arguments.model, arguments.threads)
    found = measure(bench, arguments.rounds)
    machine = f"{platform.machine()} {os.cpu_count()} cores, {arguments.threads} threads, torch {torch.__version__}"
    workload = f"SmolLM2-135M float32, prompt {PROMPT_TOKENS}, new {NEW_TOKENS}, prefix {PREFIX_TOKENS}"
    append_rows("cpu_decode", found, machine, workload, arguments.note)


if __name__ == "__main__":
    main()
