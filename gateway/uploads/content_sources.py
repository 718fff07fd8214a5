"""Which URLs an engine on another host gets for an adapter or a model: this gateway's store, the stores of other
gateways, and the object store.
"""

from __future__ import annotations

import asyncio
import hashlib

from engine.contents.manifests import ContentKind, encode_manifest
from gateway.config.settings import FleetSection
from gateway.uploads.content_manifests import ContentManifests


class HostSources:
    """Implements `gateway.engines.engine.ContentSources` for one gateway. Without a setting that names a store every
    list is empty: engines need the path then."""

    def __init__(self, fleet: FleetSection, manifests: ContentManifests) -> None:
        self._fleet = fleet
        self._manifests = manifests

    def sources_of_adapter(self, digest: str) -> list[str]:
        return self._urls("adapters", digest)

    async def sources_of_model(self, path: str) -> tuple[str, list[str]]:
        """Reads all files of a model the first time. Raises OSError, and ValueError for a directory without a model."""
        if not self._urls("models", ""):
            return "", []
        digest, manifest = await asyncio.to_thread(self._manifests.model_at, path)
        # The digest covers config.json and weights; the manifest's own sum covers the tokenizer too.
        own = hashlib.sha256(encode_manifest(manifest)).hexdigest()
        return digest, [f"{url}#sha256={own}" for url in self._urls("models", digest)]

    def _urls(self, kind: ContentKind, digest: str) -> list[str]:
        fleet = self._fleet
        stores = [fleet.store_advertised or fleet.store_address, *fleet.store_peers]
        urls = [f"fleet://{store}/internal/{kind}/{digest}" for store in stores if store]
        if fleet.object_store and (kind == "adapters" or fleet.object_store_models):
            urls.append(f"{fleet.object_store.rstrip('/')}/{kind}/{digest}")
        return urls
