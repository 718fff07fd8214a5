"""What clients really sent (tests/clients/recorded), sent again: each is answered in a shape that its client reads, and
the few that ask for what is not served are refused by name."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any, cast

import httpx
import pytest
from anthropic.types import ModelInfo
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response

from support.paths import TESTS
from support.stack import MODEL, Stack
from support.waiting import eventually

RECORDED = TESTS / "clients" / "recorded"
CLIENTS = (
    "agents", "ai_sdk", "anthropic", "anthropic_0", "autogen", "claude_code", "jdk", "langchain", "langgraph",
    "litellm", "openai", "semantic_kernel",
)  # fmt: skip

# By case: the status, words of the message, and the field that it names. Everything else is answered.
REFUSED = {
    "tools": (400, "tools", "tools"),  # the demo model knows no tools
    "tools_anthropic": (400, "tools", "tools"),
    "agent_tools": (400, "tools", "tools"),
    "overflow": (400, "maximum context length is", "max_tokens"),  # litellm recognises an exceeded context by this
}

# What only some clients send, and each of them by default: a recording without it proves less.
SENT = {
    "autogen": lambda request: "name" in request["body"]["messages"][-1],
    "semantic_kernel": lambda request: any("name" in message for message in request["body"]["messages"]),
    "langgraph": lambda request: any("name" in message for message in request["body"]["messages"]),
    "openai": lambda request: any("parsed" in message for message in (request["body"] or {}).get("messages", ())),
    "langchain": lambda request: len((request["body"]).get("prompt", ())) == 20,
    "anthropic_0": lambda request: request["auth"] == "x-api-key" and request["path"] == "/v1/models",
    "claude_code": lambda request: request["body"].get("thinking") == {"type": "adaptive"},
    "jdk": lambda request: request["headers"].get("upgrade") == "h2c",
}


def requests() -> list[Any]:
    found = []
    for client in CLIENTS:
        recorded = json.loads((RECORDED / f"{client}.json").read_text())
        for number, request in enumerate(recorded["requests"]):
            found.append(pytest.param(request, id=f"{client}-{number}-{request['case']}"))
    return found


@pytest.fixture(scope="module")
def key(stack: Stack) -> str:
    """A client that names no bound gets a short answer."""
    made = stack.new_key("globex", default_max_tokens=16)
    headers = {"Authorization": f"Bearer {made.secret}"}
    eventually(lambda: httpx.get(f"{stack.url}/v1/models", headers=headers).status_code == 200)
    return made.secret


def send(stack: Stack, key: str, request: dict[str, Any]) -> httpx.Response:
    auth = {"x-api-key": key} if request["auth"] == "x-api-key" else {"Authorization": f"Bearer {key}"}
    path, body = request["path"].replace("smollm2-135m-instruct", MODEL), request["body"]
    content: bytes | Iterator[bytes] | None = None if body is None else json.dumps(body | {"model": MODEL}).encode()
    if content is not None and "transfer-encoding" in request["headers"]:
        content = iter([cast(bytes, content)])  # httpx sends chunks then
    headers = request["headers"] | auth
    return httpx.request(request["method"], stack.url + path, headers=headers, content=content, timeout=60)


@pytest.mark.parametrize("request_", requests())
def test_a_recorded_request(stack: Stack, key: str, request_: dict[str, Any]) -> None:
    answer = send(stack, key, request_)
    body, path = request_["body"] or {}, request_["path"].partition("?")[0]
    if request_["case"] in REFUSED:
        check_refusal(answer, *REFUSED[request_["case"]], anthropic=path == "/v1/messages")
        return
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-request-id"].startswith("req_")
    match path, bool(body.get("stream")):
        case "/v1/chat/completions", False:
            check_chat(answer, body)
        case "/v1/chat/completions", True:
            check_chat_stream(answer, body)
        case "/v1/completions", False:
            check_completion(answer, body)
        case "/v1/completions", True:
            check_completion_stream(answer, body)
        case "/v1/responses", False:
            response = Response.model_validate(answer.json())
            assert (response.status, bool(response.output_text)) == ("incomplete", True)  # at the key's default length
        case "/v1/embeddings", _:
            [made] = answer.json()["data"]  # the SDK asks for base64, and decodes float32
            assert (made["object"], len(base64.b64decode(made["embedding"])) % 4) == ("embedding", 0)
        case "/v1/messages", False:
            check_message(answer.json())
        case "/v1/messages", True:
            check_message_stream(answer)
        case "/v1/messages/count_tokens", _:
            assert answer.json()["input_tokens"] > 1
        case "/v1/models", _ if "anthropic-version" in request_["headers"]:
            assert MODEL in [ModelInfo.model_validate(model).id for model in answer.json()["data"]]
        case _, _ if path.startswith("/v1/models/") and "anthropic-version" in request_["headers"]:
            assert ModelInfo.model_validate(answer.json()).id == MODEL
        case "/v1/models", _:
            assert MODEL in [Model.model_validate(model).id for model in answer.json()["data"]]
        case _:
            assert Model.model_validate(answer.json()).id == MODEL


def test_claude_code_is_answered_and_its_hints_are_named(stack: Stack, key: str) -> None:
    [request] = [param.values[0] for param in requests() if param.values[0]["case"] == "agent_plain"]
    answer = send(stack, key, request)
    assert answer.status_code == 200, answer.text
    assert set(answer.headers["laneway-ignored"].split(", ")) == {
        "anthropic-beta",
        "context_management",
        "output_config.effort",
        "system[0]",
        "thinking",
    }


@pytest.mark.parametrize("client", SENT)
def test_a_recording_has_what_its_client_is_known_for(client: str) -> None:
    recorded = json.loads((RECORDED / f"{client}.json").read_text())
    assert any(SENT[client](request) for request in recorded["requests"])


def test_every_refusal_is_still_asked_for() -> None:
    """A recording that lost a case would prove less, silently."""
    cases = {param.values[0]["case"] for param in requests()}
    assert set(REFUSED) <= cases


def check_refusal(answer: httpx.Response, status: int, words: str, param: str | None, *, anthropic: bool) -> None:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert words in error["message"]
    if anthropic:
        assert answer.json()["type"] == "error"
    else:
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert error["param"] == param


# ---- OpenAI's shapes, read by OpenAI's package


def events(answer: httpx.Response) -> list[str]:
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in answer.text.split("\n\n") if line and not line.startswith(":")]
    assert lines.pop() == "data: [DONE]"
    return [line.removeprefix("data: ") for line in lines]


def wants_usage(body: dict[str, Any]) -> bool:
    return bool((body.get("stream_options") or {}).get("include_usage"))


def check_chat(answer: httpx.Response, body: dict[str, Any]) -> None:
    chat = ChatCompletion.model_validate_json(answer.content)
    assert chat.usage is not None
    assert chat.usage.total_tokens == chat.usage.prompt_tokens + chat.usage.completion_tokens
    assert [choice.index for choice in chat.choices] == list(range(body.get("n") or 1))
    for choice in chat.choices:
        assert choice.message.content is not None
        assert choice.finish_reason in ("stop", "length")
        assert (choice.logprobs is not None) == bool(body.get("logprobs"))
        if choice.logprobs is not None:
            assert choice.logprobs.content
            for token in choice.logprobs.content:
                assert len(token.top_logprobs) == (body.get("top_logprobs") or 0)


def check_chat_stream(answer: httpx.Response, body: dict[str, Any]) -> None:
    chunks = [ChatCompletionChunk.model_validate_json(event) for event in events(answer)]
    if wants_usage(body):
        last = chunks.pop()
        assert last.choices == []
        assert last.usage is not None
        assert last.usage.completion_tokens >= 1
    assert all(chunk.usage is None for chunk in chunks)
    endings = [choice.index for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert sorted(endings) == list(range(body.get("n") or 1))
    assert any(choice.delta.content for chunk in chunks for choice in chunk.choices)


def prompts_in(body: dict[str, Any]) -> int:
    prompt = body["prompt"]
    return 1 if isinstance(prompt, str) or isinstance(prompt[0], int) else len(prompt)


def check_completion(answer: httpx.Response, body: dict[str, Any]) -> None:
    completion = Completion.model_validate_json(answer.content)
    assert completion.usage is not None
    assert [choice.index for choice in completion.choices] == list(range(prompts_in(body) * (body.get("n") or 1)))
    for choice in completion.choices:
        assert choice.finish_reason in ("stop", "length")
        assert choice.text.startswith(body["prompt"] if body.get("echo") else "")
        assert (choice.logprobs is not None) == (body.get("logprobs") is not None)
        if choice.logprobs is not None:
            assert len(choice.logprobs.tokens or ()) == completion.usage.completion_tokens


def check_completion_stream(answer: httpx.Response, body: dict[str, Any]) -> None:
    chunks = [json.loads(event) for event in events(answer)]
    if wants_usage(body):
        last = Completion.model_validate(chunks.pop())
        assert last.choices == []
        assert last.usage is not None
    *endings, ending = [choice.pop("finish_reason") for chunk in chunks for choice in chunk["choices"]]
    assert set(endings) <= {None}  # as OpenAI's; the package's own type for it has no null
    assert ending in ("stop", "length")
    for chunk in chunks:
        choices = [{**choice, "finish_reason": ending} for choice in chunk["choices"]]
        Completion.model_validate({**chunk, "choices": choices})
    assert any(choice["text"] for chunk in chunks for choice in chunk["choices"])


# ---- Anthropic's


def check_message(message: dict[str, Any]) -> None:
    assert message["type"] == "message"
    assert message["role"] == "assistant"
    assert message["model"] == MODEL
    [block] = message["content"]
    assert block.keys() == {"type", "text"}  # @ai-sdk/anthropic refuses `citations: null`
    assert block["type"] == "text"
    assert isinstance(block["text"], str)
    assert message["stop_reason"] in ("end_turn", "max_tokens", "stop_sequence")
    usage = message["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] >= 1
    assert usage["output_tokens"] >= 1


def check_message_stream(answer: httpx.Response) -> None:
    assert answer.headers["content-type"].startswith("text/event-stream")
    found: list[dict[str, Any]] = []
    for block in answer.text.strip().split("\n\n"):
        named, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert named == f"event: {event['type']}"
        if event["type"] != "ping":
            found.append(event)
    start, opened, *deltas, closed, ending, stop = found
    assert start["type"] == "message_start"
    assert start["message"]["content"] == []
    assert opened["type"] == "content_block_start"
    assert opened["content_block"] == {"type": "text", "text": ""}
    assert {event["type"] for event in deltas} == {"content_block_delta"}
    assert closed["type"] == "content_block_stop"
    assert ending["type"] == "message_delta"
    assert ending["delta"]["stop_reason"] in ("end_turn", "max_tokens", "stop_sequence")
    assert ending["usage"]["output_tokens"] >= 1
    assert stop == {"type": "message_stop"}
