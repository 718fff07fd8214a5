"""Texts that PostgreSQL cannot even be asked for, at every route of the admin API: refused or not found, never a fault
of ours."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from gateway.access import keys
from support.stack import Stack

ODD = "a\0b"
START = {"start_time": "0"}  # what a query must have


@pytest.fixture
def asking(make_stack: Callable[..., Stack], postgres_url: str) -> Iterator[tuple[Stack, httpx.Client]]:
    stack = make_stack(postgres_url)
    secret = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="owner", kind="admin")).secret
    with httpx.Client(base_url=stack.url, headers={"Authorization": f"Bearer {secret}"}, timeout=30) as client:
        yield stack, client


def described(client: httpx.Client) -> dict[str, Any]:
    return dict(client.get("/schema/openapi.json").json())


def is_text(schema: dict[str, Any]) -> bool:
    every = [schema, *schema.get("oneOf", ()), *schema.get("anyOf", ()), schema.get("items", {})]
    return any("string" in (one.get("type") or ()) and "enum" not in one for one in every)


def example(document: dict[str, Any], schema: dict[str, Any]) -> Any:
    """Something that the schema takes, as far as the admin API needs it."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if "properties" in schema:
        required = schema.get("required", ())
        return {name: example(document, one) for name, one in schema["properties"].items() if name in required}
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0]
    examples = {"integer": schema.get("minimum", 1), "number": 1, "array": [], "boolean": True}
    return examples.get(str(kind), "acme")


def asked(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any], Any]]:
    """Method, path, query and body: one for each text that a caller may write, which is odd."""
    for path, methods in document["paths"].items():
        if not path.startswith(("/v1/admin", "/v1/organization")) or path.endswith("/live"):
            continue
        for method, operation in methods.items():
            parameters = operation.get("parameters", ())
            query = START if any(one["name"] == "start_time" and one.get("required") for one in parameters) else {}
            content = operation.get("requestBody", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema")
            body: Any = None if schema is None else example(document, schema)
            plain, odd = path, path
            for one in (one for one in parameters if one["in"] == "path"):
                plain = plain.replace(f"{{{one['name']}}}", "none")
                odd = odd.replace(f"{{{one['name']}}}", "a%00b")
            if odd != plain:
                yield method, odd, query, body
            for one in parameters:
                if one["in"] == "query" and is_text(one["schema"]):
                    yield method, plain, query | {one["name"]: ODD}, body
            if schema is not None and "$ref" in schema:
                properties = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]["properties"]
                for name, one in properties.items():
                    if is_text(one) and name != "key":
                        yield method, plain, query, body | {name: ODD}


def test_no_text_is_too_odd(asking: tuple[Stack, httpx.Client]) -> None:
    stack, client = asking
    cases = list(asked(described(client)))
    assert len(cases) > 100
    failed = []
    for method, path, query, body in cases:
        answer = client.request(method, path, params=query, json=body)
        if answer.status_code >= 500 and answer.status_code != 503:
            failed.append((method, path, query, body, answer.status_code))
    assert not failed
    assert not stack.log_lines("error")


# Bodies that reach what is written: what is asked beside a field that is odd.
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("tenants", {"slug": "odd", "tier": "standard", "name": ODD}),
    ("projects", {"tenant": "acme", "name": ODD}),
    ("keys", {"tenant": "acme", "name": ODD}),
    ("keys", {"tenant": "acme", "scopes": ["inference", ODD]}),
    ("budgets", {"tenant": "acme", "unit": "tokens", "period": "day", "limit_amount": 1, "project": ODD}),
    ("corrections", {"tenant": "acme", "picos": 1, "reason": ODD}),
    ("prices", {"subject": "m", "input": 1, "output": 1, "multipliers": {ODD: "1"}}),
]


def test_bodies_and_pages_are_refused_by_name(asking: tuple[Stack, httpx.Client]) -> None:
    stack, client = asking
    for path, body in BODIES:
        odd = next(name for name, value in body.items() if "\\u0000" in json.dumps(value))
        answer = client.post(f"/v1/admin/{path}", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, odd), answer.text
    place = base64.urlsafe_b64encode(json.dumps([0, [ODD, "USD"]]).encode()).decode().rstrip("=")
    query: dict[str, Any] = {"start_time": 0, "group_by": "model", "page": f"page_{place}"}
    for path in ("usage/completions", "costs"):
        answer = client.get(f"/v1/organization/{path}", params=query)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "page"), answer.text
    assert not stack.log_lines("error")
