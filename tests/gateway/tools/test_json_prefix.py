"""What is whole of a JSON object that was cut."""

from __future__ import annotations

import json

import pytest

from gateway.tools.json_prefix import complete_object


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("", {}),
        ("{", {}),
        ('{"a"', {}),
        ('{"a": "x', {}),
        ('{"a": "x", "b": [1, {"c": 2', {"a": "x", "b": [1, {}]}),
        ('{"a": "},{", "b": 12', {"a": "},{"}),
        ('{"a": 1} and more', {"a": 1}),
        ("[1, 2", {}),
    ],
)
def test_whole_members(text: str, whole: object) -> None:
    assert complete_object(text) == whole


def test_every_prefix_of_an_object_is_an_object() -> None:
    text = json.dumps({"a": [1, 2, {"b": 'x"\\'}], "c": {"d": None}, "e": "é,{"})
    for end in range(len(text)):
        assert isinstance(complete_object(text[:end]), dict)
