"""How K and V lie in a page of the arena: in the model's dtype, or in fp8 with a scale per token and head.

A page holds a run for each layer. In a model's dtype a run is [tokens, K then V, kv_heads, head_dim]. In fp8 it is the
numbers uint8 [tokens, K then V, kv_heads, head_dim], the bits of torch.float8_e4m3fn, then the scales float16 [K then
V, kv_heads, tokens], padded to a multiple of RUN_ALIGN_BYTES. The scales of one head's tokens are neighbours, so that
attention loads them together. No torch and no Triton.
"""

from __future__ import annotations

from dataclasses import dataclass

# To be raised when a kernel writes other bytes for the same tokens or reads the same bytes as other numbers: pages of
# two versions never share a name.
KV_KERNELS_VERSION = 1
FP8 = "fp8"
SCALE_BYTES = 2
# A multiple of 16 scales, so that the scales of every layer are aligned alike and one compiled kernel serves all.
RUN_ALIGN_BYTES = 32
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, FP8: 1}


def fp8_run_bytes(tokens: int, kv_heads: int, head_dim: int) -> int:
    """Bytes of one layer's run, padding included."""
    used = tokens * 2 * kv_heads * (head_dim + SCALE_BYTES)
    return -(-used // RUN_ALIGN_BYTES) * RUN_ALIGN_BYTES


def fp8_scales_start(tokens: int, kv_heads: int, head_dim: int) -> int:
    """Byte of a run at which its scales begin."""
    return tokens * 2 * kv_heads * head_dim


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The layout of one model's K and V, for pages of any size. `dtype`: a key of ITEM_BYTES."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: str

    @property
    def is_fp8(self) -> bool:
        return self.dtype == FP8

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in all layers, scales included and padding not."""
        per_head = self.head_dim * ITEM_BYTES[self.dtype] + (SCALE_BYTES if self.is_fp8 else 0)
        return self.layers * 2 * self.kv_heads * per_head

    @property
    def identity(self) -> str:
        """Part of the root of a page's name: pages are shared only between equal layouts of equal kernels."""
        numbers = "fp8-e4m3-f16scales" if self.is_fp8 else self.dtype
        return f"{numbers}/v{KV_KERNELS_VERSION}"

    def run_bytes(self, tokens: int) -> int:
        """Bytes of one layer in a page that holds `tokens` tokens."""
        if self.is_fp8:
            return fp8_run_bytes(tokens, self.kv_heads, self.head_dim)
        return tokens * self.token_bytes // self.layers

    def scales_start(self, tokens: int) -> int:
        """Byte of a run of fp8 at which its scales begin."""
        return fp8_scales_start(tokens, self.kv_heads, self.head_dim)

    def tokens_per_page(self, page_bytes: int) -> int:
        """Tokens that a page of this size holds."""
        if not self.is_fp8:
            return page_bytes // self.token_bytes
        run = page_bytes // self.layers // RUN_ALIGN_BYTES * RUN_ALIGN_BYTES
        return run * self.layers // self.token_bytes

    def page_waste(self, page_bytes: int) -> int:
        """Bytes of a page without tokens, padding included."""
        return page_bytes - self.tokens_per_page(page_bytes) * self.token_bytes
