"""Log probabilities of prompts through the whole path: their shapes, their bounds, and what is billed. The fake engine
reports each token as the likeliest, with probability 1/2, and each further id as half as likely."""

from __future__ import annotations

import math
from typing import Any

import httpx
import openai
import pytest

from engine.text.tokenizer import Tokenizer
from support.stack import MODEL, Stack, events

HALF = pytest.approx(math.log(0.5), abs=1e-6)
TEXT = "Once upon a time in a café"


@pytest.fixture(scope="module")
def tokenizer(stack: Stack) -> Tokenizer:
    return Tokenizer.load(stack.model_dir)


def post(stack: Stack, path: str = "completions", **fields: Any) -> httpx.Response:
    asked = {"model": MODEL, "seed": 1, **({"prompt": TEXT} if path == "completions" else {}), **fields}
    return httpx.post(f"{stack.url}/v1/{path}", headers=stack.headers(), json=asked, timeout=30)


def test_an_echoed_prompt_has_logprobs_in_the_legacy_shape(stack: Stack, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    body = post(stack, echo=True, logprobs=2, max_tokens=3, ignore_eos=True).json()
    [choice] = body["choices"]
    found = choice["logprobs"]
    assert choice["text"].startswith(TEXT)
    assert {len(items) for items in found.values()} == {len(ids) + 3}
    assert found["token_logprobs"][0] is None
    assert found["top_logprobs"][0] is None
    assert found["token_logprobs"][1 : len(ids)] == [HALF] * (len(ids) - 1)
    assert found["tokens"][: len(ids)] == [tokenizer.token_bytes(id_).decode() for id_ in ids]
    for token, offset in zip(found["tokens"], found["text_offset"], strict=True):
        assert choice["text"][offset:].startswith(token)
    for token, value, top in list(zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True))[
        1:
    ]:
        assert top[token] == value
        assert 2 <= len(top) <= 3
    assert body["usage"]["prompt_tokens"] == len(ids)
    assert "prompt_logprobs" not in choice


def test_a_stream_has_them_in_its_first_chunk(stack: Stack, tokenizer: Tokenizer) -> None:
    fields: dict[str, Any] = {"echo": True, "logprobs": 1, "max_tokens": 4, "ignore_eos": True}
    whole = post(stack, **fields).json()["choices"][0]
    chunks = [chunk for chunk in events(post(stack, **fields, stream=True).text) if chunk != "[DONE]"]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    parts = [choice["logprobs"] for choice in choices if choice.get("logprobs")]
    assert len(parts[0]["tokens"]) >= len(tokenizer.encode(TEXT))
    for name, items in whole["logprobs"].items():
        assert [item for part in parts for item in part[name]] == items


def test_a_prompt_alone_is_billed_and_has_no_token(stack: Stack, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    for stream in (False, True):
        answer = post(stack, prompt=[ids, ids[:3]], echo=True, logprobs=1, max_tokens=0, stream=stream)
        assert answer.status_code == 200, answer.text
        if stream:
            chunks = [chunk for chunk in events(answer.text) if chunk != "[DONE]"]
            request_id = "req_" + chunks[0]["id"].removeprefix("cmpl-")
            assert [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]] == [
                "length",
                "length",
            ]
        else:
            body = answer.json()
            request_id = "req_" + body["id"].removeprefix("cmpl-")
            assert [choice["text"] for choice in body["choices"]] == [TEXT, tokenizer.decode(ids[:3])]
            assert [len(choice["logprobs"]["tokens"]) for choice in body["choices"]] == [len(ids), 3]
            assert [choice["finish_reason"] for choice in body["choices"]] == ["length", "length"]
            assert body["usage"]["completion_tokens"] == 0
            assert body["usage"]["prompt_tokens"] == len(ids) + 3
        row = stack.usage(request_id)
        assert row is not None
        assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (len(ids) + 3, 0, 0)
        assert row.cost_picos > 0
        assert row.ending == "length"


def test_a_prompt_alone_without_logprobs_is_its_text(stack: Stack) -> None:
    body = post(stack, echo=True, max_tokens=0).json()
    assert body["choices"][0]["text"] == TEXT
    assert body["choices"][0]["logprobs"] is None
    assert stack.usage("req_" + body["id"].removeprefix("cmpl-")) is not None


def test_every_text_of_a_prompt_has_the_prompts(stack: Stack, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    fields: dict[str, Any] = {"echo": True, "logprobs": 1, "prompt_logprobs": 2, "n": 3, "temperature": 1}
    body = post(stack, **fields, max_tokens=2, ignore_eos=True).json()
    for choice in body["choices"]:
        assert len(choice["logprobs"]["tokens"]) == len(ids) + 2
        assert max(len(top) for top in choice["logprobs"]["top_logprobs"][1:]) <= 2
        assert len(choice["prompt_logprobs"]) == len(ids)
        assert {len(item) for item in choice["prompt_logprobs"][1:]} <= {2, 3}
    assert body["usage"]["prompt_tokens"] == len(ids)


def test_prompt_logprobs_in_vllms_shape(stack: Stack, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    [choice] = post(stack, prompt=ids, prompt_logprobs=1, max_tokens=1).json()["choices"]
    assert choice["logprobs"] is None
    first, *others = choice["prompt_logprobs"]
    assert first is None
    for id_, item in zip(ids[1:], others, strict=True):
        text = tokenizer.token_bytes(id_).decode(errors="replace")
        assert item[str(id_)] == {"logprob": HALF, "rank": 1, "decoded_token": text}
    fields: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    with_both = post(stack, "chat/completions", **fields, prompt_logprobs=0, logprobs=True, top_logprobs=1).json()
    assert len(with_both["prompt_logprobs"]) == with_both["usage"]["prompt_tokens"]
    assert [None if item is None else len(item) for item in with_both["prompt_logprobs"][:3]] == [None, 1, 1]
    assert with_both["choices"][0]["logprobs"]["content"]
    alone = post(stack, "chat/completions", **fields, prompt_logprobs=0).json()
    assert alone["prompt_logprobs"] == with_both["prompt_logprobs"]
    assert alone["choices"][0]["logprobs"] is None
    assert "prompt_logprobs" not in post(stack, "chat/completions", **fields).json()


def test_such_a_request_hits_no_page_and_its_pages_are_hit(stack: Stack, tokenizer: Tokenizer) -> None:
    ids = (tokenizer.encode("Some other words of a long prompt about nothing. ") * 20)[:150]
    fields: dict[str, Any] = {"prompt": ids, "max_tokens": 1}
    scored = [post(stack, **fields, echo=True, logprobs=0).json() for _ in range(2)]
    assert [body["usage"]["prompt_tokens_details"]["cached_tokens"] for body in scored] == [0, 0]
    assert scored[0]["choices"][0]["logprobs"] == scored[1]["choices"][0]["logprobs"]
    plain = post(stack, **fields).json()
    assert plain["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_alternatives_of_prompts_count(stack: Stack) -> None:
    """2^17 of one answer: 7 texts of this prompt have fewer, 8 have more."""
    ids = [300 + place % 1000 for place in range(800)]
    allowed = post(stack, prompt=ids, echo=True, logprobs=20, max_tokens=0, n=7)
    assert allowed.status_code == 200, allowed.text
    refused = post(stack, prompt=ids, echo=True, logprobs=20, max_tokens=0, n=8)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "logprobs"
    listed = post(stack, prompt=ids, prompt_logprobs=20, max_tokens=0, n=8)
    assert listed.json()["error"]["param"] == "prompt_logprobs"
    beside = post(stack, prompt=ids, echo=True, logprobs=20, max_tokens=500, n=7)
    assert beside.status_code == 400
    assert "beside" in beside.json()["error"]["message"]


def test_refused_values_are_named(stack: Stack) -> None:
    for fields, param in (
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 0, "logprobs": 1}, "max_tokens"),
        ({"echo": True, "logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens"),
    ):
        answer = post(stack, **fields)  # type: ignore[arg-type]
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_the_official_client_reads_a_prompt_alone(stack: Stack, tokenizer: Tokenizer) -> None:
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.keys["acme"], max_retries=0) as client:
        answer = client.completions.create(model=MODEL, prompt=TEXT, max_tokens=0, echo=True, logprobs=0)
    assert answer.usage is not None
    assert answer.usage.total_tokens == len(tokenizer.encode(TEXT))
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.token_logprobs[0] is None
