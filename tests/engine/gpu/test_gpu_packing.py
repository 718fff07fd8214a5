"""A step as one packed buffer, on the CPU: what every row and sequence is told, and what padding says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from engine.gpu.layouts import LayoutLimits, StepLayouts, row_buckets
from engine.gpu.packing import NOWHERE, PackedStep, Packer, Sizes, StepLayout, StepTensors, views
from engine.protocol.frames import Sampling
from engine.step import PENDING_ID, Chunk, Sequence
from kernels.prefill_blocks import prefill_blocks

PER_PAGE = 4


def sequence(
    handle: int, prompt: list[int], output: list[int], pages: list[int], adapter: str | None = None
) -> Sequence:
    return Sequence(
        handle, 0, f"r{handle}", "m", adapter, "n", "t", "s", prompt, 99, Sampling(), frozenset(), 0.0, output, pages
    )


def sent(packed: PackedStep, drawn: dict[Sequence, int], **sizes: int) -> StepTensors:
    """Through a buffer full of rubbish, whose layout has room for more."""
    wanted = {"rows": packed.rows + 3, "sequences": len(packed.chunks) + 2, "pages": packed.page_count + 5} | sizes
    layout = StepLayout(Sizes(query_blocks=4, lora_words=8, **wanted))
    packer = Packer(layout.words, depth=2, pinned=False)
    device = torch.full((layout.words,), -77, dtype=torch.int32)
    none = np.zeros(0, np.int32)
    extra: dict[str, Any] = {"lora": np.arange(8, dtype=np.int32), "adapted": none, "query_blocks": none}
    packer.send(layout, packed, drawn, extra, device)
    return views(layout, device)


def test_decodes_lie_by_adapter_and_take_ids_from_the_device_or_the_host() -> None:
    known = sequence(1, [10, 11, 12, 13, 14], [15, 16], [7, 3], "b")
    pending = sequence(2, [20, 21], [PENDING_ID], [5], "a")
    base = sequence(3, [30] * 8, [31], [9, 8, 6])
    chunks = [Chunk(known, 6, 1, True), Chunk(pending, 2, 1, True), Chunk(base, 8, 1, True)]
    packed = PackedStep(chunks, PER_PAGE)
    assert [chunk.sequence for chunk in packed.chunks] == [base, pending, known]
    assert packed.decodes
    assert packed.adapter_runs() == [(None, 1), ("a", 1), ("b", 1)]
    step = sent(packed, {pending: 4})
    assert step.ids.tolist()[:3] == [31, 0, 16]
    assert step.source.tolist() == [NOWHERE, 4, NOWHERE, NOWHERE, NOWHERE, NOWHERE]
    assert step.positions.tolist()[:3] == [8, 2, 6]
    assert step.write_pages.tolist() == [6, 5, 3, NOWHERE, NOWHERE, NOWHERE]
    assert step.write_slots.tolist()[:3] == [0, 2, 2]
    assert step.kv_lens.tolist() == [9, 3, 7, 0, 0]
    assert step.query_lens.tolist() == [1, 1, 1, 0, 0]
    assert step.sampled.tolist()[:3] == step.sequence_rows.tolist()[:3] == [0, 1, 2]
    assert [step.pages.tolist()[start] for start in step.page_starts.tolist()[:3]] == [9, 5, 7]
    assert step.pages.tolist()[:6] == [9, 8, 6, 5, 7, 3]


def test_a_chunk_of_a_prompt_beside_a_decode() -> None:
    prompt = sequence(1, list(range(100, 111)), [], [2, 4, 1], "z")
    decode = sequence(2, [50, 51, 52], [53], [0])
    packed = PackedStep([Chunk(decode, 3, 1, True), Chunk(prompt, 3, 6, False)], PER_PAGE)
    assert not packed.decodes
    assert packed.sampling == [0]
    step = sent(packed, {})
    assert step.ids.tolist()[:7] == [53, 103, 104, 105, 106, 107, 108]
    assert step.positions.tolist()[:7] == [3, 3, 4, 5, 6, 7, 8]
    assert step.write_pages.tolist()[:7] == [0, 2, 4, 4, 4, 4, 1]
    assert step.write_slots.tolist()[:7] == [3, 3, 0, 1, 2, 3, 0]
    assert step.sequence_rows.tolist()[:2] == [0, 1]
    assert step.query_lens.tolist()[:2] == [1, 6]
    assert step.kv_lens.tolist()[:2] == [4, 9]
    assert step.sampled.tolist()[0] == 0


def test_a_preempted_sequence_is_packed_from_its_prompt_and_its_output() -> None:
    again = sequence(1, [1, 2, 3], [4, 5, 6], [3, 0])
    step = sent(PackedStep([Chunk(again, 1, 5, True)], PER_PAGE), {})
    assert step.ids.tolist()[:5] == [2, 3, 4, 5, 6]
    assert step.sampled.tolist()[0] == 4


def test_an_id_that_was_never_drawn_is_no_reason_to_fail_the_step() -> None:
    pending = sequence(1, [1], [PENDING_ID], [0])
    step = sent(PackedStep([Chunk(pending, 1, 1, True)], PER_PAGE), {})
    assert (step.ids.tolist()[0], step.source.tolist()[0]) == (0, NOWHERE)


def test_a_step_of_nothing_is_all_padding() -> None:
    step = sent(PackedStep([], PER_PAGE), {}, rows=4, sequences=2, pages=3)
    assert step.write_pages.tolist() == [NOWHERE] * 4
    assert step.kv_lens.tolist() == [0, 0]
    assert (step.query_blocks == NOWHERE).all()
    assert step.lora.tolist() == list(range(8))


def test_a_field_that_does_not_fit_is_our_own_mistake() -> None:
    one = sequence(1, [1, 2, 3], [], [0])
    with pytest.raises(AssertionError, match="ids: 3 of 2"):
        sent(PackedStep([Chunk(one, 0, 3, True)], PER_PAGE), {}, rows=2)


def test_wide_fields_are_aligned_and_their_numbers_survive() -> None:
    one = sequence(1, [1], [2], [0])
    packed = PackedStep([Chunk(one, 1, 1, True)], PER_PAGE)
    layout = StepLayout(Sizes(3, 3, 1, 5, 1))
    assert all(field.offset % 4 == 0 for field in layout.fields.values())
    packer = Packer(layout.words - 1, depth=1, pinned=False)
    packer.ensure(layout.words)
    device = torch.zeros(layout.words, dtype=torch.int32)
    seeds, temperatures = np.array([(1 << 64) - 3], np.uint64), np.array([0.25], np.float32)
    none = np.zeros(0, np.int32)
    extra: dict[str, Any] = {"seeds": seeds, "temperatures": temperatures, "lora": none, "adapted": none}
    packer.send(layout, packed, {}, extra, device)
    step = views(layout, device)
    assert int(step.seeds[0]) == -3
    assert float(step.temperatures[0]) == 0.25


@pytest.mark.parametrize("most", [1, 3, 8, 32, 33, 64, 250, 256, 300])
def test_buckets_cover_every_number_of_rows(most: int) -> None:
    buckets = row_buckets(most)
    assert buckets == sorted(set(buckets))
    assert buckets[-1] >= most
    assert all(any(rows <= bucket < rows + 16 for bucket in buckets) for rows in range(1, most + 1))


@pytest.mark.parametrize("rows", [65, 80, 512, 8192])
@pytest.mark.parametrize("sequences", [1, 16, 64])
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (32, 8), (16, 1)])
def test_one_buffer_holds_every_kind_of_step(rows: int, sequences: int, heads: int, kv_heads: int) -> None:
    layouts = StepLayouts(LayoutLimits(rows, sequences, 1000), 4, heads, kv_heads, programs=264)
    words = layouts.words_max()
    assert all(layouts.decode(own).words <= words for own in layouts.decode_rows)
    assert all(layouts.mixed(own).words <= words for own in layouts.mixed_rows)
    for count in {1, min(rows, sequences), 1 + sequences // 2}:
        lengths = np.full(count, rows // count)
        lengths[0] += rows - lengths.sum()
        blocks = prefill_blocks(lengths, lengths + 5000, heads, kv_heads, programs=264)
        step = layouts.exact(rows, count, len(blocks), 1000, prefill=True)
        assert step.words <= words
        assert step.sizes.lora_words == layouts.work(step, prefill=True).size
        for own in layouts.mixed_rows:
            if own >= rows:
                assert layouts.mixed(own).sizes.query_blocks >= len(blocks)
