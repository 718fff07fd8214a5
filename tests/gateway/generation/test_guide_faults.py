"""An answer that its grammar ends: the caller is told so, and an answer that was not delivered is not charged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.protocol.frames import EngineUsage, Finished, GuideFault, Submit, Tokens
from support.gateway.scripted_engine import Said, ScriptedStack
from support.gateway.tool_model import make_tool_model
from support.stack import body, events, retries_after
from support.waiting import eventually

FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string"}}}
PARAM = "response_format.json_schema.schema"
WHY = "the grammar cannot be continued: too many states"


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedStack]:
    directory: Path = tmp_path_factory.mktemp("guide-faults")
    model = make_tool_model(directory / "model")
    stack = ScriptedStack(directory, f"sqlite:///{directory}/laneway.db", model)
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()


def ask(stack: ScriptedStack, fault: GuideFault, **fields: Any) -> httpx.Response:
    def fails(submit: Submit) -> Said:
        used = EngineUsage(len(submit.prompt_ids), completion_tokens=2)
        ids = [Tokens(step, [submit.handle], [400]) for step in (1, 2)]
        return [*((0.0, frame) for frame in ids), (0.1, Finished(submit.handle, "error", used, WHY, fault))]

    stack.scripted.script = fails
    sent = body(response_format=FORMAT, **fields)
    return httpx.post(f"{stack.url}/v1/chat/completions", headers=stack.headers(), json=sent, timeout=60)


def billed(stack: ScriptedStack, answer: httpx.Response) -> tuple[int, int]:
    """Tokens that the caller pays for, and tokens that were discarded."""
    eventually(lambda: stack.usage(answer.headers["x-request-id"]) is not None)
    row = stack.usage(answer.headers["x-request-id"])
    assert row is not None
    return row.completion_tokens, row.discarded_tokens


def test_a_grammar_that_exceeds_a_limit_later_is_the_caller_s_fault_and_named(scripted: ScriptedStack) -> None:
    answer = ask(scripted, "grammar")
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", PARAM)
    assert WHY in error["message"]
    assert billed(scripted, answer) == (0, 2)


def test_a_grammar_that_is_too_slow_may_be_tried_again(scripted: ScriptedStack) -> None:
    answer = ask(scripted, "late")
    assert answer.status_code == 503, answer.text
    assert retries_after(answer, 1)
    assert PARAM in answer.json()["error"]["message"]
    assert billed(scripted, answer) == (0, 2)


def test_a_stream_ends_with_the_error_and_what_was_delivered_is_charged(scripted: ScriptedStack) -> None:
    answer = ask(scripted, "grammar", stream=True)
    assert answer.status_code == 200
    last = events(answer.text)[-1]
    assert last["error"]["param"] == PARAM, json.dumps(last)
    assert sum(billed(scripted, answer)) == 2
