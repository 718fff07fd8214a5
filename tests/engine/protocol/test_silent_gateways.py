"""Signs of life both ways: a silent gateway's stream is closed, a slow engine closes none, and late frames change no
book."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

from engine.protocol.client import EngineClient, EngineLost
from engine.protocol.frames import (
    PROTOCOL_VERSION,
    Abort,
    Alive,
    AttemptTokens,
    Finished,
    GatewayHello,
    Recorded,
    Sampling,
    Status,
    StatusReport,
    Tokens,
)
from engine.protocol.inbox import INBOX_BYTES_MAX
from support.engine.generations import IterableGeneration
from support.engine.held_proxy import HeldProxy
from support.engine.process import STOP_ID, EngineProcess, Peer
from support.waiting import eventually_async

Start = Callable[..., EngineProcess]
Connect = Callable[[EngineProcess], Awaitable[Peer]]
HELLO = GatewayHello(PROTOCOL_VERSION, "gateway")
STALLS = 704


async def status(peer: Peer) -> StatusReport:
    peer.send(Status())
    return await peer.expect(StatusReport)


def submit(client: EngineClient, max_tokens: int = 4000) -> IterableGeneration:
    generation = client.submit(
        request_id="req", model="fake-model", adapter=None, namespace="ns", tier="standard", share="share",
        prompt_ids=list(range(300, 320)), max_tokens=max_tokens, sampling=Sampling(temperature=0.0),
        stop_ids=[STOP_ID],
    )  # fmt: skip
    return cast(IterableGeneration, generation)


async def test_a_silent_gateway_is_closed_and_what_it_says_then_changes_nothing(
    start_engine: Start, connect: Connect
) -> None:
    engine = start_engine({"step_ms": 5.0}, flags=["--lease-s", "1"])
    watcher, peer = await connect(engine), await connect(engine)
    assert peer.hello.lease_s == 1.0
    peer.send(HELLO, peer.submit(1, max_tokens=4000), peer.submit(2, max_tokens=3))
    await peer.expect(Finished)
    await eventually_async(lambda: bool(engine.events("gateway.gone")))
    assert "gateway 'gateway' was silent for 1 s, its lease" in engine.events("stream.cut")[0]["reason"]
    before = await status(watcher)
    assert (before.running, before.tokens_lost) == (0, before.tokens_made - before.tokens_overrun)
    assert before.tokens_lost > 3
    with suppress(ConnectionError):
        peer.send(Recorded([1, 2]), Abort(1), peer.submit(3), Alive())
        await peer.drain()
    assert await peer.closed()
    watcher.send(watcher.submit(9), Recorded([9]))
    await watcher.until_ended(9)
    watcher.send(Recorded([9]))
    after = await status(watcher)
    assert after.tokens_lost == before.tokens_lost
    assert after.tokens_made - after.tokens_overrun == before.tokens_made - before.tokens_overrun + 8


async def test_frames_that_a_partition_delays_change_no_book_at_either_end(
    start_engine: Start, connect: Connect, socket_dir: Path
) -> None:
    engine = start_engine({"step_ms": 5.0}, flags=["--lease-s", "1"])
    watcher = await connect(engine)
    async with HeldProxy(socket_dir / "held.sock", engine.socket) as proxy:
        client = EngineClient(proxy.path, silence_s=1.0, generation=IterableGeneration)
        await client.start()
        await client.wait_ready(30)
        short, long = submit(client, 3), submit(client)
        received: list[int] = []
        async for event in short:
            assert isinstance(event, list | Finished)
        await eventually_async(lambda: long.received > 3)
        proxy.hold()
        short.recorded()  # on its way when the partition begins, and late: the engine counts the tokens as lost
        async for event in long:
            if isinstance(event, list):
                received += event
        assert isinstance(long.ending, EngineLost)
        await eventually_async(lambda: bool(engine.events("gateway.gone")))
        before = await status(watcher)
        assert before.tokens_lost == before.tokens_made - before.tokens_overrun > len(received)
        proxy.release()
        await eventually_async(lambda: client.ready)
        assert proxy.late_bytes > 0
        assert (len(received), long.take_ids()) == (long.received, [])
        after = await status(watcher)
        recorded = (after.tokens_lost, after.tokens_made - after.tokens_overrun)
        assert recorded == (before.tokens_lost, before.tokens_made - before.tokens_overrun)
        client.reclaim([AttemptTokens("req", 0, 0, len(received))])
        reclaimed = await client.status()
        assert reclaimed.tokens_reclaimed == len(received)
        assert reclaimed.tokens_lost == before.tokens_lost - len(received)
        again = [event async for event in submit(client, 5)]
        assert isinstance(again[-1], Finished)
        await client.close()


async def test_any_frame_is_a_sign_of_life_and_the_client_sends_them(start_engine: Start, connect: Connect) -> None:
    engine = start_engine(flags=["--lease-s", "3"])
    silent, busy = await connect(engine), await connect(engine)
    client = EngineClient(engine.socket)
    await client.start()
    await client.wait_ready(30)
    silent.send(HELLO)
    busy.send(HELLO)
    while not engine.events("stream.cut"):
        await status(busy)
        await asyncio.sleep(0.1)
    assert await silent.closed()
    assert len(engine.events("stream.cut")) == 1
    assert client.ready
    assert len(engine.events("stream.gateway")) == 3
    await client.close()


async def test_a_lease_of_zero_never_ends(start_engine: Start, connect: Connect) -> None:
    engine = start_engine(flags=["--lease-s", "0"])
    peer = await connect(engine)
    assert peer.hello.lease_s == 0
    peer.send(HELLO)
    while len(peer.heartbeats) < 3:
        with suppress(TimeoutError):
            await peer.next(0.2)
    peer.send(peer.submit(1))
    await peer.until_ended(1)


async def test_a_suspended_engine_does_not_take_its_own_pause_for_a_gateway_s(start_engine: Start) -> None:
    engine = start_engine({"step_ms": 5.0}, flags=["--lease-s", "2"])
    client = EngineClient(engine.socket, silence_s=60.0, generation=IterableGeneration)
    await client.start()
    await client.wait_ready(30)
    generation = submit(client, 200)
    await eventually_async(lambda: generation.received > 3)
    os.kill(engine.pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(4.0)
    finally:
        os.kill(engine.pid, signal.SIGCONT)
    events = [event async for event in generation]
    assert isinstance(events[-1], Finished)
    assert not engine.events("stream.cut")
    await client.close()


async def test_a_gateway_is_not_silent_while_the_engine_reads_nothing(start_engine: Start, connect: Connect) -> None:
    """Above the inbox's limit the engine reads no stream, so it cannot receive a sign of life."""
    engine = start_engine({"faults": {"stall_id": STALLS, "stall_s": 8.0}}, flags=["--lease-s", "4"])
    filler, other = await connect(engine), await connect(engine)
    filler.send(filler.submit(1, prompt_ids=[STALLS]))
    while not (filler.heartbeats and filler.heartbeats[-1].busy):
        with suppress(TimeoutError):
            await filler.next(0.05)
    big = "x" * 4_000_000
    handles = range(2, 2 + INBOX_BYTES_MAX // len(big) + 4)
    other.send(HELLO)

    async def live() -> None:
        while True:
            other.send(Alive())
            await asyncio.sleep(0.1)

    living = asyncio.create_task(live())
    for handle in handles:
        filler.send(filler.submit(handle, request_id=big, max_tokens=1))
        await filler.drain()
    await filler.until_ended(1, *handles)
    assert engine.events("inbox.full")
    other.send(other.submit(1))
    await other.expect(Tokens)
    living.cancel()
    assert not engine.events("stream.cut")
