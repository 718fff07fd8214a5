"""Makes the slabs of adapters that lack them: those registered before there were slabs, or whose slab was damaged.

One after another, each in a process of its own that gives way to all else. It must never change what is served: an
adapter without a slab is served as well, its loads take longer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from adapters.store import AdapterStore
from billing.database import Database, DatabaseUnavailable
from billing.errors import NotFound
from gateway.adapter_rows import live_contents
from gateway.config import Config
from gateway.model_rows import active_models
from gateway.staging import Base, base_of

REASON_CHARS_LOGGED = 500

_log = logging.getLogger(__name__)


class SlabMaker:
    """Of one gateway. Any number of gateways may have one store."""

    def __init__(self, store: AdapterStore, database: Database, config: Config) -> None:
        self._store = store
        self._database = database
        self._config = config
        self._failed: set[str] = set()  # contents that this process does not try again

    async def run(self, every_s: float) -> None:
        """Until cancelled; a first round at once."""
        while True:
            try:
                await self.round()
            except (DatabaseUnavailable, OSError) as error:
                _log.warning("slabs.unmade", extra={"fields": {"reason": str(error)}})
            await asyncio.sleep(every_s)

    async def round(self) -> int:
        """How many were made. Raises DatabaseUnavailable, OSError."""
        contents, made = await self._database.read(live_contents), 0
        models = await self._database.read(lambda connection: active_models(connection, self._config))
        self._failed &= contents.keys()
        for digest, model in sorted(contents.items()):
            try:
                base = base_of(self._config, models, model)
            except NotFound:  # a model that is not served any more
                continue
            if digest not in self._failed and await asyncio.to_thread(self._store.lacks_slab, digest, base.dtype):
                made += await self._make(digest, base)
        return made

    async def _make(self, digest: str, base: Base) -> bool:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "adapters", "slab", str(self._config.adapters_dir), digest,
            "--model", str(base.path), "--dtype", base.dtype,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        said = b""
        try:
            async with asyncio.timeout(self._config.adapters.check_s_max):
                said, _ = await process.communicate()
        except TimeoutError:
            said = b"it took too long"
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode == 0:
            _log.info("slab.made", extra={"fields": {"digest": digest}})
            return True
        self._failed.add(digest)
        reason = said.decode(errors="replace")[-REASON_CHARS_LOGGED:]
        _log.warning("slab.not_made", extra={"fields": {"digest": digest, "reason": reason}})
        return False
