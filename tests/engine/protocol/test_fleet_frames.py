"""The client's frames of a fleet, before an engine that a test scripts: who connects, pages, drain, reclaim."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine.protocol import client as client_module
from engine.protocol.client import EngineClient, EngineNotConnected
from engine.protocol.codec import FrameReader, decode_to_engine, encode
from engine.protocol.frames import (
    PROTOCOL_VERSION,
    Alive,
    AttemptTokens,
    DrainEngine,
    FromEngine,
    GatewayHello,
    Hello,
    PagesChanged,
    Reclaim,
    ToEngine,
)
from support.waiting import eventually_async


class FleetEngine:
    """Sends its Hello and what a test sends, and keeps what it receives. One stream at a time."""

    def __init__(self, path: Path) -> None:
        self.received: list[ToEngine] = []
        self.streams = 0
        self._path = path

    async def __aenter__(self) -> FleetEngine:
        self._server = await asyncio.start_unix_server(self._speak, self._path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self._writer.close()

    def send(self, *frames: FromEngine) -> None:
        self._writer.write(b"".join(map(encode, frames)))

    def close_stream(self) -> None:
        self._writer.close()

    def of(self, kind: type[ToEngine]) -> list[ToEngine]:
        return [frame for frame in self.received if isinstance(frame, kind)]

    async def _speak(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.streams += 1
        self.send(Hello(PROTOCOL_VERSION, "epoch", [], ["standard"], lease_s=0.4))
        frames = FrameReader()
        while data := await reader.read(65536):
            self.received += map(decode_to_engine, frames.feed(data))
        writer.close()


async def test_the_client_says_who_it_is_first_and_then_that_it_lives(socket_dir: Path) -> None:
    async with FleetEngine(socket_dir / "says.sock") as engine:
        client = EngineClient(socket_dir / "says.sock", gateway="gateway-7")
        await client.start()
        await client.wait_ready(30)
        await eventually_async(lambda: len(engine.of(Alive)) > 4)
        assert engine.received[0] == GatewayHello(PROTOCOL_VERSION, "gateway-7")
        await client.close()
        unnamed = [EngineClient(socket_dir / "says.sock") for _ in range(2)]
        for one in unnamed:
            await one.start()
            await one.wait_ready(30)
            await one.close()
        await eventually_async(lambda: len(engine.of(GatewayHello)) == 3)
        assert len({frame.gateway for frame in engine.of(GatewayHello) if isinstance(frame, GatewayHello)}) == 3


async def test_drain_and_reclaim_reach_the_engine(socket_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "ATTEMPTS_MAX", 2)
    async with FleetEngine(socket_dir / "drain.sock") as engine:
        client = EngineClient(socket_dir / "drain.sock")
        with pytest.raises(EngineNotConnected):
            client.drain(True)
        await client.start()
        await client.wait_ready(30)
        attempts = [AttemptTokens("req", choice, 1, 9) for choice in range(5)]
        client.drain(True)
        client.reclaim(attempts)
        client.reclaim([])
        client.drain(False)
        await eventually_async(lambda: len(engine.of(DrainEngine)) == 2)
        assert engine.of(DrainEngine) == [DrainEngine(True), DrainEngine(False)]
        assert engine.of(Reclaim) == [Reclaim(attempts[:2]), Reclaim(attempts[2:4]), Reclaim(attempts[4:])]
        await client.close()


async def test_a_gap_in_the_pages_asks_for_a_full_copy(socket_dir: Path) -> None:
    pages: list[PagesChanged] = []
    async with FleetEngine(socket_dir / "pages.sock") as engine:
        client = EngineClient(socket_dir / "pages.sock", on_pages=pages.append)
        await client.start()
        await client.wait_ready(30)
        hello = GatewayHello(PROTOCOL_VERSION, client._gateway, True)
        full, added, late, later = (
            PagesChanged(1, b"a" * 16, full=True), PagesChanged(2, b"b" * 8), PagesChanged(4, b"d" * 8),
            PagesChanged(5, b"e" * 8),
        )  # fmt: skip
        engine.send(full, added)
        await eventually_async(lambda: pages == [full, added])
        assert engine.of(GatewayHello) == [hello]
        engine.send(late, later)
        await eventually_async(lambda: len(engine.of(GatewayHello)) == 2)
        copy, after = PagesChanged(6, b"f" * 24, full=True), PagesChanged(7, b"", b"f" * 8)
        engine.send(copy, after)
        await eventually_async(lambda: pages[2:] == [copy, after])
        assert engine.of(GatewayHello) == [hello, hello], "asked once, though two frames came after the gap"
        assert client.ready
        # Another stream counts from 1 again.
        engine.close_stream()
        await eventually_async(lambda: engine.streams == 2 and client.ready)
        engine.send(full)
        await eventually_async(lambda: pages[4:] == [full])
        await client.close()


async def test_pages_are_not_requested_without_a_reader_of_them(socket_dir: Path) -> None:
    async with FleetEngine(socket_dir / "none.sock") as engine:
        client = EngineClient(socket_dir / "none.sock")
        await client.start()
        await client.wait_ready(30)
        engine.send(PagesChanged(3, b"a" * 8))
        await eventually_async(lambda: len(engine.of(Alive)) > 2)
        assert engine.of(GatewayHello) == [GatewayHello(PROTOCOL_VERSION, client._gateway, False)]
        assert client.ready
        await client.close()
