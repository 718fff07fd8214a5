"""The examples of answers in the description are answers: valid by their schemas, with every field."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import jsonschema_rs
import pytest

from gateway.routes.automation.answer_examples import ANSWERS
from gateway.routes.automation.client_schemas import EXAMPLES
from support.paths import REPO


@pytest.fixture(scope="module")
def whole() -> Any:
    made = subprocess.run([sys.executable, "-m", "gateway.openapi"], cwd=REPO, capture_output=True, check=True)
    return json.loads(made.stdout)


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_an_example_is_a_whole_answer(whole: dict[str, Any], name: str) -> None:
    schema = whole["components"]["schemas"][name]
    assert schema["examples"] == [ANSWERS[name]]
    jsonschema_rs.validate(schema | {"components": whole["components"]}, ANSWERS[name])
    assert set(schema["required"]) <= set(ANSWERS[name]) <= set(schema["properties"])


def test_a_component_has_one_example() -> None:
    assert set(ANSWERS) & set(EXAMPLES) == set()
