"""`python -m benchmarks.serving.ceilings`: the measured limits of this GPU, as JSON; for programs that load no torch.

It runs in a separate process, so that its device memory is free when the caller measures engines afterwards.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

from benchmarks.rows import REPO

ASK_S_MAX = 120.0


@dataclass(frozen=True)
class Device:
    name: str
    copy_bytes_per_s: float  # read and written
    product_flops_per_s: float
    to_device_bytes_per_s: float  # from pinned host memory


def ask() -> Device | None:
    """None without a GPU; the process has printed the reason."""
    command = [sys.executable, "-m", "benchmarks.serving.ceilings"]
    answer = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=ASK_S_MAX, check=False)
    if answer.returncode:
        print("\n".join(answer.stderr.splitlines()[-3:]), file=sys.stderr)
        return None
    return Device(**json.loads(answer.stdout.splitlines()[-1]))


def main() -> int:
    import torch

    if not torch.cuda.is_available():
        print("this needs a CUDA device", file=sys.stderr)
        return 2
    from benchmarks.serving import llama

    found = llama.measure_ceilings()
    torch.cuda.empty_cache()
    source = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device="cuda")
    times = []
    for _ in range(6):
        began = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    device = Device(
        torch.cuda.get_device_name(),
        found.copy_bytes_per_s,
        found.product_flops_per_s,
        source.numel() / statistics.median(times[1:]),
    )
    print(json.dumps(asdict(device)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
