"""Multiple choice as lm-evaluation-harness scores it with `local-completions`: context and continuation as ids, `echo`,
`logprobs` 1 and the sum over the continuation. SmolLM2 behind the gateway chooses as it does in transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.text.tokenizer import Tokenizer
from support import oracle
from support.stack import MODEL, Stack

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

TOLERANCE = 1e-3
QUESTIONS = [
    ("The capital of France is", [" Paris", " London", " Madrid", " Oslo"]),
    ("Water freezes at a temperature of zero degrees", [" Celsius", " miles", " hours", " litres"]),
    ("A week has seven", [" days", " months", " metres", " wheels"]),
    ("The opposite of hot is", [" cold", " warm", " loud", " green"]),
    ("Bees make", [" honey", " milk", " steel", " paper money"]),
    ("The sun rises in the", [" east", " west", " cellar", " evening news"]),
    ("To open a locked door you need a", [" key", " spoon", " song", " pair of shoes"]),
    ("Two plus two is", [" four", " five", " eleven", " a colour"]),
    ("A doctor works in a", [" hospital", " volcano", " bakery", " lighthouse"]),
    ("Shakespeare wrote the play", [" Hamlet", " Dracula", " Frankenstein", " The Hobbit"]),
]


class RealStack(Stack):
    """With SmolLM2 on the CPU, in float32."""

    def start_engine(self) -> None:
        file = self.directory / "engine.json"
        model = {"name": MODEL, "path": str(self.model_dir)}
        file.write_text(json.dumps({"models": [model], "device": "cpu", "arena_bytes": 64 * 2**20, "threads": 1}))
        argv = [sys.executable, "-m", "engine", "--socket", str(self.config.socket_path), "--config", str(file)]
        with (self.directory / "engine.log").open("ab") as log:
            self.engine = subprocess.Popen(argv, stdout=log, stderr=log)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("real")
    made = RealStack(directory, f"sqlite:///{directory}/laneway.db", model_dir)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@dataclass
class Case:
    """One continuation of one question."""

    question: int
    context: int  # ids of the context
    ids: list[int]


def cases(tokenizer: Tokenizer) -> list[Case]:
    found = []
    for question, (context, choices) in enumerate(QUESTIONS):
        begins = len(tokenizer.encode(context))
        found += [Case(question, begins, tokenizer.encode(context + choice)) for choice in choices]
    return found


def chosen(scored: list[tuple[Case, float]]) -> list[int]:
    """By question, the place of the continuation of the highest score."""
    by_question: dict[int, list[float]] = {}
    for case, score in scored:
        by_question.setdefault(case.question, []).append(score)
    return [scores.index(max(scores)) for scores in by_question.values()]


def ask(stack: Stack, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": prompts, "temperature": 0, "logprobs": 1, "echo": True, "max_tokens": max_tokens}
    answer = httpx.post(f"{stack.url}/v1/completions", headers=stack.headers(), json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("max_tokens", [1, 0])
def test_the_gateway_chooses_as_transformers_does(real: Stack, model_dir: Path, max_tokens: int) -> None:
    asked, model = cases(Tokenizer.load(model_dir)), oracle.load(model_dir)
    answer = ask(real, [case.ids for case in asked], max_tokens)
    assert answer["usage"]["completion_tokens"] == max_tokens * len(asked)
    ours, theirs = [], []
    for case, choice in zip(asked, sorted(answer["choices"], key=lambda choice: choice["index"]), strict=True):
        tokens = choice["logprobs"]["token_logprobs"][: len(choice["logprobs"]["tokens"]) - max_tokens]
        expected = oracle.logits(model, case.ids).log_softmax(-1)
        own = [float(expected[at - 1, id_]) for at, id_ in enumerate(case.ids) if at]
        assert tokens[0] is None
        assert tokens[1:] == pytest.approx(own, abs=TOLERANCE)
        greedy = [max(top.values()) for top in choice["logprobs"]["top_logprobs"][1 : len(case.ids)]]
        assert greedy == pytest.approx([float(row.max()) for row in expected[:-1]], abs=TOLERANCE)
        ours.append((case, sum(tokens[case.context :])))
        theirs.append((case, sum(own[case.context - 1 :])))
    assert chosen(ours) == chosen(theirs)
    assert chosen(ours).count(0) >= 6  # the first is right, and the model knows something
