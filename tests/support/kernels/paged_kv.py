"""A small arena for the attention tests: permuted page tables, shared prefixes, and NaN wherever no kernel may read."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from kernels.kv_layout import fp8_run_bytes, fp8_scales_start
from kernels.reference_kv import E4M3_NAN, quantise_heads

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Outputs are averages of values of about 1; the reference computes in float32 from the same rounded inputs. The
# remaining error is the rounding of p before p·V and of the output.
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
    kv: torch.Tensor  # [pages, page elements], or of fp8 [pages, page_bytes] uint8
    pages: torch.Tensor  # int32
    page_starts: list[int]


class _Fp8Page:
    """One layer's run of one page in fp8."""

    def __init__(self, shape: Shape, page: torch.Tensor, layer: int) -> None:
        sizes = shape.tokens_per_page, shape.kv_heads, shape.head_dim
        run, start = fp8_run_bytes(*sizes), fp8_scales_start(*sizes)
        own = page[layer * run : (layer + 1) * run]
        heads = 2 * shape.kv_heads
        self.numbers = own[:start].view(shape.tokens_per_page, heads, shape.head_dim)
        scales = own[start : start + 2 * heads * shape.tokens_per_page].view(torch.float16)
        self.scales = scales.view(heads, shape.tokens_per_page).T

    def fill(self, tokens: int) -> None:
        """The first tokens, N(0, 1) times a factor of the head."""
        if self.scales[:tokens].isnan().any():  # a shared page is filled by whoever comes first
            numbers = torch.randn(self.numbers[:tokens].shape)
            numbers *= 2.0 ** torch.randint(-3, 2, numbers.shape[:2])[..., None]
            self.numbers[:tokens], self.scales[:tokens] = quantise_heads(numbers)


def paged(
    shape: Shape,
    kv_lens: list[int],
    dtype: torch.dtype,
    *,
    layer: int,
    dice: random.Random,
    shared: int = 0,
    fp8: bool = False,
) -> Paged:
    """Every sequence's keys and values, N(0, 1), in `layer` of pages drawn at random. The first `shared` pages are the
    same for all sequences that have so many full ones. All else in the arena is NaN: free pages, other layers, waste,
    and the rows of a last page beyond its sequence's end. `fp8`: numbers and scales alike."""
    size, width = shape.tokens_per_page, 2 * shape.kv_heads * shape.head_dim
    used = [-(-keys // size) for keys in kv_lens]
    total = sum(used) + shared + 3
    numbers = dice.sample(range(total), total)
    common = [numbers.pop() for _ in range(shared)]
    if fp8:
        run = fp8_run_bytes(size, shape.kv_heads, shape.head_dim)
        # Of two such bytes float16 makes NaN, too.
        kv = torch.full((total, shape.layers * run + 4 * shape.waste), E4M3_NAN, dtype=torch.uint8)
    else:
        kv = torch.full((total, shape.layers * size * width + shape.waste), torch.nan, dtype=dtype)
    flat: list[int] = [dice.randrange(total) for _ in range(dice.randrange(3))]
    starts = []
    for keys, count in zip(kv_lens, used, strict=True):
        own_from = shared if keys // size >= shared else 0
        table = common[:own_from] + [numbers.pop() for _ in range(count - own_from)]
        starts.append(len(flat))
        flat += table
        for index in range(count):
            tokens = min(size, keys - index * size)
            if fp8:
                _Fp8Page(shape, kv[table[index]], layer).fill(tokens)
                continue
            elements = tokens * width
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
    """Compare every element, including the NaN of rows that no kernel may write."""
    tolerance = TOLERANCES[out.dtype]
    torch.testing.assert_close(out, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
