"""Codex, `codex exec`: it reads files of a repository and edits one of them, as three kinds of models do. CODEX is its
executable."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import speak
from speak import MODEL
from weather import ask

CODEX = os.environ.get("CODEX", "codex")
RUN_S_MAX = 120
# The temporary repository is its sandbox.
ARGUMENTS = ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json"]
CONFIG = """
model = "{model}"
model_provider = "laneway"
model_context_window = 262144
{more}
[model_providers.laneway]
name = "Laneway"
base_url = "{url}/v1"
env_key = "LANEWAY_KEY"
wire_api = "responses"
"""
# An entry of `model_catalog_json`: what Codex takes a model for.
KNOWN = {
    "slug": MODEL,
    "display_name": MODEL,
    "description": "A model of Laneway's.",
    "base_instructions": "You are terse.",
    "supported_reasoning_levels": [{"effort": "low", "description": "Short"}],
    "default_reasoning_level": "low",
    "shell_type": "unified_exec",
    "apply_patch_tool_type": "freeform",
    "truncation_policy": {"mode": "tokens", "limit": 10000},
    "context_window": 262144,
    "visibility": "list",
    "supported_in_api": True,
    "priority": 1,
    "experimental_supported_tools": [],
    "support_verbosity": False,
    "supports_search_tool": True,
    "supports_parallel_tool_calls": True,
    "supports_reasoning_summaries": True,
}
# Of the newest families: the tools are items of the input, and the model writes code that calls them.
CODE_MODE = {"use_responses_lite": True, "tool_mode": "code_mode_only"}


def execute(url: str, case: str, catalog: dict[str, Any] | None = None) -> object:
    """The types of the run's items, once the file is edited."""
    with tempfile.TemporaryDirectory() as directory:
        home, repository = Path(directory, "home"), Path(directory, "repository")
        (home / ".codex").mkdir(parents=True)
        more = ""
        if catalog is not None:
            (home / "models.json").write_text(json.dumps({"models": [catalog]}))
            more = f'model_catalog_json = "{home}/models.json"'
        (home / ".codex" / "config.toml").write_text(CONFIG.format(model=MODEL, url=url, more=more))
        repository.mkdir()
        (repository / "notes.txt").write_text("one\n")
        (repository / "more.txt").write_text("more\n")
        environ = {"PATH": os.environ["PATH"], "HOME": str(home), "LANEWAY_KEY": speak.KEY}
        done = subprocess.run(
            [CODEX, *ARGUMENTS, ask(case)], env=environ, cwd=repository, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=RUN_S_MAX, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-200:] + done.stderr[-200:]
        events = [json.loads(line) for line in done.stdout.splitlines()]
        items = [event["item"] for event in events if event["type"] == "item.completed"]
        assert (repository / "notes.txt").read_text() == "two\n", items
        assert items[-1]["text"] == "The notes say two."
        return [item["type"] for item in items]


def edit(url: str) -> object:
    """A model that Codex does not know: its shell command edits the file."""
    return execute(url, "codex_edit")


def patch(url: str) -> object:
    """The patch is the input of a custom tool, by its grammar."""
    return execute(url, "codex_patch", KNOWN)


def code(url: str) -> object:
    return execute(url, "codex_code", KNOWN | CODE_MODE)


if __name__ == "__main__":
    version = subprocess.run([CODEX, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[-1]
    speak.tell(versions={"codex": version, "python": platform.python_version()})
    for case in (edit, patch, code):
        speak.run_case(case, {})
