"""What a request may ask of its logits: each change by itself, in the order that is promised, and its limits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from engine.compute.penalties import Draw, penalize
from engine.cpu.sampler import sample
from engine.protocol.frames import Sampling
from engine.protocol.sampling_limits import LOGIT_BIAS_IDS_MAX, find_fault

VOCAB = 30


def logits(seed: int = 0, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def test_nobody_asks_and_nothing_is_copied() -> None:
    x = logits(rows=3)
    plain = Draw(Sampling(min_tokens=2, top_p=0.5, logprobs=5), 1, [4, 5], [6, 7], {1})
    assert penalize(x, [plain] * 3) is x


def test_a_row_that_asks_changes_itself_alone() -> None:
    x = logits(rows=3)
    before = x.clone()
    plain, asks = Draw(Sampling(), 1, [4], [5]), Draw(Sampling(presence_penalty=1.0), 1, [4], [5])
    changed = penalize(x, [plain, asks, plain])
    assert torch.equal(x, before)
    assert torch.equal(changed[[0, 2]], x[[0, 2]])
    assert (changed != x).nonzero().tolist() == [[1, 5]]


def test_low_precision_logits_are_changed_in_float32() -> None:
    x = torch.full((1, VOCAB), 20.0, dtype=torch.bfloat16)
    changed = penalize(x, [Draw(Sampling(logit_bias={3: 0.03}), 1)])
    assert changed.dtype == torch.float32
    assert changed[0, 3].item() == pytest.approx(20.03, abs=1e-5)


@pytest.mark.parametrize("penalty", [0.5, 1.3, 10.0])
def test_repetition_penalty_is_transformers_over_prompt_and_output(penalty: float) -> None:
    import transformers as hf

    x, prompt, output = logits(1), [3, 9, 3, 29, 0], [9, 12, 12]
    ours = penalize(x, [Draw(Sampling(repetition_penalty=penalty), 8, prompt, output)])
    theirs = hf.RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + output]), x.clone())
    torch.testing.assert_close(ours, theirs)


def test_presence_and_frequency_count_the_output_alone() -> None:
    x = logits(2)
    draw = Draw(Sampling(presence_penalty=0.5, frequency_penalty=-0.25), 9, [1, 2, 3], [3, 4, 4, 4])
    expected = x.clone()
    expected[0, 3] += -0.5 + 0.25
    expected[0, 4] += -0.5 + 3 * 0.25
    torch.testing.assert_close(penalize(x, [draw]), expected)


def test_the_order_is_bias_then_repetition_then_frequency_and_presence() -> None:
    x = torch.zeros(1, VOCAB)
    sampling = Sampling(
        logit_bias={7: 6.0, 8: -6.0}, repetition_penalty=2.0, presence_penalty=1.0, frequency_penalty=0.5
    )
    changed = penalize(x, [Draw(sampling, 3, [8], [7, 7])])
    assert changed[0, 7].item() == 6.0 / 2 - 1.0 - 2 * 0.5
    assert changed[0, 8].item() == -6.0 * 2


@pytest.mark.parametrize("temperature", [0.0, 1.0, 1.9])
def test_a_bias_of_100_forces_and_bans(temperature: float) -> None:
    x = logits(3).expand(200, -1)
    likeliest = int(x[0].argmax())
    for forced in (0, 17, VOCAB - 1):
        biased = Sampling(temperature, logit_bias={forced: 100.0})
        assert sample(x, [Draw(biased, i) for i in range(200)]) == [forced] * 200
    banned = Sampling(temperature, logit_bias={likeliest: -100.0})
    assert likeliest not in sample(x, [Draw(banned, i) for i in range(200)])
    assert likeliest in sample(x, [Draw(Sampling(temperature), i) for i in range(200)])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_stop_ids_wait_for_min_tokens(temperature: float) -> None:
    x = torch.zeros(1, VOCAB)
    x[0, [4, 5]] = 50.0  # nothing else would be drawn
    sampling = Sampling(temperature, min_tokens=3, logit_bias={4: 100.0}, presence_penalty=-2.0)
    stop_ids = frozenset({4, 5, -7, VOCAB, 2**60})  # some of them no ids of this vocabulary
    for made in range(5):
        (index,) = sample(x, [Draw(sampling, made, [1], [8] * made, stop_ids)])
        assert (index in stop_ids) == (made >= 3)


def test_penalties_make_greedy_leave_what_it_said() -> None:
    x = torch.tensor([[1.0, 0.9, 0.8, -5.0]])
    output: list[int] = []
    for _ in range(3):
        (index,) = sample(x, [Draw(Sampling(0.0, presence_penalty=1.5), len(output), [], output)])
        assert index is not None
        output.append(index)
    assert output == [0, 1, 2]


def test_a_vocabulary_that_is_ruled_out_whole_fails_its_row_alone() -> None:
    stops = frozenset(range(VOCAB))
    draws = [Draw(Sampling(min_tokens=1), 0, [1], [], stops), Draw(Sampling(0.0), 0)]
    x = logits(4, rows=2)
    assert sample(x, draws) == [None, int(x[1].argmax())]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"temperature": math.nan}, "temperature is nan; a number from 0"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"top_k": 2**31}, "top_k is 2147483648; 0 to 2147483647"),
        ({"choice": -(2**31)}, "choice is -2147483648; ±2147483647 at most"),
        ({"min_p": -0.1}, "min_p is -0.1; 0 to 1"),
        ({"min_p": 1.01}, "min_p is 1.01; 0 to 1"),
        ({"min_p": math.nan}, "min_p"),
        ({"presence_penalty": 2.1}, "presence_penalty is 2.1; ±2"),
        ({"presence_penalty": math.nan}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty is -2.1; ±2"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; over 0 and at most 10"),
        ({"repetition_penalty": -1.0}, "repetition_penalty"),
        ({"repetition_penalty": 10.5}, "repetition_penalty"),
        ({"repetition_penalty": math.nan}, "repetition_penalty"),
        ({"min_tokens": 9}, "min_tokens is 9; 0 to max_tokens, 8,"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"logprobs": 21}, "logprobs is 21; -1 to 20"),
        ({"logprobs": -2}, "logprobs"),
        ({"logit_bias": {VOCAB: 1.0}}, "logit_bias has an id outside the vocabulary of 30"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias has an id outside"),
        ({"logit_bias": {5: 100.5}}, "logit_bias of id 5 is 100.5; ±100"),
        ({"logit_bias": {5: math.nan}}, "logit_bias of id 5 is nan"),
        ({"logit_bias": dict.fromkeys(range(LOGIT_BIAS_IDS_MAX + 1), 1.0)}, "logit_bias has 1025 ids; 1024"),
    ],
)
def test_what_is_over_a_limit_is_named_with_it(changes: dict[str, Any], said: str) -> None:
    assert said in (find_fault(Sampling(**changes), 8, VOCAB) or "")


def test_what_is_at_a_limit_is_fine() -> None:
    for sampling in (
        Sampling(0.0, 1.0, 0, min_p=0.0, presence_penalty=-2, frequency_penalty=2, repetition_penalty=10),
        Sampling(5.0, 1e-9, 2**31 - 1, min_p=1.0, repetition_penalty=1e-3, min_tokens=8, logprobs=20),
        Sampling(logit_bias={0: -100, VOCAB - 1: 100}),
    ):
        assert find_fault(sampling, 8, VOCAB) is None
    assert find_fault(Sampling(logit_bias=dict.fromkeys(range(LOGIT_BIAS_IDS_MAX), 1.0)), 8, None) is None
