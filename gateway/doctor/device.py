"""Facts about torch, the GPU and memory for the doctor; `checks.py` judges them. torch is loaded in another process."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

from gateway.config.file import Config
from gateway.host.packaged_models import bytes_of

TORCH_S_MAX = 120.0  # a cold import of torch from a slow disk takes minutes
DRIVER_S_MAX = 20.0
BESIDE_BYTES = 1_000_000_000  # estimate for torch itself, the gateway and a step's temporary tensors
CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")

ASK_TORCH = """
import json, torch
cuda = torch.cuda.is_available()
free, total = torch.cuda.mem_get_info() if cuda else (0, 0)
print(json.dumps({
    "version": torch.__version__, "threads": torch.get_num_threads(), "cuda": cuda,
    "built_for": torch.version.cuda or "", "device": torch.cuda.get_device_name() if cuda else "",
    "free": free, "total": total,
}))
"""


class NotInstalled(msgspec.Struct, frozen=True):
    """torch is not installed."""


class Torch(msgspec.Struct, frozen=True, kw_only=True):
    """torch as installed. `built_for`: a CUDA version, or "". `free`, `total`: bytes of the first GPU's memory."""

    version: str
    threads: int
    cuda: bool
    built_for: str
    device: str
    free: int
    total: int


def torch() -> Torch | NotInstalled | str:
    """The installed torch; a text says why it cannot be loaded."""
    if importlib.util.find_spec("torch") is None:
        return NotInstalled()
    argv = [sys.executable, "-c", ASK_TORCH]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TORCH_S_MAX, check=False)
        return msgspec.json.decode(done.stdout, type=Torch)
    except subprocess.TimeoutExpired:
        return f"no answer within {TORCH_S_MAX:g} s"
    except msgspec.MsgspecError:
        return (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]


def driver() -> str | None:
    """The GPUs and their driver's version by nvidia-smi; None: no GPU."""
    if shutil.which("nvidia-smi") is None:
        return None
    argv = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=DRIVER_S_MAX, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = [line.split(", ") for line in done.stdout.splitlines() if ", " in line]
    if done.returncode or not lines:
        return None
    return f"{', '.join(line[0] for line in lines)}, driver {lines[0][-1]}"


def host_memory() -> tuple[int, int]:
    """Available and total bytes of memory, of this host or of this process's control group if that has less."""
    found = {}
    if MEMINFO.exists():
        for line in MEMINFO.read_text().splitlines():
            name, _, value = line.partition(":")
            if value.endswith(" kB"):
                found[name] = int(value.removesuffix(" kB")) * 1024
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    total = found.get("MemTotal", pages)
    available = found.get("MemAvailable", total)
    with contextlib.suppress(OSError, ValueError):  # without a limit the file contains "max"
        limit = int((CGROUP / "memory.max").read_text())
        used = int((CGROUP / "memory.current").read_text())
        total, available = min(total, limit), min(available, limit - used)
    return max(available, 0), total


def host_needs(config: Config) -> int:
    """Bytes of host memory that an engine of this configuration allocates at its start."""
    engine = config.engine
    if engine.device == "cuda":
        return engine.host_pool_bytes + engine.weights_host_bytes + engine.adapter_host_bytes + BESIDE_BYTES
    weights = weight_bytes(config)
    return engine.arena_bytes + engine.host_pool_bytes + min(weights, engine.weights_bytes or weights) + BESIDE_BYTES


def device_needs(config: Config) -> int:
    """Bytes of GPU memory that an engine of this configuration allocates."""
    engine = config.engine
    weights = weight_bytes(config)
    resident = min(weights, engine.weights_bytes or weights)
    return engine.arena_bytes + engine.adapter_staging_bytes + engine.graph_bytes + resident


def weight_bytes(config: Config) -> int:
    """Bytes of the weights files of laneway.toml's models; an estimate for models not yet made from their package."""
    total = 0
    for model in config.models:
        files = [file.stat().st_size for file in Path(model.path).glob("*.safetensors")]
        total += sum(files) if files or not model.package else bytes_of([model])
    return total
