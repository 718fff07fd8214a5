"""The benchmark of grammars: its tokenizer and schemas, one round over laneway-tiny, and the host's part alone."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from benchmarks.serving import guided, guided_host
from benchmarks.serving.guided_inputs import RESERVED, schema_of, tokenizer_of, write_model_directory
from engine.text.grammars import GrammarTokenizer, compile_grammar
from engine.text.json_schemas import json_schema_grammar

VOCAB = 8192


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> GrammarTokenizer:
    directory = tmp_path_factory.mktemp("made")
    return GrammarTokenizer.load(write_model_directory(directory, {"vocab_size": VOCAB}))


def test_no_two_ids_of_the_made_tokenizer_have_the_same_bytes(made: GrammarTokenizer) -> None:
    assert made.vocab_size == VOCAB
    assert made.eos_ids == {VOCAB - RESERVED}
    assert len({made.inner.decode_bytes([id_]) for id_ in range(VOCAB - RESERVED)}) == VOCAB - RESERVED
    assert tokenizer_of(VOCAB) == tokenizer_of(VOCAB)


@pytest.mark.parametrize("number", range(3))
def test_no_answer_under_a_schema_ends_before_the_last_id(made: GrammarTokenizer, number: int) -> None:
    tokens, dice = 40, random.Random(number)
    matcher = compile_grammar(made, json_schema_grammar(schema_of(number, tokens))).deep_copy()
    for _ in range(tokens):
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        assert not bits[VOCAB - RESERVED :].any()
        assert matcher.consume_token(int(dice.choice(np.flatnonzero(bits))))
    # The longest ids make the shortest answers.
    greedy = compile_grammar(made, json_schema_grammar(schema_of(number, tokens))).deep_copy()
    lengths = np.array([len(made.inner.decode_bytes([id_])) for id_ in range(VOCAB - RESERVED)])
    for _ in range(tokens):
        bits = np.unpackbits(np.frombuffer(greedy.compute_bitmask(), np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits[: VOCAB - RESERVED])
        assert greedy.consume_token(int(allowed[lengths[allowed].argmax()]))


def test_schemas_of_different_numbers_differ() -> None:
    assert len({json_schema_grammar(schema_of(number, 64)) for number in range(256)}) == 256


def test_a_round_of_each_kind_on_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    bench = guided.cpu_bench()
    found = guided.measure(bench, 0.0)
    for kind, runs in found.items():
        assert len(runs) == 1, kind
        assert runs[0].tokens == bench.rows * bench.tokens or runs[0].failed or kind == "hostile", kind
        assert runs[0].step_s, kind
    assert not found["one_schema"][0].free_gap_s
    for kind in guided.HALVES:
        assert len(found[kind][0].free_gap_s) == bench.rows // 2 * (bench.tokens - 1)
    rows = guided.rows_of(found, bench, "CPU")
    assert list(rows[0]) == ["gpu", "rows", "schemas", "kind", "out_tok_s", "share_of_plain", "step_p99_ms"]
    assert [(row["kind"], row["schemas"]) for row in rows] == [
        ("plain", 0),
        ("one_schema", 1),
        ("many_schemas", 8),
        ("penalties", 0),
        ("half", 4),
        ("hostile", 4),
    ]
    assert rows[0]["share_of_plain"] == "1.0000"
    assert "plain rows' gap" in capsys.readouterr().out


def test_the_host_alone() -> None:
    found = guided_host.measure_host(guided.TINY, 2048, rows=4, steps=3, threads=(1, 2))
    parts = [f"masks_{schemas}_schemas_{threads}_threads" for schemas in (1, 4) for threads in (1, 2)]
    assert set(found) == {
        f"{part}_{share}_ms" for part in (*parts, "compile", "compile_checked") for share in ("p50", "p99")
    }
    assert all(value > 0 for value in found.values())


def test_percentiles_are_measured_values() -> None:
    values = [float(value) for value in range(100)]
    assert [guided_host.percentile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [0.0, 49.0, 98.0, 99.0]
    assert guided_host.percentile([7.0], 0.99) == 7.0


def test_a_directory_without_weights_is_enough(tmp_path: Path) -> None:
    written = write_model_directory(tmp_path / "model", {"vocab_size": 1024})
    assert sorted(file.name for file in written.iterdir()) == ["config.json", "tokenizer.json"]
