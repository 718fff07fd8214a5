"""One adapter from the page cache into host memory, on a CPU: from its file as peft wrote it, and from its slab.

    python -m benchmarks.adapter_loads [--rounds 5] [--directory DIR] [--note TEXT]

Rank 16 on all seven modules of Llama-3.1-8B's shape in bfloat16, 84 MB. Measured are the milliseconds of a load, and
how loads on another thread slow a thread that behaves like the engine's loop: 3 ms of Python, then 5 ms of waiting for
a device. Appends rows to benchmarks/results/adapter_loads.csv.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from adapters.device.host_weights import Source, open_source, read_numbers, read_weights
from adapters.files.check import check_adapter, write_resolved_modules
from adapters.files.slab_file import make_slab
from adapters.files.spec import BaseShape
from benchmarks.rows import append_rows
from benchmarks.serving.many_adapters import write_files

LLAMA = Path(__file__).parent / "serving" / "llama-3.1-8b.json"
READERS = 1  # at once; more of them want more cores than a small machine has
PYTHON_S, DEVICE_S = 0.003, 0.005
STEPS_ALONE = 200

Read = Callable[[Source, torch.Tensor, Callable[[], bool]], None]


def step() -> float:
    """Seconds of one."""
    began, small = time.perf_counter(), torch.zeros(8)
    while time.perf_counter() - began < PYTHON_S:
        small.add_(1)
    time.sleep(DEVICE_S)
    return time.perf_counter() - began


def alone_ms(read: Read, source: Source, slab: torch.Tensor, rounds: int) -> float:
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        read(source, slab, lambda: False)
        took.append(time.perf_counter() - began)
    return 1000 * min(took)


def beside(read: Read, source: Source, slabs: list[torch.Tensor], rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of the steps while another thread loads, and of the loads."""
    loads: list[float] = []

    def serve(slab: torch.Tensor) -> None:
        for _ in range(rounds):
            began = time.perf_counter()
            read(source, slab, lambda: False)
            loads.append(time.perf_counter() - began)

    threads = [threading.Thread(target=serve, args=(slab,)) for slab in slabs]
    for thread in threads:
        thread.start()
    steps = []
    while any(thread.is_alive() for thread in threads):
        steps.append(step())
    return steps, loads


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--note", default="")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    base = BaseShape.from_config(json.loads(LLAMA.read_bytes()))
    with tempfile.TemporaryDirectory(dir=arguments.directory) as scratch:
        (path, *_) = write_files(Path(scratch), base, torch.bfloat16, "cpu", count=1)
        checked = check_adapter(path, base, dtype="bfloat16")
        write_resolved_modules(path, checked.spec)
        path = path.rename(path.with_name(checked.digest))
        began = time.perf_counter()
        make_slab(path, path, checked, base, "bfloat16")
        found = {"make_slab_ms": 1000 * (time.perf_counter() - began)}
        source = open_source(path, base, torch.bfloat16)
        slabs = [torch.ones(source.layout.bytes, dtype=torch.uint8) for _ in range(READERS)]
        read_weights(source, slabs[0], lambda: False)  # looks at the numbers, once
        steps = [step() for _ in range(STEPS_ALONE)]
        found["step_p50_ms_alone"], found["step_max_ms_alone"] = 1000 * statistics.median(steps), 1000 * max(steps)
        for name, read in (("file", read_weights), ("slab", read_numbers)):
            found[f"load_ms_from_{name}"] = alone_ms(read, source, slabs[0], arguments.rounds)
            steps, loads = beside(read, source, slabs, arguments.rounds)
            found[f"load_p50_ms_from_{name}_beside_steps"] = 1000 * statistics.median(loads)
            found[f"step_p50_ms_beside_{name}s"] = 1000 * statistics.median(steps)
            found[f"step_max_ms_beside_{name}s"] = 1000 * max(steps)
    workload = "rank 16, Llama-3.1-8B, bf16, page cache"
    append_rows("adapter_loads", found, f"{platform.machine()}, {os.cpu_count()} cores", workload, arguments.note)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
