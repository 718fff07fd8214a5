"""The host's cost of grammars, without a model: the masks of a step, and the compilation of new schemas.

`python -m benchmarks.serving.guided --host` runs it: 256 rows over a vocabulary of 128,256 ids, whose ids are drawn at
random from their masks. A step of Llama-3.1-8B with 256 rows takes an H200 about 9 ms; the masks must be ready within
it.
"""

from __future__ import annotations

import queue
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.rows import append_rows, cpu_name
from benchmarks.serving import shapes
from benchmarks.serving.guided_inputs import schema_of, write_model_directory
from engine.guided.compiler import Compiled, GrammarCompiler, GrammarQueueFull, Outcome
from engine.guided.masks import MaskFiller
from engine.guided.matcher import GuidedText
from engine.protocol.frames import Guide, Sampling
from engine.step import Chunk, Sequence, Step
from engine.text.grammars import GrammarTokenizer
from engine.text.json_schemas import json_schema_grammar

# Longer than any mask takes: only the host is measured, and no row is skipped.
WAIT_S = 60.0
# Not measured: rows start together, and a matcher's first masks are its slowest.
WARM_STEPS = 8


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


@contextmanager
def compiler_with(check_first: bool) -> Iterator[tuple[GrammarCompiler, Callable[[], None]]]:
    """A compiler, and a function that waits for its next answer and delivers it, as the engine's loop does."""
    calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    compiler = GrammarCompiler(calls.put, check_first=check_first)
    try:
        yield compiler, lambda: calls.get(timeout=WAIT_S)()
    finally:
        compiler.stop()


def compile_seconds(directory: Path, vocab_size: int, texts: list[str], *, check_first: bool) -> list[float]:
    """Seconds of each text from its request to its compiled grammar, one after another. `check_first`: include the
    process that checks each grammar first. The first text, which loads the tokenizer, is left out."""
    seconds: list[float] = []
    answers: list[Outcome] = []
    with compiler_with(check_first) as (compiler, take_in):
        for text in texts:
            began = time.perf_counter()
            found = compiler.compile_text(directory, vocab_size, text, answers.append)
            assert found is None, "each schema is new"
            while not answers:
                take_in()
            seconds.append(time.perf_counter() - began)
            outcome = answers.pop()
            assert isinstance(outcome, Compiled), outcome
    return seconds[1:]


def compile_all(directory: Path, vocab_size: int, texts: list[str]) -> list[Compiled]:
    """The compiled grammars, in the order of the texts."""
    found: dict[int, Outcome] = {}
    with compiler_with(False) as (compiler, take_in):
        for index, text in enumerate(texts):
            while True:
                try:
                    ready = compiler.compile_text(
                        directory,
                        vocab_size,
                        text,
                        lambda outcome, index=index: found.update({index: outcome}),  # type: ignore[misc]
                    )
                    break
                except GrammarQueueFull:
                    take_in()
            if ready is not None:
                found[index] = ready
        while len(found) < len(texts):
            take_in()
    refused = [outcome for outcome in found.values() if isinstance(outcome, str)]
    assert not refused, refused[0]
    return [outcome for _, outcome in sorted(found.items()) if isinstance(outcome, Compiled)]


def guided_rows(grammars: list[Compiled], rows: int, vocab_size: int, tokens: int) -> dict[Sequence, GuidedText]:
    """Sequences without stop ids and their texts, over the grammars in turn."""
    texts = {}
    for index in range(rows):
        own = grammars[index % len(grammars)]
        sequence = Sequence(
            index, 0, f"r{index}", "m", None, "", "t", "", [1], tokens, Sampling(), frozenset(), 0.0
        )  # fmt: skip
        texts[sequence] = GuidedText(Guide(""), own.matchers[0], own.tokenizer, vocab_size, frozenset())
    return texts


def mask_seconds(texts: dict[Sequence, GuidedText], steps: int, threads: int, vocab_size: int) -> list[float]:
    """Wall seconds of `MaskFiller.fill_masks` in each of `steps` steps. Rows continue with an id of their masks."""
    filler = MaskFiller(WAIT_S, threads)
    dice, seconds = random.Random(1), []
    try:
        for number in range(WARM_STEPS + steps):
            step = Step(number, "m", [Chunk(own, own.token_count() - 1, 1, True) for own in texts])
            began = time.perf_counter()
            masks = filler.fill_masks(step, texts)
            took = time.perf_counter() - began
            assert masks is not None
            assert masks.words is not None
            assert not masks.skip
            for own, words in zip(texts, masks.words, strict=True):
                allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")[:vocab_size])
                own.output_ids.append(int(allowed[dice.randrange(allowed.size)]))
            if number >= WARM_STEPS:
                seconds.append(took)
    finally:
        filler.stop()
    return seconds


def measure_host(
    directory: Path, vocab_size: int, *, rows: int = 256, steps: int = 64, threads: tuple[int, ...] = (1, 2, 4)
) -> dict[str, float]:
    """Metric → value: `masks_*` in ms a step of `rows` rows, `compile_*` in ms a schema, over `rows` schemas."""
    tokens = WARM_STEPS + steps
    grammars = [json_schema_grammar(schema_of(number, tokens)) for number in range(rows + 1)]
    found: dict[str, float] = {}
    for check_first in (False, True):
        seconds = compile_seconds(directory, vocab_size, grammars, check_first=check_first)
        name = "compile_checked" if check_first else "compile"
        found |= {f"{name}_p50_ms": 1000 * percentile(seconds, 0.5), f"{name}_p99_ms": 1000 * percentile(seconds, 0.99)}
    compiled = compile_all(directory, vocab_size, grammars[:rows])
    for schemas in (1, rows):
        for count in threads:
            texts = guided_rows(compiled[:schemas], rows, vocab_size, tokens)
            seconds = mask_seconds(texts, steps, count, vocab_size)
            name = f"masks_{schemas}_schemas_{count}_threads"
            found |= {
                f"{name}_{part}_ms": 1000 * percentile(seconds, share) for part, share in (("p50", 0.5), ("p99", 0.99))
            }
    return found


def run_host(note: str) -> None:
    """Measure, print, and append rows to benchmarks/results/serving_guided_host.csv."""
    with tempfile.TemporaryDirectory() as scratch:
        shape = shapes.llama_8b()
        directory = write_model_directory(Path(scratch), shape)
        vocab_size: int = shape["vocab_size"]
        GrammarTokenizer.load(directory, vocab_size)
        found = measure_host(directory, vocab_size)
        append_rows("serving_guided_host", found, cpu_name(), f"256 rows, {vocab_size} ids", note)
