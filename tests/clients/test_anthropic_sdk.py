"""Anthropic's own package with what agents send: thinking, effort, betas, large conversations, models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from support.stack import MODEL, Stack

ASKED: dict[str, Any] = {"model": MODEL, "max_tokens": 6, "messages": [{"role": "user", "content": "Hi"}]}
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=stack.url, api_key=stack.keys["acme"], max_retries=0) as client:
        yield client


def ignored(raw: Any) -> set[str]:
    return set(raw.headers["laneway-ignored"].split(", "))


@pytest.mark.parametrize(
    "thinking", [{"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive", "display": "omitted"}]
)
def test_thinking_and_effort_are_accepted(client: anthropic.Anthropic, thinking: Any) -> None:
    raw = client.messages.with_raw_response.create(**ASKED, thinking=thinking, output_config={"effort": "xhigh"})
    assert ignored(raw) == {"thinking", "output_config.effort"}
    assert raw.parse().usage.output_tokens == 6
    with client.messages.stream(**ASKED, thinking=thinking) as stream:
        assert stream.get_final_message().stop_reason == "max_tokens"


def test_betas_are_accepted(client: anthropic.Anthropic) -> None:
    raw = client.beta.messages.with_raw_response.create(
        **ASKED,
        betas=["context-management-2025-06-27", "fast-mode-2026-02-01"],
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        speed="fast",
    )
    assert ignored(raw) == {"anthropic-beta", "context_management", "speed"}
    counted = client.beta.messages.count_tokens(
        model=MODEL, messages=ASKED["messages"], thinking={"type": "adaptive"}, betas=["token-counting-2024-11-01"]
    )
    assert counted.input_tokens > 1


def test_a_conversation_over_two_mebibytes_is_read(client: anthropic.Anthropic) -> None:
    """It is refused for its length in tokens, not in bytes."""
    long = [{"role": "user", "content": [{"type": "text", "text": "word " * 1000} for _ in range(3 * MIB // 5000)]}]
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(**ASKED | {"messages": long})
    assert refused.value.type == "invalid_request_error"
    assert "maximum context length is" in refused.value.message
    with pytest.raises(anthropic.BadRequestError):
        client.messages.count_tokens(model=MODEL, messages=long)  # type: ignore[arg-type]  # plain data


def test_a_body_over_the_limit_is_refused(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.APIStatusError) as refused:
        client.messages.create(**ASKED | {"messages": [{"role": "user", "content": "x" * 33 * MIB}]})
    assert (refused.value.status_code, refused.value.type) == (413, "request_too_large")


def test_models(client: anthropic.Anthropic) -> None:
    [model] = [model for model in client.models.list() if model.id == MODEL]
    assert client.models.retrieve(MODEL) == model
    assert client.beta.models.retrieve(MODEL).display_name == model.display_name
    with pytest.raises(anthropic.NotFoundError) as absent:
        client.models.retrieve("nowhere")
    assert absent.value.type == "not_found_error"
