"""benchmarks/faults/relay.py: bytes arrive late, in order and whole, and a held connection is not closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from benchmarks.faults.relay import Relay
from billing.timeouts import within_timeout
from support.waiting import eventually_async

HELD_S = 0.3


@asynccontextmanager
async def relayed_echo() -> AsyncIterator[tuple[Relay, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A relay before a server that answers with what it reads, and one connection through it."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()
        await writer.wait_closed()
        ended.set()

    ended = asyncio.Event()
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        relay = Relay(*server.sockets[0].getsockname())
        async with await asyncio.start_server(relay.serve, "127.0.0.1", 0) as listener:
            reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            yield relay, reader, writer
            writer.close()
            await writer.wait_closed()
            await ended.wait()
            await eventually_async(lambda: not relay.open)


async def test_a_delay_counts_in_both_directions_and_keeps_the_order() -> None:
    async with relayed_echo() as (relay, reader, writer):
        relay.obey("delay 0.05 0.1")
        began = asyncio.get_running_loop().time()
        sent = b"".join(number.to_bytes(4) for number in range(50_000))
        for first in range(0, len(sent), 10_000):
            writer.write(sent[first : first + 10_000])
            await asyncio.sleep(0.001)
        assert await reader.readexactly(len(sent)) == sent
        assert asyncio.get_running_loop().time() - began >= 0.1


async def test_what_is_held_arrives_later() -> None:
    async with relayed_echo() as (relay, reader, writer):
        relay.obey("hold")
        writer.write(b"late")
        with pytest.raises(TimeoutError):
            await within_timeout(HELD_S, reader.read(1))
        relay.obey("pass")
        assert await reader.readexactly(4) == b"late"
        relay.obey("hold")
        writer.write_eof()
        await asyncio.sleep(HELD_S)
        assert relay.open == 1  # the end of a connection is held too
        relay.obey("pass")
        assert await reader.read() == b""


def test_an_unknown_command_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown command"):
        Relay("127.0.0.1", 1).obey("stop")
