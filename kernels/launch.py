"""How a kernel is launched right behind another: programmatic dependent launch, where device and Triton have it."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def await_previous(PDL: tl.constexpr):
    """Memory that an earlier kernel wrote may not be read before this call, and no memory may be written: with
    programmatic dependent launch a kernel starts while the kernel before it still runs. Memory that the earlier kernel
    did not write, such as weights, may be read."""
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def let_next_start(PDL: tl.constexpr):
    """The next kernel may be launched from here on: until it waits for the end of this kernel, it only occupies
    space."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@functools.cache
def launch_options(device: torch.device) -> dict[str, Any]:
    """Arguments for a kernel with a constexpr `PDL`, which calls `await_previous(PDL)` first of all."""
    if device.type != "cuda" or triton.knobs.runtime.interpret:
        return {"PDL": False}
    able = torch.cuda.get_device_capability(device) >= (9, 0) and hasattr(tl.extra.cuda, "gdc_wait")
    return {"PDL": True, "launch_pdl": True} if able else {"PDL": False}
