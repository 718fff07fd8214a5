"""Legacy completions through the whole path, as the official client asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from engine.text.tokenizer import Tokenizer
from support.stack import MODEL, Stack, events


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{stack.url}/t/acme/v1", api_key=stack.keys["acme"], max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def tokenizer(stack: Stack) -> Tokenizer:
    return Tokenizer.load(stack.model_dir)


def post(stack: Stack, **fields: Any) -> httpx.Response:
    asked = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 5, **fields}
    return httpx.post(f"{stack.url}/v1/completions", headers=stack.headers(), json=asked, timeout=30)


def test_one_text(client: openai.OpenAI, stack: Stack) -> None:
    completion = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=5, seed=1)
    [choice] = completion.choices
    assert completion.object == "text_completion"
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 5
    row = stack.usage("req_" + completion.id.removeprefix("cmpl-"))
    assert row is not None
    assert (row.prompt_tokens, row.completion_tokens) == (completion.usage.prompt_tokens, 5)
    streamed = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=5, seed=1, stream=True)
    chunks = list(streamed)
    assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text
    assert [chunk.choices[0].finish_reason for chunk in chunks][-2:] == [None, "length"]


def test_without_max_tokens_a_text_has_sixteen_tokens_unless_the_key_has_a_default(stack: Stack) -> None:
    """As OpenAI and vLLM have it. The default of the model, 2,048 tokens, would be 128 times the bill."""
    assert post(stack, max_tokens=None, ignore_eos=True).json()["usage"]["completion_tokens"] == 16
    headers = {"Authorization": f"Bearer {stack.new_key('acme', default_max_tokens=3).secret}"}
    asked = {"model": MODEL, "prompt": "Once upon a time"}
    shorter = httpx.post(f"{stack.url}/v1/completions", headers=headers, json=asked, timeout=30)
    assert shorter.json()["usage"]["completion_tokens"] == 3


def test_ids_are_their_text(client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    text = "The ships in the harbour"
    ids = tokenizer.encode(text)
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 5, "seed": 1, "echo": True}
    by_text = client.completions.create(**asked, prompt=text)
    by_ids = client.completions.create(**asked, prompt=ids)
    lists = client.completions.create(**asked, prompt=[ids, ids[:2]])
    assert by_text.choices[0].text.startswith(text)
    assert by_ids.choices[0].text == by_text.choices[0].text == lists.choices[0].text
    assert lists.choices[1].text.startswith(tokenizer.decode(ids[:2]))
    assert lists.usage is not None
    assert lists.usage.prompt_tokens == len(ids) + 2


def test_several_prompts_of_several_texts(client: openai.OpenAI, stack: Stack) -> None:
    prompts = ["One fish", "Two fish", "Red fish"]
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 4, "seed": 8, "n": 2}
    together = client.completions.create(**asked, prompt=prompts)
    assert [choice.index for choice in together.choices] == list(range(6))
    alone = [client.completions.create(**asked, prompt=prompt).choices for prompt in prompts]
    assert [choice.text for choice in together.choices] == [choice.text for pair in alone for choice in pair]
    texts = [""] * 6
    for chunk in client.completions.create(**asked, prompt=prompts, stream=True, echo=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [prompts[choice.index // 2] + choice.text for choice in together.choices]
    row = stack.usage("req_" + together.id.removeprefix("cmpl-"))
    assert row is not None
    assert row.completion_tokens == 24


def test_logprobs_in_the_legacy_shape(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": "One", "max_tokens": 6, "seed": 8, "logprobs": 2}
    [choice] = client.completions.create(**asked).choices
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert "".join(logprobs.tokens) == choice.text
    assert logprobs.text_offset == [len("".join(logprobs.tokens[:at])) for at in range(6)]
    assert logprobs.top_logprobs is not None
    for token, logprob, likeliest in zip(
        logprobs.tokens, logprobs.token_logprobs or [], logprobs.top_logprobs, strict=True
    ):
        assert likeliest[token] == logprob
        assert 2 <= len(likeliest) <= 3
    parts = [chunk.choices[0].logprobs for chunk in client.completions.create(**asked, stream=True)]
    assert [token for part in parts if part for token in part.tokens or []] == logprobs.tokens
    assert [offset for part in parts if part for offset in part.text_offset or []] == logprobs.text_offset
    none = client.completions.create(**asked | {"logprobs": 0}).choices[0].logprobs
    assert none is not None
    assert none.top_logprobs == [
        {token: value} for token, value in zip(none.tokens or [], none.token_logprobs or [], strict=True)
    ]


def test_stream_with_usage(stack: Stack) -> None:
    answer = post(stack, stream=True, stream_options={"include_usage": True})
    *chunks, last, done = events(answer.text)
    assert done == "[DONE]"
    assert all(chunk["usage"] is None for chunk in chunks)
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 5)
    assert {chunk["service_tier"] for chunk in chunks} == {"priority"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["x", ""]}, "prompt"),
        ({"prompt": [49152]}, "prompt"),
        ({"prompt": [[1], [49152]]}, "prompt"),
        ({"prompt": "x" * 400_000}, "prompt"),
        ({"prompt": [5] * 8192, "max_tokens": None}, "prompt"),
        ({"prompt": [5] * 8000, "max_tokens": 1000}, "max_tokens"),
        ({"suffix": "x"}, "suffix"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_refused_by_name_and_nothing_is_held(stack: Stack, fields: dict[str, Any], param: str) -> None:
    before = stack.holds()
    answer = post(stack, **fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert stack.holds() == before


def test_the_same_path_as_chat(stack: Stack) -> None:
    answer = post(stack, model="acme-style", service_tier="flex", n=2)
    assert answer.json()["model"] == "acme-style"
    line = stack.request_line(answer.headers["x-request-id"])
    assert (line["route"], line["adapter"], line["tier"]) == ("/v1/completions", stack.adapters["acme-style"], "batch")
    assert (line["texts"], line["completion_tokens"], line["ending"]) == (2, 10, "length")
    assert post(stack, model="globex-style").json()["error"]["code"] == "model_not_found"
    other = httpx.post(f"{stack.url}/t/globex/v1/completions", headers=stack.headers("acme"), json={})
    assert other.status_code == 404
