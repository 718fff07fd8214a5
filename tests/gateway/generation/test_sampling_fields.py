"""The sampling fields of a chat completion through the whole path, as the official client sends them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from engine.text.tokenizer import Tokenizer
from support.stack import MODEL, Stack, body, events


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.keys["acme"], max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def tokenizer(stack: Stack) -> Tokenizer:
    return Tokenizer.load(stack.model_dir)


def test_logprobs_have_one_entry_a_token(client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    completion = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_tokens=5, logprobs=True, top_logprobs=3
    )
    [choice] = completion.choices
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert "".join([entry.token for entry in choice.logprobs.content]) == choice.message.content
    assert len(choice.logprobs.content) == 5
    for entry in choice.logprobs.content:
        assert entry.logprob <= 0
        assert bytes(entry.bytes or []).decode() == entry.token
        assert len(entry.top_logprobs) == 3
        assert [top.logprob for top in entry.top_logprobs] == sorted(
            (t.logprob for t in entry.top_logprobs), reverse=True
        )


def test_logprobs_come_with_the_chunks_of_their_text(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 6,
        "seed": 5,
    }
    whole = client.chat.completions.create(**asked, logprobs=True).choices[0]
    assert whole.logprobs is not None
    text = ""
    entries: list[Any] = []
    for chunk in client.chat.completions.create(**asked, logprobs=True, stream=True):
        text += chunk.choices[0].delta.content or ""
        if chunk.choices[0].logprobs is not None:
            entries += chunk.choices[0].logprobs.content or []
    assert text == whole.message.content
    assert entries == whole.logprobs.content
    assert all(entry.top_logprobs == [] for entry in entries)
    plain = client.chat.completions.create(**asked).choices[0]
    assert plain.logprobs is None


def test_a_held_back_stop_takes_its_logprobs_with_it(stack: Stack) -> None:
    whole = stack.chat(seed=3, max_tokens=10).json()["choices"][0]["message"]["content"]
    stop = whole.split()[4][:3]
    answer = stack.chat(seed=3, max_tokens=10, stop=stop, stream=True, logprobs=True)
    *chunks, done = events(answer.text)
    assert done == "[DONE]"
    shown = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert shown == whole[: whole.index(stop)]
    entries = [e for chunk in chunks for e in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    row = stack.usage(answer.headers["x-request-id"])
    assert row is not None
    assert len(entries) == row.completion_tokens


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"49152": 1}}, "logit_bias"),
        ({"stop_token_ids": [49152]}, "stop_token_ids"),
        ({"min_tokens": 9}, "min_tokens"),
        ({"min_tokens": 4000, "max_tokens": None}, "min_tokens"),
    ],
)
def test_what_only_the_model_can_refuse(stack: Stack, fields: dict[str, Any], param: str) -> None:
    before = stack.holds()
    answer = stack.chat(**fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert stack.holds() == before


def test_a_stop_id_ends_the_text_and_is_not_shown(stack: Stack, tokenizer: Tokenizer) -> None:
    """The fake engine draws on whatever id comes; a caller's stop id is one of the ids that it would draw."""
    asked = body(seed=11, max_tokens=10)
    first = stack.chat(**asked).json()["choices"][0]
    ids = tokenizer.encode(first["message"]["content"])
    assert len(ids) == 10
    answer = stack.chat(**asked, stop_token_ids=[ids[6]])
    [choice] = answer.json()["choices"]
    assert choice["message"]["content"] == tokenizer.decode(ids[:6])
    assert choice["finish_reason"] == "stop"
    assert answer.json()["usage"]["completion_tokens"] == 7


def test_every_field_at_once(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hi"}],
        max_tokens=6,
        n=2,
        seed=1,
        stop=["never said"],
        temperature=0.7,
        top_p=0.9,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={"100": -100},
        logprobs=True,
        top_logprobs=1,
        extra_body={
            "top_k": 40,
            "min_p": 0.05,
            "repetition_penalty": 1.1,
            "min_tokens": 2,
            "ignore_eos": True,
            "stop_token_ids": [7],
            "skip_special_tokens": False,
        },
    )
    assert [choice.finish_reason for choice in completion.choices] == ["length", "length"]


def test_a_prefill_is_gone_on_from(stack: Stack, tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The answer is "}]
    asked = body(messages=messages, add_generation_prompt=False, continue_final_message=True)
    answer = stack.chat(**asked)
    assert answer.status_code == 200, answer.text
    text = tokenizer.render_chat(messages, add_generation_prompt=False)
    prompt = tokenizer.encode(text[: text.index("The answer is ") + len("The answer is ")])
    assert answer.json()["usage"]["prompt_tokens"] == len(prompt)
    open_ended = stack.chat(messages=messages[:1], add_generation_prompt=False)
    closed = stack.chat(messages=messages[:1])
    assert open_ended.json()["usage"]["prompt_tokens"] < closed.json()["usage"]["prompt_tokens"]
