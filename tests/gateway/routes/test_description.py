"""Rules that every operation of the description keeps, so that a new route without them fails here."""

from __future__ import annotations

import importlib.metadata
import re
from typing import Any

from gateway.generation.replays import HEADER
from gateway.routes.automation.operation_ids import OPERATIONS
from support.description import description, operations

# Lists below /v1/admin without a GET of one element at PATH/{id}, and where an element is found.
ELEMENTS_ELSEWHERE = {
    "/v1/admin/billing_profiles": "/v1/admin/tenants/{tenant_id}/billing_profile",
    "/v1/admin/budgets/{budget_id}/end_users": "?end_user= of the list; an end user's name is not stored",
    "/v1/admin/periods/closable": "/v1/admin/periods/{period_id}",
    "/v1/admin/usage/requests": "/v1/admin/requests/{request_id}",
    "/v1/admin/adapters/uploads": "nowhere: a process lists its running uploads, which end",
}
# Answers with a `data` that has figures, hits or findings instead of objects.
REPORTS = {
    "/v1/admin/adapters/{adapter}/use", "/v1/admin/alias_use/{alias}", "/v1/admin/error_rates", "/v1/admin/health",
    "/v1/admin/search", "/v1/admin/sla",
}  # fmt: skip
# POSTs of a tenant's key that store nothing and cost nothing when repeated, or that bring one object into one state.
REPEATABLE = {
    "/v1/batches/{batch}/cancel", "/v1/messages/batches/{batch}/cancel", "/v1/responses/{response}/cancel",
    "/v1/messages/count_tokens", "/v1/responses/input_tokens", "/v1/tokenize", "/v1/detokenize",
    "/v1/conversations/{conversation}",
}  # fmt: skip
# POSTs that make a new object each time: the server does not read the header there.
NOT_KEYED = {"/v1/conversations", "/v1/conversations/{conversation}/items", "/v1/files"}
# The first word of an operation id, by its method.
VERBS = {
    "GET": {"Get", "List", "Download", "Export", "Search", "Stream"},
    "POST": {
        "Add", "Cancel", "Check", "Close", "Compact", "Confirm", "Count", "Create", "Detokenize", "Drain", "End",
        "Enrol", "Make", "Preview", "Promote", "Publish", "Reconcile", "Record", "Release", "Remove", "Rerank",
        "Restore", "Revoke", "Roll", "Rotate", "Score", "Set", "Sign", "Test", "Tokenize", "Update", "Upload",
    },
    "PUT": {"Set"},
    "PATCH": {"Change"},
    "DELETE": {"Archive", "Delete", "End", "Remove", "Sign"},
}  # fmt: skip
TENANT = "/t/{tenant}"
PATH_PARAMETER = re.compile(r"/\{[a-z_]+\}$")


def answer_schema(operation: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = operation["responses"]["200"].get("content", {}).get("application/json", {})
    schema = schema.get("schema", {})
    name = schema.get("$ref", "").rpartition("/")[2]
    return dict(description()["components"]["schemas"].get(name, schema))


def test_every_list_of_the_admin_api_has_a_get_of_one_element() -> None:
    gets = {name.removeprefix("GET "): operation for name, operation in operations() if name.startswith("GET ")}
    admin = {path: answer_schema(operation) for path, operation in gets.items() if path.startswith("/v1/admin/")}
    lists = {
        path
        for path, schema in admin.items()
        if schema.get("type") == "array" or schema.get("properties", {}).get("data", {}).get("type") == "array"
    }
    assert len(lists) > 30
    single = {PATH_PARAMETER.sub("", path) for path in gets if PATH_PARAMETER.search(path)}
    assert lists - single == ELEMENTS_ELSEWHERE.keys() | REPORTS


def test_an_operation_is_named_by_a_verb_and_its_object() -> None:
    named = {operation["operationId"]: name for name, operation in operations()}
    assert len(named) == len(list(operations()))
    for operation_id, name in named.items():
        method, path = name.split()
        assert operation_id.startswith("Admin") == path.startswith("/v1/admin"), operation_id
        verb = re.match(r"(?:Admin)?([A-Z][a-z]+)", operation_id)
        assert verb is not None
        assert verb[1] in VERBS[method], operation_id
        if path.startswith(TENANT):
            assert named[operation_id.removesuffix("ForTenant")] == f"{method} {path.removeprefix(TENANT)}"
    assert OPERATIONS.keys() <= set(named.values()), "a path of OPERATIONS is not served"


def test_every_post_that_may_not_run_twice_declares_the_idempotency_key() -> None:
    for name, operation in operations():
        method, path = name.split()
        plain = path.removeprefix(TENANT)
        if method != "POST" or plain.startswith(("/v1/admin/session", "/v1/admin/adapters/check")):
            continue
        headers = [parameter for parameter in operation.get("parameters", ()) if parameter["in"] == "header"]
        declared = [parameter["name"] for parameter in headers] == [HEADER]
        assert declared != (plain in REPEATABLE | NOT_KEYED), name
        assert all(parameter["description"] for parameter in headers)


def test_the_version_is_the_programs() -> None:
    assert description()["info"]["version"] == importlib.metadata.version("laneway")


def test_an_answer_without_a_body_has_no_content() -> None:
    assert [name for name, one in operations() if "content" in one["responses"].get("204", {})] == []
