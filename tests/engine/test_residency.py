"""Adapters in an arena whose table has few rows: a full table evicts as a full arena does."""

from __future__ import annotations

import pytest

from engine.arena import Arena
from engine.fake import FakeAdapters
from engine.residency import Residency


@pytest.fixture
def adapters() -> FakeAdapters:
    table = FakeAdapters(pages_each=1, rows_max=2)
    table.models = dict.fromkeys("abcd", "m")
    return table


def test_a_full_table_evicts_the_least_recently_used_that_nobody_uses(adapters: FakeAdapters) -> None:
    arena = Arena(pages=10, page_bytes=1)
    residency = Residency(adapters, arena)
    residency.join("a", "tier")
    residency.join("b", "tier")
    residency.leave("b", "tier")
    residency.join("c", "tier")
    assert adapters.resident() == ["a", "c"]
    assert arena.adapter_pages() == 2
    residency.leave("a", "tier")
    residency.join("d", "tier")
    assert adapters.resident() == ["c", "d"]
    arena.check_integrity(residency.held_pages())


def test_more_running_adapters_than_rows_is_our_own_mistake(adapters: FakeAdapters) -> None:
    residency = Residency(adapters, Arena(pages=10, page_bytes=1))
    residency.join("a", "tier")
    residency.join("b", "tier")
    with pytest.raises(AssertionError, match="table has rows for"):
        residency.join("c", "tier")
