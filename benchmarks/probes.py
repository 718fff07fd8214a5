"""Requests sent directly to the engine's socket, without a gateway. A gateway's figures are compared with the figures
of probes in the same run.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from benchmarks.pinned_stack import MODEL
from engine.protocol.client import EngineClient
from engine.protocol.frames import Sampling
from support.engine.generations import IterableGeneration  # pinned_stack puts tests/ on sys.path


@dataclass
class Probes:
    """Requests sent directly to the engine: their times are those of a gateway without any delay."""

    socket_path: str
    prompt_tokens: int
    ttft_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    e2e_s: list[float] = field(default_factory=list)

    async def arrive(self, per_s: float, seconds: float, max_tokens: int) -> None:
        """Send probes by a Poisson process."""
        draw = random.Random(1)
        async with self._client() as client, asyncio.TaskGroup() as group:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                await asyncio.sleep(draw.expovariate(per_s))
                group.create_task(self._one(client, max_tokens))

    async def together(self, count: int, max_tokens: int) -> None:
        """Send `count` probes at once, and wait for all."""
        async with self._client() as client, asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(self._one(client, max_tokens))

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[EngineClient]:
        client = EngineClient(self.socket_path, generation=IterableGeneration)
        await client.start()
        try:
            await client.wait_ready(10)
            yield client
        finally:
            await client.close()

    async def _one(self, client: EngineClient, max_tokens: int) -> None:
        began = last = time.perf_counter()
        generation = client.submit(
            request_id="probe",
            model=MODEL,
            adapter=None,
            namespace="probe",
            tier="standard",
            share="probe",
            prompt_ids=[random.randrange(300, 40_000) for _ in range(self.prompt_tokens)],
            max_tokens=max_tokens,
            sampling=Sampling(temperature=0.0),
            stop_ids=[],
        )
        first = True
        assert isinstance(generation, IterableGeneration)
        async for event in generation:
            now = time.perf_counter()
            if isinstance(event, list):
                (self.ttft_s if first else self.gaps_s).append(now - last)
                first, last = False, now
        self.e2e_s.append(last - began)
