"""Clients of the Responses API that are installed here, in their loops with tools, against a gateway whose scripted
engine answers by the grammar of each request. test_recorded_agents.py has the others."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from support.clients_page import PACKAGES
from support.gateway.agent_stack import AgentStack
from support.gateway.client_scripts import run_script
from support.paths import TESTS
from support.services import missing_service

SCRIPTS = TESTS / "programs" / "clients"
# By client: cases that its script has, among others.
CASES = {
    "openai_responses": {"single", "parallel", "streamed", "no_arguments", "forced", "loop", "parse", "plain"},
    "langchain_responses": {"single", "parallel", "streamed", "no_arguments", "forced", "loop", "schema", "plain"},
}
OF_AI_SDK = {
    f"responses_{case}" for case in ("single", "parallel", "streamed", "no_arguments", "forced", "object", "plain")
}


def check(agents: AgentStack, argv: list[str], cases: set[str]) -> None:
    agents.outside.clear()
    _, results = run_script(argv, agents.url, agents.keys["acme"])
    assert [result for result in results if not result["ok"]] == []
    assert {result["case"] for result in results} >= cases
    assert agents.outside == []


@pytest.mark.parametrize("client", CASES)
def test_a_client_in_python(agents: AgentStack, client: str) -> None:
    check(agents, [sys.executable, str(SCRIPTS / f"agent_{client}.py")], CASES[client])


def test_the_ai_sdk(agents: AgentStack, tmp_path: Path) -> None:
    if shutil.which("node") is None or not (PACKAGES / "node_modules" / "@ai-sdk" / "openai").exists():
        missing_service("npm", "tests/clients/connect/node_modules is not installed: make client-packages")
    (tmp_path / "node_modules").symlink_to(PACKAGES / "node_modules")
    script = Path(shutil.copy(SCRIPTS / "agent_ai_sdk.mjs", tmp_path))
    check(agents, ["node", str(script)], OF_AI_SDK)
