"""A client that openapi-python-client generates from our description: every operation is in it, and it works against a
gateway. What openapi-typescript generates is the console's: tests/web/test_console_schema.py."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from gateway.access import keys
from support.paths import REPO
from support.services import missing_service
from support.stack import MODEL, Stack

METHODS = {"get", "post", "put", "patch", "delete"}


@pytest.fixture(scope="module")
def description() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "gateway.openapi"], cwd=REPO, capture_output=True, text=True, timeout=60, check=True
    )
    described: dict[str, Any] = json.loads(done.stdout)
    return described


def operations(description: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for path in description["paths"].values() for method, one in path.items() if method in METHODS]


def test_every_operation_is_described_and_every_json_body_has_an_example(description: dict[str, Any]) -> None:
    found = operations(description)
    assert all(operation.get("description") for operation in found)
    names = [operation["operationId"] for operation in found]
    assert len(set(names)) == len(names)
    components = description["components"]["schemas"]
    for operation in found:
        for kind, content in operation.get("requestBody", {}).get("content", {}).items():
            if kind != "application/json":
                continue
            name = content["schema"]["$ref"].rpartition("/")[2]
            validator = jsonschema_rs.validator_for(content["schema"] | {"components": description["components"]})
            for example in components[name]["examples"]:
                assert [error.message for error in validator.iter_errors(example)] == [], name


def test_a_generated_python_client(description: dict[str, Any], stack: Stack, tmp_path: Path, monkeypatch: Any) -> None:
    program = os.environ.get("LANEWAY_TEST_OPENAPI_CLIENT") or shutil.which("openapi-python-client")
    if program is None:
        missing_service("openapi-python-client", "pip install openapi-python-client, in an environment of its own")
    written, settings = tmp_path / "openapi.json", tmp_path / "settings.yaml"
    written.write_text(json.dumps(description))
    settings.write_text("post_hooks: []\n")  # the code is not formatted
    command = [program, "generate", "--path", str(written), "--output-path", str(tmp_path / "generated_laneway")]
    command += ["--meta", "none", "--fail-on-warning", "--config", str(settings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    made = [file for file in (tmp_path / "generated_laneway" / "api").rglob("*.py") if file.name != "__init__.py"]
    assert len(made) == len(operations(description))

    monkeypatch.syspath_prepend(str(tmp_path))
    client_module = importlib.import_module("generated_laneway.client")
    models = importlib.import_module("generated_laneway.models")
    operator = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="generated", kind="admin"))
    client = client_module.AuthenticatedClient(base_url=stack.url, token=operator.secret)

    def call(name: str, *, of: Any = client, **arguments: Any) -> Any:
        return importlib.import_module(f"generated_laneway.api.{name}").sync_detailed(client=of, **arguments)

    new = models.NewTenant(slug="generated", tier="batch")
    first, again = (call("admin.admin_create_tenant", body=new, idempotency_key="generated") for _ in range(2))
    assert (first.status_code, first.parsed.slug) == (201, "generated")
    assert first.parsed == again.parsed
    changed = call(
        "admin.admin_change_tenant",
        tenant_id=first.parsed.id,
        body=models.TenantChange(name="Generated"),
    )
    assert (changed.parsed.name, changed.parsed.tier) == ("Generated", "batch")
    listed = call("admin.admin_list_tenants", search="generated")
    assert [tenant.name for tenant in listed.parsed.data] == ["Generated"]
    refused = call("admin.admin_get_tenant", tenant_id="absent")
    assert (refused.status_code, refused.parsed.error.param) == (404, "tenant")

    caller = client_module.AuthenticatedClient(base_url=stack.url, token=stack.keys["acme"])
    asked = models.ChatRequest.from_dict(
        {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 3}
    )
    answered = call("default.create_chat_completion", of=caller, body=asked)
    assert answered.parsed.choices[0].finish_reason == "length"
    for one in (client, caller):
        one.get_httpx_client().close()
