"""The API keeps what the last release had: deploy/openapi.json is that release's description."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from support.openapi_changes import breaking_changes
from support.paths import REPO

Description = dict[str, Any]
RELEASED: Description = json.loads((REPO / "deploy" / "openapi.json").read_text())
LIST_KEYS = RELEASED["paths"]["/v1/admin/keys"]["get"]["operationId"]

# The release described these files with an empty content type, which no client reads; it is application/octet-stream.
MENDED = {f"GET /v1/admin/exports/{{export_id}}/{what} 200:  has disappeared" for what in ("file", "manifest")}
# A 204 has no body.
MENDED |= {"DELETE /v1/admin/session 204: application/json has disappeared"}
# The release named its operations after their paths; `make openapi` of 2026.1 replaces these names for good.
PATH_IDS = re.compile(r": the operation id (?:V1|TTenantV1|Health|Metrics|Version)\w+ has disappeared")


def test_nothing_that_was_released_has_disappeared_or_become_required() -> None:
    made = subprocess.run([sys.executable, "-m", "gateway.openapi"], cwd=REPO, check=True, capture_output=True).stdout
    found = {change for change in breaking_changes(RELEASED, json.loads(made)) if not PATH_IDS.search(change)}
    assert found <= MENDED


def schema(description: Description, name: str) -> Description:
    found: Description = description["components"]["schemas"][name]
    return found


def remove_path(new: Description) -> None:
    del new["paths"]["/v1/admin/keys"]


def remove_method(new: Description) -> None:
    del new["paths"]["/v1/admin/keys"]["post"]


def remove_parameter(new: Description) -> None:
    listed = new["paths"]["/v1/admin/keys"]["get"]
    listed["parameters"] = [one for one in listed["parameters"] if one["name"] != "search"]


def require_parameter(new: Description) -> None:
    next(one for one in new["paths"]["/v1/admin/keys"]["get"]["parameters"] if one["name"] == "role")["required"] = True


def remove_enum_value(new: Description) -> None:
    found = next(one for one in new["paths"]["/v1/admin/keys"]["get"]["parameters"] if one["name"] == "role")
    found["schema"]["enum"].remove("finance")


def rename_operation(new: Description) -> None:
    new["paths"]["/v1/admin/keys"]["get"]["operationId"] = "ListAllKeys"


def rename_schema(new: Description) -> None:
    new |= json.loads(json.dumps(new).replace("schemas/NewExport", "schemas/ExportRequest"))
    new["components"]["schemas"]["ExportRequest"] = new["components"]["schemas"].pop("NewExport")


def remove_status(new: Description) -> None:
    del new["paths"]["/v1/admin/keys"]["post"]["responses"]["201"]


def remove_answers_field(new: Description) -> None:
    del schema(new, "EngineCounts")["properties"]["listed"]


def remove_requests_field(new: Description) -> None:
    del schema(new, "NewExport")["properties"]["tenant"]


def require_field(new: Description) -> None:
    schema(new, "NewExport")["required"].append("tenant")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (remove_path, "/v1/admin/keys has disappeared"),
        (remove_method, "POST /v1/admin/keys has disappeared"),
        (remove_parameter, "GET /v1/admin/keys: the parameter search has disappeared"),
        (require_parameter, "GET /v1/admin/keys: the parameter role is required now"),
        (remove_enum_value, "GET /v1/admin/keys role: the value 'finance' has disappeared"),
        (rename_operation, f"GET /v1/admin/keys: the operation id {LIST_KEYS} has disappeared"),
        (rename_schema, "the schema NewExport has disappeared"),
        (remove_status, "POST /v1/admin/keys: the status 201 has disappeared"),
        (remove_answers_field, ": the field listed has disappeared"),
        (remove_requests_field, "POST /v1/admin/exports: the field tenant has disappeared"),
        (require_field, "POST /v1/admin/exports: the field tenant is required now"),
    ],
)
def test_a_breaking_change_is_found(change: Callable[[Description], None], said: str) -> None:
    new = copy.deepcopy(RELEASED)
    change(new)
    found = breaking_changes(RELEASED, new)
    assert len(found) == 1
    assert found[0].endswith(said)


def test_additions_break_nothing() -> None:
    new = copy.deepcopy(RELEASED)
    new["paths"]["/v1/admin/more"] = {"get": {}}
    schema(new, "NewExport")["properties"]["more"] = {"type": "string"}
    schema(new, "EngineCounts")["properties"]["more"] = {"type": "integer"}
    schema(new, "EngineCounts")["required"].append("more")
    assert breaking_changes(RELEASED, new) == []
