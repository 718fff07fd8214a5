"""Several texts of one request: made from shared pages, held and settled once, ended together. On both kinds of engine;
`ids_only` and `make_stack` mark the tests that count ids or pages, or kill an engine's process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import sqlalchemy as sa

from billing import tables
from engine.text.tokenizer import Tokenizer
from gateway.generation.text_runs import TAKEN_TOGETHER
from support.gateway.both_engines import FAILING_ID, ids_only, running_stack
from support.gateway.slow_readers import send
from support.stack import MODEL, Stack, body, events
from support.waiting import eventually, promptly

PAGE_TOKENS = 16
LONG = [{"role": "user", "content": "Tell me of the harbour and of the ships in it. " * 20}]


@pytest.fixture(scope="module", params=["ids", "text"])
def slow(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    """20 ms a token."""
    with running_stack(request.param, tmp_path_factory.mktemp("slow"), model_dir) as stack:
        yield stack


@pytest.fixture(autouse=True)
def books_are_equal(slow: Stack) -> Iterator[None]:
    """What the engine made since the test began is what its rows say, billed and discarded."""

    def made_by_the_engine() -> int:
        text = slow.metrics()
        return sum(int(float(found)) for found in re.findall(r"^vllm:generation_tokens_total\S* (\S+)$", text, re.M))

    def settled() -> int:
        columns = tables.usage.c
        query = sa.select(sa.func.coalesce(sa.func.sum(columns.completion_tokens + columns.discarded_tokens), 0))
        return slow.read(lambda connection: int(connection.execute(query).scalar_one()))

    engine, books = made_by_the_engine(), settled()
    yield
    eventually(lambda: slow.open_holds() == 0)
    assert made_by_the_engine() - engine == settled() - books


def texts_of(chunks: list[dict[str, Any]]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["delta"].get("content", "")
    return texts


def used(stack: Stack, answer: httpx.Response) -> sa.Row[Any]:
    row = stack.usage(answer.headers["x-request-id"])
    assert row is not None
    assert row.made_tokens == row.completion_tokens + row.discarded_tokens
    return row


@contextlib.asynccontextmanager
async def streaming(stack: Stack, **fields: Any) -> AsyncIterator[tuple[httpx.Response, AsyncIterator[str]]]:
    async with httpx.AsyncClient(headers=stack.headers(), timeout=30) as client:
        asked = body(stream=True, **fields)
        async with client.stream("POST", f"{stack.url}/v1/chat/completions", json=asked) as answer:
            yield answer, answer.aiter_lines()


@ids_only  # counts pages of the prefix cache
def test_eight_texts_one_prompt_one_hold(slow: Stack) -> None:
    answer = slow.chat(n=8, messages=LONG, max_tokens=5, seed=1)
    completion = answer.json()
    assert [choice["index"] for choice in completion["choices"]] == list(range(8))
    assert len({choice["message"]["content"] for choice in completion["choices"]}) == 8
    usage = completion["usage"]
    assert usage["completion_tokens"] == 40
    row = used(slow, answer)
    assert (row.prompt_tokens, row.completion_tokens) == (usage["prompt_tokens"], 40)
    hold = slow.hold(answer.headers["x-request-id"])
    assert (hold.prompt_tokens, hold.max_tokens, hold.state) == (usage["prompt_tokens"], 40, "settled")
    line = slow.request_line(answer.headers["x-request-id"])
    pages = usage["prompt_tokens"] // PAGE_TOKENS
    assert pages > 10
    assert line["shared_tokens"] == 7 * pages * PAGE_TOKENS
    assert line["texts"] == 8


def test_a_text_is_the_same_whatever_is_made_beside_it(slow: Stack) -> None:
    alone = slow.chat(max_tokens=6, seed=4).json()["choices"][0]["message"]["content"]
    three = slow.chat(max_tokens=6, seed=4, n=3).json()["choices"]
    five = slow.chat(max_tokens=6, seed=4, n=5).json()["choices"]
    assert three[0]["message"]["content"] == alone
    assert [choice["message"] for choice in five[:3]] == [choice["message"] for choice in three]
    greedy = slow.chat(max_tokens=6, n=2, temperature=0).json()["choices"]
    assert greedy[0]["message"] == greedy[1]["message"]


def test_a_stream_of_several_texts(slow: Stack) -> None:
    asked: dict[str, Any] = {"n": 3, "max_tokens": 6, "seed": 2}
    whole = [choice["message"]["content"] for choice in slow.chat(**asked).json()["choices"]]
    answer = slow.chat(**asked, stream=True, stream_options={"include_usage": True})
    *chunks, last, done = events(answer.text)
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 18
    assert texts_of(chunks) == dict(enumerate(whole))
    for index in range(3):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["length"]


def test_a_whole_answer_is_the_streamed_one(slow: Stack) -> None:
    """Its tokens are turned into text some at a time."""
    asked: dict[str, Any] = {"max_tokens": TAKEN_TOGETHER + 10, "seed": 3}
    whole = slow.chat(**asked)
    *chunks, done = events(slow.chat(**asked, stream=True).text)
    assert done == "[DONE]"
    assert whole.json()["choices"][0]["message"]["content"] == texts_of(chunks)[0]
    assert whole.json()["usage"]["completion_tokens"] == TAKEN_TOGETHER + 10
    row = used(slow, whole)
    assert row.pause_s < row.itl_s * TAKEN_TOGETHER / 2  # the time of each arrival is noted


async def test_the_official_client(slow: Stack) -> None:
    async with openai.AsyncOpenAI(base_url=f"{slow.url}/v1", api_key=slow.keys["globex"]) as client:
        asked: dict[str, Any] = {"model": MODEL, "messages": LONG, "max_tokens": 4, "n": 4, "seed": 9}
        whole = await client.chat.completions.create(**asked)
        texts = [""] * 4
        async for chunk in await client.chat.completions.create(**asked, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]


def test_each_text_has_its_own_stop(slow: Stack) -> None:
    free = [c["message"]["content"] for c in slow.chat(n=3, max_tokens=20, seed=6).json()["choices"]]
    stop = free[1].split()[3]
    assert stop not in free[0]
    assert stop not in free[2]
    answer = slow.chat(n=3, max_tokens=20, seed=6, stop=stop)
    choices = answer.json()["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["length", "stop", "length"]
    assert [c["message"]["content"] for c in choices] == [free[0], free[1][: free[1].index(stop)], free[2]]
    row = used(slow, answer)
    assert row.ending == "length"
    assert row.completion_tokens == answer.json()["usage"]["completion_tokens"] < 60
    assert row.discard_reason in (None, "stop")


async def test_a_caller_who_leaves_ends_all_of_them(slow: Stack) -> None:
    async with streaming(slow, n=4, max_tokens=500) as (answer, lines):
        async for line in lines:
            if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["index"] == 3:
                break
    await asyncio.to_thread(eventually, lambda: slow.open_holds() == 0)
    row = used(slow, answer)
    assert row.ending == "client_left"
    assert 4 <= row.completion_tokens < 200
    assert row.prompt_tokens > 0


def test_a_caller_who_leaves_before_the_others_begin(slow: Stack) -> None:
    def leave() -> float:
        before, holds = len(slow.log_lines("request")), slow.holds()
        with send(slow, "acme", {"n": 8, "messages": LONG, "max_tokens": 500}):
            eventually(lambda: slow.holds() == holds + 1)
        eventually(lambda: len(slow.log_lines("request")) > before)
        line = slow.log_lines("request")[before]
        assert line["ending"] == "client_left"
        return float(line.get("completion_tokens", 0))

    promptly(leave, 8 * 10)


@ids_only  # counts the ids of the texts
def test_a_clamp_is_shared_out(slow: Stack) -> None:
    prompt = slow.chat(max_tokens=1).json()["usage"]["prompt_tokens"]
    made = slow.new_key("acme")
    slow.budget(made.key, "tokens", prompt + 11)
    slow.keys["clamped"] = made.secret
    slow.known()
    answer = slow.chat("clamped", n=4, max_tokens=50)
    choices = answer.json()["choices"]
    lengths = [len(Tokenizer.load(slow.model_dir).encode(choice["message"]["content"])) for choice in choices]
    assert lengths == [3, 3, 3, 2]
    assert {choice["finish_reason"] for choice in choices} == {"length"}
    assert slow.hold(answer.headers["x-request-id"]).max_tokens == 11
    assert used(slow, answer).completion_tokens == 11
    spent = slow.chat("clamped", n=1)
    assert (spent.status_code, spent.json()["error"]["code"]) == (429, "key_budget_exceeded")


def test_less_than_a_token_each_is_refused(slow: Stack) -> None:
    prompt = slow.chat(max_tokens=1).json()["usage"]["prompt_tokens"]
    made = slow.new_key("acme")
    slow.budget(made.key, "tokens", prompt + 3)
    slow.keys["poor"] = made.secret
    slow.known()
    answer = slow.chat("poor", n=4)
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "key_budget_exceeded")
    assert f"needed at least {prompt + 4} tokens" in answer.json()["error"]["message"]
    assert slow.chat("poor", n=3, min_tokens=8).status_code == 200  # granted one each: min_tokens gives way


def test_one_that_fails_fails_all(slow: Stack) -> None:
    """One prompt of three has a word at which the engine fails."""
    word = Tokenizer.load(slow.model_dir).decode([FAILING_ID])
    asked = {"model": MODEL, "prompt": ["Once upon", "x" + word, "Then"], "max_tokens": 200, "n": 2}
    url = f"{slow.url}/v1/completions"
    answer = httpx.post(url, headers=slow.headers(), json=asked, timeout=30)
    assert answer.status_code == 500
    eventually(lambda: slow.open_holds() == 0)
    row = slow.usage(answer.headers["x-request-id"])
    if row is not None:  # the others had made tokens by then: nobody got them, nobody pays
        assert (row.completion_tokens, row.cost_picos, row.discard_reason) == (0, 0, "engine_failed")
    assert slow.request_line(answer.headers["x-request-id"])["ending"] == "engine_failed"
    assert slow.chat(n=2).status_code == 200


def test_limits_count_the_request_once_and_every_token(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack(toml="[limits]\nconcurrency = 1\ntokens_per_minute = 1000\n")
    refused = stack.chat(n=8, max_tokens=200)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    answer = stack.chat(n=8, max_tokens=20)
    assert answer.status_code == 200
    assert int(answer.headers["x-ratelimit-remaining-tokens"]) >= 1000 - 300


def test_an_engine_killed_under_several_texts(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack(fake={"step_ms": 20.0})
    asked = body(n=4, max_tokens=500, stream=True)
    with httpx.stream("POST", f"{stack.url}/v1/chat/completions", headers=stack.headers(), json=asked) as answer:
        lines = answer.iter_lines()
        chunks = (json.loads(line[6:]) for line in lines if line.startswith("data: {"))
        for chunk in chunks:
            if chunk["choices"][0]["index"] == 3:
                break
        stack.kill_engine()
        rest = list(itertools.chain(chunks))
    assert rest[-1]["error"]["code"] == "engine_unavailable"
    row = used(stack, answer)
    assert row.ending == "engine_lost"
    assert row.completion_tokens >= 4
    assert stack.open_holds() == 0


def test_a_queue_that_is_full_for_the_others(make_stack: Callable[..., Stack]) -> None:
    """The first text runs, and the tier has no place for the other seven: the whole is refused, and nothing is paid."""
    tiers = [
        {"name": name, "service_tier": service_tier, "queue_max": 2}
        for name, service_tier in (("premium", "priority"), ("standard", "default"), ("batch", "flex"))
    ]
    stack = make_stack(fake={"step_ms": 5.0}, engine_json={"tiers": tiers, "sequences_max": 1})
    answer = stack.chat("initech", n=8, max_tokens=400)
    assert answer.status_code == 503, answer.text
    assert answer.json()["error"]["code"] == "server_is_overloaded"
    eventually(lambda: stack.open_holds() == 0)
    row = stack.usage(answer.headers["x-request-id"])
    assert row is not None
    assert (row.completion_tokens, row.cost_picos, row.ending) == (0, 0, "engine_refused_queue_full")
    assert row.discarded_tokens > 0
