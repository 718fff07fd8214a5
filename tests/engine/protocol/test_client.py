"""The gateway's client against a real engine process that is killed, frozen, stuck, or speaks nonsense."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from billing.timeouts import within_timeout
from engine.protocol.client import (
    OUTBOX_BYTES_MAX,
    AdapterNotChanged,
    EngineClient,
    EngineLost,
    EngineNotConnected,
    Generation,
    GenerationEnding,
    ModelNotChanged,
)
from engine.protocol.codec import encode
from engine.protocol.frames import PROTOCOL_VERSION, Finished, Hello, Logprobs, ModelInfo, Refused, Sampling
from support.engine.generations import IterableGeneration
from support.engine.process import REPO, STOP_ID, EngineProcess, framed

Start = Callable[..., EngineProcess]
DIGEST = "a" * 64


@asynccontextmanager
async def client_of(socket: Path, *, ready: bool = True, **settings: Any) -> AsyncIterator[EngineClient]:
    client = EngineClient(socket, generation=IterableGeneration, **settings)
    await client.start()
    try:
        if ready:
            await client.wait_ready(30.0)
        yield client
    finally:
        await client.close()


def submit(client: EngineClient, **changes: Any) -> IterableGeneration:
    fields: dict[str, Any] = {
        "request_id": "req_1",
        "model": "fake-model",
        "adapter": None,
        "namespace": "ns",
        "tier": "standard",
        "share": "share",
        "prompt_ids": list(range(300, 320)),
        "max_tokens": 8,
        "sampling": Sampling(temperature=0.0),
        "stop_ids": [STOP_ID],
    }
    return cast(IterableGeneration, client.submit(**(fields | changes)))


async def collect(generation: IterableGeneration) -> tuple[list[int], GenerationEnding]:
    ids: list[int] = []
    endings: list[GenerationEnding] = []
    async for event in generation:
        if isinstance(event, list):
            assert not endings, "ids after the ending"
            assert event, "an empty list of ids"
            ids += event
        else:
            endings.append(event)
    (ending,) = endings
    return ids, ending


def connections(caplog: pytest.LogCaptureFixture) -> int:
    """How often the client became ready."""
    return sum(record.getMessage() == "engine.connected" for record in caplog.records)


async def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - there is no event for what is awaited here
            await asyncio.sleep(0.005)


async def test_ids_then_one_ending(start_engine: Start) -> None:
    async with client_of(start_engine().socket) as client:
        generations = [submit(client, max_tokens=10, prompt_ids=[400 + i] * 5) for i in range(20)]
        results = await asyncio.gather(*map(collect, generations))
        for ids, ending in results:
            assert len(ids) == 10
            assert isinstance(ending, Finished)
            assert ending.reason == "length"
        assert len({tuple(ids) for ids, _ in results}) == 20
        assert client.in_flight == 0
        refused = await collect(submit(client, tier="gold"))
        assert isinstance(refused[1], Refused)
        assert refused[1].code == "tier_unknown"


async def test_a_slow_reader_gets_several_steps_in_one_list(start_engine: Start) -> None:
    async with client_of(start_engine().socket) as client:
        generation = submit(client, max_tokens=50)
        await until(lambda: generation.ending is not None)
        events = [event async for event in generation]
        assert len(events) == 2
        assert isinstance(events[0], list)
        assert len(events[0]) == 50


async def test_logprobs_come_with_their_ids(start_engine: Start) -> None:
    async with client_of(start_engine().socket) as client:
        asks = submit(client, max_tokens=30, sampling=Sampling(logprobs=3))
        silent = submit(client, max_tokens=30)
        ids: list[int] = []
        found: list[Logprobs] = []
        async for event in asks:
            if isinstance(event, list):
                await asyncio.sleep(0.005)  # what arrives meanwhile belongs to the next list
                taken = asks.take_logprobs()
                assert len(taken) == len(event)
                assert asks.take_logprobs() == []
                ids += event
                found += taken
        assert [own[0][0] for own in found] == ids
        assert {len(own) for own in found} == {4}
        assert all(own[0][1] < 0 for own in found)
        async for _ in silent:
            assert silent.take_logprobs() == []


class Listener:
    """What a listener took, and how often it was called."""

    def __init__(self, generation: Generation) -> None:
        self.ids: list[int] = []
        self.calls = self.endings = 0
        self._generation = generation
        generation.listen(self.news)

    def news(self) -> None:
        self.calls += 1
        ids = self._generation.take_ids()
        assert ids or self._generation.ending is not None, "called for nothing"
        self.ids += ids
        self.endings += self._generation.ending is not None


async def test_a_listener_gets_what_an_iterating_task_gets(start_engine: Start) -> None:
    engine = start_engine()
    async with client_of(engine.socket) as client:
        iterated = [submit(client, max_tokens=30, prompt_ids=[500 + i] * 5) for i in range(8)]
        expected = [ids for ids, _ in await asyncio.gather(*map(collect, iterated))]
        listeners = [Listener(submit(client, max_tokens=30, prompt_ids=[500 + i] * 5)) for i in range(8)]
        await until(lambda: all(listener.endings for listener in listeners))
        assert [listener.ids for listener in listeners] == expected
        assert all(listener.calls <= 31 and listener.endings == 1 for listener in listeners)
        refused = Listener(submit(client, tier="gold"))
        await until(lambda: refused.endings == 1)
        lost = Listener(submit(client, max_tokens=5000))
        await until(lambda: lost.calls > 3)
        engine.process.kill()
        await until(lambda: lost.endings == 1)
        assert 3 < len(lost.ids) < 5000


async def test_an_ended_generation_is_gone_without_a_collector(start_engine: Start) -> None:
    async with client_of(start_engine().socket) as client:
        gc.disable()
        try:
            listener = Listener(submit(client))
            gone = weakref.ref(listener)
            await until(lambda: client.in_flight == 0)
            assert listener.endings == 1
            del listener
            assert gone() is None
        finally:
            gc.enable()


async def test_a_generation_has_one_reader(start_engine: Start) -> None:
    async with client_of(start_engine().socket) as client:
        heard = submit(client)
        heard.listen(lambda: None)
        with pytest.raises(AssertionError, match="one reader"):
            heard.listen(lambda: None)
        with pytest.raises(AssertionError, match="one reader"):
            await anext(heard)


async def test_abort_freezes_what_counts_as_received(start_engine: Start) -> None:
    async with client_of(start_engine().socket) as client:
        generation = submit(client, max_tokens=5000)
        await until(lambda: generation.received >= 5)
        generation.abort()
        generation.abort()
        received = generation.received
        ids, ending = await collect(generation)
        assert len(ids) == received == generation.received
        assert isinstance(ending, Finished)
        assert ending.reason == "aborted"
        assert ending.usage.completion_tokens >= received
        generation.abort()
        assert (await client.status()).running == 0


async def test_the_engine_killed_mid_stream(start_engine: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "engine.protocol.client")
    engine = start_engine({"step_ms": 5.0})
    hooks: list[tuple[str, bool]] = []

    async def hook(hello: Hello) -> None:
        hooks.append((hello.epoch, client.ready))
        await client.load_adapter(DIGEST, "fake-model", "/nowhere")

    async with client_of(engine.socket, ready=False, silence_s=60.0) as client:
        client.on_connect = hook
        first = await client.wait_ready(30.0)
        generations = [submit(client, max_tokens=5000, adapter=DIGEST) for _ in range(3)]
        await until(lambda: all(generation.received for generation in generations))
        engine.stop(signal.SIGKILL)
        async with asyncio.timeout(30.0):  # long before it would be lost for its silence
            results = await asyncio.gather(*map(collect, generations))
        for generation, (ids, ending) in zip(generations, results, strict=True):
            assert len(ids) == generation.received
            assert isinstance(ending, EngineLost)
            assert ending.message
            generation.abort()
        assert not client.ready
        for attempt in (lambda: submit(client), lambda: client.status().send(None)):
            with pytest.raises(EngineNotConnected):
                attempt()
        engine.start()
        second = await client.wait_ready(30.0)
        assert second.epoch != first.epoch
        assert hooks == [(first.epoch, False), (second.epoch, False)]
        _, ending = await collect(submit(client, adapter=DIGEST))
        assert isinstance(ending, Finished)
        assert connections(caplog) == 2


async def test_started_before_the_engine(start_engine: Start, socket_dir: Path) -> None:
    engine = start_engine()
    engine.stop()
    async with client_of(engine.socket, ready=False) as client:
        with pytest.raises(EngineNotConnected):
            await client.wait_ready(0.2)
        engine.start()
        await client.wait_ready(30.0)


async def test_a_frozen_engine_is_lost_after_the_silence(start_engine: Start) -> None:
    engine = start_engine()
    async with client_of(engine.socket, silence_s=2.5) as client:
        await asyncio.sleep(3.5)
        assert client.ready, "heartbeats keep an idle stream"
        assert client.last_heartbeat is not None
        assert not client.last_heartbeat.busy
        generation = submit(client, max_tokens=100_000 // 16)
        await until(lambda: generation.received > 0)
        os.kill(engine.pid, signal.SIGSTOP)
        try:
            _, ending = await within_timeout(30.0, collect(generation))
            assert isinstance(ending, EngineLost)
            assert "2.5 s" in ending.message
        finally:
            os.kill(engine.pid, signal.SIGCONT)
        await client.wait_ready(30.0)
        _, again = await collect(submit(client))
        assert isinstance(again, Finished)


def test_a_stall_of_the_gateway_is_no_silence_of_the_engine(
    start_engine: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """Frames that arrived during the stall are read before the silence is judged, also on uvloop, as in gateways."""
    caplog.set_level(logging.INFO, "engine.protocol.client")
    engine = start_engine({"step_ms": 5.0})

    async def run() -> None:
        async with client_of(engine.socket, silence_s=1.5) as client:
            generation = submit(client, max_tokens=300)
            await until(lambda: generation.received > 0)
            time.sleep(2.0)  # noqa: ASYNC251 - stalls the loop
            _, ending = await collect(generation)
            assert isinstance(ending, Finished)
            assert connections(caplog) == 1

    uvloop.run(run())


async def test_an_engine_that_does_not_read_is_given_no_more(start_engine: Start) -> None:
    engine = start_engine()
    async with client_of(engine.socket, silence_s=60.0) as client:
        os.kill(engine.pid, signal.SIGSTOP)
        try:
            for _ in range(OUTBOX_BYTES_MAX // 4_000_000 + 1):
                submit(client, request_id="x" * 4_000_000, max_tokens=1)
            with pytest.raises(EngineNotConnected, match="does not read"):
                submit(client)
        finally:
            os.kill(engine.pid, signal.SIGCONT)
        await until(lambda: client.in_flight == 0, 20.0)
        _, ending = await collect(submit(client))
        assert isinstance(ending, Finished)


async def test_a_stuck_loop_shows(start_engine: Start) -> None:
    engine = start_engine({"faults": {"stall_id": 777, "stall_s": 6.0}})
    async with client_of(engine.socket, stuck_s=1.0) as client:
        assert not client.stuck
        generation = submit(client, prompt_ids=[777])
        await until(lambda: client.stuck, 10)
        assert client.ready
        _, ending = await collect(generation)
        assert isinstance(ending, Finished)
        await until(lambda: not client.stuck)


async def test_models(start_engine: Start) -> None:
    """Each client hears of what any of them changes; `hello` is what the engine began with."""
    engine = start_engine()
    told: list[list[str]] = []
    heard = asyncio.Event()

    def on_models(models: dict[str, ModelInfo]) -> None:
        told.append(list(models))
        if "more" in models:
            heard.set()

    async with (
        client_of(engine.socket) as client,
        client_of(engine.socket, on_models=on_models) as other,
    ):
        assert list(client.models) == list(other.models) == ["fake-model"]
        assert client.refused == {}
        assert await asyncio.gather(*(client.load_model("more", "/nowhere", context_tokens=99) for _ in range(3)))
        assert client.models["more"].context_tokens == 99
        await heard.wait()
        _, ending = await collect(submit(other, model="more"))
        assert isinstance(ending, Finished)
        with pytest.raises(ModelNotChanged, match="another model is served under this name"):
            await other.load_model("more", "/elsewhere")
        with pytest.raises(ModelNotChanged, match=r"\$\.dtype"):
            await other.load_model("third", "/nowhere", dtype="int3")
        with pytest.raises(ModelNotChanged, match=r"\$\.quantize`; it must be fp8, int4, int8 or none"):
            await other.load_model("third", "/nowhere", quantize="int3")
        with pytest.raises(ModelNotChanged, match=r"\$\.kv_dtype`; it must be auto or fp8"):
            await other.load_model("third", "/nowhere", kv_dtype="int3")
        gone = asyncio.create_task(client.unload_model("more"))
        again = asyncio.create_task(client.load_model("more", "/nowhere"))
        await asyncio.gather(gone, again)
        assert client.models["more"].context_tokens == 8192
        await client.unload_model("more")
        await client.unload_model("more")
        _, ending = await collect(submit(client, model="more"))
        assert isinstance(ending, Refused)
        assert ending.code == "model_unknown"
        assert client.hello is not None
        assert [info.name for info in client.hello.models] == ["fake-model"]
        await other.unload_model("more")  # the answer comes after what it changed
        assert told[0] == told[-1] == ["fake-model"]
        assert ["fake-model", "more"] in told
        engine.process.kill()
        with pytest.raises(EngineNotConnected):
            await asyncio.gather(*(other.load_model(f"late-{number}", "/nowhere") for number in range(10_000)))


async def test_adapters(start_engine: Start) -> None:
    async with client_of(start_engine().socket) as client:
        await asyncio.gather(*(client.load_adapter(DIGEST, "fake-model", "/nowhere") for _ in range(5)))
        with pytest.raises(AdapterNotChanged, match="nobody"):
            await client.load_adapter("b" * 64, "nobody", "/nowhere")
        generation = submit(client, adapter=DIGEST, max_tokens=100)
        gone = asyncio.create_task(client.unload_adapter(DIGEST))
        again = asyncio.create_task(client.load_adapter(DIGEST, "fake-model", "/nowhere"))
        _, ending = await collect(generation)
        assert isinstance(ending, Finished)
        await gone
        await again
        _, ending = await collect(submit(client, adapter=DIGEST))
        assert isinstance(ending, Finished)
        assert DIGEST in (await client.status()).adapters_resident


async def test_a_hook_that_fails_is_tried_again(start_engine: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "engine.protocol.client")
    engine = start_engine()
    calls = 0

    async def hook(hello: Hello) -> None:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise RuntimeError("not yet")

    async with client_of(engine.socket, on_connect=hook):
        assert calls == 3
        assert connections(caplog) == 1


async def test_close_ends_what_runs(start_engine: Start) -> None:
    engine = start_engine()
    async with client_of(engine.socket) as client:
        generation = submit(client, max_tokens=5000)
        await until(lambda: generation.received > 0)
    _, ending = await collect(generation)
    assert isinstance(ending, EngineLost)
    async with client_of(engine.socket) as client:
        await asyncio.sleep(0.1)
        assert (await client.status()).running == 0


def test_under_the_gateway_s_event_loop(start_engine: Start) -> None:
    engine = start_engine({"step_ms": 5.0})

    async def scenario() -> None:
        async with client_of(engine.socket) as client:
            aborted, lost = submit(client, max_tokens=5000), submit(client, max_tokens=5000)
            await until(lambda: aborted.received > 0 and lost.received > 0)
            aborted.abort()
            _, ending = await collect(aborted)
            assert isinstance(ending, Finished)
            engine.stop(signal.SIGKILL)
            _, gone = await collect(lost)
            assert isinstance(gone, EngineLost)
            await asyncio.to_thread(engine.start)
            await client.wait_ready(30.0)
            _, ending = await collect(submit(client))
            assert isinstance(ending, Finished)

    uvloop.run(scenario())


HELLO = Hello(PROTOCOL_VERSION, "epoch", [], ["standard"])


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        encode(HELLO) + encode(HELLO),
        encode(HELLO) + framed(b"\xc1"),
        encode(HELLO) + encode(Finished(1, "stop", usage=None)),  # type: ignore[arg-type]
    ],
    ids=["nothing", "http", "two hellos", "malformed", "wrong type"],
)
async def test_nonsense_from_an_engine_is_no_engine(socket_dir: Path, said: bytes) -> None:
    path = socket_dir / f"nonsense-{time.monotonic_ns()}.sock"
    connections = 0

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.write(said)
        if not said:
            writer.close()
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(speak, path)
    async with client_of(path, ready=False) as client:
        await until(lambda: connections >= 3)
        await until(lambda: not client.ready)
    server.close()
    await server.wait_closed()


def test_the_client_loads_neither_torch_nor_the_engine_s_inside() -> None:
    code = (
        "import engine.protocol.client, sys; "
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy', 'adapters', 'kernels') "
        "or m in ('engine.scheduler.scheduler', 'engine.loop.worker')])"
    )
    printed = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, check=True, text=True)
    assert printed.stdout.strip() == "[]"
