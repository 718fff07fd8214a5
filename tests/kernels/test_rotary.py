"""Rotary against plain torch: angles at far positions, heads of odd sizes, and what the arena holds afterwards."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from kernels import reference_step, rotary
from support.kernels.operands import DEVICE, DTYPES, close, deltas, normal, poisoned, sampled

HEADS = [(1, 1, 2), (3, 1, 6), (9, 3, 64), (32, 8, 128), (14, 2, 80), (16, 8, 128)]
CASES = list(itertools.product([0, 1, 5, 33], HEADS, [1, 13, 40], ["", "delta", "norm", "delta norm"], DTYPES))


def frequencies(head_dim: int, theta: float = 10000.0) -> torch.Tensor:
    return (1.0 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim)).to(DEVICE)


@pytest.mark.parametrize("half", [1, 48, 64])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_angles_up_to_the_longest_context(half: int, dtype: torch.dtype) -> None:
    """float64 of the float32 angle is the truth. torch's own float32 is within the same bound."""
    positions = torch.tensor([0, 1, 2, 3, 4, 25, 8191, 65535, 99999, 131070, 131071], dtype=dtype, device=DEVICE)
    angles = positions[:, None].float() * frequencies(2 * half)
    cos, sin = (poisoned(len(positions), half, dtype=torch.float32) for _ in range(2))
    rotary.rotary_tables(positions, frequencies(2 * half), cos, sin)
    for got, true, torchs in ((cos, angles.double().cos(), angles.cos()), (sin, angles.double().sin(), angles.sin())):
        assert (got.double() - true).abs().max() <= 1.2e-7
        assert (torchs.double() - true).abs().max() <= 1.2e-7
    empty = torch.empty(0, half, device=DEVICE)
    rotary.rotary_tables(positions[:0], frequencies(2 * half), empty, empty)


def tables(positions: torch.Tensor, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    angles = positions[:, None].float() * frequencies(head_dim)
    return angles.cos(), angles.sin()


def places(rows: int, tokens_per_page: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """A page and a slot for each row, all distinct, pages in no order; about a quarter are padding. And how many pages
    there are."""
    generator = torch.Generator().manual_seed(seed)
    pages = rows // tokens_per_page + 2
    chosen = torch.randperm(pages * tokens_per_page, generator=generator)[:rows]
    padding = torch.rand(rows, generator=generator) < 0.25
    write_pages = (chosen // tokens_per_page).masked_fill(padding, -1)
    return write_pages.int().to(DEVICE), (chosen % tokens_per_page).int().to(DEVICE), pages


@pytest.mark.parametrize(("rows", "shape", "tokens_per_page", "extra", "dtype"), sampled("rotary_write", CASES, 16))
def test_what_is_written_and_where(
    rows: int, shape: tuple[int, int, int], tokens_per_page: int, extra: str, dtype: torch.dtype
) -> None:
    heads, kv_heads, head_dim = shape
    layers, layer = 3, 1
    qkv = normal(rows, (heads + 2 * kv_heads) * head_dim, dtype=dtype, seed=1)
    options: dict[str, Any] = deltas(qkv.shape[0], qkv.shape[1], dtype, 2) if "delta" in extra else {}
    if "norm" in extra:
        q_norm, k_norm = (normal(head_dim, dtype=dtype, seed=seed).contiguous() for seed in (3, 4))
        options |= {"q_norm": q_norm, "k_norm": k_norm, "eps": 1e-6}
    write_pages, write_slots, pages = places(rows, tokens_per_page, 5)
    cos, sin = tables(torch.arange(rows, device=DEVICE) * 997, head_dim)
    # Seven elements a page are waste, as where a page is no multiple of the layers.
    kv = poisoned(pages, layers * tokens_per_page * 2 * kv_heads * head_dim + 7, dtype=dtype)
    q_out = poisoned(rows, heads * head_dim, dtype=dtype)
    wanted_kv, wanted_q = kv.clone(), q_out.clone()
    place: dict[str, Any] = {
        "layer": layer, "heads": heads, "kv_heads": kv_heads, "tokens_per_page": tokens_per_page
    }  # fmt: skip
    rotary.rotary_write(qkv, q_out, kv, cos, sin, write_pages, write_slots, **place, **options)
    reference_step.rotary_write(qkv, wanted_q, wanted_kv, cos, sin, write_pages, write_slots, **place, **options)
    close(q_out, wanted_q)
    close(kv, wanted_kv)  # every element of every page: what is not a live row's slot is NaN still


def test_the_reference_rotates_as_transformers_does() -> None:
    """q·cos + rotate_half(q)·sin with angles doubled, as Hugging Face's Llama writes it."""
    torch.manual_seed(0)
    rows, heads, head_dim = 4, 2, 8
    qkv = torch.randn(rows, (heads + 2) * head_dim)
    cos, sin = (torch.randn(rows, head_dim // 2) for _ in range(2))
    q_out, kv = torch.empty(rows, heads * head_dim), torch.empty(rows, 2 * head_dim)
    pages = torch.arange(rows, dtype=torch.int32)
    reference_step.rotary_write(
        qkv, q_out, kv, cos, sin, pages, torch.zeros_like(pages), layer=0, heads=heads, kv_heads=1, tokens_per_page=1
    )
    q, k, v = qkv.view(rows, -1, head_dim).split([heads, 1, 1], dim=1)
    wide_cos, wide_sin = torch.cat((cos, cos), 1)[:, None], torch.cat((sin, sin), 1)[:, None]

    def rotate_half(x: torch.Tensor) -> torch.Tensor:
        return torch.cat((-x[..., head_dim // 2 :], x[..., : head_dim // 2]), dim=-1)

    torch.testing.assert_close(q_out, (q * wide_cos + rotate_half(q) * wide_sin).flatten(1))
    torch.testing.assert_close(kv[:, :head_dim], (k * wide_cos + rotate_half(k) * wide_sin).flatten(1))
    torch.testing.assert_close(kv[:, head_dim:], v.flatten(1))
