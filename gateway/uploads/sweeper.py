"""Deletes contents from the adapter store that no version has and no request uses, and unfinished files of a crash.

It must never delete the content of a version that is not removed.
"""

from __future__ import annotations

import asyncio
import logging

import sqlalchemy as sa

from adapters.files.store import AdapterStore
from billing import revision
from billing.database import Database, DatabaseUnavailable
from gateway.catalog.adapters import live_digests
from gateway.engines.engine import AdapterFailed, EngineUnavailable
from gateway.fleet.fleet import Fleet

DROP_S_MAX = 5.0  # one round waits this long for the last request on a content; the next round tries again

_log = logging.getLogger(__name__)


class Sweeper:
    """One per gateway. Any number of gateways may sweep one store."""

    def __init__(self, store: AdapterStore, database: Database, engine: Fleet) -> None:
        self._store = store
        self._database = database
        self._engine = engine
        self._unused: set[str] = set()  # contents that no version had in the last round

    async def run(self, every_s: float) -> None:
        """Run until cancelled; a first round at once."""
        while True:
            try:
                await self.sweep_once()
            except (DatabaseUnavailable, OSError) as error:
                _log.warning("store.unswept", extra={"fields": {"reason": str(error)}})
            await asyncio.sleep(every_s)

    async def sweep_once(self) -> None:
        """One round. Raises DatabaseUnavailable, OSError."""
        if swept := await asyncio.to_thread(self._store.sweep):
            _log.info("store.swept", extra={"fields": {"unfinished": swept}})
        live = await self._database.read(live_digests)
        unused = await asyncio.to_thread(self._store.digests) - live
        # A content is deleted in its second round: a gateway that has not read a removal yet may still begin requests.
        for digest in sorted(unused & self._unused):
            await self._delete(digest)
        self._unused = unused

    async def _delete(self, digest: str) -> None:
        try:
            async with asyncio.timeout(DROP_S_MAX):
                await self._engine.unload_adapter(digest)
        except (AdapterFailed, EngineUnavailable, TimeoutError):
            return  # the adapter is in use, or the engine is unavailable

        def remove(connection: sa.Connection) -> bool:
            # Every registration takes this lock too: it finds the files in the store, or stores its own.
            revision.lock(connection)
            if digest in live_digests(connection):
                return False
            self._store.remove_content(digest)
            return True

        if await self._database.write(remove):
            _log.info("store.deleted", extra={"fields": {"digest": digest}})
