"""Fields that an endpoint does not have: dropped where they ask for nothing, refused, or ignored and named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from gateway.api.bodies import PARSE_TEXT_IN_LOOP_BYTES_MAX, read_request
from gateway.api.unknown_fields import IGNORED_MAX, NAMED_MAX, header_value
from gateway.errors import InvalidRequest, UnknownParameter, UnsupportedParameter, UnsupportedValue
from support.stack import Stack, body

USER = {"role": "user", "content": "Hi"}


def read(kind: str = "chat", *, ignore: bool = False, **fields: Any) -> Any:
    prompt: dict[str, Any] = {"prompt": "Once"} if kind == "completions" else {"messages": [USER]}
    if kind == "messages":
        prompt["max_tokens"] = 5
    return read_request(kind, msgspec.json.encode({"model": "m", **prompt, **fields}), ignore_unknown=ignore)


# ---- what a refusal says


@pytest.mark.parametrize("kind", ["chat", "completions", "messages", "count"])
def test_an_unknown_field_is_refused_by_its_own_code(kind: str) -> None:
    with pytest.raises(UnknownParameter) as refused:
        read(kind, foo=1)
    assert (refused.value.code, refused.value.param) == ("unknown_parameter", "foo")
    assert "leave it out" in refused.value.message


def test_a_foreign_name_is_answered_with_ours() -> None:
    with pytest.raises(UnknownParameter, match="'repeat_penalty': use 'repetition_penalty'"):
        read(repeat_penalty=1.1)


TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("kind", "fields", "error", "param", "words"),
    [
        ("chat", {"functions": [TOOL]}, UnsupportedParameter, "functions", "'tools' and 'tool_choice' are served"),
        ("chat", {"tool_choice": "required"}, InvalidRequest, "tool_choice", "needs 'tools'"),
        (
            "completions",
            {"guided_regex": "a", "structured_outputs": {"choice": ["a"]}},
            InvalidRequest,
            "guided_regex",
            "'structured_outputs.choice' and 'guided_regex'",
        ),
        (
            "chat",
            {"tools": [TOOL], "tool_choice": "required", "guided_choice": ["a"]},
            InvalidRequest,
            "guided_choice",
            "'guided_choice' and 'tool_choice'",
        ),
        ("completions", {"best_of": 4, "n": 2}, UnsupportedValue, "best_of", "send 2, as 'n'"),
        ("completions", {"prompt_logprobs": 2, "stream": True}, UnsupportedValue, "prompt_logprobs", "'stream'"),
        ("messages", {"container": "c"}, UnsupportedParameter, "container", "No code is run"),
        (
            "chat",
            {"messages": [USER, {"role": "tool", "content": "x", "tool_call_id": "1"}]},
            InvalidRequest,
            "messages[1].tool_call_id",
            "no earlier message has a call of this id",
        ),
        (
            "chat",
            {"messages": [USER, {"role": "user", "content": None}]},
            UnsupportedValue,
            "messages[1].content",
            "Only an assistant's message with 'tool_calls' has no text",
        ),
        (
            "chat",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            UnsupportedValue,
            "messages[0].content[0].type",
            "images, audio and files are not read",
        ),
        (
            "messages",
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            UnsupportedValue,
            "messages[0].content[0].type",
            "Blocks are of the types 'text'",
        ),
    ],
    ids=str,
)
def test_a_refusal_says_what_to_do(
    kind: str, fields: dict[str, Any], error: type[InvalidRequest], param: str, words: str
) -> None:
    with pytest.raises(error) as refused:
        read(kind, **fields)
    assert refused.value.param == param
    assert words in refused.value.message


# ---- what is ignored


def test_ignored_fields_are_named_by_their_paths() -> None:
    found = read(
        ignore=True,
        top_a=0.5,
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "a", "cache": "x"}], "id": "m1", "parsed": None}
        ],
        stream=True,
        stream_options={"include_usage": True, "foo": 2},
    )
    # Not `parsed`, whose value is empty.
    paths = ["messages[0].content[0].cache", "messages[0].id", "stream_options.foo", "top_a"]
    assert sorted(found.ignored) == paths
    assert found.wants_usage


def test_the_rest_of_the_body_is_read_as_without_them() -> None:
    fields: dict[str, Any] = {"seed": 3, "logit_bias": {"5": 1.5}, "temperature": 1, "stop_token_ids": [4]}
    assert read(ignore=True, foo=1, **fields).asked == read(**fields).asked


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": [TOOL]}, "functions"),
        ({"n": 0}, "n"),
        ({"n": 1.0}, "n"),
        ({"guided_json": "{"}, "guided_json"),
    ],
)
def test_a_known_field_is_checked_where_unknown_ones_are_ignored(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(ignore=True, foo=1, **fields)
    assert refused.value.param == param


def test_too_many_unknown_fields_are_refused() -> None:
    fields: dict[str, Any] = {f"f{i}": 1 for i in range(IGNORED_MAX)}
    read(ignore=True, **fields)
    with pytest.raises(UnknownParameter):
        read(ignore=True, another=1, **fields)


def test_the_header_is_bounded_and_printable() -> None:
    assert header_value(["a", "messages[0].x"]) == b"a, messages[0].x"
    assert header_value(["a\r\nb: c", "ä,"]) == b"a%0D%0Ab%3A%20c, %C3%A4%2C"
    value = header_value(["x" * 5000] * (NAMED_MAX + 3))
    assert value.endswith(b", +3")
    assert len(value) < 2000


# ---- over HTTP


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", body()),
        ("/v1/chat/completions", body(stream=True)),
        ("/v1/chat/completions", body(padding="x " * PARSE_TEXT_IN_LOOP_BYTES_MAX)),  # parsed by a process
        ("/v1/messages", body()),
        ("/v1/messages/count_tokens", {key: value for key, value in body().items() if key != "max_tokens"}),
    ],
    ids=["whole", "stream", "large", "messages", "count"],
)
def test_the_answer_names_what_was_ignored(ignoring: Stack, path: str, fields: dict[str, Any]) -> None:
    named = ["padding", "top_a"] if "padding" in fields else ["top_a"]
    fields = {**fields, "top_a": 1, "usage": None}
    answer = httpx.post(ignoring.url + path, json=fields, headers=ignoring.headers(), timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.headers["laneway-ignored"].split(", ") == named
    assert ignoring.request_line(answer.headers["x-request-id"])["ignored"] == named


def test_an_answer_to_known_fields_has_no_such_header(ignoring: Stack, stack: Stack) -> None:
    assert "laneway-ignored" not in ignoring.chat().headers
    assert "laneway-ignored" not in stack.chat(usage=None).headers


def test_unknown_fields_are_refused_by_default(stack: Stack) -> None:
    answer = stack.chat(top_a=1)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "unknown_parameter"
    assert answer.json()["error"]["param"] == "top_a"


@pytest.mark.parametrize("length", [1, 40_000], ids=["counted here", "counted by a process"])
def test_an_argument_that_the_template_does_not_read_is_refused(stack: Stack, length: int) -> None:
    messages = [{"role": "user", "content": "x" * length}]
    answer = stack.chat(messages=messages, chat_template_kwargs={"enable_thinking": False})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "chat_template_kwargs.enable_thinking")
    assert "it reads no arguments" in error["message"]


def test_azures_paths_are_answered_with_the_client_to_use(stack: Stack) -> None:
    path = "/openai/deployments/gpt/chat/completions?api-version=2024-10-21"
    answer = httpx.post(stack.url + path, json=body(), headers={"api-key": stack.keys["acme"]})
    assert answer.status_code == 404
    assert "OpenAI(base_url=" in answer.json()["error"]["message"]


@pytest.fixture(scope="module")
def ignoring(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    """A gateway that ignores unknown fields."""
    directory = tmp_path_factory.mktemp("ignoring")
    url = f"sqlite:///{directory}/laneway.db"
    made = Stack(directory, url, model_dir, gateway_toml='unknown_fields = "ignore"')
    try:
        made.start()
        yield made
    finally:
        made.stop()
