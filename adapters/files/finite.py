"""Finds NaN and infinity in blocks of tensor data, by bit pattern: numpy has no bfloat16."""

from __future__ import annotations

import numpy as np

from adapters.files.header import AdapterRefused, Tensor

# dtype in the file → (unsigned integer of its size, all bits but the sign).
MAGNITUDE = {"F32": (np.uint32, 0x7FFFFFFF), "F16": (np.uint16, 0x7FFF), "BF16": (np.uint16, 0x7FFF)}
# dtype in the file → the bits of infinity. Larger magnitudes are NaN.
INFINITE = {"F32": 0x7F800000, "F16": 0x7C00, "BF16": 0x7F80}
# The least magnitude that rounds to infinity in the base's dtype, such as 65520 in float16.
ROUNDS_TO_INFINITE = {
    "float16": {"F32": 0x477FF000, "F16": 0x7C00, "BF16": 0x4780},
    "bfloat16": {"F32": 0x7F7F8000, "F16": 0x7C00, "BF16": 0x7F80},
}


def check_finite(block: memoryview, tensor: Tensor, offset: int, dtype: str) -> None:
    """`block` is the tensor's data from byte `offset` on; its base computes in `dtype`. Raises AdapterRefused for the
    first number that is not finite in that dtype."""
    infinite = ROUNDS_TO_INFINITE.get(dtype, INFINITE)[tensor.dtype]
    integer, magnitude = MAGNITUDE[tensor.dtype]
    bits = np.frombuffer(block, integer)
    bad = (bits & integer(magnitude)) >= integer(infinite)
    if bad.any():
        number = offset // bits.itemsize + int(bad.argmax())
        what = "NaN or infinite" if infinite == INFINITE[tensor.dtype] else f"NaN, infinite or too large for {dtype}"
        raise AdapterRefused(f"{tensor.name}: number {number} is {what}")
