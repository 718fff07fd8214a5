"""The masks of a step: rows without a constraint, masks that are late, and texts that cannot be continued."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from engine.guided.mask_times import MaskTimes
from engine.guided.masks import MaskFiller
from engine.guided.matcher import ConsumeIds, GuidedText
from engine.protocol.frames import Guide, Sampling
from engine.step import Chunk, Sequence, Step
from engine.text.grammars import GrammarTokenizer, choice_grammar, compile_grammar
from support.paths import REPO
from support.waiting import PATIENCE_S

MODEL = GrammarTokenizer.load(REPO / "examples" / "models" / "laneway-tiny")
YES = MODEL.inner.tokenize_str("yes")


class SlowText(GuidedText):
    """Its mask is not ready before `go` is set."""

    go: threading.Event

    def fill_words(self, consume_ids: ConsumeIds) -> None:
        self.go.wait(10)
        super().fill_words(consume_ids)


def guided(kind: type[GuidedText] = GuidedText) -> GuidedText:
    grammar = choice_grammar(["yes"])
    return kind(Guide(grammar), compile_grammar(MODEL, grammar), MODEL, MODEL.vocab_size, MODEL.eos_ids)


def sequence(*output_ids: int) -> Sequence:
    return Sequence(
        0, 0, "r", "m", None, "n", "t", "s", [1, 2, 3], 9, Sampling(), MODEL.eos_ids, 0.0, output_ids=list(output_ids)
    )


def decode(own: Sequence) -> Chunk:
    return Chunk(own, own.token_count() - 1, 1, True)


@pytest.fixture
def filler() -> Iterator[MaskFiller]:
    found = MaskFiller(wait_s=0.05)
    yield found
    found.stop()


@pytest.fixture
def patient_filler() -> Iterator[MaskFiller]:
    """For tests without a late mask: on a busy machine a mask of a millisecond may take longer than `filler` waits."""
    found = MaskFiller(wait_s=60.0)
    yield found
    found.stop()


def test_no_masks_without_guided_rows(filler: MaskFiller) -> None:
    assert filler.fill_masks(Step(1, "m", [decode(sequence())]), {}) is None
    free = GuidedText(Guide(), None, None, MODEL.vocab_size, frozenset())
    own = sequence()
    assert filler.fill_masks(Step(1, "m", [decode(own)]), {own: free}) is None


def test_rows_are_those_of_the_sampling_chunks(patient_filler: MaskFiller) -> None:
    plain, own, done = sequence(), sequence(), sequence(*YES)
    step = Step(1, "m", [Chunk(plain, 0, 2, False), decode(own), decode(plain), decode(done)])
    masks = patient_filler.fill_masks(step, {own: guided(), done: guided()})
    assert masks is not None
    assert masks.words is not None
    assert (masks.words.shape, masks.words.dtype) == ((3, 64), np.int32)
    assert masks.free == {1}
    assert np.unpackbits(masks.words[2].view(np.uint8)).sum() == 1
    assert not masks.skip


def test_a_late_mask_skips_its_row_alone_and_is_used_later(filler: MaskFiller) -> None:
    slow, quick = sequence(), sequence()
    late = guided(SlowText)
    late.go = threading.Event()  # type: ignore[attr-defined]
    texts = {slow: late, quick: guided()}
    step = Step(1, "m", [decode(slow), decode(quick)])
    for _ in range(2):
        began = time.monotonic()
        masks = filler.fill_masks(step, texts)
        assert time.monotonic() - began < 1
        assert masks is not None
        assert masks.skip == {0}
    assert filler.draws_skipped == 2
    late.go.set()  # type: ignore[attr-defined]
    deadline = time.monotonic() + PATIENCE_S
    while (masks := filler.fill_masks(step, texts)) is None or masks.skip:  # its thread may not have run yet
        assert time.monotonic() < deadline
    assert masks.words is not None
    assert (masks.words[0] == masks.words[1]).all()


def test_a_draw_waits_no_longer_than_the_forward_pass_runs(filler: MaskFiller) -> None:
    slow, quick = sequence(), sequence()
    late = guided(SlowText)
    late.go = threading.Event()  # type: ignore[attr-defined]
    texts = {slow: late, quick: guided()}
    asked_at: list[float] = []

    def is_forward_done() -> bool:
        asked_at.append(time.monotonic())
        return len(asked_at) == 100

    assert filler.begin_masks(Step(1, "m", [decode(slow), decode(quick)]), texts)
    masks = filler.take_masks(30.0, is_forward_done)
    assert masks is not None
    assert masks.skip == {0}
    assert len(asked_at) == 100
    assert asked_at[-1] - asked_at[0] < 10
    late.go.set()  # type: ignore[attr-defined]


def test_a_late_text_that_left_delays_no_later_step(filler: MaskFiller) -> None:
    slow, quick = sequence(), sequence()
    late = guided(SlowText)
    late.go = threading.Event()  # type: ignore[attr-defined]
    texts = {slow: late, quick: guided()}
    assert filler.fill_masks(Step(1, "m", [decode(slow), decode(quick)]), texts)
    del texts[slow]
    quick.output_ids.append(YES[0])
    waited = filler.seconds
    masks = filler.fill_masks(Step(2, "m", [decode(quick)]), texts)
    assert masks is not None
    assert not masks.skip
    assert filler.seconds - waited < 0.04
    late.go.set()  # type: ignore[attr-defined]


def test_a_step_whose_rows_all_wait_delays_nobody_and_so_waits_longer(filler: MaskFiller) -> None:
    own = sequence()
    late = guided(SlowText)
    late.go = threading.Event()  # type: ignore[attr-defined]
    threading.Timer(0.3, late.go.set).start()  # type: ignore[attr-defined]
    masks = filler.fill_masks(Step(1, "m", [decode(own)]), {own: late})
    assert masks is not None
    assert not masks.skip


def test_a_text_that_cannot_be_continued_allows_no_id(patient_filler: MaskFiller) -> None:
    own = sequence(5)
    text = guided()
    masks = patient_filler.fill_masks(Step(1, "m", [decode(own)]), {own: text})
    assert masks is not None
    assert masks.words is not None
    assert not masks.words.any()
    assert text.error


def test_the_same_position_has_the_same_mask_again_and_no_text_keeps_a_step_s_matrix(
    patient_filler: MaskFiller,
) -> None:
    own = sequence()
    text = guided()
    step = Step(1, "m", [decode(sequence()), decode(own)])
    first, second = patient_filler.fill_masks(step, {own: text}), patient_filler.fill_masks(step, {own: text})
    assert first is not None
    assert second is not None
    assert first.words is not None
    assert second.words is not None
    assert (first.words[1] == second.words[1]).all()
    assert first.words is not second.words
    assert text.words.size == 0


def test_many_texts_on_several_threads(patient_filler: MaskFiller) -> None:
    own = [sequence(*YES[:-1]) for _ in range(64)]
    texts = {sequence: guided() for sequence in own}
    masks = patient_filler.fill_masks(Step(1, "m", [decode(sequence) for sequence in own]), texts)
    assert masks is not None
    assert masks.words is not None
    assert not masks.skip
    allowed = np.unpackbits(masks.words.view(np.uint8), axis=1, bitorder="little")
    assert (allowed.sum(axis=1) == allowed[0].sum()).all()
    assert allowed[:, YES[-1]].all()


def test_a_slow_grammar_is_not_waited_for_and_its_masks_are_used_when_they_are_ready() -> None:
    patient = MaskFiller(wait_s=60.0)
    slow, quick = sequence(), sequence()
    late = guided(SlowText)
    late.go = threading.Event()  # type: ignore[attr-defined]
    late.times.note_mask(1.0)
    texts = {slow: late, quick: guided()}
    step = Step(1, "m", [decode(slow), decode(quick)])
    for _ in range(2):
        masks = patient.fill_masks(step, texts)
        assert masks is not None
        assert masks.skip == {0}
    assert patient.seconds < 30
    late.go.set()  # type: ignore[attr-defined]
    while (masks := patient.fill_masks(step, texts)) is None or 0 in masks.skip:
        time.sleep(0.01)
    patient.stop()


def test_a_grammar_whose_masks_are_quick_again_is_waited_for_again() -> None:
    times = MaskTimes()
    times.note_mask(0.03)
    assert times.is_slow
    for _ in range(100):
        times.note_mask(0.0001)
    assert not times.is_slow
