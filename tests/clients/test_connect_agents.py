"""The snippets of docs/users/agents.md that call tools: each runs its whole loop on a gateway whose scripted engine
calls the tool, and prints the answer made of the tool's result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.text.tokenizer import Tokenizer
from support import clients_page as connect_page
from support.gateway.agent_stack import ANSWERS, SNIPPET_QUESTION, AgentStack
from support.paths import TESTS
from support.stack import MODEL

SNIPPETS = [one for one in connect_page.snippets() if one.is_agent and one.language != "sh"]
[CLAUDE_CODE] = [one for one in connect_page.snippets() if one.title == "Claude Code"]
RECORDED = TESTS / "clients" / "recorded" / "tools" / "claude_code.json"
# Sends what Claude Code sent, to where the variables say.
CLAUDE = """#!{python}
import json, os, sys
import httpx
assert sys.argv[1] == "-p"
[_, request, *_] = json.load(open({recorded!r}))["requests"]
body = {{**request["body"], "model": os.environ["ANTHROPIC_MODEL"], "stream": False}}
body["max_tokens"] = int(os.environ["CLAUDE_CODE_MAX_OUTPUT_TOKENS"])
headers = {{**request["headers"], "x-api-key": os.environ["ANTHROPIC_API_KEY"]}}
url = os.environ["ANTHROPIC_BASE_URL"] + request["path"]
answer = httpx.post(url, json=body, headers=headers, timeout=60)
print(answer.status_code, [block["name"] for block in answer.json()["content"] if block["type"] == "tool_use"])
print(os.environ["ANTHROPIC_SMALL_FAST_MODEL"])
"""


def run(stack: AgentStack, argv: list[str], directory: Path, **environ: str) -> str:
    settings = {**os.environ, "LANEWAY_URL": stack.url, "LANEWAY_KEY": stack.keys["acme"], "MODEL": MODEL, **environ}
    done = subprocess.run(
        argv, env=settings, cwd=directory, capture_output=True, text=True, timeout=connect_page.SNIPPET_S_MAX
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda one: one.id)
def test_an_agents_snippet_calls_its_tool_and_prints_the_answer(
    snippet: connect_page.Snippet, agents: AgentStack, tmp_path: Path
) -> None:
    before = len(agents.scripted.submits)
    printed = run(agents, connect_page.command(snippet.language, snippet.text, tmp_path), tmp_path)
    assert printed == f"{ANSWERS['snippet'][-1]}\n"
    assert agents.outside == []
    tokenizer = Tokenizer.load(agents.model_dir)
    submitted = agents.scripted.submits[before:]
    first, second = [tokenizer.decode(one.prompt_ids, skip_special_tokens=False) for one in submitted]
    assert SNIPPET_QUESTION in first
    assert "The current weather in a city." in first
    result = second[second.index("<tool_response>") :]
    assert all(part in result for part in ("Lisbon", "temperature_c", "21", "sunny"))


def test_claude_codes_variables_lead_to_the_gateway(agents: AgentStack, tmp_path: Path) -> None:
    """With a recorded request of Claude Code, as the program itself is not installed."""
    claude = tmp_path / "claude"
    claude.write_text(CLAUDE.format(python=sys.executable, recorded=str(RECORDED)))
    claude.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    printed = run(agents, connect_page.command("sh", CLAUDE_CODE.text, tmp_path), tmp_path, PATH=path)
    assert printed.splitlines() == [f"200 {['Read', 'Read']}", MODEL]
    assert set(json.loads(RECORDED.read_text())["versions"]) >= {"claude-code"}
