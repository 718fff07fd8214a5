"""Lines that may come with every request come seldom, and say how often they would have."""

from __future__ import annotations

import logging

import pytest

from gateway.log import Seldom


def test_a_seldom_warning_counts_what_it_keeps_back(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    seldom = Seldom(logging.getLogger("test"), "it.happened", every_s=5.0, clock=lambda: now[0])
    for at in (100.0, 101.0, 104.9, 105.0, 105.1, 111.0):
        now[0] = at
        seldom.warn(reason=f"at {at}")
    said = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    assert said == [
        {"reason": "at 100.0", "times": 1},
        {"reason": "at 105.0", "times": 3},
        {"reason": "at 111.0", "times": 2},
    ]
