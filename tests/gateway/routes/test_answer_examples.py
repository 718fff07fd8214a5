"""Every JSON answer in the description has an example, and the example is an answer: valid by its schema, with every
field."""

from __future__ import annotations

import json
from html import escape
from typing import Any

import jsonschema_rs
import pytest

from gateway.routes.automation.answer_examples import ANSWERS, LISTS, ExampleMissing, with_answer_examples
from gateway.routes.automation.client_schemas import EXAMPLES
from gateway.routes.automation.docs_page import docs_page
from support.description import description, operations

JSON = "application/json"
OTHER_TYPES = {"application/octet-stream", "text/event-stream", "text/csv", "text/plain; version=0.0.4"}
LOGOUT = "POST /v1/admin/session/backchannel_logout"  # 200 without a body, as OpenID Connect Back-Channel Logout has it


def json_answers() -> dict[str, list[dict[str, Any]]]:
    """The contents of the successful JSON answers, by operation."""
    return {
        name: [
            answer["content"][JSON]
            for status, answer in operation["responses"].items()
            if status.startswith("2") and JSON in answer.get("content", {})
        ]
        for name, operation in operations()
    }


def example_of(content: dict[str, Any]) -> Any:
    reference = content["examples"]["answer"]["$ref"]
    return description()["components"]["examples"][reference.removeprefix("#/components/examples/")]["value"]


def test_every_json_answer_has_an_example() -> None:
    found = json_answers()
    assert sum(map(len, found.values())) > 180
    assert [name for name, contents in found.items() if any("examples" not in content for content in contents)] == []


def test_an_operation_without_a_json_answer_has_another_type_or_no_body() -> None:
    shown = dict(operations())
    without = [name for name, contents in json_answers().items() if not contents]
    kinds = {name: set(shown[name]["responses"].get("200", {}).get("content", {})) for name in without}
    no_body = {name for name in without if not kinds[name]}
    assert no_body == {name for name in without if "204" in shown[name]["responses"]} | {LOGOUT}
    assert {kind for name in without for kind in kinds[name]} == OTHER_TYPES


def test_an_example_is_a_whole_answer() -> None:
    components = description()["components"]
    for name, contents in json_answers().items():
        for content in contents:
            schema, example = content["schema"], example_of(content)
            validator = jsonschema_rs.validator_for(schema | {"components": components})
            assert [error.message for error in validator.iter_errors(example)] == [], name
            component = components["schemas"].get(schema.get("$ref", "").rpartition("/")[2], {})
            if "properties" in component:
                assert set(component["required"]) <= set(example) <= set(component["properties"]), name


def test_every_example_is_of_an_answer_or_of_a_lists_element() -> None:
    schemas = description()["components"]["schemas"]
    shown = set(description()["components"]["examples"])
    lists = [schemas[name]["properties"]["data"]["items"] for name in shown - ANSWERS.keys()]
    elements = {items.get("$ref", "").rpartition("/")[2] for items in lists}
    assert set(ANSWERS) - shown - elements == set()
    assert set(LISTS) - shown == set()


def test_a_lists_example_is_made_of_its_elements() -> None:
    examples = description()["components"]["examples"]
    assert examples["Page_TenantView"]["value"] == {
        "object": "page",
        "data": [ANSWERS["TenantView"]],
        "has_more": False,
        "next_page": None,
    }
    assert examples["FileList"]["value"]["first_id"] == ANSWERS["FileObject"]["id"]
    assert [
        name for name in ANSWERS if "data" in ANSWERS[name] and name in description()["components"]["schemas"]
    ] == []


def test_the_page_docs_shows_the_examples() -> None:
    page = docs_page(description())
    for name in ("TenantView", "Page_TenantView", "ChatCompletion"):
        example = description()["components"]["examples"][name]["value"]
        assert f"<pre>{escape(json.dumps(example, indent=2, ensure_ascii=False))}</pre>" in page


def test_a_body_and_an_answer_have_different_components() -> None:
    assert set(ANSWERS) & set(EXAMPLES) == set()


@pytest.mark.parametrize(
    ("schema", "missing"),
    [
        ({"$ref": "#/components/schemas/NewView"}, "'NewView' has no example"),
        ({"$ref": "#/components/schemas/NewList"}, "'NewList' has no example of its field 'more'"),
        ({"type": "array"}, "'ListNew' has no example"),
    ],
)
def test_an_answer_without_an_example_is_refused(schema: dict[str, Any], missing: str) -> None:
    data = {"type": "array", "items": {"$ref": "#/components/schemas/TenantView"}}
    new = {"NewView": {"properties": {}}, "NewList": {"properties": {"data": data, "more": {"type": "integer"}}}}
    answer = {"200": {"description": "", "content": {JSON: {"schema": schema}}}}
    paths = {"/v1/new": {"get": {"operationId": "ListNew", "responses": answer}}}
    with pytest.raises(ExampleMissing, match=missing):
        with_answer_examples({"paths": paths, "components": {"schemas": new}})
