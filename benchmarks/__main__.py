"""`python -m benchmarks [NAME …]`, which `make bench` runs: the benchmarks that fit this machine, one after another.

Each is a separate program, which prints its figures and appends them to benchmarks/results/. `--list` shows them.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
KERNELS = {
    "lora": "LoRA",
    "decode_attention": "decode attention",
    "prefill_attention": "prefill attention",
    "norm": "norm",
    "rotary": "rotary",
    "swiglu": "SwiGLU",
    "sample": "sampling",
}
DEMO_MODEL = REPO / ".laneway" / "models" / "smollm2-135m-instruct"


@dataclass(frozen=True)
class Benchmark:
    """`lacks()` returns what the benchmark needs and this machine lacks; "" if the benchmark can run."""

    name: str
    about: str
    lacks: Callable[[], str]


def modules(*names: str) -> Callable[[], str]:
    def lacks() -> str:
        return ", ".join(name for name in names if importlib.util.find_spec(name) is None)

    return lacks


def demo_model() -> str:
    missing = modules("torch", "transformers")()
    return missing or ("" if (DEMO_MODEL / "model.safetensors").exists() else "the demo model: `make run` converts it")


@functools.cache
def cuda() -> str:
    """Evaluated once, in a separate process: loading torch takes seconds, and `--list` may not need it."""
    lacking = modules("torch", "triton")()
    probe = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    if lacking or subprocess.run([sys.executable, "-c", probe], check=False).returncode:
        return lacking or "a CUDA device"
    return ""


def two_cores() -> str:
    missing = modules("aiohttp", "uvloop", "httpx", "numpy")()
    if missing or not (REPO / "tests" / "support" / "stack.py").exists():
        return missing or "a checkout"
    from benchmarks.pinned_stack import lacks

    return lacks()


BENCHMARKS = (
    Benchmark("load_ceiling", "the limits of the load tool", modules("aiohttp", "uvloop")),
    Benchmark("scheduler_step", "the host's cost of a step of 256 decodes", modules("msgspec")),
    Benchmark("routing", "the cost of a gateway's choice among many engines", modules("msgspec")),
    Benchmark("serving.offline", "the engine on a GPU, many LoRA adapters at once, beside its bound", cuda),
    Benchmark("serving.flood", "premium TTFT alone and under a flood of batch, on a GPU", cuda),
    Benchmark("serving.guided", "grammars and penalties beside plain requests, on a GPU", cuda),
    Benchmark("serving.two_models", "two models in one engine against two engines, on a GPU", cuda),
    Benchmark("serving.many_models", "ten models over a budget for the weights of three, on a GPU", cuda),
    Benchmark("serving.mixed_formats", "bf16, fp8 and int4 models in one arena among traps, on a GPU", cuda),
    Benchmark("serving.mixed_step", "ways to run a step with prefill in it on a GPU", cuda),
    Benchmark("serving.batch_of_one", "one request alone on a GPU, by its bound", cuda),
    Benchmark("serving.long_context", "decodes and prefill at 8,192 tokens, by their bounds", cuda),
    *(
        Benchmark(f"kernels.bench_{op}", f"the {about} kernels beside their bound", cuda)
        for op, about in KERNELS.items()
    ),
    Benchmark("gateway_capacity", "the requests that one core of the gateway serves, everything on", two_cores),
    Benchmark("premium_beside_batch", "the gateway's part of premium's TTFT beside a batch", two_cores),
    Benchmark("events_by_dialect", "the cost of a streamed token in each dialect", two_cores),
    Benchmark("tracing", "the gateway's cost of a recorded trace", two_cores),
    Benchmark("slow_readers", "the effect of slow readers on other clients", two_cores),
    Benchmark("cpu_decode", "the engine on this CPU, beside transformers and the bound", demo_model),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="without any: all that fit this machine")
    parser.add_argument("--list", action="store_true", help="show them, run none")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - {benchmark.name for benchmark in BENCHMARKS})
    if unknown:
        parser.error(f"{unknown[0]!r} is none of {', '.join(benchmark.name for benchmark in BENCHMARKS)}")
    failed = []
    for benchmark in BENCHMARKS:
        if arguments.names and benchmark.name not in arguments.names:
            continue
        lacking = benchmark.lacks()
        print(
            f"==> {benchmark.name}: {benchmark.about}" + (f" (does not run here, lacks {lacking})" if lacking else "")
        )
        if arguments.list or lacking:
            continue
        sys.stdout.flush()
        if subprocess.run([sys.executable, "-m", f"benchmarks.{benchmark.name}"], cwd=REPO, check=False).returncode:
            failed.append(benchmark.name)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
