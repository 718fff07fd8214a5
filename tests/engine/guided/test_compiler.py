"""Compilation off the loop: its order, its limits, and what a hostile grammar costs."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.guided import compiler as module
from engine.guided.compiler import Compiled, GrammarCompiler, GrammarQueueFull, Outcome
from engine.text.grammars import GrammarTokenizer, regex_grammar
from support.paths import REPO

TINY = REPO / "examples" / "models" / "laneway-tiny"
VOCAB = GrammarTokenizer.load(TINY).vocab_size


class Loop:
    """Runs what the compiler's threads hand over."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.outcomes: list[tuple[str, Outcome]] = []

    def waiter(self, name: str) -> Callable[[Outcome], None]:
        return lambda outcome: self.outcomes.append((name, outcome))

    def run(self, count: int) -> None:
        """Until `count` outcomes are there."""
        until = time.monotonic() + 30
        while len(self.outcomes) < count:
            self.calls.get(timeout=max(0.0, until - time.monotonic()))()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def compiler(loop: Loop) -> Iterator[GrammarCompiler]:
    found = GrammarCompiler(loop.calls.put, threads=1, queue_max=2, check_first=False)
    yield found
    found.stop()


def test_one_compilation_for_all_who_wait(loop: Loop, compiler: GrammarCompiler) -> None:
    text = regex_grammar("[a-z]+")
    for name in "abc":
        assert compiler.compile_text(TINY, VOCAB, text, loop.waiter(name)) is None
    loop.run(3)
    assert compiler.compilations == 1
    assert [name for name, _ in loop.outcomes] == ["a", "b", "c"]
    assert len({id(outcome) for _, outcome in loop.outcomes}) == 1
    found = compiler.compile_text(TINY, VOCAB, text, loop.waiter("d"))
    assert found is loop.outcomes[0][1]
    # Another vocabulary is another grammar.
    assert compiler.compile_text(TINY, VOCAB + 1, text, loop.waiter("e")) is None


def test_a_failure_is_its_own_requests_alone_and_is_not_cached(loop: Loop, compiler: GrammarCompiler) -> None:
    compiler.compile_text(TINY, VOCAB, "start: missing", loop.waiter("bad"))
    compiler.compile_text(TINY, VOCAB, "start: /a/", loop.waiter("good"))
    compiler.compile_text(Path("/nowhere"), VOCAB, "start: /a/", loop.waiter("nowhere"))
    loop.run(3)
    outcomes = dict(loop.outcomes)
    assert "missing" in str(outcomes["bad"])
    assert isinstance(outcomes["good"], Compiled)
    assert "serves no grammars" in str(outcomes["nowhere"])
    assert (compiler.compilations, compiler.failures) == (3, 2)
    assert compiler.compile_text(TINY, VOCAB, "start: missing", loop.waiter("bad")) is None


def test_a_full_queue(loop: Loop, compiler: GrammarCompiler) -> None:
    for n in range(3):
        compiler.compile_text(TINY, VOCAB, regex_grammar(f"a{n}"), loop.waiter(str(n)))
    with pytest.raises(GrammarQueueFull):
        compiler.compile_text(TINY, VOCAB, regex_grammar("b"), loop.waiter("b"))
    compiler.compile_text(TINY, VOCAB, regex_grammar("a1"), loop.waiter("again"))  # it waits already
    loop.run(4)
    assert compiler.compile_text(TINY, VOCAB, regex_grammar("b"), loop.waiter("b")) is None


def test_the_least_recently_used_grammar_is_dropped(
    loop: Loop, compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPILED_MAX", 2)
    texts = [regex_grammar(f"a{n}") for n in range(3)]
    for n in (0, 1):
        compiler.compile_text(TINY, VOCAB, texts[n], loop.waiter("x"))
    loop.run(2)
    assert compiler.compile_text(TINY, VOCAB, texts[0], loop.waiter("x")) is not None
    compiler.compile_text(TINY, VOCAB, texts[2], loop.waiter("x"))
    loop.run(3)
    assert compiler.compile_text(TINY, VOCAB, texts[0], loop.waiter("x")) is not None
    assert compiler.compile_text(TINY, VOCAB, texts[1], loop.waiter("x")) is None


def test_a_grammar_without_end_refuses_its_request_and_the_next_is_compiled(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = GrammarCompiler(loop.calls.put, threads=1)
    monkeypatch.setattr(found._processes[0], "_check_s_max", 0.3)
    endless = json.dumps({"grammars": [{"json_schema": {"type": "integer", "multipleOf": 99_999_989}}]})
    try:
        found.compile_text(TINY, VOCAB, endless, loop.waiter("endless"))
        found.compile_text(TINY, VOCAB, regex_grammar("a"), loop.waiter("next"))
        loop.run(2)
    finally:
        found.stop()
    assert "too large" in str(loop.outcomes[0][1])
    assert isinstance(loop.outcomes[1][1], Compiled)


def test_a_grammar_of_many_texts_is_compiled_again_for_their_masks(loop: Loop, compiler: GrammarCompiler) -> None:
    compiler.compile_text(TINY, VOCAB, regex_grammar("[a-z]+"), loop.waiter("a"))
    loop.run(1)
    compiled = loop.outcomes[0][1]
    assert isinstance(compiled, Compiled)
    first = compiled.matchers[0]
    assert all(compiler.begin_text(compiled) is first for _ in range(module.TEXTS_PER_MATCHER))
    assert loop.calls.empty()
    for _ in range(3):  # one compilation at a time
        assert compiler.begin_text(compiled) is first
    loop.calls.get(timeout=30)()
    assert compiled.matchers[0] is first
    assert len(compiled.matchers) == 2
    assert {id(compiler.begin_text(compiled)) for _ in range(4)} == {id(own) for own in compiled.matchers}
    for _ in range(module.TEXTS_PER_MATCHER + 7):
        compiler.end_text(compiled)
    assert compiled.texts == 0
    # The matchers of all grammars are bounded, and those of a forgotten grammar count no more.
    assert compiler._further_matchers == 1
    compiler.forget_compiled()
    assert compiler._further_matchers == 0
    for _ in range(2 * module.TEXTS_PER_MATCHER):
        compiler.begin_text(compiled)
    time.sleep(0.1)
    assert loop.calls.empty()
