"""Hints of agents in /v1/messages: accepted and typed, and named where they would have changed the answer."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from gateway.api.agent_hints import BILLING_BLOCK, Thinking, ignored_headers
from gateway.api.bodies import PARSE_TEXT_IN_LOOP_BYTES_MAX, read_request
from gateway.api.generation_request import ChatPrompt
from gateway.api.messages_wire import MessagesRequest, parse_messages
from gateway.api.unknown_fields import UnknownFields
from gateway.errors import UnknownParameter
from support.stack import MODEL, Stack

USER = {"role": "user", "content": "Hi"}
NONCE: dict[str, Any] = {"type": "text", "text": f"{BILLING_BLOCK} cc_version=2.1.197.ddc; cc_entrypoint=sdk-cli;"}
BRIEF: dict[str, Any] = {"type": "text", "text": "Be brief."}
# As Claude Code sends them.
SENT: dict[str, Any] = {
    "system": [NONCE, BRIEF],
    "metadata": {"user_id": '{"session_id":"s"}'},
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
}
# By the body alone; the model decides on thinking and effort.
NAMED = ["context_management", "system[0]"]
NAMED_WITH_MODEL = [*NAMED, "thinking", "output_config.effort"]


def parse(**fields: Any) -> tuple[MessagesRequest, list[str]]:
    unknown = UnknownFields()
    sent = {"model": "m", "max_tokens": 5, "messages": [USER], **fields}
    return parse_messages(msgspec.json.encode(sent), unknown), unknown.ignored


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        (SENT, NAMED),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, []),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 2}]}, ["tools[0]"]),
        ({"thinking": {"type": "disabled"}}, []),
        ({"thinking": {"type": "between_tools"}}, []),
        ({"output_config": {"effort": None, "task_budget": {"total": 9}}}, ["output_config.task_budget"]),
        ({"betas": ["a"], "speed": "fast", "fallbacks": "default"}, ["betas", "fallbacks", "speed"]),
        ({"betas": [], "speed": "standard", "context_management": {}, "compaction": None}, []),
        ({"diagnostics": {"previous_message_id": None}}, ["diagnostics"]),
        # Hints that lose nothing here: prompts are cached, and the user chooses the model of an alias.
        ({"cache_control": {"type": "ephemeral"}, "metadata": {"user_id": "u"}}, []),
    ],
    ids=str,
)
def test_what_is_ignored_is_named(fields: dict[str, Any], named: list[str]) -> None:
    assert sorted(parse(**fields)[1]) == sorted(named)


def test_hints_change_nothing_that_is_generated() -> None:
    plain = parse(system=[BRIEF], metadata=SENT["metadata"])[0].to_generation()
    sent = {name: value for name, value in SENT.items() if name not in ("thinking", "output_config")}
    hinted = parse(**sent)[0].to_generation()
    seed = plain.sampling.seed
    assert msgspec.structs.replace(hinted, sampling=msgspec.structs.replace(hinted.sampling, seed=seed)) == plain


def test_hints_are_typed() -> None:
    request, _ = parse(thinking={"type": "enabled", "budget_tokens": 2048}, output_config={"effort": "max"})
    assert request.thinking == Thinking(type="enabled", budget_tokens=2048)
    assert request.thinking.requested
    assert request.output_config is not None
    assert request.output_config.effort == "max"


def test_a_field_that_is_no_known_hint_is_refused() -> None:
    with pytest.raises(UnknownParameter) as refused:
        parse(**SENT, thread={"id": "t"})
    assert refused.value.param == "thread"


@pytest.mark.parametrize(
    ("system", "first"),
    [
        ([NONCE, BRIEF, BRIEF], {"role": "system", "content": "Be brief.\nBe brief."}),
        ([NONCE], USER),
        ([BRIEF, NONCE], {"role": "system", "content": f"Be brief.\n{NONCE['text']}"}),
        (NONCE["text"], {"role": "system", "content": NONCE["text"]}),  # a text is no block
    ],
)
def test_a_leading_billing_block_is_left_out(system: Any, first: dict[str, Any]) -> None:
    prompt = parse(system=system)[0].prompt()
    assert prompt.messages[0] == first
    assert isinstance(prompt, ChatPrompt)


def test_ignored_headers() -> None:
    assert ignored_headers(["effort-2025-11-24,b"]) == ("anthropic-beta",)
    assert ignored_headers([""]) == ignored_headers([]) == ()


def test_a_process_names_them_too() -> None:
    sent = {"model": "m", "max_tokens": 5, "messages": [USER], **SENT}
    assert sorted(read_request("messages", msgspec.json.encode(sent), ignore_unknown=False).ignored) == sorted(NAMED)


# ---- over HTTP


@pytest.mark.parametrize("path", ["/v1/messages?beta=true", "/v1/messages/count_tokens?beta=true"])
@pytest.mark.parametrize("padding", [0, PARSE_TEXT_IN_LOOP_BYTES_MAX])
def test_the_answer_names_what_was_ignored(stack: Stack, path: str, padding: int) -> None:
    # A billing block of any length is left out, so the padding is no part of the prompt.
    system = [{"type": "text", "text": NONCE["text"] + "x" * padding}, BRIEF]
    sent = {"model": MODEL, "max_tokens": 4, "messages": [USER], **SENT, "system": system}
    if "count" in path:
        del sent["max_tokens"], sent["metadata"]
    headers = stack.headers() | {"anthropic-beta": "effort-2025-11-24"}
    answer = httpx.post(stack.url + path, json=sent, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    assert sorted(answer.headers["laneway-ignored"].split(", ")) == sorted(
        [*(NAMED if "count" in path else NAMED_WITH_MODEL), "anthropic-beta"]
    )


def test_sessions_share_their_prefix_whatever_the_billing_block(stack: Stack) -> None:
    words = [{"type": "text", "text": "A long instruction. " * 40}]

    def cached(nonce: str) -> int:
        sent = {
            "model": MODEL,
            "max_tokens": 2,
            "messages": [USER],
            "system": [{"type": "text", "text": f"{BILLING_BLOCK} cch={nonce};"}, *words],
        }
        usage = httpx.post(f"{stack.url}/v1/messages", json=sent, headers=stack.headers(), timeout=60).json()["usage"]
        return int(usage["cache_read_input_tokens"])

    cached("1")
    assert cached("2") > 100
