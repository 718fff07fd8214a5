"""The four forms of a legacy completion's prompt."""

from __future__ import annotations

from typing import Any

import pytest

from support.gateway.dialect_requests import completions


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_the_four_forms_of_a_prompt(prompt: Any, prompts: list[Any]) -> None:
    assert completions(prompt=prompt).to_generation().prompts == prompts
