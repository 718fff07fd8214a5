"""One request through everything, as a client sees it: the official SDK against a gateway process on a port.

Each test runs on both kinds of engine: the fake one, which answers with ids over frames, and TextEngine, which answers
with text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from support.gateway.both_engines import running_stack
from support.stack import MODEL, Stack, body, events


@pytest.fixture(scope="module", params=["ids", "text"])
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    with running_stack(request.param, tmp_path_factory.mktemp("path"), model_dir) as stack:
        yield stack


def test_a_whole_answer_is_held_made_and_settled(stack: Stack) -> None:
    answer = stack.chat(seed=1)
    assert answer.status_code == 200, answer.text
    completion = answer.json()
    assert completion["object"] == "chat.completion"
    assert completion["model"] == MODEL
    assert completion["service_tier"] == "priority"
    [choice] = completion["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"]
    usage = completion["usage"]
    assert usage["completion_tokens"] == 8
    assert usage["total_tokens"] == usage["prompt_tokens"] + 8
    row = stack.usage(answer.headers["x-request-id"])
    assert row is not None
    assert (row.prompt_tokens, row.completion_tokens, row.made_tokens) == (usage["prompt_tokens"], 8, 8)
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert row.cached_tokens == cached
    assert row.cost_picos == 3 * ((row.prompt_tokens - cached) * 100_000 + cached * 50_000 + 8 * 400_000)
    assert stack.hold(answer.headers["x-request-id"]).state == "settled"


def test_a_stream_has_a_role_text_a_reason_usage_and_done(stack: Stack) -> None:
    fields = body(stream=True, stream_options={"include_usage": True}, seed=1)
    with httpx.stream("POST", f"{stack.url}/v1/chat/completions", headers=stack.headers(), json=fields) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        *chunks, last, done = events(answer.read().decode())
    assert done == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(chunk["usage"] is None for chunk in chunks)
    assert {chunk["service_tier"] for chunk in [*chunks, last]} == {"priority"}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 8
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == stack.chat(seed=1).json()["choices"][0]["message"]["content"]
    row = stack.usage(answer.headers["x-request-id"])
    assert row is not None
    assert row.ending == "length"


def test_without_include_usage_no_chunk_speaks_of_usage(stack: Stack) -> None:
    *chunks, done = events(stack.chat(stream=True).text)
    assert done == "[DONE]"
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


def test_the_official_client(stack: Stack) -> None:
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.keys["globex"]) as client:
        whole = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_completion_tokens=6, seed=3
        )
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 6
        pieces = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_completion_tokens=6, seed=3, stream=True
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in pieces)
        assert text == whole.choices[0].message.content
        again = client.chat.completions.create(
            model=MODEL,
            messages=[
                {"role": "user", "content": "Hi"},
                whole.choices[0].message.model_dump(),  # type: ignore[list-item]  # what we returned is accepted back
                {"role": "user", "content": [{"type": "text", "text": "Go on."}]},
            ],
            max_tokens=4,
        )
        assert again.choices[0].finish_reason == "length"


async def test_the_official_client_async(stack: Stack) -> None:
    async with openai.AsyncOpenAI(base_url=f"{stack.url}/t/acme/v1", api_key=stack.keys["acme"]) as client:
        whole = await client.chat.completions.create(
            model="acme-style", messages=[{"role": "user", "content": "Hi"}], max_tokens=6, seed=3
        )
        stream = await client.chat.completions.create(
            model="acme-style",
            messages=[{"role": "user", "content": "Hi"}],
            max_tokens=6,
            seed=3,
            stream=True,
            stream_options={"include_usage": True},
        )
        text, usage = "", None
        async for chunk in stream:
            usage = chunk.usage
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
        assert text == whole.choices[0].message.content
        assert usage is not None
        assert usage.completion_tokens == 6
        names = [model.id async for model in client.models.list()]
        assert names == [MODEL, "acme-style", "shared-style"]
        card = await client.models.retrieve("acme-style")
        assert card.model_extra is not None
        assert card.model_extra["parent"] == MODEL
