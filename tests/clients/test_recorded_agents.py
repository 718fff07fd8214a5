"""What agent frameworks really sent in their loops with tools (tests/clients/recorded/tools), sent again to a gateway
whose scripted engine answers by the grammar of each request: each answer is the one that the framework went on with."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.gateway.agent_stack import AgentStack, read_answer
from support.paths import REPO, TESTS

RECORDED = TESTS / "clients" / "recorded"
AGENTS = {file.stem: json.loads(file.read_text()) for file in sorted((RECORDED / "tools").glob("*.json"))}
OWN_CASES = {"claude_code", "codex", "instructor", "smolagents"}
# The cases of the other clients.
LOOPS = {"single", "parallel", "streamed", "no_arguments", "none", "strict", "cut", "loop", "thinking"}
FORCED = {"forced", "result_after_tool"}  # either
Request = dict[str, Any]


@pytest.fixture(scope="module")
def http(agents: AgentStack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=agents.url, timeout=60) as client:
        yield client


def cases() -> list[Any]:
    found: dict[tuple[str, str], list[Request]] = {}
    for client, recorded in AGENTS.items():
        for request in recorded["requests"]:
            found.setdefault((client, request["case"]), []).append(request)
    return [pytest.param(requests, id="-".join(names)) for names, requests in found.items()]


def send(http: httpx.Client, stack: AgentStack, request: Request) -> httpx.Response:
    secret = stack.keys["acme"]
    auth = {"x-api-key": secret} if request["auth"] == "x-api-key" else {"Authorization": f"Bearer {secret}"}
    return http.request(request["method"], request["path"], headers=request["headers"] | auth, json=request["body"])


@pytest.mark.parametrize("requests", cases())
def test_a_recorded_loop_is_answered_as_then(agents: AgentStack, http: httpx.Client, requests: list[Request]) -> None:
    agents.outside.clear()
    for request in requests:
        answer = send(http, agents, request)
        assert answer.status_code == 200, answer.text
        assert read_answer(request["path"].partition("?")[0], answer.content) == request["answer"]
    assert agents.outside == []


@pytest.mark.parametrize("client", sorted(set(AGENTS) - OWN_CASES))
def test_a_recording_has_every_kind_of_call(client: str) -> None:
    """A recording that lost a case would prove less, silently."""
    recorded = {request["case"] for request in AGENTS[client]["requests"]}
    assert recorded >= LOOPS
    assert recorded & FORCED


def test_codex_sends_every_kind_of_tool() -> None:
    """Of a model that it does not know, of one with a patch tool, and of one whose tools are items of the input."""
    kinds: dict[str, set[str]] = {}
    for request in AGENTS["codex"]["requests"]:
        items = request["body"]["input"]
        tools = [*request["body"].get("tools", ()), *[tool for item in items for tool in item.get("tools", ())]]
        kinds.setdefault(request["case"], set()).update([one["type"] for one in [*items, *tools]])
    calls = {"message", "reasoning", "function_call", "function_call_output", "function", "namespace", "web_search"}
    assert kinds["edit"] == calls
    assert kinds["patch"] >= {"custom", "custom_tool_call", "custom_tool_call_output", "tool_search"}
    assert kinds["code"] >= {"additional_tools", "namespace", "custom_tool_call"}
    assert "function_call" not in kinds["code"]


@pytest.mark.parametrize("client", AGENTS)
def test_the_page_names_the_versions_that_were_recorded(client: str) -> None:
    page = (REPO / "docs" / "users" / "agents.md").read_text()
    for package, version in AGENTS[client]["versions"].items():
        if package not in ("python", "node", "openai", "anthropic"):
            assert f"{package} {version}" in page


@pytest.mark.parametrize("client", [client for client in AGENTS if client not in ("ai_sdk", "claude_code", "codex")])
def test_the_requirements_are_what_was_recorded(client: str) -> None:
    required = re.sub(r"\[\w+\]", "", (TESTS / "programs" / "clients" / "requirements.txt").read_text()).splitlines()
    for package, version in AGENTS[client]["versions"].items():
        assert f"{package}=={version}" in required or package == "python"


def test_an_answer_outside_its_grammar_is_noticed(agents: AgentStack, http: httpx.Client) -> None:
    """The other tests would pass without the check."""
    agents.outside.clear()
    tool = {"type": "function", "function": {"name": "other"}}
    messages = [{"role": "user", "content": "Case forced."}]
    body = {"model": "smollm2-135m-instruct", "messages": messages, "tools": [tool], "tool_choice": "required"}
    request = {"method": "POST", "path": "/v1/chat/completions", "auth": "bearer", "headers": {}, "body": body}
    assert send(http, agents, request).status_code == 200
    [found] = agents.outside
    assert found.startswith("forced: turn 0: the grammar does not allow")
