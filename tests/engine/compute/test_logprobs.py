"""Logprobs are the model's own: the oracle's, for drawn and likeliest ids, whatever the request made of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from adapters.files.spec import BaseShape
from adapters.files.store import AdapterStore
from engine.compute.logprobs import LOGPROB_MIN, logprobs
from engine.compute.penalties import Draw
from engine.cpu.runner import TorchRunner, build_runner
from engine.protocol.config import EngineConfig, ModelConfig
from engine.protocol.frames import Logprobs, Sampling
from engine.step import Chunk, Sequence, Step, run_step
from support import oracle
from support.adapters.directories import add_directory

VOCAB = 200
TOLERANCE = 1e-4


def ask(count: int, **changes: float) -> Draw:
    return Draw(Sampling(logprobs=count, **changes), 1)  # type: ignore[arg-type]


def test_the_drawn_id_comes_first_then_the_likeliest() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, VOCAB) * 3
    found = logprobs(x, [ask(5), ask(-1), ask(0), ask(20)], [7, 8, 9, int(x[3].argmax())])
    assert sorted(found) == [0, 2, 3]
    assert [len(found[row]) for row in (0, 2, 3)] == [6, 1, 21]
    expected = x.log_softmax(-1)
    for row, reported in found.items():
        for index, value in reported:
            assert value == pytest.approx(float(expected[row, index]), abs=1e-5)
        assert [index for index, _ in reported[1:]] == x[row].topk(len(reported) - 1).indices.tolist()
    assert found[0][0][0] == 7
    assert found[3][0] == found[3][1]


def test_a_row_that_drew_nothing_has_none() -> None:
    x = torch.tensor([[0.0, float("nan")], [0.0, 1.0]])
    assert list(logprobs(x, [ask(1), ask(1)], [None, 1])) == [1]
    assert logprobs(x, [ask(-1), ask(-1)], [0, 1]) == {}


def test_what_is_impossible_is_a_number_that_json_has() -> None:
    x = torch.tensor([[0.0, float("-inf"), 1.0]])
    (found,) = logprobs(x, [ask(20)], [1]).values()  # the vocabulary has fewer than 20
    assert found[0] == (1, LOGPROB_MIN)
    assert [index for index, _ in found[1:]] == [2, 0, 1]


# ---- of the demo model


@dataclass
class Demo:
    runner: TorchRunner
    digests: dict[str, str]  # of example adapters, placed in the arena
    free: list[int]

    def sequence(self, prompt_ids: list[int], sampling: Sampling, adapter: str = oracle.BASE) -> Sequence:
        count = -(-(len(prompt_ids) + 32) // self.runner.models["smol"].tokens_per_page)
        pages, self.free = self.free[:count], self.free[count:]
        digest = self.digests.get(adapter)
        return Sequence(
            0, 0, "r", "smol", digest, "n", "t", "s", prompt_ids, 99, sampling, frozenset(), 0.0, pages=pages
        )

    def generate(self, sequences: list[Sequence], new_tokens: int, chunk: int = 1000) -> list[list[Logprobs]]:
        """Run all together until each has made `new_tokens`; logprobs of each one's ids."""
        made: dict[int, list[Logprobs]] = {id(s): [] for s in sequences}
        while live := [s for s in sequences if len(s.output_ids) < new_tokens]:
            chunks = []
            for s in live:
                count = min(chunk, s.token_count() - s.computed)
                chunks.append(Chunk(s, s.computed, count, s.computed + count == s.token_count()))
            result = run_step(self.runner, Step(1, "smol", chunks))
            assert not result.errors
            for index, own in enumerate(chunks):
                own.sequence.computed += own.count
                drawn = result.ids[index]
                if drawn is not None:
                    own.sequence.output_ids.append(drawn)
                    if index in result.logprobs:
                        made[id(own.sequence)].append(result.logprobs[index])
        for s in sequences:
            self.free += s.pages
        return [made[id(s)] for s in sequences]


@pytest.fixture(scope="module")
def demo(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    model = ModelConfig(name="smol", path=str(model_dir))
    runner = build_runner(EngineConfig(models=(model,), arena_bytes=256 * 1024 * 1024, threads=1))
    shape = BaseShape.from_config(json.loads((model_dir / "config.json").read_bytes()))
    store = AdapterStore(tmp_path_factory.mktemp("store"))
    free, digests = list(range(runner.pages)), {}
    for name in oracle.example_adapters()[:2]:
        stored = add_directory(store, oracle.EXAMPLES / name, shape)
        runner.load_adapter(stored.digest, "smol", str(stored.path))
        count = runner.adapters.pages_needed(stored.digest)
        runner.adapters.place_adapter(stored.digest, free[:count])
        free, digests[name] = free[count:], stored.digest
    return Demo(runner, digests, free)


def prompt(length: int) -> list[int]:
    ids = json.loads(oracle.COMMITTED.read_text())["ids"][oracle.BASE]
    words: list[int] = [index for row in ids for index in row if index > 16]
    return (words * 2)[length : 2 * length]


def worst(model: object, sequence: Sequence, found: list[Logprobs]) -> float:
    """The largest difference to the oracle's log softmax, over every id reported."""
    ids = sequence.prompt_ids + sequence.output_ids
    expected = oracle.logits(model, ids).log_softmax(-1)[len(sequence.prompt_ids) - 1 : -1]
    assert [reported[0][0] for reported in found] == sequence.output_ids
    assert all(len(reported) == 1 + sequence.sampling.logprobs for reported in found)
    return max(
        abs(value - float(row[index]))
        for reported, row in zip(found, expected, strict=True)
        for index, value in reported
    )


TOKENS = 10  # of each text
# Drawn under rules of their own, which the reported numbers do not show.
SAMPLED = Sampling(0.9, seed=11, logprobs=20, logit_bias={260: 3.0}, presence_penalty=0.5, repetition_penalty=1.1)


@pytest.mark.model
def test_logprobs_are_transformers_alone_and_in_a_mixed_batch(model_dir: Path, demo: Demo) -> None:
    lengths, names = (1, 33, 300), [oracle.BASE, *demo.digests]
    models = {name: oracle.load(model_dir, oracle.EXAMPLES / name if name else None) for name in names}
    for length in lengths:
        alone = demo.sequence(prompt(length), SAMPLED)
        (found,) = demo.generate([alone], 4)
        assert worst(models[oracle.BASE], alone, found) < TOLERANCE
    asked = [(length, name) for length in lengths for name in names]
    together = [demo.sequence(prompt(length), SAMPLED, name) for length, name in asked]
    quiet = demo.sequence(prompt(20), Sampling(0.0))
    *found_together, nothing = demo.generate([*together, quiet], 4, chunk=90)
    assert nothing == []
    for (_, name), own, found in zip(asked, together, found_together, strict=True):
        assert worst(models[name], own, found) < TOLERANCE, (len(own.prompt_ids), name)


@pytest.mark.model
def test_the_same_seed_says_the_same_whatever_else_is_in_the_batch(demo: Demo) -> None:
    kinds = [
        Sampling(1.0, seed=1),
        Sampling(1.0, seed=1, choice=1),
        Sampling(0.8, top_p=0.95, seed=2),
        Sampling(1.3, top_k=50, seed=3),
        Sampling(1.0, min_p=0.05, seed=4, frequency_penalty=0.5),
        Sampling(0.7, seed=5, repetition_penalty=1.2, presence_penalty=-0.5),
    ]
    names = [oracle.BASE, *demo.digests]
    wanted = [(prompt(20 + 17 * i), kind, names[i % len(names)]) for i, kind in enumerate(kinds)]

    def fresh() -> list[Sequence]:
        return [demo.sequence(*own) for own in wanted]

    alone = fresh()
    for own in alone:
        demo.generate([own], TOKENS)
    together, backwards = fresh(), fresh()[::-1]
    demo.generate(together, TOKENS)
    mates = [demo.sequence(prompt(40 + i), Sampling(1.0, seed=i), names[i % 3]) for i in range(7)]
    demo.generate([*mates, *backwards], TOKENS, chunk=25)
    expected = [own.output_ids for own in alone]
    assert [own.output_ids for own in together] == expected
    assert [own.output_ids for own in backwards[::-1]] == expected
    assert len({tuple(ids) for ids in expected}) == len(kinds)
