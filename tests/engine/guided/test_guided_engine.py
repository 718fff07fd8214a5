"""Guided requests on an engine's socket: their ids follow their grammar, and each has exactly one ending."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from engine.protocol.frames import Abort, Finished, Guide, Refused, Sampling, Status, StatusReport
from engine.text.grammars import choice_grammar, json_schema_grammar, lark_grammar, regex_grammar
from engine.text.tokenizer import Tokenizer
from support.engine.process import EngineProcess, Peer
from support.paths import REPO
from support.waiting import PATIENCE_S

Start = Callable[..., EngineProcess]
Connect = Callable[[EngineProcess], Awaitable[Peer]]
TINY = REPO / "examples" / "models" / "laneway-tiny"
TOKENIZER = Tokenizer.load(TINY)
STOP_IDS = sorted(TOKENIZER.eos_ids)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
# Half a second to compile.
SLOW = json_schema_grammar({"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(1500)}})
AHEAD = pytest.mark.parametrize("steps_ahead", [0, 1])


def tiny(start_engine: Start, **fake: Any) -> EngineProcess:
    return start_engine({"steps_ahead": 1, **fake}, models=[{"name": "laneway-tiny", "path": str(TINY)}])


def guided(peer: Peer, handle: int, grammar: str | None, **changes: Any) -> Any:
    fields = {"stop_ids": STOP_IDS, "max_tokens": 60, "guide": Guide(grammar), **changes}
    return peer.submit(handle, **fields)


def text_of(ids: list[int]) -> str:
    return TOKENIZER.decode([id_ for id_ in ids if id_ not in STOP_IDS])


@AHEAD
async def test_ids_follow_the_grammar(start_engine: Start, connect: Connect, steps_ahead: int) -> None:
    peer = await connect(tiny(start_engine, steps_ahead=steps_ahead))
    grammars = [
        json_schema_grammar(SCHEMA), regex_grammar("[a-d]{3,5}"), choice_grammar(["red", "blue"]),
        lark_grammar('start: "x" /[0-9]{2}/'),
    ]  # fmt: skip
    for handle, grammar in enumerate(grammars):
        peer.send(guided(peer, handle, grammar, sampling=Sampling(seed=handle)))
    peer.send(guided(peer, 9, None, guide=None, stop_ids=[]))
    ended = await peer.until_ended(0, 1, 2, 3, 9)
    assert [ended[handle][1].reason for handle in range(4)] == ["stop"] * 4
    assert set(json.loads(text_of(ended[0][0]))) == {"city", "days"}
    assert set(text_of(ended[1][0])) <= set("abcd")
    assert text_of(ended[2][0]) in {"red", "blue"}
    assert text_of(ended[3][0])[1:].isdigit()
    assert len(ended[9][0]) == 60


@AHEAD
async def test_several_texts_of_one_grammar(start_engine: Start, connect: Connect, steps_ahead: int) -> None:
    peer = await connect(tiny(start_engine, steps_ahead=steps_ahead))
    grammar = json_schema_grammar(SCHEMA)
    peer.send(*(guided(peer, n, grammar, sampling=Sampling(seed=7, choice=n)) for n in range(4)))
    ended = await peer.until_ended(*range(4))
    texts = [text_of(ids) for ids, _ in ended.values()]
    assert len(set(texts)) > 1
    assert all(set(json.loads(text)) == {"city", "days"} for text in texts)
    peer.send(Status())
    report = await peer.expect(StatusReport)
    metrics = report.metrics.decode()
    assert "laneway_guided_requests_total 4.0" in metrics
    assert "laneway_grammar_compilations_total 1.0" in metrics


async def test_preempted_texts_continue_their_grammar(start_engine: Start, connect: Connect) -> None:
    engine = start_engine(
        {"steps_ahead": 1, "pages": 12, "tokens_per_page": 16}, models=[{"name": "m", "path": str(TINY)}],
        sequences_max=8,
    )  # fmt: skip
    peer = await connect(engine)
    grammar = regex_grammar("[a-z]{70}")
    for n in range(6):
        peer.send(guided(peer, n, grammar, sampling=Sampling(seed=n), max_tokens=90, share=f"s{n}"))
    ended = await peer.until_ended(*range(6))
    for ids, ending in ended.values():
        assert ending.reason == "stop"
        assert len(text_of(ids)) == 70
    assert sum(ending.usage.preemptions for _, ending in ended.values()) > 0


async def test_unguided_texts_are_the_same_beside_guided_ones(start_engine: Start, connect: Connect) -> None:
    peer = await connect(tiny(start_engine))
    plain: dict[str, Any] = {"guide": None, "stop_ids": [], "sampling": Sampling(seed=3)}
    peer.send(guided(peer, 1, None, **plain))
    alone = (await peer.until_ended(1))[1][0]
    peer.send(guided(peer, 2, None, **plain), *(guided(peer, n, regex_grammar("[a-z]{50}")) for n in (3, 4)))
    assert (await peer.until_ended(2, 3, 4))[2][0] == alone


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        ("start: missing", "missing"),
        (json.dumps({"grammars": [{"json_schema": {"type": "array", "contains": {}}}]}), "contains"),
        (json.dumps({"grammars": [{"json_schema": {"$ref": "#"}}]}), "no text"),
        ("", "characters"),
    ],
)
async def test_a_refused_grammar_ends_its_request_alone(
    start_engine: Start, connect: Connect, grammar: str, why: str
) -> None:
    peer = await connect(tiny(start_engine))
    peer.send(guided(peer, 1, grammar), guided(peer, 2, None, guide=None, max_tokens=3, stop_ids=[]))
    ended = await peer.until_ended(1, 2)
    refused = ended[1][1]
    assert isinstance(refused, Refused)
    assert refused.code == "bad_request"
    assert why in refused.message
    assert isinstance(ended[2][1], Finished)


async def test_ids_of_markers_are_checked(start_engine: Start, connect: Connect) -> None:
    peer = await connect(tiny(start_engine))
    for handle, guide in enumerate((
        Guide(reasoning_end_ids=[2048]), Guide(reasoning_start_ids=[-1], reasoning_end_ids=[5]),
        Guide(reasoning_open=True), Guide(reasoning_max=3), Guide(reasoning_end_ids=[5], reasoning_max=-1),
        Guide(reasoning_end_ids=[5] * 33),
    )):  # fmt: skip
        peer.send(guided(peer, handle, None, guide=guide))
        assert (await peer.until_ended(handle))[handle][1].code == "bad_request"


async def test_a_model_without_a_tokenizer_serves_no_grammar(start_engine: Start, connect: Connect) -> None:
    peer = await connect(start_engine())
    peer.send(guided(peer, 1, regex_grammar("a")))
    ending = (await peer.until_ended(1))[1][1]
    assert (ending.code, "tokenizer" in ending.message) == ("bad_request", True)


@AHEAD
async def test_the_budget_of_reasoning_is_enforced(start_engine: Start, connect: Connect, steps_ahead: int) -> None:
    peer = await connect(tiny(start_engine, steps_ahead=steps_ahead))
    end = [2043, 2044]
    guide = Guide(choice_grammar(["yes"]), reasoning_end_ids=end, reasoning_open=True, reasoning_max=5)
    peer.send(guided(peer, 1, None, guide=guide))
    ids, ending = (await peer.until_ended(1))[1]
    assert ending.reason == "stop"
    assert ids[5:7] == end
    assert text_of(ids[7:]) == "yes"
    assert not set(ids[:5]) & set(end)
    # Without a grammar, the budget alone.
    guide = Guide(reasoning_end_ids=end, reasoning_open=True, reasoning_max=2)
    peer.send(guided(peer, 2, None, guide=guide, stop_ids=[], max_tokens=9))
    ids, ending = (await peer.until_ended(2))[2]
    assert (ids[2:4], ending.reason, len(ids)) == (end, "length", 9)


# ---- endings while the grammar is compiled


async def test_an_aborted_request_that_waits_for_its_grammar(start_engine: Start, connect: Connect) -> None:
    peer = await connect(tiny(start_engine))
    peer.send(guided(peer, 1, SLOW), Abort(1), Abort(1))
    ended = await peer.until_ended(1)
    assert ended[1][1].reason == "aborted"
    assert ended[1][1].usage.completion_tokens == 0
    # The handle's ending was the only one, and the grammar is there for the next request.
    peer.send(guided(peer, 2, SLOW, max_tokens=5))
    assert (await peer.until_ended(2))[2][1].reason in ("length", "stop")


async def test_others_run_while_a_grammar_is_compiled(start_engine: Start, connect: Connect) -> None:
    peer = await connect(tiny(start_engine))
    peer.send(guided(peer, 1, SLOW, max_tokens=2), guided(peer, 2, None, guide=None, max_tokens=5, stop_ids=[]))
    first = await peer.expect(Finished)
    assert first.handle == 2
    assert (await peer.until_ended(1))[1][1].reason == "length"


async def test_a_gateway_that_leaves_while_its_grammar_is_compiled(start_engine: Start, connect: Connect) -> None:
    engine = tiny(start_engine)
    leaving, staying = await connect(engine), await connect(engine)
    leaving.send(guided(leaving, 1, SLOW))
    await leaving.drain()
    await asyncio.sleep(0.1)
    await leaving.close()
    staying.send(guided(staying, 1, regex_grammar("[a-z]{4}")))
    assert (await staying.until_ended(1))[1][1].reason == "stop"
    staying.send(Status())
    report = await staying.expect(StatusReport)
    assert (report.running, sum(report.waiting.values()), report.tokens_lost) == (0, 0, 0)


async def test_a_stop_while_grammars_are_compiled(start_engine: Start, connect: Connect) -> None:
    engine = tiny(start_engine)
    peer = await connect(engine)
    peer.send(*(guided(peer, n, SLOW + " " * n) for n in range(5)))
    await peer.drain()
    await asyncio.sleep(0.2)
    engine.process.send_signal(signal.SIGTERM)
    ended = await peer.until_ended(*range(5))
    assert all(ending.reason == "error" for _, ending in ended.values())
    assert await peer.closed()
    assert engine.process.wait(PATIENCE_S) == 0


async def test_a_full_queue_of_grammars_refuses_with_a_retry(start_engine: Start, connect: Connect) -> None:
    peer = await connect(tiny(start_engine))
    peer.send(*(guided(peer, n, SLOW + " " * n, max_tokens=1) for n in range(80)))
    endings: list[Refused] = []
    while not endings:
        frame = await peer.next()
        if isinstance(frame, Refused):
            endings.append(frame)
    assert endings[0].code == "queue_full"
    assert endings[0].retry_after_s
