"""What the scheduler's step costs the host is measured on the real loop: here that it runs, with few requests."""

from __future__ import annotations

import gc

from benchmarks.scheduler_step import measure


def test_every_part_of_a_step_is_measured() -> None:
    try:
        found = measure(sequences=6, waiting=3, steps=8)
    finally:
        gc.unfreeze()
    assert set(found) == {"schedule_us", "complete_us", "scheduler_us", "publish_us", "step_us", "step_p99_us"}
    assert min(found.values()) > 0
