"""Which queries and keys each program of prefill attention takes: planned on the host, once a step, without Triton.

Its inputs are lengths only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BLOCK_ROWS = 128  # rows of a block: its queries × the query heads of one K/V head
BLOCK_KEYS = 32  # keys of one tile
# int32 of a block: sequence (−1: padding), first query, first key, end of its keys, its partial output, the first
# partial output of the same queries, the number of these (1: the keys are not split, there is no partial output)
FIELDS = 7
# Each part of a split block has at least three quarters of PART_KEYS_MIN: more keys than the diagonal is wide, so that
# every query sees a key of each part.
PART_KEYS_MIN = 512


def queries_per_block(heads: int, kv_heads: int) -> int:
    return BLOCK_ROWS // (heads // kv_heads)


def parts_max(programs: int, kv_heads: int) -> int:
    """The maximum number of partial outputs of a step. A share is at least 1/programs of all keys × heads. A block of
    1.5 shares or more is split into the nearest whole number of parts: at most 4/3 as many as it has shares."""
    return 4 * programs // (3 * kv_heads)


def blocks_split_max(programs: int, kv_heads: int) -> int:
    """The maximum number of blocks that are split: blocks of 1.5 shares or more are."""
    return 2 * programs // (3 * kv_heads)


def prefill_blocks(
    q_lens: npt.ArrayLike, kv_lens: npt.ArrayLike, heads: int, kv_heads: int, *, programs: int = 0
) -> npt.NDArray[np.int32]:
    """The blocks of one step [blocks, FIELDS], the same for all layers. `q_lens` new tokens and `kv_lens` keys of each
    sequence, the new included. `programs`: split the keys of a block that has much more than an even share of
    `programs` programs; 0: split none. All split blocks together have `parts_max` parts at most.

    The blocks whose parts are to be combined are first, once each; then the blocks with most keys, so that no long
    block starts last.
    """
    queries = queries_per_block(heads, kv_heads)
    new, all_keys = np.asarray(q_lens, dtype=np.int64), np.asarray(kv_lens, dtype=np.int64)
    per_sequence = -(-new // queries)
    sequence = np.repeat(np.arange(len(new)), per_sequence)
    first = (np.arange(len(sequence)) - np.repeat(np.cumsum(per_sequence) - per_sequence, per_sequence)) * queries
    keys = (all_keys - new)[sequence] + np.minimum(first + queries, new[sequence])
    parts = np.ones_like(keys)
    if programs:
        share = max(PART_KEYS_MIN, keys.sum() * kv_heads / programs)
        parts = np.maximum(1, (keys / share + 0.5).astype(np.int64))
    of_split = np.where(parts > 1, parts, 0)
    first_partial = np.repeat(np.cumsum(of_split) - of_split, parts)
    part = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    sequence, first, keys, parts = (np.repeat(numbers, parts) for numbers in (sequence, first, keys, parts))
    tiles = -(-keys // BLOCK_KEYS)
    begin = tiles * part // parts * BLOCK_KEYS
    end = np.minimum(tiles * (part + 1) // parts * BLOCK_KEYS, keys)
    blocks = np.stack((sequence, first, begin, end, first_partial + part, first_partial, parts), 1).astype(np.int32)
    return blocks[np.lexsort((begin - end, (parts == 1) | (part > 0)))]
