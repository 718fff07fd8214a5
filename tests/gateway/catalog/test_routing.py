"""Canaries: which of an alias's models a request goes to, over many requests and through changes of the weights."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from gateway.catalog.router import choose
from gateway.config.settings import TargetSection

REQUESTS = 10_000


def parts(**weights: float) -> list[TargetSection]:
    return [TargetSection(model=model, weight=weight) for model, weight in weights.items()]


def choices(**weights: float) -> list[str]:
    return [choose("chat", "ten_1", f"user {number}", parts(**weights)) for number in range(REQUESTS)]


@pytest.mark.parametrize(
    "weights",
    [{"old": 95.0, "new": 5.0}, {"a": 1.0, "b": 1.0}, {"a": 3.0, "b": 2.0, "c": 1.0}, {"a": 1e6, "b": 1e-3}],
)
def test_shares_are_the_weights(weights: dict[str, float]) -> None:
    """Within four standard deviations of what independent draws would have."""
    counted, total = Counter(choices(**weights)), sum(weights.values())
    for model, weight in weights.items():
        share = weight / total
        bound = 4 * math.sqrt(REQUESTS * share * (1 - share)) + 1
        assert abs(counted[model] - REQUESTS * share) <= bound, (model, counted)


def test_a_conversation_stays_and_the_order_of_models_means_nothing() -> None:
    first, again = choices(a=3, b=1), [choose("chat", "ten_1", f"user {n}", parts(b=1, a=3)) for n in range(REQUESTS)]
    assert first == again


def test_another_alias_or_tenant_draws_anew() -> None:
    here = choices(a=1, b=1)
    for alias, tenant in (("other", "ten_1"), ("chat", "ten_2")):
        there = [choose(alias, tenant, f"user {number}", parts(a=1, b=1)) for number in range(REQUESTS)]
        same = sum(one == other for one, other in zip(here, there, strict=True))
        assert abs(same - REQUESTS / 2) < 4 * math.sqrt(REQUESTS / 4)


def test_a_canary_that_grows_keeps_whom_it_has() -> None:
    before, after = choices(old=95, new=5), choices(old=80, new=20)
    assert all(then == "new" for now, then in zip(before, after, strict=True) if now == "new")


def test_a_model_that_goes_leaves_the_others_where_they_are() -> None:
    """Its requests are spread over the rest by weight."""
    before, after = choices(a=2, b=1, c=1), choices(a=2, b=1)
    assert all(now == then for now, then in zip(before, after, strict=True) if now != "c")
    spread = Counter(then for now, then in zip(before, after, strict=True) if now == "c")
    lost = sum(spread.values())
    assert abs(spread["a"] - lost * 2 / 3) < 4 * math.sqrt(lost * 2 / 9)
