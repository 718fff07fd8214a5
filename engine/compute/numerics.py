"""The factors on which a device's arithmetic depends, as text: two engines with equal texts draw equal ids for equal
requests, as far as the size of a batch lets one engine do so. The KV's layout and the weights are named separately."""

from __future__ import annotations

import importlib.metadata
import platform

import torch

# Raised with each change of kernels, decoders or samplers after which equal requests may draw other ids.
NUMERICS_VERSION = 1


def cpu_numerics(dtype: torch.dtype, *, int8: bool | None) -> str:
    """`int8`: whether quantised matrices are multiplied in 8 bits; None: the model has none. The instruction set
    decides the order of sums."""
    able = torch.backends.cpu.get_cpu_capability()
    products = "" if int8 is None else " int8" if int8 else " dequantised"
    return f"cpu {platform.machine()} {able}/{_name(dtype)}{products}/torch {torch.__version__}/v{NUMERICS_VERSION}"


def gpu_numerics(device: torch.device, dtype: torch.dtype) -> str:
    """Kernels and their splits are chosen by compute capability and number of multiprocessors, and not by the name of
    the GPU: an H100 and an H200 may continue each other's texts."""
    found = torch.cuda.get_device_properties(device)
    able = f"cuda {found.major}.{found.minor} {found.multi_processor_count} SMs"
    try:
        triton = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:  # installed under another name
        triton = "unknown"
    return f"{able}/{_name(dtype)}/torch {torch.__version__}/triton {triton}/v{NUMERICS_VERSION}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
