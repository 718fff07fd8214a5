"""A thousand steps of mixed traffic on a GPU, in an arena full of traps."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Literal

import pytest
import triton
from triton.runtime.jit import JITFunction

from kernels.quantize import MANY_ROWS
from support import oracle
from support.engine.gpu import GpuEngine  # first: it skips where there is no GPU
from support.engine.in_process import MODEL
from support.engine.poisoned_arena import run_among_traps, tiny_model
from support.engine.published_formats import PUBLISHED, quantize_directory
from support.engine.swap_round_trip import run_swapped

pytestmark = pytest.mark.gpu
# (`quantize`, a published format) of the weights: every product, and every element that a kernel converts.
WEIGHTS: dict[str, tuple[Literal["none", "fp8", "int8", "int4"], str]] = {
    "fp8": ("fp8", ""),
    "fp8 blocks": ("none", "fp8-small-block"),
    "int8": ("int8", ""),
    "int4": ("int4", ""),
    "int4 zeros": ("none", "pack-group-zeros"),
}
# Fewer under a sanitizer.
STEPS = int(os.environ.get("LANEWAY_TRAP_STEPS", "1000"))


@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
@pytest.mark.parametrize(("seed", "host_pool_bytes"), [(1, 0), (2, 1 << 20)])
def test_a_thousand_steps_among_traps(
    seed: int, host_pool_bytes: int, kv_dtype: Literal["auto", "fp8"], capture: bool, tmp_path: Path
) -> None:
    model, adapters = tiny_model(tmp_path, seed)
    engine = GpuEngine(
        model,
        arena_bytes=16 << 20,
        host_pool_bytes=host_pool_bytes,
        step_tokens_max=96,
        sequences_max=16,
        capture=capture,
        kv_dtype=kv_dtype,
    )
    print("\n" + run_among_traps(engine, adapters, tmp_path / "store", seed, STEPS))


@pytest.mark.parametrize(
    ("weights", "kv_dtype", "capture"),
    [
        *((weights, kv_dtype, True) for weights in WEIGHTS for kv_dtype in ("auto", "fp8")),
        *((weights, "auto", False) for weights in ("fp8", "int4 zeros")),
    ],
)
def test_a_thousand_steps_among_traps_with_quantised_weights(
    weights: str, kv_dtype: Literal["auto", "fp8"], capture: bool, tmp_path: Path
) -> None:
    model, adapters = tiny_model(tmp_path, seed=3)
    quantize, published = WEIGHTS[weights]
    if published:  # the adapters are made for the shape, whatever the numbers are
        quantize_directory(model, PUBLISHED[published])
    engine = GpuEngine(
        model,
        arena_bytes=16 << 20,
        host_pool_bytes=1 << 20,
        step_tokens_max=96,
        sequences_max=16,
        capture=capture,
        kv_dtype=kv_dtype,
        quantize=quantize,
    )
    assert engine.runner.models[MODEL].weights_format != "bfloat16"
    print(f"\n{weights}, kv {kv_dtype}: " + run_among_traps(engine, adapters, tmp_path / "store", 3, STEPS))


def forget_compiled_kernels() -> None:
    """Of earlier tests in this process."""
    for name, module in list(sys.modules.items()):
        if name.startswith("kernels."):
            for kernel in vars(module).values():
                if isinstance(kernel, JITFunction):
                    kernel.device_caches.clear()


@pytest.mark.parametrize("weights", WEIGHTS)
def test_no_step_compiles_a_kernel(weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of many sizes after the warm-up."""
    model, adapters = tiny_model(tmp_path, seed=4)
    quantize, published = WEIGHTS[weights]
    if published:
        quantize_directory(model, PUBLISHED[published])
    engine = GpuEngine(
        model, arena_bytes=16 << 20, step_tokens_max=512, sequences_max=64, quantize=quantize, capture=False
    )
    digest = next(iter(engine.add_adapters(adapters[:1], tmp_path / "store").values()))
    forget_compiled_kernels()
    engine.runner.warm_up()
    compiled: list[str] = []

    def note_compiled(*_: object, repr: str, **__: object) -> None:
        compiled.append(repr)

    monkeypatch.setattr(triton.knobs.runtime, "jit_cache_hook", note_compiled)
    dice = random.Random(6)
    for adapter in (None, digest):
        for count, tokens in ((1, 3), (1, 400), (3, 4), (17, 2), (33, 3), (64, 6)):
            prompts = [[dice.randrange(1, oracle.TINY_VOCAB) for _ in range(tokens)] for _ in range(count)]
            engine.run([engine.request(prompt, 2, adapter) for prompt in prompts])
    assert max(sum(chunk.count for chunk in step.chunks) for step in engine.steps) > MANY_ROWS
    assert not compiled, "\n".join(compiled)


@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
@pytest.mark.parametrize("adapted", [False, True])
def test_who_comes_back_from_host_memory_goes_on_as_if_nobody_had_interrupted(
    adapted: bool, kv_dtype: Literal["auto", "fp8"], capture: bool, tmp_path: Path
) -> None:
    model, adapters = tiny_model(tmp_path, seed=1)
    engine = GpuEngine(
        model,
        arena_bytes=16 << 20,
        host_pool_bytes=1 << 20,
        step_tokens_max=96,
        sequences_max=1,
        capture=capture,
        kv_dtype=kv_dtype,
    )
    digests = engine.add_adapters(adapters[:1], tmp_path / "store") if adapted else {}
    run_swapped(engine, next(iter(digests.values()), None))
