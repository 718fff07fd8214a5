"""A short run of hostile_requests.py. `make long` sends 47,500 requests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from programs.hostile_requests import FAKE, SHARES, TOML, play
from support.stack import Stack


@pytest.mark.slow
def test_hostile_requests_cause_no_error_of_the_server(make_stack: Callable[..., Stack]) -> None:
    seen = play(make_stack(fake=FAKE, toml=TOML), requests=1200, uploads=6, seed=2026)
    assert set(seen.statuses) == {*SHARES, "uploads"}
    # The run proves little if all requests are refused at the first step.
    assert seen.statuses["bodies"][200] > 100, seen.statuses
    assert seen.statuses["admin"][200] > 15, seen.statuses
