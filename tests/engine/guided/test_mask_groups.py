"""Masks that one call fills for several texts, in matrices that are used again: each is the mask of its text alone."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from engine.guided.mask_threads import MaskBatch, MaskPool
from engine.guided.mask_times import MASK_SLOW_S, SUSPECT_MASKS, MaskTimes
from engine.guided.masks import MaskFiller
from engine.guided.matcher import ConsumeIds, GuidedText, Words
from engine.guided.step_words import StepWords
from engine.protocol.frames import Guide, Sampling
from engine.step import Chunk, Masks, Sequence, Step
from engine.text.grammars import (
    GrammarTokenizer,
    choice_grammar,
    compile_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)
from support.paths import REPO

MODEL = GrammarTokenizer.load(REPO / "examples" / "models" / "laneway-tiny")
POOL = MaskPool(1)
EOS = min(MODEL.eos_ids)
OTHER = 2043  # a special id
SCHEMA = {"type": "array", "items": {"type": "string", "maxLength": 6}}
GUIDES = [
    Guide(json_schema_grammar(SCHEMA)),
    Guide(choice_grammar(["yes", "no", "yesterday"])),
    Guide(regex_grammar("[a-z]*")),
    Guide(lark_grammar('start: "a"+ | "b"')),
    Guide(
        json_schema_grammar({"type": "integer"}), reasoning_start_ids=[OTHER], reasoning_end_ids=[5], reasoning_max=3
    ),
    Guide(None, reasoning_open=True, reasoning_end_ids=[5, 6], reasoning_max=4),
]
ENDS = [MODEL.eos_ids, frozenset({7}), frozenset[int]()]  # what ends a request: the model's ends, another id, nothing


def known_times() -> MaskTimes:
    """Of a grammar that is no suspect."""
    times = MaskTimes()
    for _ in range(SUSPECT_MASKS):
        times.note_mask(0.0)
    return times


def pair_of(number: int) -> tuple[GuidedText, GuidedText]:
    """Two equal texts."""
    guide, ends = GUIDES[number % len(GUIDES)], ENDS[number % len(ENDS)]
    compiled = compile_grammar(MODEL, guide.grammar) if guide.grammar is not None else None
    times = known_times()
    one, other = (GuidedText(guide, compiled, MODEL, MODEL.vocab_size, ends, number % 4, times=times) for _ in range(2))
    return one, other


def sequence() -> Sequence:
    return Sequence(0, 0, "r", "m", None, "n", "t", "s", [1, 2, 3], 99, Sampling(), MODEL.eos_ids, 0.0)


def step_of(number: int, sequences: list[Sequence]) -> Step:
    return Step(number, "m", [Chunk(own, own.token_count() - 1, 1, True) for own in sequences])


def words_alone(text: GuidedText, ids: list[int]) -> Words | None:
    """The words of the next id; None: every id is allowed."""
    text.sync_ids(ids, len(ids))
    if text.is_free():
        return None
    text.fill_words(POOL.consume_ids)
    return text.words


def row_of(masks: Masks | None, row: int) -> Words | None:
    if masks is None or row in masks.free:
        return None
    assert masks.words is not None
    return masks.words[row].copy()


def some_id(words: Words | None, dice: random.Random) -> int:
    """An allowed id; now and then one that is not allowed, which the grammar then refuses."""
    if words is None or dice.random() < 0.01:
        return dice.randrange(MODEL.vocab_size)
    allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")[: MODEL.vocab_size])
    return int(allowed[dice.randrange(allowed.size)]) if allowed.size else 0


@pytest.fixture
def filler() -> Iterator[MaskFiller]:
    found = MaskFiller(wait_s=60.0)
    yield found
    found.stop()


@pytest.mark.parametrize("seed", range(4))
def test_a_text_of_a_call_has_the_mask_that_it_has_alone(filler: MaskFiller, seed: int) -> None:
    dice, refused = random.Random(seed), 0
    live = [(sequence(), *pair_of(number)) for number in range(30)]
    for number in range(12):
        sequences = [own for own, _, _ in live]
        masks = filler.fill_masks(step_of(number, sequences), {own: together for own, together, _ in live})
        assert masks is None or not masks.skip
        for row, (own, together, alone) in enumerate(live):
            expected, found = words_alone(alone, own.output_ids), row_of(masks, row)
            assert (expected is None) == (found is None)
            assert expected is None or (expected == found).all(), (number, row)
            assert together.error == alone.error
            own.output_ids.append(some_id(expected, dice))
        refused += sum(bool(together.error) for _, together, _ in live)
        live = [row for row in live if not row[1].error]
    assert refused
    assert len(live) > 5


class SlowText(GuidedText):
    """Its mask is not ready before `go` is set."""

    go: threading.Event

    def must_fill_alone(self) -> bool:
        return True

    def fill_words(self, consume_ids: ConsumeIds) -> None:
        self.go.wait(10)
        super().fill_words(consume_ids)


def test_a_late_text_keeps_its_words_while_matrices_are_used_again() -> None:
    impatient = MaskFiller(wait_s=0.05)
    guide = GUIDES[0]
    compiled = compile_grammar(MODEL, guide.grammar or "")
    late = SlowText(guide, compiled, MODEL, MODEL.vocab_size, MODEL.eos_ids, times=known_times())
    late.go = threading.Event()
    alone = GuidedText(guide, compiled, MODEL, MODEL.vocab_size, MODEL.eos_ids)
    slow, others = sequence(), [sequence() for _ in range(5)]
    texts: dict[Sequence, GuidedText] = {slow: late, **{own: pair_of(2)[0] for own in others}}
    dice = random.Random(7)

    def draw(masks: Masks | None) -> None:
        for row, own in enumerate(others, 1):
            own.output_ids.append(some_id(row_of(masks, row), dice))

    for number in range(6):
        masks = impatient.fill_masks(step_of(number, [slow, *others]), texts)
        assert masks is not None
        assert masks.skip == {0}
        draw(masks)
    late.go.set()
    while late.filled_at < 0:
        pass
    for number in range(6, 10):  # the slow text has no row in these
        draw(impatient.fill_masks(step_of(number, [sequence(), *others]), texts))
    masks = impatient.fill_masks(step_of(10, [slow, *others]), texts)
    found = row_of(masks, 0)
    assert found is not None
    assert (found == words_alone(alone, [])).all()
    impatient.stop()


def test_an_error_in_a_call_ends_the_text_that_has_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [pair_of(0)[0] for _ in range(4)]
    expected = words_alone(pair_of(0)[1], [])
    assert expected is not None
    expected = expected.copy()

    def broken(self: GuidedText) -> None:
        raise ValueError("made to fail")

    monkeypatch.setattr(texts[2], "finish_words", broken.__get__(texts[2]), raising=True)
    monkeypatch.setattr(texts[2], "is_ordinary", lambda: False)
    words = StepWords(4, texts[0].words_count)
    words.attach({text: row for row, text in enumerate(texts)})
    batch = MaskBatch([texts], words)
    batch.fill_groups(MaskPool(2))
    assert batch.all_filled.is_set()
    assert [bool(text.error) for text in texts] == [False, False, True, False]
    assert all((words.matrix[row] == expected).all() for row in (0, 1, 3))
    assert not words.matrix[2].any()


def test_grammars_of_a_long_call_are_computed_alone_until_they_are_known() -> None:
    times = known_times()
    assert not times.is_suspect
    times.suspect()
    for _ in range(SUSPECT_MASKS):
        assert times.is_suspect
        times.note_mask(0.0)
    assert not times.is_suspect
    times.note_mask(2 * MASK_SLOW_S)
    assert times.is_suspect
    assert times.is_slow


def test_an_id_of_one_matcher_is_consumed_without_the_gil(monkeypatch: pytest.MonkeyPatch) -> None:
    """`LLMatcher.consume_token` holds the GIL, and so does `consume_token_par` for one matcher."""
    matchers: list[int] = []

    class Recorded:
        def consume_token_par(self, pairs: list[tuple[Any, int]]) -> list[bool]:
            matchers.append(len(pairs))
            return executor.consume_token_par(pairs)

    pool = MaskPool(1)
    executor = pool.executor
    monkeypatch.setattr(pool, "executor", Recorded())
    ids = MODEL.inner.tokenize_str("yes")
    assert pool.consume_ids(compile_grammar(MODEL, choice_grammar(["yes"])), ids)
    assert not pool.consume_ids(compile_grammar(MODEL, choice_grammar(["no"])), ids)
    pairs = [(compile_grammar(MODEL, choice_grammar([own])), ids[0]) for own in ("yes", "no")]
    assert pool.consume_together(pairs) == [True, False]
    assert set(matchers[:-1]) == {2}
    assert matchers[-1] == 3


def resumable_ids(count: int) -> list[int]:
    """The first ids of a long answer that matches SCHEMA."""
    text = "[" + ",".join(f'"{number % 1000}"' for number in range(count)) + "]"
    return MODEL.inner.tokenize_str(text)[:count]


def test_the_ids_of_a_resumed_text_are_consumed_at_once_and_are_no_slow_mask() -> None:
    ids, times = resumable_ids(20_000), known_times()
    guide = Guide(json_schema_grammar(SCHEMA))
    compiled = compile_grammar(MODEL, json_schema_grammar(SCHEMA))
    resumed, other = (
        GuidedText(guide, compiled, MODEL, MODEL.vocab_size, MODEL.eos_ids, times=times) for _ in range(2)
    )
    resumed.sync_ids(ids, len(ids))
    assert resumed.must_fill_alone()
    batch = MaskBatch([[resumed]], StepWords(1, resumed.words_count))
    batch.fill_groups(POOL)
    assert not resumed.error
    assert not times.is_slow, "other texts of the grammar would be skipped"
    for count in range(1, 500):
        other.sync_ids(ids, count)
        other.fill_words(POOL.consume_ids)
    other.sync_ids(ids, len(ids))
    other.fill_words(POOL.consume_ids)
    assert np.array_equal(resumed.words, other.words)


def test_a_backlog_with_an_id_that_the_grammar_refuses() -> None:
    ids = resumable_ids(400)
    grammar = json_schema_grammar(SCHEMA)
    assert POOL.consume_ids(compile_grammar(MODEL, grammar), ids)
    for bad in (0, 100, 399):
        assert not POOL.consume_ids(compile_grammar(MODEL, grammar), [*ids[:bad], OTHER, *ids[bad:]])


def test_a_backlog_is_consumed_without_the_gil_after_an_id_that_was_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    singles: list[int] = []
    pool = MaskPool(1)
    together = pool.consume_together

    def recorded(pairs: list[tuple[Any, int]]) -> list[bool]:
        singles.append(pairs[0][1])
        return together(pairs)

    monkeypatch.setattr(pool, "consume_together", recorded)
    monkeypatch.setattr("engine.guided.mask_threads.ID_SLOW_S", -1.0)
    ids = resumable_ids(100)
    assert pool.consume_ids(compile_grammar(MODEL, json_schema_grammar(SCHEMA)), ids)
    assert singles == ids[1:]
