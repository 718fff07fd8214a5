"""Makes missing slab files: of adapters that were registered before slabs existed, or whose slab file was damaged.

They are made one after another, each in a process of low priority. It must never change which adapters are served: an
adapter without a slab file is served too, but takes longer to load.
"""

from __future__ import annotations

import asyncio
import logging

from adapters.files.store import AdapterStore
from billing.database import Database, DatabaseUnavailable
from billing.errors import RowNotFound
from billing.ledger.settler import free_bytes
from gateway.catalog.adapters import live_contents
from gateway.catalog.base_models import active_models
from gateway.config.file import Config
from gateway.host.adapter_process import ProcessResult, run_adapters
from gateway.uploads.staged import AdapterBase, base_of

REASON_CHARS_LOGGED = 500

_log = logging.getLogger(__name__)


class SlabMaker:
    """One per gateway. Any number of gateways may share one store."""

    def __init__(self, store: AdapterStore, database: Database, config: Config) -> None:
        self._store = store
        self._database = database
        self._config = config
        self._failed: set[str] = set()  # contents that this process does not try again

    async def run(self, every_s: float) -> None:
        """Run until cancelled; a first round at once."""
        while True:
            try:
                await self.make_missing_slabs()
            except (DatabaseUnavailable, OSError) as error:
                _log.warning("slabs.unmade", extra={"fields": {"reason": str(error)}})
            await asyncio.sleep(every_s)

    async def make_missing_slabs(self) -> int:
        """One round; returns the number of slab files made. Raises DatabaseUnavailable, OSError."""
        if await asyncio.to_thread(free_bytes, self._config.data_dir) < self._config.upload_free_min_bytes:
            return 0  # adapters are served without slab files
        contents, made = await self._database.read(live_contents), 0
        models = await self._database.read(lambda connection: active_models(connection, self._config))
        self._failed &= contents.keys()
        for digest, model in sorted(contents.items()):
            try:
                base = base_of(self._config, models, model)
            except RowNotFound:  # the model is not served any more
                continue
            if digest not in self._failed and await asyncio.to_thread(self._store.lacks_slab, digest, base.dtype):
                made += await self._make(digest, base)
        return made

    async def _make(self, digest: str, base: AdapterBase) -> bool:
        arguments = ["slab", str(self._config.adapters_dir), digest, "--model", str(base.path), "--dtype", base.dtype]
        try:
            result = await run_adapters(arguments, self._config.adapters.check_s_max)
        except TimeoutError:
            result = ProcessResult(-1, f"making the slab took over {self._config.adapters.check_s_max:g} s", "")
        if result.status == 0:
            _log.info("slab.made", extra={"fields": {"digest": digest}})
            return True
        self._failed.add(digest)
        reason = (result.out + result.problems)[-REASON_CHARS_LOGGED:]
        _log.warning("slab.not_made", extra={"fields": {"digest": digest, "reason": reason}})
        return False
