"""Late draw on a GPU: penalties, biases and masks one step ahead, beside each other, after preemptions; and nothing is
compiled after the start."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.compute.masks import mask_words
from engine.protocol.frames import Sampling
from engine.step import Masks, Pending, Sequence, Step
from support import oracle
from support.engine.gpu import GpuEngine

pytestmark = pytest.mark.gpu
VOCAB = oracle.TINY_VOCAB
NEW = 24
ASKS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.5},
    {"presence_penalty": 1.0, "frequency_penalty": 0.5},
    {"logit_bias": {7: 5.0, 8: -100.0}, "min_tokens": 6},
    {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.5, "logit_bias": {9: 3.0}},
]
DRAWS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 1.3, "top_k": 20, "top_p": 0.9},
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return oracle.save_tiny("llama", tmp_path_factory.mktemp("tiny"), head_dim=16)


def engine_of(directory: Path, **changes: Any) -> GpuEngine:
    sizes: dict[str, Any] = {"dtype": "float16", "arena_bytes": 16 << 20, "step_tokens_max": 128, "sequences_max": 16}
    return GpuEngine(directory, **(sizes | changes))


def prompts() -> list[list[int]]:
    dice = torch.Generator().manual_seed(11)
    return [torch.randint(1, VOCAB, (5 + 3 * i,), generator=dice).tolist() for i in range(len(ASKS) * len(DRAWS))]


def requests_of(engine: GpuEngine, tiers: bool = False) -> list[Sequence]:
    samplings = [Sampling(**draw, **ask, seed=i) for i, draw in enumerate(DRAWS) for ask in ASKS]
    return [
        engine.request(
            prompt, NEW, sampling=own, stop_ids=frozenset({3}), tier=("premium", "standard", "batch")[tiers * (i % 3)]
        )
        for i, (prompt, own) in enumerate(zip(prompts(), samplings, strict=True))
    ]


def run_masked(engine: GpuEngine, requests: list[Sequence], allowed: dict[int, list[int]], skips: int = 0) -> None:
    """One step ahead, with masks by handle; the first `skips` draws of every masked request are skipped, one each."""
    for request in requests:
        assert engine.scheduler.submit(request) is None
    flights: deque[tuple[Step, Pending, frozenset[int]]] = deque()
    left = dict.fromkeys(allowed, skips)

    def draw() -> None:
        step, pending, _ = flights.pop()
        sampling = [i for i, chunk in enumerate(step.chunks) if chunk.sample]
        words = np.full((len(sampling), mask_words(VOCAB)), -1, np.int32)
        skip = set()
        for row, index in enumerate(sampling):
            own = step.chunks[index].sequence
            assert -1 not in own.output_ids, "ids are known when masks are made"
            if own.handle in allowed:
                bits = np.zeros(mask_words(VOCAB) * 32, np.uint8)
                bits[allowed[own.handle]] = 1
                words[row] = np.packbits(bits, bitorder="little").view(np.int32)
                if left[own.handle] and len(own.output_ids) % 2:
                    left[own.handle] -= 1
                    skip.add(index)
        pending.draw(Masks(words, frozenset(skip)))
        flights.append((step, pending, frozenset(skip)))

    while True:
        skipped = flights[-1][2] if flights else frozenset()
        while len(flights) <= engine.runner.steps_ahead and (step := engine.scheduler.schedule(skipped)) is not None:
            flights.append((step, engine.runner.begin_step(step), frozenset()))
            if len(flights) == 1:
                draw()
                skipped = flights[-1][2]
        if not flights:
            return
        step, pending, _ = flights.popleft()
        for ended in engine.scheduler.complete(step, pending.result(), 0.001).ended:
            assert ended.reason in ("length", "stop"), ended.message
        if flights:
            draw()


@pytest.mark.parametrize("capture", [True, False])
def test_penalised_requests_say_the_same_alone_together_and_after_preemptions(directory: Path, capture: bool) -> None:
    """Near ties of a batch may differ: in float16 a few of the requests."""
    alone = engine_of(directory, capture=capture)
    expected = requests_of(alone)
    for request in expected:
        alone.run([request])
    together = engine_of(directory, capture=capture, sequences_max=4)
    found = requests_of(together, tiers=True)
    late = deque(request for request in found if request.tier == "premium")

    def submit_premium() -> None:
        """One in every fourth step, while requests of the other tiers have all slots."""
        if late and together.steps and len(together.steps) % 4 == 0:
            assert together.scheduler.submit(late.popleft()) is None

    together.run([request for request in found if request.tier != "premium"], after_step=submit_premium)
    assert not late
    assert together.scheduler.preemptions > 0
    same = sum(one.output_ids == other.output_ids for one, other in zip(expected, found, strict=True))
    print(f"\n{same} of {len(found)} the same; {together.scheduler.preemptions} preemptions")
    assert same >= len(found) - 2


def test_a_request_says_the_same_if_another_engine_began_it(directory: Path) -> None:
    """As after a preemption: near ties may differ."""
    engine = engine_of(directory, capture=False)
    assert all(info.numerics.startswith("cuda ") for info in engine.runner.models.values())
    expected, found = requests_of(engine), requests_of(engine)
    for request, whole in zip(found, expected, strict=True):
        engine.run([whole])
        request.resumed = len(whole.output_ids) // 2
        request.output_ids = whole.output_ids[: request.resumed]
    engine.run(found)
    same = sum(one.output_ids == other.output_ids for one, other in zip(expected, found, strict=True))
    print(f"\n{same} of {len(found)} the same")
    assert same >= len(found) - 2


def test_a_penalised_request_decodes_in_every_step(directory: Path) -> None:
    engine = engine_of(directory)
    (request,) = requests_of(engine)[4:5]
    engine.run([request])
    assert len(engine.steps) == len(request.output_ids)


@pytest.mark.parametrize("skips", [0, 2])
def test_masked_rows_draw_allowed_ids_and_their_neighbours_what_they_draw_anyway(directory: Path, skips: int) -> None:
    plain, masked = engine_of(directory), engine_of(directory)
    expected, found = requests_of(plain), requests_of(masked)
    run_masked(plain, expected, {})
    allowed = {own.handle: [4, 5, 6, 31, 32, 90 + i] for i, own in enumerate(found) if i % 2}
    run_masked(masked, found, allowed, skips)
    same = 0
    for one, other in zip(expected, found, strict=True):
        if other.handle in allowed:
            assert set(other.output_ids) <= set(allowed[other.handle])
            assert len(other.output_ids) == NEW
        else:
            same += one.output_ids == other.output_ids
    assert same >= len(found) - len(allowed) - 1


def test_nothing_is_compiled_after_the_start(directory: Path) -> None:
    """Every kernel that the first penalised, biased or masked request needs was compiled by the warm-up."""
    from triton import knobs

    engine = engine_of(directory)
    compiled: list[str] = []

    def note(**found: Any) -> bool:
        compiled.append(str(found.get("repr")))
        return False

    before = knobs.runtime.jit_cache_hook
    knobs.runtime.jit_cache_hook = note
    try:
        requests = requests_of(engine)
        run_masked(engine, requests, {requests[1].handle: [1, 2, 4]})
        later = requests_of(engine)[:4]
        engine.run(later)
    finally:
        knobs.runtime.jit_cache_hook = before
    assert not compiled, compiled[:5]
