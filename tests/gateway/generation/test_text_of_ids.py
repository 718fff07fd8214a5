"""From ids to text: what is counted, what is shown, and where each id's logprobs stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.text.tokenizer import Tokenizer
from gateway.generation.text import TextOfIds


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.load(model_dir)


def text_of(tokenizer: Tokenizer, stops: list[str], **settings: object) -> TextOfIds:
    return TextOfIds(tokenizer.detokenizer(), stops, **settings)  # type: ignore[arg-type]


def test_a_stop_id_is_counted_and_not_shown(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("one two three")
    for stops in ([], ["never"]):
        text = text_of(tokenizer, stops, stop_ids=[ids[-1]])
        assert text.push_ids(ids) + text.flush_text() == tokenizer.decode(ids[:-1])
        assert text.tokens == len(ids)


def test_no_stop_is_looked_for_before_min_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(" a b a b a b")
    whole = tokenizer.decode(ids)
    free = text_of(tokenizer, ["b"])
    assert free.push_ids(ids) == " a "
    assert (free.tokens, free.matched) == (2, "b")
    held = text_of(tokenizer, ["b"], min_tokens=3)
    assert held.push_ids(ids) == whole[: whole.index("b", 4)]
    assert held.tokens == 4
    late = text_of(tokenizer, ["b"], min_tokens=len(ids))
    assert late.push_ids(ids) + late.flush_text() == whole
    assert late.matched is None


def test_the_stop_that_is_complete_first_is_named(tokenizer: Tokenizer) -> None:
    text = text_of(tokenizer, ["three", "wo", "two"])
    assert text.push_ids(tokenizer.encode("one two three")) == "one "
    assert text.matched == "two"


def test_each_counted_id_has_its_logprobs_and_its_place(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("na\u00efve \U0001f600 caf\u00e9 STOP more")
    text = text_of(tokenizer, ["STOP"])
    shown = text.push_ids(ids, [[(id_, -1.0)] for id_ in ids])
    taken = text.take_drawn()
    drawn = [taken.token(at) for at in range(len(taken))]
    assert shown == "na\u00efve \U0001f600 caf\u00e9 "
    assert [logprobs[0][0] for _, logprobs in drawn] == ids[: text.tokens]
    assert len(text.take_drawn()) == 0
    data = b""
    for offset, logprobs in drawn:  # an offset counts the characters that were complete by then
        assert offset == len(data.decode(errors="ignore"))
        data += tokenizer.token_bytes(logprobs[0][0])
    assert data.decode().startswith(shown)
