"""What only an engine that answers with text can show: its own token counts, logprobs without ids, its own endings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from billing import tables
from gateway.engines.engine import OutputText
from gateway.generation.text import TextOfTexts
from support.gateway.both_engines import running_stack
from support.gateway.text_engine import EPOCH, SECOND_EPOCH
from support.stack import Stack, body, events
from support.waiting import PATIENCE_S, eventually


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    with running_stack("text", tmp_path_factory.mktemp("text"), model_dir) as stack:
        yield stack


def saying(word: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Please {word} now."}]


def test_a_refusal_voids_the_hold(stack: Stack) -> None:
    answer = stack.chat(messages=saying("refuse-me"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "server_is_overloaded")
    hold = stack.hold(answer.headers["x-request-id"])
    assert (hold.state, hold.ending, hold.settled_picos) == ("voided", "engine_refused_queue_full", 0)


def test_the_engines_own_stop(stack: Stack) -> None:
    answer = stack.chat(messages=saying("stop-me"), max_tokens=50)
    [choice] = answer.json()["choices"]
    assert (choice["finish_reason"], len(choice["message"]["content"].split())) == ("stop", 3)
    row = stack.usage(answer.headers["x-request-id"])
    assert row is not None
    assert row.engine_epoch == EPOCH
    assert 3 <= row.completion_tokens == row.made_tokens == answer.json()["usage"]["completion_tokens"] <= 6


def test_tokens_of_a_text_that_moved_are_counted_for_each_engine(stack: Stack) -> None:
    """Of two texts: the first engine made three words of each."""
    moved = stack.chat(messages=saying("move-me"), max_tokens=20, n=2)
    stayed = stack.chat(messages=saying("wait"), max_tokens=20)
    attempts = tables.usage_attempts.c

    def others(request_id: str) -> list[tuple[str, int]]:
        query = sa.select(attempts.epoch, attempts.made_tokens).where(attempts.request_id == request_id)
        return [tuple(row) for row in stack.read(lambda c: c.execute(query).all())]

    row = stack.usage(moved.headers["x-request-id"])
    assert row is not None
    assert (row.engine_epoch, row.made_tokens) == (SECOND_EPOCH, 40)
    [(epoch, made)] = others(row.request_id)
    assert epoch == EPOCH
    assert 6 <= made <= 12
    assert others(stayed.headers["x-request-id"]) == []


def test_a_lost_stream_bills_what_was_delivered(stack: Stack) -> None:
    answer = stack.chat(messages=saying("lose-me"), max_tokens=50, stream=True)
    *chunks, last = [event for event in events(answer.text) if event != ":"]
    assert last["error"]["code"] == "engine_unavailable"
    assert len("".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks).split()) == 3
    row = stack.usage(answer.headers["x-request-id"])
    assert row is not None
    assert (row.ending, row.discarded_tokens) == ("engine_lost", 0)
    assert row.completion_tokens >= 3


def test_logprobs_name_the_tokens_of_the_engine(stack: Stack) -> None:
    asked: dict[str, Any] = {"max_tokens": 9, "seed": 1, "logprobs": True, "top_logprobs": 2}
    [choice] = stack.chat(**asked).json()["choices"]
    content = choice["logprobs"]["content"]
    assert len(content) == 9
    assert "".join(token["token"] for token in content) == choice["message"]["content"]
    assert [one["token"] for one in content[0]["top_logprobs"]] == ["0", "1"]
    assert bytes(content[0]["bytes"]).decode() == content[0]["token"]
    *chunks, _ = events(stack.chat(**asked, stream=True).text)
    parts = [chunk["choices"][0].get("logprobs") for chunk in chunks if chunk != ":"]
    assert [token for part in parts if part for token in part["content"]] == content


def test_legacy_logprobs_have_offsets(stack: Stack) -> None:
    asked = {"model": body()["model"], "prompt": "Once", "max_tokens": 9, "logprobs": 1, "seed": 1}
    answer = httpx.post(f"{stack.url}/v1/completions", headers=stack.headers(), json=asked, timeout=30)
    [choice] = answer.json()["choices"]
    found = choice["logprobs"]
    assert [
        choice["text"][at : at + len(token)] for at, token in zip(found["text_offset"], found["tokens"], strict=True)
    ] == found["tokens"]


def test_prompts_of_ids_and_messages_reach_it_as_text(stack: Stack) -> None:
    """Another prompt, other words: a prompt of ids is decoded."""
    url = f"{stack.url}/v1/completions"
    texts = []
    for prompt in ("Once upon a time", [28470, 300, 301], [300, 301]):
        asked = {"model": body()["model"], "prompt": prompt, "max_tokens": 4, "temperature": 0}
        answer = httpx.post(url, headers=stack.headers(), json=asked, timeout=30)
        texts.append(json.loads(answer.text).get("choices", [{}])[0].get("text"))
    assert texts[0]
    assert texts[1] is None, "it fails at this word"
    assert texts[2] not in (None, texts[0])


def test_a_gateway_that_stops_settles_its_streams(tmp_path: Path, model_dir: Path) -> None:
    with running_stack("text", tmp_path, model_dir) as own:
        assert own.gateway is not None
        asked = body(stream=True, max_tokens=1000)
        with httpx.stream("POST", f"{own.url}/v1/chat/completions", headers=own.headers(), json=asked) as answer:
            lines = answer.iter_lines()
            next(line for line in lines if line.startswith("data"))
            own.gateway.terminate()
            rest = [line for line in lines if line.startswith("data")]
        assert own.gateway.wait(PATIENCE_S) == 0
        assert json.loads(rest[-1][6:])["error"]["code"] == "engine_unavailable"
        eventually(lambda: own.open_holds() == 0)
        row = own.usage(answer.headers["x-request-id"])
        assert row is not None
        assert row.ending == "shutdown"


def test_a_stop_inside_a_piece_counts_the_whole_piece() -> None:
    text = TextOfTexts(["lo wo"])
    assert text.push_output([OutputText("hel", 1), OutputText("lo world", 3), OutputText("!", 1)]) == "hel"
    assert (text.tokens, text.matched, text.flush_text()) == (4, "lo wo", "")


def test_no_stop_is_looked_for_before_min_tokens() -> None:
    text = TextOfTexts(["b"], min_tokens=2)
    assert text.push_output([OutputText("a b", 2), OutputText(" a", 1), OutputText(" b", 1)]) == "a b a "
    assert (text.tokens, text.matched) == (4, "b")
