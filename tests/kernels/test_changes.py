"""The draw after biases, penalties and masks: the same ids as plain torch's, which changes a float32 copy first. And
the tables that follow the ids of each sequence."""

from __future__ import annotations

import gc
import random
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from engine.compute.masks import mask_words
from engine.compute.penalties import Draw, penalize
from engine.gpu.draw_state import DrawRow, DrawState
from engine.protocol.frames import Sampling
from engine.step import Sequence
from kernels import reference_sample
from kernels.changes import BIASES_MAX, Changes
from kernels.sample import CHUNK, Draws, Mode, new_scratch, sample
from support.kernels.operands import DEVICE, GPU, sampled

DTYPES = (torch.float32, torch.int64, torch.int32, torch.int32, torch.int32, torch.float32, torch.float32)


def packed_mask(allowed: set[int], vocab: int) -> np.ndarray[Any, Any]:
    bits = np.zeros(mask_words(vocab) * 32, np.uint8)
    bits[list(allowed)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


class Rows:
    """Sequences that draw together, on the device and in plain torch."""

    def __init__(self, vocab: int, samplings: list[Sampling], slots: int | None = None, seed: int = 0) -> None:
        self.vocab = vocab
        self.dice = random.Random(seed)
        self.state = DrawState(torch.device(DEVICE), slots or len(samplings))
        self.state.reserve(vocab)
        self.sequences = [
            Sequence(
                i, 0, f"r{i}", "m", None, "", "", "", self.ids(9), 99, own, frozenset({1, vocab - 1, vocab + 5}), 0.0
            )
            for i, own in enumerate(samplings)
        ]

    def ids(self, count: int) -> list[int]:
        return [self.dice.randrange(self.vocab) for _ in range(count)]

    def draw_of(self, sequence: Sequence, allowed: Any = None) -> Draw:
        position = len(sequence.prompt_ids) + len(sequence.output_ids)
        return Draw(sequence.sampling, position, sequence.prompt_ids, sequence.output_ids, sequence.stop_ids, allowed)

    def step(
        self, logits: torch.Tensor, mode: Mode, words: Any = None, unused: tuple[int, ...] = ()
    ) -> tuple[list[int], list[int]]:
        """(ids of the kernel, of plain torch), appended to the outputs of all rows but `unused`."""
        draws = [self.draw_of(own, None if words is None else words[i]) for i, own in enumerate(self.sequences)]
        rows = [
            None if i in unused else DrawRow(*pair) for i, pair in enumerate(zip(self.sequences, draws, strict=True))
        ]
        word_rows = [-1 if i in unused or words is None else i for i in range(len(rows))]
        changes, bad = self.state.prepare(rows, words, word_rows, self.vocab)
        assert not bad, bad
        got = self.launch(logits, draws, mode, changes)
        wanted = torch.full((len(draws),), -7, dtype=torch.int64)
        plain = penalize(logits.cpu(), draws)
        reference_sample.sample(plain, *Draws(*(column.cpu() for column in fields_of(draws))), wanted)
        for i, (own, token) in enumerate(zip(self.sequences, got, strict=True)):
            if i not in unused:
                own.output_ids.append(token)
        return [t for i, t in enumerate(got) if i not in unused], [
            int(t) for i, t in enumerate(wanted.tolist()) if i not in unused
        ]

    def launch(self, logits: torch.Tensor, draws: list[Draw], mode: Mode, changes: Changes | None) -> list[int]:
        out = torch.full((len(draws),), -7, dtype=torch.int32, device=DEVICE)
        scratch = new_scratch(len(draws), self.vocab, DEVICE)
        sample(logits, fields_of(draws), scratch, out, mode=mode, changes=changes)
        return [int(i) for i in out.tolist()]


def fields_of(draws: list[Draw]) -> Draws:
    columns = [
        [(s := draw.sampling).temperature, s.seed, s.choice, draw.position, s.top_k, s.top_p, s.min_p] for draw in draws
    ]
    return Draws(
        *(
            torch.tensor(column, dtype=dtype, device=DEVICE)
            for column, dtype in zip(zip(*columns, strict=True), DTYPES, strict=True)
        )
    )


def logits_of(rows: int, vocab: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3
    return x.to(dtype).to(DEVICE)


PENALTIES: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.7},
    {"presence_penalty": 1.5},
    {"frequency_penalty": -0.9},
    {"repetition_penalty": 0.6, "presence_penalty": -0.5, "frequency_penalty": 1.25},
]
BIASES: list[dict[str, Any]] = [
    {},
    {"logit_bias": {3: 4.5}},
    {"min_tokens": 2},
    {"logit_bias": "many", "min_tokens": 2},
]
MODES: list[tuple[Mode, dict[str, Any]]] = [
    (Mode.GREEDY, {"temperature": 0.0}),
    (Mode.PLAIN, {"temperature": 0.8}),
    (Mode.FILTERED, {"temperature": 1.2, "top_k": 40, "top_p": 0.9}),
    (Mode.FILTERED, {"temperature": 2.0, "min_p": 0.02}),
]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("mode", range(len(MODES)))
def test_same_ids_as_plain_torch_for_every_combination(mode: int, masked: bool) -> None:
    """All penalties × biases in the rows of one launch, beside rows without a change, over several steps."""
    vocab = 2 * CHUNK + 77 if GPU else 300
    kind, draws = MODES[mode]
    many = {i: (i % 7 - 3) / 3 for i in range(0, vocab, 5)}
    many = dict(list(many.items())[:1000])
    samplings = []
    for index, (penalty, bias) in enumerate(sampled(f"changes{mode}", list(product(PENALTIES, BIASES)), 5)):
        own = {**draws, **penalty, **bias, "seed": index * 77}
        if own.get("logit_bias") == "many":
            own["logit_bias"] = many
        samplings.append(Sampling(**own))
    samplings.insert(3, Sampling(**draws, seed=5))
    rows = Rows(vocab, samplings, seed=mode)
    words = None
    if masked:
        words = np.stack([packed_mask(set(rows.ids(vocab // 3)), vocab) for _ in samplings])
        words[3] = words[5] = -1  # without a constraint
    for step in range(4 if GPU else 2):
        dtype = torch.bfloat16 if GPU and step % 2 else torch.float32
        got, wanted = rows.step(logits_of(len(samplings), vocab, 10 * mode + step, dtype), kind, words)
        assert got == wanted, f"step {step}"
        if words is not None:
            assert all(words[i][token >> 5] >> (token & 31) & 1 for i, token in enumerate(got))


def test_chunks_of_a_large_vocabulary_and_float16() -> None:
    """Also a nucleus wider than the candidates, which reads the row itself again and again."""
    vocab = 2 * CHUNK + 33
    wide: dict[str, Any] = {"temperature": 3.0, "top_p": 0.97, "repetition_penalty": 1.5, "presence_penalty": 0.5}
    rows = Rows(vocab, [Sampling(**wide, logit_bias={7: 2.0, vocab - 1: 3.0}), Sampling(0.0, logit_bias={5000: 50.0})])
    words = np.stack([packed_mask(set(range(1, vocab, 2)), vocab), packed_mask(set(range(vocab)), vocab)])
    for step in range(2):
        got, wanted = rows.step(logits_of(2, vocab, step, torch.float16) / 8, Mode.FILTERED, words)
        assert got == wanted
        assert got[0] % 2 == 1
        assert got[1] == 5000


def test_rows_without_a_change_draw_as_in_a_launch_without_changes() -> None:
    vocab = 500
    draws: dict[str, Any] = {"temperature": 1.0, "top_k": 30, "top_p": 0.8, "seed": 3}
    rows = Rows(vocab, [Sampling(**draws), Sampling(**draws, presence_penalty=1.0), Sampling(**draws)])
    words = np.stack([packed_mask(set(range(vocab)), vocab), packed_mask({9, 10}, vocab), np.full(16, -1, np.int32)])
    x = logits_of(3, vocab, 1, torch.float16)
    plain = rows.launch(x, [rows.draw_of(own) for own in rows.sequences], Mode.FILTERED, None)
    got, _ = rows.step(x, Mode.FILTERED, words)
    assert [got[0], got[2]] == [plain[0], plain[2]]
    assert got[1] in (9, 10)


def test_a_row_whose_mask_allows_nothing_draws_nothing() -> None:
    rows = Rows(100, [Sampling(0.0), Sampling(1.0, top_k=5), Sampling(0.0)])
    words = np.stack([packed_mask(set(), 100), packed_mask(set(), 100), packed_mask({42}, 100)])
    got, _ = rows.step(logits_of(3, 100, 1, torch.float32), Mode.FILTERED, words)
    assert got == [-1, -1, 42]


def test_an_unused_row_is_not_counted_and_its_mask_is_not_read() -> None:
    """Skipped, and drawn for the same position in the next step."""
    rows = Rows(60, [Sampling(0.0, frequency_penalty=2.0), Sampling(0.0, frequency_penalty=2.0)])
    words = np.stack([packed_mask(set(), 60), packed_mask({3, 4}, 60)])
    for step in range(6):
        got, wanted = rows.step(logits_of(2, 60, step, torch.float32), Mode.GREEDY, words, unused=(0,))
        assert got == wanted
    got, wanted = rows.step(logits_of(2, 60, 9, torch.float32), Mode.GREEDY)
    assert got == wanted


def test_tables_are_rebuilt_when_another_sequence_took_the_slot() -> None:
    """Two slots for four sequences in turns; and each continues as if it had kept its slot."""
    asks: dict[str, Any] = {"temperature": 1.0, "repetition_penalty": 1.4, "frequency_penalty": 0.7, "min_tokens": 3}
    rows = Rows(80, [Sampling(**asks, seed=i, logit_bias={i: 2.0}) for i in range(4)], slots=2)
    for step in range(8):
        unused = (0, 1) if step // 2 % 2 else (2, 3)
        got, wanted = rows.step(logits_of(4, 80, step, torch.float32), Mode.PLAIN, unused=unused)
        assert got == wanted, f"step {step}"


def test_a_slot_is_free_once_its_sequence_is_gone_and_host_work_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows(80, [Sampling(0.0, repetition_penalty=1.4)], slots=1)
    sent: list[int] = []
    send = DrawState._send_tokens

    def noted(self: DrawState, index: int, draw: Draw, vocab: int) -> None:
        sent.append(index)
        send(self, index, draw, vocab)

    monkeypatch.setattr(DrawState, "_send_tokens", noted)
    for step in range(5):
        rows.step(logits_of(1, 80, step, torch.float32), Mode.GREEDY)
    assert sent == [0], "built once, and then counted by the draws"
    rows.sequences = Rows(80, [Sampling(0.0, repetition_penalty=1.4)]).sequences
    gc.collect()
    got, wanted = rows.step(logits_of(1, 80, 9, torch.float32), Mode.GREEDY)
    assert (got, sent) == (wanted, [0, 0])


def test_a_larger_vocabulary_takes_new_tables() -> None:
    """A model that is added later; the sequences of the first one build theirs again."""
    rows, later = Rows(80, [Sampling(0.0, frequency_penalty=1.0)]), Rows(700, [Sampling(0.0, frequency_penalty=1.0)])
    later.state = rows.state
    rows.step(logits_of(1, 80, 0, torch.float32), Mode.GREEDY)
    rows.state.reserve(700)
    for own in (rows, later, rows, later):
        got, wanted = own.step(logits_of(1, own.vocab, 1, torch.float32), Mode.GREEDY)
        assert got == wanted


def test_a_row_that_cannot_be_prepared_fails_alone() -> None:
    rows = Rows(50, [Sampling(logit_bias={50: 1.0}), Sampling(0.0, logit_bias={7: 90.0})])
    draws = [rows.draw_of(own) for own in rows.sequences]
    pairs: list[DrawRow | None] = [DrawRow(*pair) for pair in zip(rows.sequences, draws, strict=True)]
    changes, bad = rows.state.prepare(pairs, None, [-1, -1], 50)
    assert list(bad) == [0]
    assert "outside the vocabulary of 50" in bad[0]
    assert rows.launch(logits_of(2, 50, 0, torch.float32), draws, Mode.FILTERED, changes)[1] == 7
    stops = frozenset(range(BIASES_MAX + 1))
    many = Draw(Sampling(min_tokens=1), 3, [1], [], stops)
    _, bad = DrawState(torch.device(DEVICE), 1).prepare([None], None, [-1], 0)
    assert not bad
    wide = Rows(BIASES_MAX + 9, [Sampling(min_tokens=1)])
    _, bad = wide.state.prepare([DrawRow(wide.sequences[0], many)], None, [-1], BIASES_MAX + 9)
    assert f"{BIASES_MAX} at most" in bad[0]
