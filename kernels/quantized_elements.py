"""Quantised numbers in registers: fp8 (e4m3fn), int8 and int4 to bfloat16, float16 or float32, all exact.

In PTX, four at a time, where Triton's own conversion takes an instruction of the slow units for each. The
interpreter has no PTX, no right conversion from fp8 and no products in bfloat16, so there all are float32.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

# Both: a byte b below 128 under the byte 0x43 is bfloat16 128 + b; any byte b under 0x64 is float16 1024 + b.
BFLOAT16_BASE = tl.constexpr(128.0)
FLOAT16_BASE = tl.constexpr(1024.0)
# Low 7 bits and sign bit of a two's complement: (128 + low) − (128 + sign). The factor is −1.
_INT8_TO_BFLOAT16 = tl.constexpr("""{
.reg .b32 low, sign, s0, s1, minus;
and.b32 low, $2, 0x7F7F7F7F;
and.b32 sign, $2, 0x80808080;
mov.b32 minus, 0xBF80BF80;
prmt.b32 $0, low, 0x43434343, 0x4140;
prmt.b32 $1, low, 0x43434343, 0x4342;
prmt.b32 s0, sign, 0x43434343, 0x4140;
prmt.b32 s1, sign, 0x43434343, 0x4342;
fma.rn.bf16x2 $0, s0, minus, $0;
fma.rn.bf16x2 $1, s1, minus, $1;
}""")
# (1024 + (b + 128)) − 1152.
_INT8_TO_FLOAT16 = tl.constexpr("""{
.reg .b32 shifted, minus;
xor.b32 shifted, $2, 0x80808080;
mov.b32 minus, 0xE480E480;
prmt.b32 $0, shifted, 0x64646464, 0x4140;
prmt.b32 $1, shifted, 0x64646464, 0x4342;
add.rn.f16x2 $0, $0, minus;
add.rn.f16x2 $1, $1, minus;
}""")
# (base + nibble) − (base + zero): low halves to $0 and $1, high ones to $2 and $3; −(base + zero) in $5 and $6.
_INT4_TO_BFLOAT16 = tl.constexpr("""{
.reg .b32 low, high, one;
and.b32 low, $4, 0x0F0F0F0F;
shr.u32 high, $4, 4;
and.b32 high, high, 0x0F0F0F0F;
mov.b32 one, 0x3F803F80;
prmt.b32 $0, low, 0x43434343, 0x4140;
prmt.b32 $1, low, 0x43434343, 0x4342;
prmt.b32 $2, high, 0x43434343, 0x4140;
prmt.b32 $3, high, 0x43434343, 0x4342;
fma.rn.bf16x2 $0, $0, one, $5;
fma.rn.bf16x2 $1, $1, one, $6;
fma.rn.bf16x2 $2, $2, one, $5;
fma.rn.bf16x2 $3, $3, one, $6;
}""")
_INT4_TO_FLOAT16 = tl.constexpr("""{
.reg .b32 low, high;
and.b32 low, $4, 0x0F0F0F0F;
shr.u32 high, $4, 4;
and.b32 high, high, 0x0F0F0F0F;
prmt.b32 $0, low, 0x64646464, 0x4140;
prmt.b32 $1, low, 0x64646464, 0x4342;
prmt.b32 $2, high, 0x64646464, 0x4140;
prmt.b32 $3, high, 0x64646464, 0x4342;
add.rn.f16x2 $0, $0, $5;
add.rn.f16x2 $1, $1, $6;
add.rn.f16x2 $2, $2, $5;
add.rn.f16x2 $3, $3, $6;
}""")

# By way of float32, whose upper halves are the numbers: Triton's own conversion takes the slow units.
_FP8_TO_BFLOAT16 = tl.constexpr("""{
.reg .b16 p0, p1, h0, h1, h2, h3;
.reg .b32 t0, t1;
.reg .f32 f0, f1, f2, f3;
.reg .b32 w0, w1, w2, w3;
mov.b32 {p0, p1}, $2;
cvt.rn.f16x2.e4m3x2 t0, p0;
cvt.rn.f16x2.e4m3x2 t1, p1;
mov.b32 {h0, h1}, t0;
mov.b32 {h2, h3}, t1;
cvt.f32.f16 f0, h0;
cvt.f32.f16 f1, h1;
cvt.f32.f16 f2, h2;
cvt.f32.f16 f3, h3;
mov.b32 w0, f0;
mov.b32 w1, f1;
mov.b32 w2, f2;
mov.b32 w3, f3;
prmt.b32 $0, w0, w1, 0x7632;
prmt.b32 $1, w2, w3, 0x7632;
}""")


@triton.jit
def _fp8_values(bits):
    """float32 of e4m3fn bits by integer arithmetic, for the interpreter."""
    wide = bits.to(tl.int32)
    # Exponent and mantissa at float32's places, 2^120 too small, subnormal numbers too.
    magnitude = ((wide & 0x7F) << 20).to(tl.float32, bitcast=True) * 1.329227995784916e36
    magnitude = tl.where((wide & 0x7F) == 0x7F, float("nan"), magnitude)
    return tl.where(wide > 127, -magnitude, magnitude)


@triton.jit
def byte_numbers(bits, ELEMENT: tl.constexpr, dtype: tl.constexpr, INTERPRETED: tl.constexpr):
    """The numbers of uint8 `bits` of an element of one byte, "fp8" or "int8", in `dtype`."""
    if INTERPRETED:
        if ELEMENT == "fp8":
            return _fp8_values(bits)
        else:
            return bits.to(tl.int8, bitcast=True).to(tl.float32)
    elif ELEMENT == "fp8":
        if dtype == tl.bfloat16:
            return tl.inline_asm_elementwise(
                _FP8_TO_BFLOAT16, "=&r,=&r,r", [bits], dtype=tl.bfloat16, is_pure=True, pack=4
            )
        else:
            return bits.to(tl.float8e4nv, bitcast=True).to(dtype)
    elif dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            _INT8_TO_BFLOAT16, "=&r,=&r,r", [bits], dtype=tl.bfloat16, is_pure=True, pack=4
        )
    elif dtype == tl.float16:
        return tl.inline_asm_elementwise(_INT8_TO_FLOAT16, "=&r,=&r,r", [bits], dtype=tl.float16, is_pure=True, pack=4)
    else:
        return bits.to(tl.int8, bitcast=True).to(dtype)


@triton.jit
def half_byte_numbers(bits, zero, dtype: tl.constexpr, INTERPRETED: tl.constexpr):
    """(low halves, high halves) of uint8 `bits`, less `zero` (float32, of a shape that broadcasts to that of `bits`),
    in `dtype`."""
    if INTERPRETED or dtype == tl.float32:
        low = (bits & 15).to(tl.float32) - zero
        high = (bits >> 4).to(tl.float32) - zero
        return low, high
    elif dtype == tl.bfloat16:
        minus = (-BFLOAT16_BASE - zero).to(dtype)
        return tl.inline_asm_elementwise(
            _INT4_TO_BFLOAT16,
            "=&r,=&r,=&r,=&r,r,r,r",
            [bits, minus],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=4,
        )
    else:
        minus = (-FLOAT16_BASE - zero).to(dtype)
        return tl.inline_asm_elementwise(
            _INT4_TO_FLOAT16,
            "=&r,=&r,=&r,=&r,r,r,r",
            [bits, minus],
            dtype=(tl.float16, tl.float16),
            is_pure=True,
            pack=4,
        )


def check_quantized_matrix(
    data: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, ins: int, element: str, group: int
) -> None:
    """Whether these are the parts of a quantised matrix [outs, ins]; see `quantized_product.quantized_product`."""
    assert element in ("fp8", "int8", "int4")
    outs = data.shape[0]
    assert data.dtype == torch.uint8
    assert data.is_contiguous()
    assert data.shape[1] * (2 if element == "int4" else 1) == ins
    assert group == ins or group % 32 == 0
    assert scales.shape == (outs, triton.cdiv(ins, group))
    assert scales.dtype in (torch.float32, torch.float16, torch.bfloat16)
    assert zeros is None or (element == "int4" and zeros.shape == scales.shape and zeros.dtype == torch.uint8)
