"""Log probabilities of large answers: bounded before the hold, kept in arrays, encoded in parts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from engine.text.tokenizer import Tokenizer
from gateway.generation import logprobs
from gateway.generation.logprobs import PART_TOKENS, chat_tokens, filled, legacy_logprobs, piecewise
from gateway.generation.text import DrawnIds
from support.stack import MODEL, Stack, body, events

ALTERNATIVES = 21


def post(stack: Stack, route: str, **fields: Any) -> httpx.Response:
    return httpx.post(f"{stack.url}/v1/{route}", headers=stack.headers(), json=fields, timeout=60)


@pytest.fixture
def tokenizer(model_dir: Any) -> Tokenizer:
    return Tokenizer.load(model_dir)


def drawn(tokens: int) -> DrawnIds:
    made = DrawnIds()
    for at in range(tokens):
        made.add_id(3 * at, [(200 + (at * 7 + k) % 40_000, -0.25 * k) for k in range(ALTERNATIVES)])
    return made


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        ("chat/completions", {"logprobs": True, "top_logprobs": 20, "n": 8, "max_tokens": 781}, "top_logprobs"),
        ("chat/completions", {"logprobs": True, "top_logprobs": 20, "n": 8, "max_tokens": 7900}, "top_logprobs"),
        ("completions", {"logprobs": 20, "n": 8, "max_tokens": 781}, "logprobs"),
        ("completions", {"logprobs": 20, "n": 1, "max_tokens": 6242}, "logprobs"),
    ],
)
def test_too_many_are_refused_before_anything_is_held(
    stack: Stack, route: str, fields: dict[str, Any], param: str
) -> None:
    holds = stack.holds()
    asked = {"prompt": "Once"} if route == "completions" else {"messages": body()["messages"]}
    refused = post(stack, route, model=MODEL, **asked, **fields)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, param)
    assert "the limit is 131072" in error["message"]
    assert stack.holds() == holds


def test_as_many_as_may_and_a_default_is_cut_to_fit(stack: Stack) -> None:
    fits = {"logprobs": True, "top_logprobs": 20, "n": 2}
    assert post(stack, "chat/completions", **body(max_tokens=20, **fits)).status_code == 200
    asked = {**body(**fits), "n": 8}
    del asked["max_tokens"]
    with httpx.stream(
        "POST", f"{stack.url}/v1/chat/completions", headers=stack.headers(), json={**asked, "stream": True}, timeout=60
    ) as answer:
        assert answer.status_code == 200
        assert int(answer.headers["x-laneway-max-tokens-granted"]) == 8 * 780


@pytest.mark.parametrize("route", ["chat/completions", "completions"])
def test_a_large_answer_is_whole(stack: Stack, route: str) -> None:
    chat = route == "chat/completions"
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 200, "n": 2, "seed": 5, "ignore_eos": True}
    asked |= {"messages": body()["messages"], "logprobs": True, "top_logprobs": 20} if chat else {}
    asked |= {} if chat else {"prompt": "Once", "logprobs": 20}

    def tokens(choice: dict[str, Any]) -> list[Any]:
        found = choice["logprobs"] or {}
        return (found.get("content") if chat else list(zip(*found.values(), strict=True))) or []

    whole = post(stack, route, **asked)
    assert whole.status_code == 200, whole.text
    choices = whole.json()["choices"]
    assert [len(tokens(choice)) for choice in choices] == [200, 200]
    kept = httpx.post(
        f"{stack.url}/v1/{route}", headers=stack.headers() | {"Idempotency-Key": route}, json=asked, timeout=60
    )
    assert [tokens(choice) for choice in kept.json()["choices"]] == [tokens(choice) for choice in choices]
    streamed = [event for event in events(post(stack, route, **asked, stream=True).text) if isinstance(event, dict)]
    for index in (0, 1):
        ours = [one for event in streamed for one in event["choices"] if one["index"] == index]
        assert [token for one in ours if one["logprobs"] for token in tokens(one)] == tokens(choices[index])


def test_parts_are_small_and_together_the_whole(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    token = DrawnIds.token

    def counting(self: DrawnIds, at: int) -> Any:
        taken.append(at)
        return token(self, at)

    monkeypatch.setattr(DrawnIds, "token", counting)
    many = drawn(1000)
    for parts in (chat_tokens(tokenizer, many), legacy_logprobs(tokenizer, many)):
        said = b""
        for part in parts:
            assert len(taken) <= PART_TOKENS, "no turn encodes more"
            taken.clear()
            said += part
        text = said.decode()
        decoded = json.loads(text if text.startswith('{"text_offset"') else f"[{text}]")
        if isinstance(decoded, dict):
            assert {len(one) for one in decoded.values()} == {1000}
            assert decoded["text_offset"][:3] == [0, 3, 6]
        else:
            assert [len(one["top_logprobs"]) for one in decoded] == [ALTERNATIVES - 1] * 1000
            id_, value = token(many, 999)[1][5]
            data = tokenizer.token_bytes(id_)
            assert decoded[999]["top_logprobs"][4] == {
                "token": data.decode(errors="replace"),
                "logprob": value,
                "bytes": list(data),
            }


def test_what_waits_is_numbers_and_not_objects() -> None:
    many = drawn(6000)
    more = DrawnIds()
    more.extend(drawn(10))
    more.extend(many)
    assert more.token(10) == many.token(0)
    assert more.token(6009) == many.token(5999)
    held = sum(len(getattr(more, name)) * getattr(more, name).itemsize for name in DrawnIds.__slots__)
    assert held <= 13 * ALTERNATIVES * 6010


async def test_one_part_of_all_answers_is_encoded_in_a_turn_of_the_loop() -> None:
    made: list[int] = []

    def parts() -> Iterator[bytes]:
        for number in range(20):
            made.append(number)
            yield b"x"

    async def one() -> None:
        async for _ in piecewise(parts()):
            pass

    answers = [asyncio.create_task(one()) for _ in range(50)]
    most = 0
    while not all(answer.done() for answer in answers):
        before = len(made)
        await asyncio.sleep(0)
        most = max(most, len(made) - before)
    assert len(made) == 1000
    assert most <= 1


def test_a_text_cannot_pass_for_a_mark() -> None:
    text = logprobs._encode({"text": 'he said "content":[] and', "logprobs": {"content": []}})
    said = b"".join(filled(text, b'"content":[]', [iter([b'"content":[', b"1", b"]"])]))
    assert json.loads(said) == {"text": 'he said "content":[] and', "logprobs": {"content": [1]}}
