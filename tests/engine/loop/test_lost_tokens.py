"""made = received + lost, exactly, however often streams break: Reclaim, superseded streams. Also drains and stops."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from engine.loop.gateway_streams import GatewayStreams
from engine.loop.metrics import EngineMetrics
from engine.loop.unsettled import LostTokens, UnrecordedAttempt
from engine.protocol.frames import (
    PROTOCOL_VERSION,
    Abort,
    Alive,
    AttemptTokens,
    DrainEngine,
    Finished,
    GatewayHello,
    Guide,
    Reclaim,
    Recorded,
    Refused,
    Sampling,
    Status,
    StatusReport,
    Tokens,
)
from engine.step import Sequence
from engine.text.grammars import json_schema_grammar
from support.engine.process import EngineProcess, Peer
from support.paths import REPO

Start = Callable[..., EngineProcess]
Connect = Callable[[EngineProcess], Awaitable[Peer]]
STEPS_AHEAD = pytest.mark.parametrize("steps_ahead", [0, 1])
TINY = REPO / "examples" / "models" / "laneway-tiny"


def sequence(stream: int, handle: int, made: int, *, resumed: int = 0, **changes: Any) -> Sequence:
    fields: dict[str, Any] = {"sampling": Sampling(choice=handle % 3), "attempt": resumed % 2} | changes
    return Sequence(
        handle, stream, f"req_{handle}", "m", None, "n", "t", "s", [1], 99, fields.pop("sampling"), frozenset(), 0.0,
        output_ids=[7] * (resumed + made), resumed=resumed, **fields,
    )  # fmt: skip


def attempt_of(own: Sequence, tokens: int) -> AttemptTokens:
    return AttemptTokens(own.request_id, own.sampling.choice, own.attempt, tokens)


def test_any_order_of_closed_streams_recorded_and_reclaimed_tokens_adds_up() -> None:
    """The gateway settles what it received, whether or not its Recorded arrives, and reclaims it after each loss."""
    draw = random.Random(3)
    metrics = EngineMetrics(["m"], ["t"])
    streams = GatewayStreams(metrics)
    made = settled = handle = 0
    stream = 1
    for _ in range(400):
        streams.accept_frame(stream, Alive())
        before = streams.name_stream(stream, "gateway")
        assert before == []
        received: list[AttemptTokens] = []
        recorded: list[int] = []
        running: list[Sequence] = []
        for _ in range(draw.randrange(6)):
            handle += 1
            own = sequence(stream, handle, draw.randrange(9), resumed=draw.choice([0, 0, 3]))
            made += own.made_here()
            if draw.random() < 0.4:
                running.append(own)  # until the stream closes
                received.append(attempt_of(own, draw.randint(0, own.made_here())))
            else:
                assert streams.note_ending(own)
                received.append(attempt_of(own, own.made_here()))
                recorded.append(handle)
        arrive = [one for one in recorded if draw.random() < 0.4]
        streams.note_recorded(stream, arrive)
        # All that were received are settled.
        settled += sum(own.tokens for own in received)
        late = [one for one in recorded if one not in arrive and draw.random() < 0.5]
        superseded = draw.random() < 0.5
        if superseded:
            streams.accept_frame(stream + 1, GatewayHello(5, "gateway"))
            assert streams.name_stream(stream + 1, "gateway") == [stream]
        streams.open.discard(stream)
        for own in running:
            assert not streams.note_ending(own)
        (streams.supersede if superseded else streams.forget_stream)(stream)
        if superseded:
            assert not streams.accept_frame(stream, Recorded(late))
            assert not streams.accept_frame(stream, Abort(1))
            assert not streams.accept_frame(stream, Recorded(late))
        assert streams.end_superseded(stream) == superseded
        stream += 1
        streams.accept_frame(stream, GatewayHello(5, "gateway"))
        streams.name_stream(stream, "gateway")
        for _ in range(draw.randint(1, 3)):
            streams.reclaim(stream, received)
        streams.reclaim(stream, [AttemptTokens("unknown", 0, 0, 99), AttemptTokens("req_1", 0, 77, 5)])
        assert metrics.tokens_lost - metrics.tokens_reclaimed == made - settled


def test_tokens_are_reclaimed_by_their_own_gateway_once_and_at_most_those_that_were_lost() -> None:
    lost = LostTokens()
    lost.add_lost("one", UnrecordedAttempt("r", 0, 0), 5)
    lost.add_lost("one", UnrecordedAttempt("r", 0, 1), 7)
    lost.add_lost("two", UnrecordedAttempt("r", 0, 0), 9)
    assert lost.reclaim("three", UnrecordedAttempt("r", 0, 0), 5) == 0
    assert lost.reclaim("one", UnrecordedAttempt("r", 1, 0), 5) == 0
    assert lost.reclaim("one", UnrecordedAttempt("r", 0, 0), 99) == 5
    assert lost.reclaim("one", UnrecordedAttempt("r", 0, 0), 99) == 0
    assert lost.reclaim("one", UnrecordedAttempt("r", 0, 1), -4) == 0
    assert lost.reclaim("one", UnrecordedAttempt("r", 0, 1), 4) == 0, "once, whatever it said"
    assert lost.reclaim("two", UnrecordedAttempt("r", 0, 0)) == 9


def test_what_is_remembered_of_gateways_is_bounded() -> None:
    lost = LostTokens(limit=3, total_limit=5)
    for number in range(5):
        lost.add_lost("one", UnrecordedAttempt("r", number, 0), 1)
    for number in range(3):
        lost.add_lost("two", UnrecordedAttempt("r", number, 0), 1)
    # Of the first gateway its newest three, of which the oldest left for the second gateway's third.
    assert [lost.reclaim("one", UnrecordedAttempt("r", number, 0)) for number in range(5)] == [0, 0, 0, 1, 1]
    assert [lost.reclaim("two", UnrecordedAttempt("r", number, 0)) for number in range(3)] == [1, 1, 1]
    assert lost._count == 0
    assert not lost._gateways


# ---- on an engine's socket


async def report_of(peer: Peer) -> StatusReport:
    peer.send(Status())
    return await peer.expect(StatusReport)


async def quiet(peer: Peer) -> StatusReport:
    deadline = time.monotonic() + 30
    while (report := await report_of(peer)).running or any(report.waiting.values()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    return report


@STEPS_AHEAD
@pytest.mark.parametrize("closes", [True, False])
async def test_tokens_that_a_gateway_received_are_not_lost_although_its_stream_broke_in_a_step(
    start_engine: Start, connect: Connect, steps_ahead: int, closes: bool
) -> None:
    """`closes` False: the engine does not notice the end of the old stream before the gateway connects again."""
    engine = start_engine({"steps_ahead": steps_ahead, "step_ms": 0.5})
    watcher = await connect(engine)
    draw = random.Random(steps_ahead)
    received: Counter[int] = Counter()
    handle = 0
    kept: list[Peer] = []
    for turn in range(6):
        peer = await connect(engine)
        peer.send(GatewayHello(5, "gateway"), Alive())
        mine = range(handle, handle + 5)
        handle += 5
        peer.send(*(peer.submit(one, max_tokens=draw.choice([3, 4000]), stop_ids=[], attempt=turn) for one in mine))
        ended: list[int] = []
        until = draw.randint(1, 60)
        while until:
            frame = await peer.next()
            if isinstance(frame, Tokens):
                received.update(frame.handles)
                until -= 1
            elif isinstance(frame, Finished):
                ended.append(frame.handle)
        peer.send(Recorded(ended[::2]))
        if closes:
            await peer.close()
        else:
            kept.append(peer)
        again = await connect(engine)
        again.send(GatewayHello(5, "gateway"))
        attempts = [AttemptTokens(f"req_{one}", 0, turn, received[one]) for one in mine]
        if closes:  # a Reclaim that is earlier than the loss would be ignored
            while len(engine.events("gateway.gone")) <= turn:  # noqa: ASYNC110 - another process's
                await asyncio.sleep(0.01)
        again.send(Reclaim(attempts), Reclaim(attempts))
        report = await report_of(again)
        await again.close()
        while len(engine.events("stream.lost")) < (turn + 1) * (1 + closes):  # noqa: ASYNC110 - another process's
            await asyncio.sleep(0.01)
        report = await quiet(watcher)
        assert report.tokens_made - report.tokens_overrun == sum(received.values()) + report.tokens_lost
    for peer in kept:  # what the engine sent them after the loss is no longer their gateway's
        with contextlib.suppress(EOFError, TimeoutError):
            while True:
                assert not isinstance(await peer.next(0.05), Refused)


@STEPS_AHEAD
async def test_an_engine_that_drains_refuses_new_requests_and_finishes_the_others(
    start_engine: Start, connect: Connect, steps_ahead: int
) -> None:
    engine = start_engine({"steps_ahead": steps_ahead, "step_ms": 2.0}, sequences_max=1)
    peer, operator = await connect(engine), await connect(engine)
    peer.send(peer.submit(1, max_tokens=300, stop_ids=[]), peer.submit(2, max_tokens=3, stop_ids=[]))
    await peer.expect(Tokens)
    operator.send(GatewayHello(PROTOCOL_VERSION, "operator"), DrainEngine(), DrainEngine(), Status())
    await operator.expect(StatusReport)
    ids = [*range(300, 310), 400, 401]
    peer.send(peer.submit(3), peer.submit(4, prompt_ids=ids, resumed=2))
    results = await peer.until_ended(1, 2, 3, 4)
    assert [results[handle][1].reason for handle in (1, 2)] == ["length", "length"]
    for handle in (3, 4):
        refused = results[handle][1]
        assert (refused.code, refused.message) == ("shutting_down", "the engine is draining")
    seen = len(operator.heartbeats)
    while len(operator.heartbeats) < seen + 2:
        with contextlib.suppress(TimeoutError):
            await operator.next(0.2)
    assert operator.heartbeats[-1].draining
    operator.send(DrainEngine(draining=False), operator.submit(1))
    assert (await operator.until_ended(1))[1][1].reason == "length"
    assert [len(engine.events(name)) for name in ("engine.draining", "engine.undrained")] == [1, 1]


async def test_a_stop_ends_requests_so_that_other_engines_can_resume_them(
    start_engine: Start, connect: Connect
) -> None:
    engine = start_engine(
        {"steps_ahead": 1, "step_ms": 2.0}, sequences_max=1, models=[{"name": "tiny", "path": str(TINY)}]
    )
    peer = await connect(engine)
    slow = json_schema_grammar({"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(1500)}})
    peer.send(peer.submit(1, max_tokens=1500, stop_ids=[]), peer.submit(2), peer.submit(3, guide=Guide(slow)))
    await peer.expect(Tokens)
    await asyncio.to_thread(engine.stop, signal.SIGTERM)
    results = await peer.until_ended(1, 2, 3)
    assert [(ending.reason, ending.resumable) for _, ending in results.values()] == [("error", True)] * 3
    assert results[1][1].usage.completion_tokens >= len(results[1][0]) > 0
