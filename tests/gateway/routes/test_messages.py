"""Anthropic's API through the whole path, as its own client speaks it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx
import pytest

from support.stack import MODEL, Stack

ASKED: dict[str, Any] = {"model": MODEL, "max_tokens": 6, "messages": [{"role": "user", "content": "Hi"}]}
GREEDY = {"temperature": 0}  # newer clients have no argument for it
ERROR_KEYS = {"type", "error", "request_id"}


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=stack.url, api_key=stack.keys["acme"], max_retries=0) as client:
        yield client


def post(stack: Stack, path: str = "/v1/messages", **fields: Any) -> httpx.Response:
    return httpx.post(stack.url + path, headers=stack.headers(), json={**ASKED, **fields}, timeout=30)


def test_a_message(client: anthropic.Anthropic, stack: Stack) -> None:
    message = client.messages.create(
        **ASKED,
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        metadata={"user_id": "u-1"},
        extra_body={"temperature": 0.5, "top_k": 40, "top_p": 0.9},
    )
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL)
    assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)
    [block] = message.content
    assert block.type == "text"
    assert block.text
    assert message.usage.output_tokens == 6
    assert message.usage.service_tier == "priority"
    assert message._request_id is not None
    row = stack.usage(message._request_id)
    assert row is not None
    read = message.usage.cache_read_input_tokens or 0
    assert (row.prompt_tokens, row.cached_tokens) == (message.usage.input_tokens + read, read)
    line = stack.request_line(message._request_id)
    assert (line["route"], line["ending"], line["completion_tokens"]) == ("/v1/messages", "length", 6)


def test_what_was_cached_is_said(client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = ASKED | {"messages": [{"role": "user", "content": "The same long question. " * 40}]}
    client.messages.create(**asked)
    again = client.messages.create(**asked)
    assert (again.usage.cache_read_input_tokens or 0) > 100
    assert again.usage.cache_creation_input_tokens == 0
    with client.messages.stream(**asked) as stream:
        final = stream.get_final_message()
    assert (final.usage.input_tokens, final.usage.cache_read_input_tokens) == (
        again.usage.input_tokens,
        again.usage.cache_read_input_tokens,
    )


def test_a_stream_and_its_events(client: anthropic.Anthropic, stack: Stack) -> None:
    kinds, text = [], ""
    for event in client.messages.create(**ASKED, extra_body=GREEDY, stream=True):
        kinds.append(event.type)
        if event.type == "content_block_delta" and event.delta.type == "text_delta":
            text += event.delta.text
    middle = [kind for kind in kinds if kind != "content_block_delta"]
    assert middle == ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]
    whole = client.messages.create(**ASKED, extra_body=GREEDY)
    assert whole.content[0].type == "text"
    assert text == whole.content[0].text
    with client.messages.stream(**ASKED, extra_body=GREEDY) as stream:
        assert "".join(stream.text_stream) == text
        final = stream.get_final_message()
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 6)
    raw = post(stack, temperature=0, stream=True).text
    assert 'event: ping\ndata: {"type":"ping"}\n\n' in raw
    for block in raw.strip().split("\n\n"):
        name, data = block.split("\n")
        assert json.loads(data.removeprefix("data: "))["type"] == name.removeprefix("event: ")


async def test_the_async_client(stack: Stack) -> None:
    async with anthropic.AsyncAnthropic(base_url=f"{stack.url}/t/globex", auth_token=stack.keys["globex"]) as client:
        whole = await client.messages.create(**ASKED | {"model": "globex-style"}, extra_body=GREEDY)
        async with client.messages.stream(**ASKED | {"model": "globex-style"}, extra_body=GREEDY) as stream:
            text = "".join([piece async for piece in stream.text_stream])
    assert whole.content[0].type == "text"
    assert text == whole.content[0].text
    assert whole.usage.service_tier == "standard"


def test_a_stop_sequence_is_named(client: anthropic.Anthropic) -> None:
    free = client.messages.create(**ASKED, extra_body=GREEDY).content[0]
    assert free.type == "text"
    stop = free.text.split()[2]
    message = client.messages.create(**ASKED, extra_body=GREEDY, stop_sequences=["nowhere", stop])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert message.content[0].type == "text"
    assert message.content[0].text == free.text[: free.text.index(stop)]
    with client.messages.stream(**ASKED, extra_body=GREEDY, stop_sequences=["nowhere", stop]) as stream:
        final = stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", stop)
    assert final.content[0].type == "text"
    assert final.content[0].text == message.content[0].text


def test_end_of_turn(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack(fake={"stop_after": 3})
    assert post(stack).json()["stop_reason"] == "end_turn"


def test_a_conversation_goes_on(client: anthropic.Anthropic) -> None:
    first = client.messages.create(**ASKED)
    again = client.messages.create(
        model=MODEL,
        max_tokens=4,
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]},
            {"role": "assistant", "content": first.content},  # what we returned
            {"role": "user", "content": "Go on."},
            {"role": "assistant", "content": "I go"},
        ],
    )
    assert again.usage.output_tokens == 4


def test_counting_is_what_a_message_takes(client: anthropic.Anthropic, stack: Stack) -> None:
    prompt: dict[str, Any] = {
        "model": MODEL,
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "Hi there"}],
    }
    counted = client.messages.count_tokens(**prompt).input_tokens
    before = stack.holds()
    usage = client.messages.create(**prompt, max_tokens=2).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert stack.holds() == before + 1


def test_refusals_are_said_in_its_words(stack: Stack, client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as bad:
        client.messages.create(**ASKED, tools=[{"name": "t", "input_schema": {"type": "object"}}])
    assert bad.value.type == "invalid_request_error"
    assert bad.value.request_id is not None
    assert "'tools'" in bad.value.message
    with pytest.raises(anthropic.NotFoundError) as absent:
        client.messages.create(**ASKED | {"model": "globex-style"})
    assert absent.value.type == "not_found_error"
    with (
        anthropic.Anthropic(base_url=stack.url, api_key="lw_live_wrong", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError) as unknown,
    ):
        stranger.messages.create(**ASKED)
    assert unknown.value.type == "authentication_error"


def test_a_text_block_has_no_citations(stack: Stack) -> None:
    """@ai-sdk/anthropic refuses `"citations": null`."""
    headers = {"x-api-key": stack.keys["acme"]}
    answer = httpx.post(f"{stack.url}/v1/messages", headers=headers, json=ASKED)
    assert [set(block) for block in answer.json()["content"]] == [{"type", "text"}]
    stream = httpx.post(f"{stack.url}/v1/messages", headers=headers, json=ASKED | {"stream": True}).text
    assert '"content_block_start"' in stream
    assert "citations" not in stream


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("POST", "/v1/messages/nothing", 404, "not_found_error"),
        ("POST", "/t/globex/v1/messages", 404, "not_found_error"),
        ("POST", "/v1/messages", 400, "invalid_request_error"),
        ("POST", "/v1/messages/count_tokens", 400, "invalid_request_error"),
    ],
)
def test_every_refusal_has_its_shape(stack: Stack, method: str, path: str, status: int, kind: str) -> None:
    answer = httpx.request(method, stack.url + path, headers={"x-api-key": stack.keys["acme"]}, content=b"{}")
    assert answer.status_code == status
    body = answer.json()
    assert set(body) == ERROR_KEYS
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert set(body["error"]) == {"type", "message"}
    assert body["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]


def test_a_spent_budget_is_not_retried(stack: Stack) -> None:
    made = stack.new_key("acme")
    stack.budget(made.key, "tokens", 1)
    stack.known()
    with (
        anthropic.Anthropic(base_url=stack.url, api_key=made.secret) as client,
        pytest.raises(anthropic.RateLimitError) as spent,
    ):
        client.messages.create(**ASKED)
    assert spent.value.type == "billing_error"
    assert spent.value.response.headers["x-should-retry"] == "false"


def test_an_error_in_a_stream_and_an_engine_that_is_away(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack(fake={"step_ms": 20.0})
    with anthropic.Anthropic(base_url=stack.url, api_key=stack.keys["acme"], max_retries=0) as client:
        events = client.messages.create(**ASKED | {"max_tokens": 500}, stream=True)
        assert any(event.type == "content_block_delta" for event in events)
        stack.kill_engine()
        with pytest.raises(anthropic.APIStatusError) as lost:
            list(events)
        assert lost.value.type == "api_error"
        with pytest.raises(anthropic.InternalServerError) as away:
            client.messages.create(**ASKED)
        assert away.value.status_code == 503
    assert stack.open_holds() == 0
