"""A roster that a test follows, and the lists that it reports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from billing.timeouts import within_timeout
from gateway.fleet.roster import EngineAddress, Roster
from support.waiting import PATIENCE_S


class FollowedRoster:
    def __init__(self) -> None:
        self.lists: asyncio.Queue[list[EngineAddress]] = asyncio.Queue()

    def note_engines(self, engines: Sequence[EngineAddress]) -> None:
        self.lists.put_nowait(list(engines))

    async def next_list(self) -> list[EngineAddress]:
        return await within_timeout(PATIENCE_S, self.lists.get())

    async def until_list(self, names: list[str]) -> list[EngineAddress]:
        """The next list with these names, in this order; lists before it are passed over."""
        while True:
            engines = await self.next_list()
            if [engine.name for engine in engines] == names:
                return engines


@contextlib.asynccontextmanager
async def follow_roster(roster: Roster) -> AsyncIterator[FollowedRoster]:
    followed = FollowedRoster()
    task = asyncio.create_task(roster.follow_engines(followed.note_engines))
    try:
        yield followed
        assert not task.done(), task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
