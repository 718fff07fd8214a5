"""Provides a gateway's adapters and models to engines on other hosts: manifests and sources, the listener
at `fleet.store_address`, and the copies in `fleet.object_store`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from adapters.files.store import AdapterStore
from billing.database import Database
from engine.protocol.addresses import parse_host_port
from engine.protocol.tls import CertificatesUnusable
from gateway.config.file import Config
from gateway.uploads.content_manifests import ContentManifests
from gateway.uploads.content_sources import HostSources
from gateway.uploads.object_mirror import ObjectMirror
from gateway.uploads.store_server import StoreServer


class FleetStore:
    """One per gateway process. Without the settings of [fleet] it does nothing, and `sources` is empty."""

    def __init__(
        self, config: Config, store: AdapterStore, database: Database, model_paths: Callable[[], Iterable[str]]
    ) -> None:
        """`model_paths`: directories of the active models. Raises OSError for certificates that cannot be used."""
        fleet = config.fleet
        manifests = ContentManifests(store, config.data_dir / "manifests")
        self.sources = HostSources(fleet, manifests)
        self._server: StoreServer | None = None
        self._mirror: ObjectMirror | None = None
        if fleet.store_address and config.certificates is not None:
            host, port = parse_host_port(fleet.store_address)
            try:
                self._server = StoreServer(host, port, config.certificates, manifests)
            except CertificatesUnusable as error:
                raise OSError(str(error)) from error
        if fleet.object_store:
            paths = model_paths if fleet.object_store_models else tuple
            self._mirror = ObjectMirror(fleet.object_store, database, manifests, paths)

    def start(self) -> None:
        """Raises OSError when it cannot listen."""
        if self._server is not None:
            self._server.start()

    async def run(self, every_s: float) -> None:
        """Run until cancelled: copy to the object store in rounds."""
        if self._mirror is None:
            await asyncio.Event().wait()
        else:
            await self._mirror.run(every_s)

    async def close(self) -> None:
        """Idempotent."""
        if self._server is not None:
            await asyncio.to_thread(self._server.close)
