"""One guided text: its grammar, its stop ids and its reasoning, by ids alone."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import numpy as np
import pytest

from engine.guided.mask_threads import MaskPool
from engine.guided.matcher import GuidedText
from engine.guided.reasoning import Reasoning
from engine.protocol.frames import Guide
from engine.text.grammars import (
    GrammarTokenizer,
    choice_grammar,
    compile_grammar,
    json_schema_grammar,
    regex_grammar,
)
from support.paths import REPO

MODEL = GrammarTokenizer.load(REPO / "examples" / "models" / "laneway-tiny")
POOL = MaskPool(1)
EOS = min(MODEL.eos_ids)
OTHER = 2043  # a special id that no grammar allows as text


def text_under(
    grammar: str | None, stop: frozenset[int] = MODEL.eos_ids, min_tokens: int = 0, **guide: Any
) -> GuidedText:
    compiled = compile_grammar(MODEL, grammar) if grammar is not None else None
    return GuidedText(Guide(grammar, **guide), compiled, MODEL, MODEL.vocab_size, stop, min_tokens)


def allowed(text: GuidedText, *ids: int) -> set[int]:
    text.sync_ids(ids, len(ids))
    text.fill_words(POOL.consume_ids)
    assert text.filled_at == len(ids)
    bits = np.unpackbits(text.words.view(np.uint8), bitorder="little")
    return set(np.nonzero(bits[: MODEL.vocab_size])[0].tolist())


def ids_of(text: str) -> list[int]:
    return MODEL.inner.tokenize_str(text)


def test_only_a_stop_id_follows_a_complete_grammar() -> None:
    text = text_under(choice_grammar(["yes"]))
    assert EOS not in allowed(text)
    assert allowed(text, *ids_of("yes")) == {EOS}


def test_a_stop_id_may_follow_wherever_the_grammar_accepts() -> None:
    text = text_under(regex_grammar("[a-z]+"))
    assert EOS not in allowed(text)
    found = allowed(text, *ids_of("ab"))
    assert EOS in found
    assert len(found) > 1


def test_the_stop_ids_of_the_request_count_not_the_tokenizer_s() -> None:
    text = text_under(regex_grammar("[a-z]+"), stop=frozenset({OTHER}))
    found = allowed(text, *ids_of("ab"))
    assert OTHER in found
    assert EOS not in found
    # Without stop ids a complete grammar has nothing left but the tokenizer's end, until max_tokens.
    text = text_under(choice_grammar(["yes"]), stop=frozenset())
    assert allowed(text, *ids_of("yes")) == {EOS}
    assert allowed(text, *ids_of("yes"), EOS) == {EOS}


def test_min_tokens_hold_back_a_stop_id_unless_nothing_else_may_follow() -> None:
    text = text_under(regex_grammar("[a-z]+"), min_tokens=50)
    assert EOS not in allowed(text, *ids_of("ab"))
    text = text_under(choice_grammar(["yes"]), min_tokens=50)
    assert allowed(text, *ids_of("yes")) == {EOS}


def test_a_shorter_output_starts_over() -> None:
    """As after a preemption whose ids were taken back, or a resumption."""
    grammar = json_schema_grammar({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    ids = ids_of('{"a": 12}')
    straight = [allowed(text_under(grammar), *ids[:n]) for n in range(len(ids) + 1)]
    text = text_under(grammar)
    rng = random.Random(1)
    for _ in range(50):
        n = rng.randint(0, len(ids))
        assert allowed(text, *ids[:n]) == straight[n]


def test_an_id_that_the_grammar_does_not_take_is_an_error() -> None:
    text = text_under(choice_grammar(["yes"]))
    assert allowed(text, *ids_of("no")) == set()
    assert "cannot be continued" in text.error
    assert not text.is_free()


def test_copies_of_one_grammar_are_independent() -> None:
    compiled = compile_grammar(MODEL, choice_grammar(["ab", "cd"]))
    texts = [GuidedText(Guide("x"), compiled, MODEL, MODEL.vocab_size, MODEL.eos_ids) for _ in range(2)]
    first = allowed(texts[0], *ids_of("ab"))
    assert first == {EOS}
    assert allowed(texts[1], *ids_of("cd")) == {EOS}


# ---- reasoning

END = [2044, 2045]


def test_the_grammar_begins_after_the_reasoning() -> None:
    text = text_under(choice_grammar(["yes"]), reasoning_end_ids=END, reasoning_open=True)
    free = allowed(text, 300, 301)
    assert free == set(range(MODEL.vocab_size)) - {EOS}
    assert allowed(text, 300, 301, *END) == allowed(text_under(choice_grammar(["yes"])))
    assert allowed(text, 300, 301, *END, *ids_of("yes")) == {EOS}


def test_the_model_may_open_the_reasoning_or_answer_at_once() -> None:
    guide: Any = {"reasoning_start_ids": [OTHER, 2042], "reasoning_end_ids": END}
    plain = allowed(text_under(choice_grammar(["yes"])))
    text = text_under(choice_grammar(["yes"]), **guide)
    assert allowed(text) == plain | {OTHER}
    assert allowed(text, OTHER) == {2042}
    assert allowed(text, OTHER, 2042) == set(range(MODEL.vocab_size)) - {EOS}
    assert allowed(text, OTHER, 2042, 9, *END) == plain
    assert allowed(text, *ids_of("yes")) == {EOS}


def test_a_budget_forces_the_end_ids() -> None:
    text = text_under(None, reasoning_end_ids=END, reasoning_open=True, reasoning_max=2)
    assert text.is_free()
    assert allowed(text, 7, 8) == {END[0]}
    assert not text.is_free()
    assert allowed(text, 7, 8, END[0]) == {END[1]}
    text.sync_ids([7, 8, *END], 4)
    assert text.is_free()
    # An end marker that has begun within the budget is completed.
    assert allowed(text, 7, END[0]) == {END[1]}
    assert allowed(text_under(None, reasoning_end_ids=END, reasoning_open=True, reasoning_max=0)) == {END[0]}


@pytest.mark.parametrize("end", [[1], [1, 2], [1, 1, 2], [1, 2, 1, 3], [1, 2, 1, 2, 3]])
def test_the_end_is_found_wherever_its_ids_stand_in_a_row(end: list[int]) -> None:
    for ids in itertools.product([1, 2, 3], repeat=7):
        reasoning = Reasoning(Guide(reasoning_end_ids=end, reasoning_open=True))
        over_after = next((n for n in range(1, 8) if list(ids[max(0, n - len(end)) : n]) == end), None)
        for n, id_ in enumerate(ids, 1):
            belongs = reasoning.push_id(id_)
            assert belongs == (over_after is not None and n > over_after)
            assert (reasoning.state == "over") == (over_after is not None and n >= over_after)


def test_a_special_id_that_the_grammar_names() -> None:
    lark = f'start: "a" <[{OTHER}]> "b"'  # as the formats of tools write it; a caller's grammar has no such ids
    text = text_under(json.dumps({"grammars": [{"lark_grammar": lark}]}))
    assert allowed(text, *ids_of("a")) == {OTHER}
    assert allowed(text, *ids_of("a"), OTHER, *ids_of("b")) == {EOS}
