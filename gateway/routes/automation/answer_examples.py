"""An example of each JSON answer in the description of the API. A test validates every one by its schema.

An answer's example is in ANSWERS under the name of its component, or of its operation if it has no component. A list's
example is made from the example of its element, so that no object is written twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.routes.automation.examples import accounts, inference, money, operations
from gateway.routes.component_names import REFERENCE

ANSWERS: dict[str, Any] = accounts.ANSWERS | inference.ANSWERS | money.ANSWERS | operations.ANSWERS
LISTS: dict[str, dict[str, Any]] = inference.LISTS | operations.LISTS
_JSON = "application/json"
_EXAMPLE = "#/components/examples/{name}"
_LAST_PAGE: dict[str, Any] = {"has_more": False, "next_page": None}
_ENDS = ("first_id", "last_id")


class ExampleMissing(Exception):
    """A JSON answer has no example: neither it nor the element of its list is in ANSWERS, or a field of the list is not
    in LISTS."""


def with_answer_examples(description: dict[str, Any]) -> dict[str, Any]:
    """A copy of the description in which each successful JSON answer refers to its example, below
    `components/examples`. Raises ExampleMissing."""
    schemas = description["components"]["schemas"]
    found: dict[str, Any] = {}

    def answer(operation: Mapping[str, Any], response: dict[str, Any]) -> dict[str, Any]:
        content = response.get("content", {})
        if _JSON not in content:
            return response
        schema = content[_JSON]["schema"]
        name = _component(schema) or operation["operationId"].removesuffix("ForTenant")
        if name not in found:
            found[name] = {"value": _example(name, schemas.get(name, {}))}
        shown = content[_JSON] | {"examples": {"answer": {"$ref": _EXAMPLE.format(name=name)}}}
        return response | {"content": content | {_JSON: shown}}

    def answered(operation: dict[str, Any]) -> dict[str, Any]:
        responses = operation["responses"]
        return operation | {
            "responses": {
                status: answer(operation, response) if status.startswith("2") else response
                for status, response in responses.items()
            }
        }

    paths = {
        path: {method: answered(operation) for method, operation in operations.items()}
        for path, operations in description["paths"].items()
    }
    return description | {"paths": paths, "components": description["components"] | {"examples": found}}


def _component(schema: Mapping[str, Any]) -> str:
    """The name of the component that a schema refers to; "" for none."""
    return str(schema.get("$ref", "")).removeprefix(REFERENCE.format(name=""))


def _example(name: str, component: Mapping[str, Any]) -> Any:
    """Raises ExampleMissing."""
    if name in ANSWERS:
        return ANSWERS[name]
    properties = component.get("properties", {})
    given = LISTS.get(name, {})
    element = _component(properties.get("data", {}).get("items", {}))
    if "data" not in given and element not in ANSWERS:
        raise ExampleMissing(f"The answer {name!r} has no example in gateway/routes/automation/examples.")
    data = given["data"] if "data" in given else [ANSWERS[element]]
    made: dict[str, Any] = {"data": data} | given
    for field, schema in properties.items():
        if field not in made and field in _LAST_PAGE:
            made[field] = _LAST_PAGE[field]
        elif field not in made and field in _ENDS:
            made[field] = data[0]["id"]
        elif field not in made and "default" not in schema:
            raise ExampleMissing(f"The list {name!r} has no example of its field {field!r} in LISTS.")
        elif field not in made:
            made[field] = schema["default"]  # the name of the list's type
    return made
