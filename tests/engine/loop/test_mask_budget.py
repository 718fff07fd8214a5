"""How long a draw may wait for masks."""

from __future__ import annotations

import pytest

from engine.loop.mask_budget import RESERVE_S, STEPS_REMEMBERED, WAIT_FIRST_S, WAIT_MIN_S, MaskBudget
from engine.protocol.frames import Sampling
from engine.step import Chunk, Sequence, Step

OWN = Sequence(0, 0, "r", "m", None, "n", "t", "s", [1] * 50, 99, Sampling(), frozenset(), 0.0)
DECODE = Step(1, "m", [Chunk(OWN, 50, 1, True)])
MIXED = Step(1, "m", [Chunk(OWN, 50, 1, True), Chunk(OWN, 0, 50, True)])


def test_a_draw_may_wait_while_the_device_has_work() -> None:
    budget = MaskBudget()
    assert budget.wait_s(DECODE) == WAIT_FIRST_S
    budget.note_step(DECODE, 0.0, 0.009)
    assert budget.wait_s(DECODE) == pytest.approx(0.009 - RESERVE_S)
    # A wait for masks shortens the wait for ids: their sum counts.
    budget.note_step(DECODE, 0.006, 0.003)
    assert budget.wait_s(DECODE) == pytest.approx(0.009 - RESERVE_S)


def test_the_shortest_of_the_last_steps_counts() -> None:
    budget = MaskBudget()
    budget.note_step(DECODE, 0.004, 0.001)
    for _ in range(STEPS_REMEMBERED - 1):
        budget.note_step(DECODE, 0.0, 0.02)
    assert budget.wait_s(DECODE) == pytest.approx(0.005 - RESERVE_S)
    budget.note_step(DECODE, 0.0, 0.02)
    assert budget.wait_s(DECODE) == pytest.approx(0.02 - RESERVE_S)


def test_decode_steps_after_a_prompt_wait_no_longer_than_decode_steps_before_it() -> None:
    budget = MaskBudget()
    budget.note_step(MIXED, 0.0, 0.18)
    assert budget.wait_s(MIXED) == pytest.approx(0.18 - RESERVE_S)
    assert budget.wait_s(DECODE) == WAIT_FIRST_S


def test_a_wait_that_was_too_long_is_halved() -> None:
    budget = MaskBudget()
    for expected in (0.008, 0.004, 0.002):
        budget.note_step(DECODE, 2 * expected, 0.0001)
        assert budget.wait_s(DECODE) == pytest.approx(expected - RESERVE_S)


def test_a_loop_without_time_to_spare_still_looks() -> None:
    budget = MaskBudget()
    budget.note_step(DECODE, 0.0, 0.0)
    assert budget.wait_s(DECODE) == WAIT_MIN_S
