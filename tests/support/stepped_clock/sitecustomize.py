"""A host clock that a test can step: Python loads this at its start where PYTHONPATH leads here.

time.time and time.time_ns are offset by the number of seconds in the file $LANEWAY_TEST_CLOCK. Monotonic clocks are
unaffected, as with a real step of a clock.
"""

from __future__ import annotations

import os
import time

_true_time, _true_time_ns = time.time, time.time_ns
_FILE = os.environ.get("LANEWAY_TEST_CLOCK", "")


def _off_s() -> int:
    with open(_FILE) as file:
        return int(file.read() or 0)


if _FILE:
    time.time = lambda: _true_time() + _off_s()
    time.time_ns = lambda: _true_time_ns() + _off_s() * 1_000_000_000
