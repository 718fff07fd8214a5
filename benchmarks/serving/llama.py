"""Shared by the serving benchmarks: Llama-3.1-8B's shape with random weights on one GPU, adapters for it, and
the device's own ceilings.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import torch
import triton

from adapters.device.host_weights import HostAdapter, layout_of
from adapters.device.pool import TilePool
from adapters.device.table import MODULES
from adapters.files.spec import BaseShape
from benchmarks.rows import RESULTS, append_table
from benchmarks.serving import shapes
from engine.gpu.build import build_gpu_runner
from engine.gpu.runner import GpuRunner
from engine.models.config import DecoderConfig
from engine.models.quantized import formats_on_loading
from engine.models.slab import slab_layout
from engine.protocol.config import EngineConfig, ModelConfig
from engine.protocol.tiers import Tier

SHAPE = shapes.LLAMA_8B
MODEL = "llama-3.1-8b"


@dataclass(frozen=True)
class Ceilings:
    copy_bytes_per_s: float
    product_flops_per_s: float


def measure_ceilings() -> Ceilings:
    """A copy of 4 GiB (bytes read and written) and a bf16 product of 8192³, medians of ten."""
    source = torch.randn(1 << 31, dtype=torch.float16, device="cuda")
    target = torch.empty_like(source)
    copy_s = median_seconds(partial(target.copy_, source))
    a, b = (torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    product_s = median_seconds(partial(torch.mm, a, b))
    return Ceilings(2 * (1 << 32) / copy_s, 2 * 8192**3 / product_s)


def measure_fp8_product() -> float:
    """FLOP/s of a product of 8192³ in fp8 with a scale a row, the median of ten."""
    a, b = (torch.randn(8192, 8192, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    ones = torch.ones(8192, 1, device="cuda")
    target = torch.empty(8192, 8192, dtype=torch.bfloat16, device="cuda")

    def multiply() -> None:
        torch._scaled_mm(
            a, b.t(), scale_a=ones, scale_b=ones.t(), out_dtype=target.dtype, use_fast_accum=True, out=target
        )

    return 2 * 8192**3 / median_seconds(multiply)


def decode_bytes(config: DecoderConfig, quantize: str, kv: str, tokens: int) -> int:
    """The minimum bytes of weights and KV that a decode step reads; `tokens`: in the contexts of all its sequences."""
    tied = bool(config.tied)
    layout = slab_layout(config, torch.bfloat16, tied=tied, formats=formats_on_loading(config, quantize))
    weights = layout.bytes - (0 if tied else layout.parts["embedding"].nbytes)  # few rows of the embedding are read
    return weights + tokens * config.kv_layout("bfloat16" if kv == "auto" else kv).token_bytes


def median_seconds(run: Callable[[], object]) -> float:
    times = []
    for _ in range(13):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return statistics.median(times[3:])


def gpu_config(
    tiers: Sequence[Tier],
    arena_gib: float,
    rank_max: int,
    step_tokens: int,
    sequences: int,
    models: int = 1,
    *,
    quantize: str = "none",
    kv: str = "auto",
    formats: Sequence[tuple[str, str]] | None = None,
) -> EngineConfig:
    """`models`: the number of models of the shape; the first is MODEL, the others have different names and digests.
    `quantize` and `kv`: `quantize` and `kv_dtype` of each model. `formats`: these two for each model separately,
    `models` in number."""
    each = formats or [(quantize, kv)] * models
    assert len(each) == models, f"{len(each)} formats are given for {models} models"
    own = []
    for index, (weights, kv_dtype) in enumerate(each, 1):
        name = MODEL if index == 1 else f"{MODEL}-{index}"
        digest = None if index == 1 else shapes.digest_of(name)
        fields = {"name": name, "digest": digest, "dtype": "bfloat16", "quantize": weights, "kv_dtype": kv_dtype}
        own.append(msgspec.convert({**fields, "dummy": True}, ModelConfig))
    return EngineConfig(
        models=tuple(own),
        tiers=tuple(tiers),
        arena_bytes=int(arena_gib * 2**30),
        step_tokens_max=step_tokens,
        sequences_max=sequences,
        device="cuda",
        adapters_max=1024,
        adapter_rank_max=rank_max,
    )


def build(config: EngineConfig, *, with_lora: bool = True) -> GpuRunner:
    """A runner with random weights in the model's shape, kernels compiled and graphs captured."""
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "config.json").write_bytes(SHAPE.read_bytes())
        models = tuple(msgspec.structs.replace(model, path=scratch) for model in config.models)
        runner = build_gpu_runner(msgspec.structs.replace(config, models=models), with_lora=with_lora)
        runner.capture(list(runner.models), with_lora=with_lora)
        return runner


def base() -> BaseShape:
    return BaseShape.from_config(json.loads(SHAPE.read_bytes()))


def add_adapters(
    pool: TilePool,
    base: BaseShape,
    count: int,
    ranks: list[int],
    *,
    model: str = MODEL,
    first: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cuda",
) -> list[str]:
    """Add adapters in host memory, ranks dealt in turn. Adapters of one rank share one slab in host memory; in the
    arena each has its own. `dtype`: the pool's. `device`: where the numbers are drawn; with "cuda" the slabs are
    page-locked."""
    hosts = {rank: random_adapter(base, rank, dtype, device) for rank in dict.fromkeys(ranks)}
    digests = [f"{index:064x}" for index in range(first, first + count)]
    for index, digest in enumerate(digests):
        pool.add_host_adapter(digest, model, hosts[ranks[index % len(ranks)]])
    return digests


def random_adapter(
    base: BaseShape, rank: int, dtype: torch.dtype = torch.bfloat16, device: str = "cuda"
) -> HostAdapter:
    keys = [(layer, name) for layer in range(base.layers) for name in MODULES]
    layout = layout_of(dict.fromkeys(keys, rank), dict.fromkeys(keys, 1.0 / rank), base, dtype)
    numbers = torch.empty(layout.bytes // dtype.itemsize, dtype=dtype, device=device).normal_(0, 0.02)
    slab = numbers.view(torch.uint8).cpu()
    return HostAdapter(layout, slab.pin_memory() if device == "cuda" else slab)


def append_rows(rows: Sequence[dict[str, object]], name: str) -> None:
    """Append to benchmarks/results/NAME.csv, with the device and the software versions."""
    device = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "model": MODEL,
    }
    append_table([device | row for row in rows], RESULTS / f"{name}.csv")
