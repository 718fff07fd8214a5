"""A budget that is nearly empty, 200 requests at once through four gateway processes, at each level of the hierarchy.
`python tests/programs/budget_edge.py` plays it with 1,000."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from programs.budget_edge import LEVELS, UNITS, play, settings
from support.stack import Stack


@pytest.mark.slow
def test_no_level_is_overshot_by_four_gateways(make_stack: Callable[..., Stack], postgres_url: str) -> None:
    stack = make_stack(database_url=postgres_url, **settings())
    stack.start_more_gateways(3)
    for books in play(stack, list(LEVELS), list(UNITS), requests=200, seed=7):
        assert (books.overshoot, books.held) == (0, 0)
        assert books.served >= 10
