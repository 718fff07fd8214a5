"""Changes of a row's logits before its draw, on the device: biases, penalties for earlier ids, and a mask of ids.

The changed logit of an id follows from tables on the device alone, so no data is copied: the draw's kernels apply the
changes to each logit as they read it, in float32. Same numbers and order as `engine/compute/penalties.py`.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

# Biases of a slot at most, stop ids that are held back included.
BIASES_MAX = 2048
# Words of a slot's settings before its biases, which are pairs of an id and a float32's bits, ascending by id.
HEAD_WORDS = tl.constexpr(8)
SETTINGS_WORDS = HEAD_WORDS.value + 2 * BIASES_MAX
# Positions in the head: three float32, then two int32.
REPETITION, PRESENCE, FREQUENCY = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
BIASES, PENALIZED = tl.constexpr(3), tl.constexpr(4)
# Of a word of `Changes.tokens`.
COUNT_MAX = tl.constexpr(0x7FFF)
IN_PROMPT = -0x8000


class Changes(NamedTuple):
    """The changes of each row of a launch, contiguous. A slot belongs to one sequence."""

    slots: torch.Tensor  # int32 [rows]: the row's slot; −1: neither biases nor penalties
    mask_rows: torch.Tensor  # int32 [rows]: the row's index in `words`; −1: all ids are allowed
    tokens: (
        torch.Tensor
    )  # int16 [slots, vocab or more]: how often the id was drawn, up to COUNT_MAX; sign: in the prompt
    settings: torch.Tensor  # int32 [slots, SETTINGS_WORDS]
    words: torch.Tensor  # int32 [masks, ceil(vocab / 32)]: bit i % 32 of word i // 32 is 1 if id i is allowed


@triton.jit
def row_changes(
    row, slots_ptr, mask_rows_ptr, tokens_ptr, tokens_stride, settings_ptr, numbers_ptr, settings_stride, words_ptr,
    words_stride,
):  # fmt: skip
    """The changes of one row, for `changed`. `numbers_ptr`: the settings as float32."""
    slot = tl.load(slots_ptr + row).to(tl.int64)
    mask = tl.load(mask_rows_ptr + row).to(tl.int64)
    known = tl.maximum(slot, 0)
    settings = known * settings_stride
    return (
        slot,
        tokens_ptr + known * tokens_stride,
        settings_ptr + settings,
        numbers_ptr + settings,
        mask,
        words_ptr + tl.maximum(mask, 0) * words_stride,
    )


@triton.jit
def changed(x, ids, within, change):
    """The float32 logits `x` of `ids` as the row draws from them; nothing is read for ids that are not `within` the
    vocabulary. In this order: bias, repetition penalty, frequency and presence penalty, mask."""
    slot, tokens, settings, numbers, mask, words = change
    if slot >= 0:
        count = tl.load(settings + BIASES)
        if count > 0:
            x += _bias(ids, within, count, settings, numbers)
        if tl.load(settings + PENALIZED) != 0:
            token = tl.load(tokens + ids, mask=within, other=0).to(tl.int32)
            repetition = tl.load(numbers + REPETITION)
            x = tl.where(token != 0, tl.where(x > 0, x / repetition, x * repetition), x)
            drawn = (token & COUNT_MAX).to(tl.float32)
            penalty = tl.load(numbers + PRESENCE) + tl.load(numbers + FREQUENCY) * drawn
            x = tl.where(drawn > 0, x - penalty, x)
    if mask >= 0:
        word = tl.load(words + (ids >> 5), mask=within, other=0)
        x = tl.where(((word >> (ids & 31)) & 1) != 0, x, -float("inf"))
    return x


@triton.jit
def _bias(ids, within, count, settings, numbers):
    """The bias of each id, 0 for an id without a bias: a binary search among the `count` biases, at least one."""
    width = 1
    while width * 2 <= count:
        width *= 2
    place = ids * 0  # biases whose id is at most the own
    while width > 0:
        probe = place + width
        found = tl.load(settings + HEAD_WORDS + 2 * (probe - 1), mask=within & (probe <= count), other=0x7FFFFFFF)
        place = tl.where(found <= ids, probe, place)
        width = width >> 1
    at = HEAD_WORDS + 2 * (place - 1)
    held = within & (place > 0)
    own = held & (tl.load(settings + at, mask=held, other=-1) == ids)
    return tl.load(numbers + at + 1, mask=own, other=0.0)


@triton.jit
def _note_kernel(drawn_ptr, slots_ptr, tokens_ptr, tokens_stride):
    row = tl.program_id(0)
    slot, drawn = tl.load(slots_ptr + row).to(tl.int64), tl.load(drawn_ptr + row)
    if (slot >= 0) & (drawn >= 0):
        place = tokens_ptr + slot * tokens_stride + drawn
        token = tl.load(place).to(tl.int32)
        tl.store(place, tl.where((token & COUNT_MAX) < COUNT_MAX, token + 1, token).to(tl.int16))


def note_drawn(drawn: torch.Tensor, changes: Changes) -> None:
    """Count the ids `drawn` [rows] in the rows' slots, which differ; an id of −1 is not counted."""
    if len(drawn):
        _note_kernel[(len(drawn),)](drawn, changes.slots, changes.tokens, changes.tokens.stride(0), num_warps=1)
