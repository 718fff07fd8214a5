"""The console's types are those of this gateway, and every path that it asks is one that there is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.routes.component_names import component_name, join_schemas, without_module_paths
from support.paths import REPO
from support.services import missing_service

# A component is named for its types alone, with `_` before a generic type's argument. Where two types have the same
# name, the framework sets their modules' names before it, and those begin with a small letter.
COMPONENT = re.compile(r"[A-Z][A-Za-z0-9]*(_[A-Z][A-Za-z0-9]*)*")
UI = REPO / "admin_ui"
# A path of the API, written as the client takes it; an address with a query or a value in it is none.
PATH = re.compile(r"""["'`](/v1/(?:admin|organization)/[a-z0-9_/{}:]*[a-z0-9_}])["'`]""")


@pytest.fixture(scope="module")
def description() -> dict[str, Any]:
    """In a process of its own: as `npm run types` asks for it."""
    done = subprocess.run(
        [sys.executable, "-m", "gateway.openapi"], cwd=REPO, capture_output=True, text=True, timeout=60, check=True
    )
    described: dict[str, Any] = json.loads(done.stdout)
    return described


def test_every_path_that_the_console_asks_is_described(description: dict[str, Any]) -> None:
    asked = {
        (path, file.name)
        for file in [*UI.glob("src/**/*.ts"), *UI.glob("src/**/*.tsx")]
        if file.name != "schema.d.ts"
        for path in PATH.findall(file.read_text())
    }
    assert len(asked) > 5  # the expression still finds them
    known = set(description["paths"])
    assert not sorted((path, name) for path, name in asked if path not in known)


def test_the_types_are_made_from_every_path_there_is(description: dict[str, Any]) -> None:
    """Without npm: what was added or removed shows. `npm run types` makes them anew."""
    body = (UI / "src/api/schema.d.ts").read_text().split("export interface paths {", 1)[1].split("\n}\n", 1)[0]
    typed = set(re.findall(r'^    "(/[^"]*)": \{$', body, re.MULTILINE))
    assert typed == set(description["paths"])


def test_the_types_are_fresh(description: dict[str, Any], tmp_path: Path) -> None:
    if shutil.which("node") is None or not (UI / "node_modules/openapi-typescript").exists():
        missing_service("npm", "admin_ui/node_modules is not installed: make admin-ui")
    written, made = tmp_path / "openapi.json", tmp_path / "schema.d.ts"
    written.write_text(json.dumps(description))
    done = subprocess.run(
        ["node", "scripts/types.mjs", str(written), str(made)],
        cwd=UI,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert made.read_text() == (UI / "src/api/schema.d.ts").read_text(), "run: npm run types"


def test_no_name_in_the_description_contains_a_module(description: dict[str, Any]) -> None:
    schemas = description["components"]["schemas"]
    assert len(schemas) > 100
    assert "Page_TenantView" in schemas
    operations = [operation for path in description["paths"].values() for operation in path.values()]
    names = [*schemas, *(operation["operationId"] for operation in operations)]
    assert [name for name in names if COMPONENT.fullmatch(name) is None] == []
    assert re.findall(r"\b(?:gateway|billing|engine|adapters)\.[a-z_]+", json.dumps(description)) == []


def test_two_types_of_one_component_name_are_refused() -> None:
    schemas: dict[str, Any] = {"Page_gateway.views.KeyView_": {}, "Page_gateway.keys.KeyView_": {}}
    with pytest.raises(ValueError, match="the same name"):
        without_module_paths({"components": {"schemas": schemas}})
    described: dict[str, Any] = {"Usage": {"properties": {"tokens": {}}}}
    other: dict[str, Any] = {"Usage": {"properties": {"hours": {}}}}
    assert join_schemas(described, described) == described
    with pytest.raises(ValueError, match="two types have the component name Usage"):
        join_schemas(described, other)


def test_component_names() -> None:
    assert component_name("Page_gateway.adapter_rows.Version_") == "Page_Version"
    assert component_name("Pair_str_gateway.a_b.Key_billing.prices.Price_") == "Pair_str_Key_Price"
    assert component_name("TenantView") == "TenantView"


def test_the_lockfile_names_no_registry() -> None:
    packages = json.loads((UI / "package-lock.json").read_text())["packages"]
    named = {package["resolved"] for package in packages.values() if "resolved" in package}
    assert not named
    assert all("integrity" in package for path, package in packages.items() if path)


@pytest.mark.parametrize("file", ["index.html", "public/icon.svg"])
def test_nothing_inline_that_the_policy_refuses(file: str) -> None:
    text = (UI / file).read_text()
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)", text)
