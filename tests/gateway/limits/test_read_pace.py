"""The pace at which the event loop reads large bodies."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from gateway.limits.read_pace import ReadPace
from support.stack import Stack

pytestmark = pytest.mark.asyncio


class Reads:
    """A stand-in for a connection, which reads `size` bytes whenever it may."""

    def __init__(self, pace: ReadPace, size: int) -> None:
        self.reading = True
        self.read = 0
        self._pace, self._size = pace, size

    def pause_turn(self) -> None:
        self.reading = False

    def resume_turn(self) -> None:
        self.reading = True

    def arrive(self) -> None:
        if self.reading:
            self.read += self._size
            self._pace.count_read(self, self._size)


async def test_a_turn_reads_a_bounded_number_of_bytes_and_all_connections_in_turn() -> None:
    pace = ReadPace(bytes_per_turn=100)
    connections = [Reads(pace, 120) for _ in range(10)]
    for connection in connections:
        connection.arrive()
    assert not any(connection.reading for connection in connections)
    await asyncio.sleep(0)
    per_turn = []
    for _ in range(200):
        before = sum(connection.read for connection in connections)
        for connection in connections:
            connection.arrive()
        per_turn.append(sum(connection.read for connection in connections) - before)
        await asyncio.sleep(0)
    assert max(per_turn) == 120, "one connection a turn"
    reads = [connection.read for connection in connections]
    assert max(reads) - min(reads) <= 120, "none starves"


async def test_small_bodies_are_never_paused() -> None:
    pace = ReadPace(bytes_per_turn=100)
    connections = [Reads(pace, 5) for _ in range(10)]
    for _ in range(50):
        for connection in connections:
            connection.arrive()
        assert all(connection.reading for connection in connections)
        await asyncio.sleep(0)


async def test_large_bodies_at_once_all_arrive(stack: Stack) -> None:
    """With the pauses of the pace and those of a full buffer: each is answered, whether it is read or refused."""
    text = "word " * 300_000
    body: dict[str, Any] = {"model": "nobody", "messages": [{"role": "user", "content": text}]}
    client = httpx.Client(base_url=stack.url, headers=stack.headers(), timeout=60)
    with client, ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(client.post, "/v1/chat/completions", json=body) for _ in range(48)]
        statuses = [one.result().status_code for one in asked]
    assert set(statuses) <= {404, 429}, statuses
    assert statuses.count(404) >= 8
    assert stack.chat().status_code == 200
