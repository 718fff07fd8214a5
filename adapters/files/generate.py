"""Valid adapters with random numbers, for tests, benchmarks and the demo.

The same seed is the same bytes on every machine. Plain Python: no numpy, no torch.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from adapters.files.check import CONFIG_FILE, WEIGHTS_FILE
from adapters.files.config import RANK_MAX
from adapters.files.header import ITEM_BYTES
from adapters.files.spec import PARENTS, BaseShape

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
# A mix of ranks, modules and scalings, like the adapters of several tenants.
KINDS = (
    (8, ("q_proj", "v_proj"), False),
    (16, ATTENTION, False),
    (4, tuple(PARENTS), False),
    (8, ("q_proj", "v_proj", "down_proj"), True),
)
# The byte of a little-endian number that has its sign and most of its exponent: magnitudes from 2⁻⁷ to 2⁻⁵.
TOP_BYTES = {"F32": (0x3C, 0xBC), "BF16": (0x3C, 0xBC), "F16": tuple(range(0x20, 0x28)) + tuple(range(0xA0, 0xA8))}


@dataclass(slots=True, frozen=True)
class Recipe:
    """Parameters of an adapter. Its numbers are independent, of either sign, with magnitudes from 2⁻⁷ to 2⁻⁵. With
    `scale` 16 a small model's output is still text and differs by adapter; with 1 most outputs are equal."""

    seed: int
    rank: int = 8
    modules: tuple[str, ...] = ("q_proj", "v_proj")
    dtype: str = "BF16"  # or F16, F32
    use_rslora: bool = False
    scale: float = 16.0


def recipes(count: int, seed: int = 0) -> Iterator[Recipe]:
    """`count` different recipes."""
    for number in range(count):
        rank, modules, use_rslora = KINDS[number % len(KINDS)]
        yield Recipe(seed * 1_000_003 + number, rank, modules, use_rslora=use_rslora)


def write_random(directory: Path, base: BaseShape, recipe: Recipe, base_name: str | None = None) -> Path:
    """Write the two files of an adapter that fits `base` into `directory`, and return it. Raises ValueError for a rank,
    a module or a dtype that does not exist."""
    if not 1 <= recipe.rank <= RANK_MAX:
        raise ValueError(f"rank {recipe.rank} is not from 1 to {RANK_MAX}")
    if recipe.dtype not in TOP_BYTES:
        raise ValueError(f"dtype {recipe.dtype!r} is not one of {', '.join(TOP_BYTES)}")
    if not recipe.modules or not set(recipe.modules) <= set(base.modules):
        raise ValueError(f"modules {recipe.modules!r} are not some of {', '.join(base.modules)}")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / CONFIG_FILE).write_text(json.dumps(_config(recipe, base_name), indent=2))
    shapes = _shapes(base, recipe)
    size = ITEM_BYTES[recipe.dtype]
    header: dict[str, object] = {}
    position = 0
    for name, (rows, columns) in shapes.items():
        stop = position + rows * columns * size
        header[name] = {"dtype": recipe.dtype, "shape": [rows, columns], "data_offsets": [position, stop]}
        position = stop
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    dice = random.Random(recipe.seed)
    with (directory / WEIGHTS_FILE).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for rows, columns in shapes.values():
            file.write(_numbers(dice, rows * columns, recipe.dtype))
    return directory


def _config(recipe: Recipe, base_name: str | None) -> dict[str, object]:
    alpha = recipe.scale * (recipe.rank**0.5 if recipe.use_rslora else recipe.rank)
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "r": recipe.rank,
        "lora_alpha": alpha,
        "use_rslora": recipe.use_rslora,
        "target_modules": sorted(recipe.modules),
        "bias": "none",
        "inference_mode": True,
    }


def _shapes(base: BaseShape, recipe: Recipe) -> dict[str, tuple[int, int]]:
    """By the tensors' names."""
    found = {}
    for layer in range(base.layers):
        for module in recipe.modules:
            stem = f"base_model.model.model.layers.{layer}.{PARENTS[module]}.{module}"
            shape = base.modules[module]
            found[f"{stem}.lora_A.weight"] = (recipe.rank, shape.in_features)
            found[f"{stem}.lora_B.weight"] = (shape.out_features, recipe.rank)
    return found


def _numbers(dice: random.Random, count: int, dtype: str) -> bytes:
    """Random bytes; the top byte of each number is drawn from the allowed bytes."""
    size = ITEM_BYTES[dtype]
    numbers = bytearray(dice.randbytes(count * size))
    numbers[size - 1 :: size] = bytes(numbers[size - 1 :: size]).translate(_table(TOP_BYTES[dtype]))
    return bytes(numbers)


def _table(allowed: Sequence[int]) -> bytes:
    return bytes(allowed[byte % len(allowed)] for byte in range(256))
