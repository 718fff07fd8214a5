"""A small arena for the attention tests: permuted page tables, shared prefixes, and NaN wherever nobody may look."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Outputs are averages of values of about 1; the reference computes in float32 from the same rounded inputs. What is
# left is the rounding of p before p·V and that of the output.
TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2.5e-2}
DTYPES = [torch.bfloat16, torch.float16] if torch.cuda.is_available() else [torch.float32, torch.float16]


@dataclass(frozen=True)
class Shape:
    heads: int
    kv_heads: int
    head_dim: int
    tokens_per_page: int
    layers: int = 2
    waste: int = 5  # elements at the end of a page that no model uses

    def __str__(self) -> str:
        return f"{self.heads}q{self.kv_heads}kv{self.head_dim}d{self.tokens_per_page}t"

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5


@dataclass(frozen=True)
class Paged:
    kv: torch.Tensor  # [pages, page elements]
    pages: torch.Tensor  # int32
    page_starts: list[int]


def paged(
    shape: Shape, kv_lens: list[int], dtype: torch.dtype, *, layer: int, dice: random.Random, shared: int = 0
) -> Paged:
    """Every sequence's keys and values, N(0, 1), in `layer` of pages drawn at random. The first `shared` pages are the
    same for all sequences that have so many full ones. All else in the arena is NaN: free pages, other layers, waste,
    and the rows of a last page beyond its sequence's end."""
    size, width = shape.tokens_per_page, 2 * shape.kv_heads * shape.head_dim
    used = [-(-keys // size) for keys in kv_lens]
    total = sum(used) + shared + 3
    numbers = dice.sample(range(total), total)
    common = [numbers.pop() for _ in range(shared)]
    kv = torch.full((total, shape.layers * size * width + shape.waste), torch.nan, dtype=dtype)
    flat: list[int] = [dice.randrange(total) for _ in range(dice.randrange(3))]
    starts = []
    for keys, count in zip(kv_lens, used, strict=True):
        own_from = shared if keys // size >= shared else 0
        table = common[:own_from] + [numbers.pop() for _ in range(count - own_from)]
        starts.append(len(flat))
        flat += table
        for index in range(count):
            elements = min(size, keys - index * size) * width
            begin = layer * size * width
            page = kv[table[index], begin : begin + elements]
            if page.isnan().any():  # a shared page is filled by whoever comes first
                page.copy_(torch.randn(elements))
    if not flat:
        flat = [0]
    return Paged(kv.to(DEVICE), torch.tensor(flat, dtype=torch.int32, device=DEVICE), starts)


def int32(numbers: list[int]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=DEVICE)


def assert_same(out: torch.Tensor, wanted: torch.Tensor) -> None:
    """Every element, the poison of rows that nobody may write included."""
    tolerance = TOLERANCES[out.dtype]
    torch.testing.assert_close(out, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
