"""Fixtures of the gateway's tests: one shared whole stack, and a maker of stacks for tests that break theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gateway_stack import Stack


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    """Shared: a test may add tenants' keys and budgets to it, and must not stop anything."""
    directory = tmp_path_factory.mktemp("stack")
    made = Stack(directory, f"sqlite:///{directory}/laneway.db", model_dir)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def make_stack(tmp_path: Path, model_dir: Path) -> Iterator[Callable[..., Stack]]:
    """Makes and starts a stack of the test's own: `make_stack(database_url=…, fake={…}, gateway_toml="…")`."""
    made: list[Stack] = []

    def make(database_url: str = "", **settings: Any) -> Stack:
        directory = tmp_path / f"stack{len(made)}"
        stack = Stack(directory, database_url or f"sqlite:///{directory}/laneway.db", model_dir, **settings)
        made.append(stack)
        stack.start()
        return stack

    yield make
    for stack in made:
        stack.stop()
