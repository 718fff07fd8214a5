"""docs/users/: the clients' snippets run on a real gateway and print the whole answer; the tables of fields are fresh.

The engine behind the gateway is the fake one: each of its tokens is one word, so the words that a snippet prints are
counted against the key's own usage.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from support import clients_page as connect_page
from support.clients_page import PACKAGES, SNIPPET_S_MAX, Snippet
from support.stack import MODEL, Stack

SNIPPETS = connect_page.snippets()
ANSWERED = [one for one in SNIPPETS if not one.is_agent]  # test_connect_agents.py runs the others
MAX_TOKENS = 64
# What a terminal or a pipe shows of what these print.
WRITTEN: dict[str, Callable[[str], str]] = {
    "curl": lambda out: str(json.loads(out)["choices"][0]["message"]["content"]),
    "curl-a-stream": lambda out: "".join(re.findall(r'"content":"([^"]*)"', out)),
}


def used(stack: Stack, secret: str) -> dict[str, Any]:
    answer = httpx.get(f"{stack.url}/v1/usage", headers={"Authorization": f"Bearer {secret}"}, timeout=30)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def printed(stack: Stack, secret: str, language: str, text: str, directory: Path) -> str:
    environ = {**os.environ, "LANEWAY_URL": stack.url, "LANEWAY_KEY": secret}
    environ.pop("MODEL", None)
    argv = connect_page.command(language, text, directory)
    done = subprocess.run(argv, env=environ, cwd=directory, capture_output=True, text=True, timeout=SNIPPET_S_MAX)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


def check(stack: Stack, language: str, text: str, directory: Path, read: Callable[[str], str]) -> None:
    secret = stack.new_key("acme").secret
    stack.known()
    words = read(printed(stack, secret, language, text, directory)).split()
    usage = used(stack, secret)
    assert usage["requests"] == 1
    assert 1 <= usage["completion_tokens"] <= MAX_TOKENS
    assert len(words) == usage["completion_tokens"], words


@pytest.mark.parametrize("snippet", ANSWERED, ids=lambda one: one.id)
def test_a_snippet_prints_the_whole_answer(snippet: Snippet, stack: Stack, tmp_path: Path) -> None:
    read = WRITTEN.get(snippet.id, str)
    check(stack, snippet.language, snippet.text, tmp_path, read)


def test_the_snippet_of_the_readme_prints_the_whole_answer(stack: Stack, tmp_path: Path) -> None:
    check(stack, "python", connect_page.readme_snippet(), tmp_path, str)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda one: one.id)
def test_a_snippet_calls_the_model_and_the_gateway_of_its_environment(snippet: Snippet) -> None:
    """And the console can put its own in their place."""
    text = snippet.with_places()
    assert connect_page.URL_PLACE in text
    assert connect_page.MODEL_PLACE in text
    assert "LANEWAY_URL" not in text
    assert "LANEWAY_KEY" in text, "a key belongs into the environment"


def test_every_client_that_the_page_promises_has_a_snippet() -> None:
    assert [one.id for one in SNIPPETS] == [
        "curl",
        "curl-a-stream",
        "openai-python",
        "openai-javascript",
        "anthropic-python",
        "langchain",
        "vercel-ai-sdk",
        "vercel-ai-sdk-anthropic-s-api",
        "openai-python-the-responses-api",
        "vercel-ai-sdk-the-responses-api",
        "openai-python-an-agent",
        "langchain-an-agent",
        "vercel-ai-sdk-an-agent",
        "claude-code",
    ]
    assert connect_page.DEFAULT_MODEL == MODEL


def test_the_tables_are_those_of_the_wire_types() -> None:
    for path, text in connect_page.table_pages().items():
        assert text == path.read_text(), "run: python tests/programs/write_clients_page.py"


def test_the_console_has_the_page_as_it_is() -> None:
    fresh = connect_page.console_file()
    assert fresh == connect_page.CONSOLE_FILE.read_text(), "run: python tests/programs/write_clients_page.py"


def test_the_packages_are_pinned_and_name_no_registry() -> None:
    wanted = json.loads((PACKAGES / "package.json").read_text())["dependencies"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in wanted.values()), wanted
    packages = json.loads((PACKAGES / "package-lock.json").read_text())["packages"]
    assert packages[""]["dependencies"] == wanted
    assert not [path for path, package in packages.items() if "resolved" in package]
    assert all("integrity" in package for path, package in packages.items() if path)


@pytest.mark.parametrize(
    "language", ["python", "js"], ids=lambda language: f"what the {language} snippets import is installed by them"
)
def test_what_a_snippet_imports_its_install_line_installs(language: str) -> None:
    pattern = {"python": r"^from (\w+) import", "js": r'from "([^"]+)"'}[language]
    for snippet in SNIPPETS:
        if snippet.language == language:
            imported = {name.replace("_", "-") for name in re.findall(pattern, snippet.text, re.MULTILINE)}
            assert imported, snippet.title
            assert imported <= set(snippet.install.split()[2:]), snippet.title
