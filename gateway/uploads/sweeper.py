"""Deletes from the adapter store what nothing points at and nothing runs on, and what a crash left half done.

It must never decide who may call an adapter: a version that is not removed keeps its files.
"""

from __future__ import annotations

import asyncio
import logging

import sqlalchemy as sa

from adapters.files.store import AdapterStore
from billing import revision
from billing.database import Database, DatabaseUnavailable
from gateway.catalog.adapters import live_digests
from gateway.engines.adapter_sync import AdapterLoader
from gateway.engines.engine import AdapterFailed, EngineUnavailable

DROP_S_MAX = 5.0  # how long one round waits for the last request on one content; the next round asks again

_log = logging.getLogger(__name__)


class Sweeper:
    """Of one gateway. Any number of gateways may sweep one store."""

    def __init__(self, store: AdapterStore, database: Database, loader: AdapterLoader) -> None:
        self._store = store
        self._database = database
        self._loader = loader
        self._unused: set[str] = set()  # contents that no version had when the last round looked

    async def run(self, every_s: float) -> None:
        """Until cancelled; a first round at once."""
        while True:
            try:
                await self.round()
            except (DatabaseUnavailable, OSError) as error:
                _log.warning("store.unswept", extra={"fields": {"reason": str(error)}})
            await asyncio.sleep(every_s)

    async def round(self) -> None:
        """Raises DatabaseUnavailable, OSError."""
        if swept := await asyncio.to_thread(self._store.sweep):
            _log.info("store.swept", extra={"fields": {"unfinished": swept}})
        live = await self._database.read(live_digests)
        unused = await asyncio.to_thread(self._store.digests) - live
        # At the second sight: a gateway that has not seen a removal yet may still be beginning requests.
        for digest in sorted(unused & self._unused):
            await self._delete(digest)
        self._unused = unused

    async def _delete(self, digest: str) -> None:
        try:
            async with asyncio.timeout(DROP_S_MAX):
                await self._loader.unload_adapter(digest)
        except (AdapterFailed, EngineUnavailable, TimeoutError):
            return  # it is in use, or there is nobody to ask

        def remove(connection: sa.Connection) -> bool:
            # The lock that every registration has: it finds the files there, or keeps its own.
            revision.lock(connection)
            if digest in live_digests(connection):
                return False
            self._store.remove_content(digest)
            return True

        if await self._database.write(remove):
            _log.info("store.deleted", extra={"fields": {"digest": digest}})
