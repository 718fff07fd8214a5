"""Generations that a task iterates, for tests and benchmarks that speak to an engine without a gateway."""

from __future__ import annotations

import asyncio

from engine.protocol.connection import Generation, GenerationEnding, Link
from engine.protocol.frames import Logprobs


class IterableGeneration(Generation):
    """For `EngineClient(generation=IterableGeneration)`. Iterating gives lists of ids, each with all ids that arrived
    meanwhile, then the ending. `received` counts ids until Abort was sent."""

    def __init__(self, link: Link, handle: int) -> None:
        super().__init__(link, handle)
        self.received = 0
        self._arrived: asyncio.Future[None] | None = None
        self._is_over = False  # the ending was given

    def __aiter__(self) -> IterableGeneration:
        return self

    async def __anext__(self) -> list[int] | GenerationEnding:
        assert self._on_news is None, "a generation has one reader"
        while not self._ids and self.ending is None:
            assert self._arrived is None, "a generation is iterated by one task"
            self._arrived = asyncio.get_running_loop().create_future()
            try:
                await self._arrived
            finally:
                self._arrived = None
        if self._ids:
            return self.take_ids()
        if self._is_over:
            raise StopAsyncIteration
        self._is_over = True
        assert self.ending is not None
        return self.ending

    def push_id(self, token: int, logprobs: Logprobs | None = None) -> None:
        self.received += not self._aborted
        super().push_id(token, logprobs)

    def announce(self) -> None:
        super().announce()
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)
