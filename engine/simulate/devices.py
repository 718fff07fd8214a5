"""The simulated device: the costs of a step's parts, and the sizes of the engine that runs on it.

Plain numbers with their sources. This module must never know a request.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from engine.protocol.config import check_step_tokens
from engine.scheduler.costs import Costs

FILE_BYTES_MAX = 1024 * 1024

Seconds = Annotated[float, Meta(ge=0, le=60)]


class BadInput(Exception):
    """An invalid option or input file. The message names it and the limit."""


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first five fields are the costs of a step's parts (engine.scheduler.costs); the other fields configure the
    engine."""

    base_s: Annotated[float, Meta(ge=1e-6, le=60)]  # above 0, since the clock must advance
    prefill_token_s: Seconds
    sequence_s: Seconds
    kv_token_s: Seconds
    adapter_s: Seconds
    pages: Annotated[int, Meta(ge=1, le=16_777_216)] = 32_768
    tokens_per_page: Annotated[int, Meta(ge=1, le=4096)] = 16
    adapter_pages: Annotated[int, Meta(ge=1, le=65536)] = 1  # of each adapter
    adapter_load_s: Annotated[float, Meta(ge=0, le=60)] = 0.0  # of an adapter that is not resident
    context_tokens: Annotated[int, Meta(ge=2, le=16_777_216)] = 131_072
    step_tokens_max: Annotated[int, Meta(ge=16, le=65536)] = 2048
    prefill_tokens_min: Annotated[int, Meta(ge=1, le=65536)] = 64
    sequences_max: Annotated[int, Meta(ge=1, le=4096)] = 256
    steps_ahead: Annotated[int, Meta(ge=0, le=1)] = 0  # 1: the next step is scheduled during a step, as on a GPU
    host_pages: Annotated[int, Meta(ge=0, le=16_777_216)] = 0  # of host memory for preempted requests
    page_copy_s: Annotated[float, Meta(ge=0, le=60)] = 0.0  # of one page in one direction
    weights_bytes: Annotated[int, Meta(ge=1, le=2**48)] = 1  # of each model
    weights_load_s: Annotated[float, Meta(ge=0, le=3600)] = 0.0  # from host memory to the device
    weights_residence_s: Annotated[float, Meta(ge=0, le=3600)] = 2.0
    probe_after_s: Annotated[float, Meta(ge=0, le=3600)] = 0.0  # 0: no model is probed
    source: str = ""  # the measurements from which the costs were fitted

    def __post_init__(self) -> None:
        if fault := check_step_tokens(self.sequences_max, self.prefill_tokens_min, self.step_tokens_max):
            raise ValueError(fault)

    def costs(self) -> Costs:
        return Costs(self.base_s, self.prefill_token_s, self.sequence_s, self.kv_token_s, self.adapter_s)


# Fitted to our own measurements, which `source` names; tests/engine/test_simulated_devices.py compares them.
DEVICES = {
    # One NVIDIA H200 with Llama-3.1-8B's shape in bfloat16 and LoRA of rank 16 on all seven modules, from
    # benchmarks/results/{mixed_step,long_context}.csv and docs/LOG.md: within 12 % of each of the eight measurements.
    # KV is 131,072 bytes a token, read at 4 TB/s. 96 GiB of pages of 2 MiB; an adapter is 83.9 MB.
    "h200-8b": Device(
        base_s=5.7e-3,
        prefill_token_s=26.9e-6,
        sequence_s=8.8e-6,
        kv_token_s=33e-9,
        adapter_s=74e-6,
        pages=49_152,
        adapter_pages=40,
        step_tokens_max=2048,
        prefill_tokens_min=256,
        sequences_max=256,
        steps_ahead=1,
        page_copy_s=42e-6,  # 2 MiB at 50 GB/s
        weights_bytes=16_060_522_496,
        weights_load_s=0.32,  # at 50 GB/s
        source="one H200, Llama-3.1-8B bfloat16, LoRA rank 16: benchmarks/results/mixed_step.csv, long_context.csv",
    ),
    # Two cores of a quiet AMD machine with SmolLM2-135M in float32 and four adapters of rank 16, from
    # benchmarks/results/cpu_decode.csv: one stream and eight, with and without adapters, and a cold prompt. KV is
    # 46,080 bytes a token, at 20 GB/s: too few to be measured. Sizes are the defaults of the engine's configuration.
    "laptop-cpu": Device(
        base_s=33.9e-3,
        prefill_token_s=1.55e-3,
        sequence_s=9.8e-3,
        kv_token_s=2.3e-6,
        adapter_s=4.4e-3,
        pages=728,
        adapter_pages=27,
        context_tokens=8192,
        step_tokens_max=512,
        prefill_tokens_min=64,
        sequences_max=64,
        weights_bytes=538_060_032,
        weights_load_s=0.05,  # a copy within memory at 10 GB/s
        source="two cores, SmolLM2-135M float32: benchmarks/results/cpu_decode.csv",
    ),
}


def device(given: str) -> Device:
    """A shipped device by its name, or a device from a TOML or JSON file with `Device`'s fields. Raises BadInput."""
    if given in DEVICES:
        return DEVICES[given]
    path = Path(given)
    if path.suffix not in (".toml", ".json"):
        names = ", ".join(DEVICES)
        raise BadInput(f"--device: {given!r} is neither a shipped device ({names}) nor a .toml or .json file")
    data = read_file(path, "--device")
    try:
        fields = tomllib.loads(data.decode()) if path.suffix == ".toml" else msgspec.json.decode(data)
        return msgspec.convert(fields, Device)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise BadInput(f"--device: {path}: {named(error)}") from error


def named(error: Exception) -> str:
    """msgspec's "… - at `$.base_s`" as "base_s: …"."""
    text, _, at = str(error).rpartition(" - at `$")
    path = at.rstrip("`").lstrip(".")
    return f"{path}: {text}" if text and path else text or str(error)


def read_file(path: Path, option: str, bytes_max: int = FILE_BYTES_MAX) -> bytes:
    """Raises BadInput."""
    try:
        with path.open("rb") as file:
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise BadInput(f"{option}: {path}: {error.strerror}") from error
    if len(data) > bytes_max:
        raise BadInput(f"{option}: {path} has over {bytes_max} bytes, the limit")
    return data
