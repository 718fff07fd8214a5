"""Shared by the attention kernels for K and V in fp8: the positions of scales, and how fp8 numbers are multiplied."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from kernels.kv_layout import fp8_run_bytes, fp8_scales_start


def find_runs(
    kv: torch.Tensor, layer: int, tokens_per_page: int, kv_heads: int, head_dim: int
) -> tuple[int, torch.Tensor | None, int, int]:
    """The positions in an arena in which K and V are written: the element of a page at which the layer's run starts,
    the arena as scales float16, elements of a page of these, and the element at which the layer's scales start. No
    scales: None, 0, 0. `kv` [pages, page_bytes] uint8 holds fp8, of any other dtype the numbers themselves."""
    if kv.dtype != torch.uint8:
        run = tokens_per_page * 2 * kv_heads * head_dim
        assert (layer + 1) * run <= kv.shape[1], "the page does not hold this layer"
        return layer * run, None, 0, 0
    run = fp8_run_bytes(tokens_per_page, kv_heads, head_dim)
    assert (layer + 1) * run <= kv.shape[1], "the page does not hold this layer"
    scales = kv.view(torch.float16)
    start = layer * run + fp8_scales_start(tokens_per_page, kv_heads, head_dim)
    return layer * run, scales, scales.stride(0), start // 2


@triton.jit
def query_exponents(queries):
    """The exponent [rows], by row, of the largest of queries [rows, dim] float32: a division by 2^exponent scales the
    row's maximum into [1, 2). 0 for a row of zeros."""
    largest = tl.max(tl.abs(queries), 1)
    exponent = tl.floor(tl.log2(tl.where(largest > 0.0, largest, 1.0)))
    return tl.minimum(tl.maximum(exponent, -120.0), 120.0)


@triton.jit
def fp8_queries(queries, exponent):
    """The queries [rows, dim] as they are multiplied with fp8 keys; scores lack the factor 2^exponent [rows].

    Of 16 bits they become float16: one instruction converts two fp8 numbers to float16, four to bfloat16. Each row of
    bfloat16 is brought to a maximum in [1, 2) by a power of two, so that nothing overflows, and the error is below
    2⁻²⁴ of the maximum."""
    if queries.dtype == tl.bfloat16:
        return (queries.to(tl.float32) * tl.exp2(-exponent)[:, None]).to(tl.float16)
    else:
        return queries


@functools.cache
def converts_in_pairs(device: torch.device) -> bool:
    """Whether `fp8_numbers` and `fp8_words` may use the instruction of GPUs from compute capability 8.9 on."""
    return device.type == "cuda" and not triton.knobs.runtime.interpret


@triton.jit
def fp8_numbers(codes, dtype: tl.constexpr, IN_PAIRS: tl.constexpr):
    """uint8, the bits of float8_e4m3fn, in a dtype that holds them all. IN_PAIRS: by one instruction for two, where
    Triton's own conversion takes each byte out of its register first."""
    if IN_PAIRS and dtype == tl.float16:
        return tl.inline_asm_elementwise(
            """
            {
                .reg .b16 low, high;
                mov.b32 {low, high}, $2;
                cvt.rn.f16x2.e4m3x2 $0, low;
                cvt.rn.f16x2.e4m3x2 $1, high;
            }
            """,
            "=r,=r,r", [codes], dtype=tl.float16, is_pure=True, pack=4,
        )  # fmt: skip
    else:
        return codes.to(tl.float8e4nv, bitcast=True).to(dtype)


@triton.jit
def fp8_words(words, dtype: tl.constexpr, IN_PAIRS: tl.constexpr):
    """The four bytes of each int32, from the lowest up, as `fp8_numbers`: four tensors of the shape of `words`.

    Numbers are carried in words where they wait in registers: Triton takes single bytes apart."""
    if IN_PAIRS and dtype == tl.float16:
        return tl.inline_asm_elementwise(
            """
            {
                .reg .b32 lower, upper;
                .reg .b16 first, second;
                prmt.b32 lower, $4, $5, 0x5140;
                prmt.b32 upper, $4, $5, 0x7362;
                mov.b32 {first, second}, lower;
                cvt.rn.f16x2.e4m3x2 $0, first;
                cvt.rn.f16x2.e4m3x2 $1, second;
                mov.b32 {first, second}, upper;
                cvt.rn.f16x2.e4m3x2 $2, first;
                cvt.rn.f16x2.e4m3x2 $3, second;
            }
            """,
            "=&r,=&r,=&r,=&r,r,r", [words], dtype=(tl.float16, tl.float16, tl.float16, tl.float16), is_pure=True,
            pack=2,
        )  # fmt: skip
    else:
        first = fp8_numbers((words & 0xFF).to(tl.uint8), dtype, False)
        second = fp8_numbers(((words >> 8) & 0xFF).to(tl.uint8), dtype, False)
        third = fp8_numbers(((words >> 16) & 0xFF).to(tl.uint8), dtype, False)
        fourth = fp8_numbers(((words >> 24) & 0xFF).to(tl.uint8), dtype, False)
        return first, second, third, fourth
