"""How long a draw may wait for masks."""

from __future__ import annotations

import pytest

from engine.loop.mask_budget import RESERVE_S, STEPS_REMEMBERED, WAIT_FIRST_S, WAIT_MIN_S, MaskBudget


def test_a_draw_may_wait_while_the_device_has_work() -> None:
    budget = MaskBudget()
    assert budget.seconds == WAIT_FIRST_S
    budget.note_step(0.0, 0.009)
    assert budget.seconds == pytest.approx(0.009 - RESERVE_S)
    # A wait for masks shortens the wait for ids: their sum counts.
    budget.note_step(0.006, 0.003)
    assert budget.seconds == pytest.approx(0.009 - RESERVE_S)


def test_the_shortest_of_the_last_steps_counts() -> None:
    budget = MaskBudget()
    budget.note_step(0.004, 0.0)
    for _ in range(STEPS_REMEMBERED - 1):
        budget.note_step(0.0, 0.02)
    assert budget.seconds == pytest.approx(0.004 - RESERVE_S)
    budget.note_step(0.0, 0.02)
    assert budget.seconds == pytest.approx(0.02 - RESERVE_S)


def test_a_loop_without_time_to_spare_still_looks() -> None:
    budget = MaskBudget()
    budget.note_step(0.0, 0.0)
    assert budget.seconds == WAIT_MIN_S
