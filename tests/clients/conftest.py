"""Fixtures of several clients' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.gateway.agent_stack import AgentStack


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentStack]:
    """A gateway with a scripted engine; no hold is left at its end."""
    stack = AgentStack(tmp_path_factory.mktemp("agents"))
    try:
        stack.start()
        yield stack
        assert stack.open_holds() == 0
    finally:
        stack.stop()
