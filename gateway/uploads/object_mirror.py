"""Completes the object store of a fleet, `fleet.object_store`: a copy of every adapter that is served and, if it is
configured, of every model, by digest. An upload never waits for it.

A content's manifest is written last, so a content with a manifest is complete.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from billing.database import Database, DatabaseUnavailable
from engine.contents.manifests import DIGEST, MANIFEST, ContentKind, encode_manifest
from engine.contents.object_stores import ObjectStoreUnusable, object_errors, open_object_store, why_failed
from gateway.catalog.adapters import live_digests
from gateway.uploads.content_manifests import ContentManifests, StoredContent

# Adapters that no version has are deleted from the object store in rounds this far apart, once they are this old: the
# row of a new adapter is written before its copy.
SWEEP_S = 600.0
MULTIPART_BYTES = 16 * 1024 * 1024
UPLOADS_AT_ONCE = 4  # parts of one file

_log = logging.getLogger(__name__)


class ObjectMirror:
    """One per gateway. Gateways of one database may share a store; two deployments need a prefix each."""

    def __init__(
        self,
        url: str,
        database: Database,
        manifests: ContentManifests,
        model_paths: Callable[[], Iterable[str]] = tuple,
        sweep_s: float = SWEEP_S,
    ) -> None:
        """`model_paths`: directories of the models to copy."""
        self._url = url
        self._database = database
        self._manifests = manifests
        self._model_paths = model_paths
        self._sweep_s = sweep_s
        self._store: Any = None
        self._complete: set[tuple[ContentKind, str]] = set()
        self._swept_at = time.monotonic()

    async def run(self, every_s: float) -> None:
        """Run until cancelled; a first round at once."""
        failures: tuple[type[Exception], ...] = (DatabaseUnavailable, ObjectStoreUnusable, ValueError, *_errors())
        while True:
            try:
                await self.complete_store()
            except failures as error:
                known = isinstance(error, DatabaseUnavailable | ObjectStoreUnusable)
                reason = str(error) if known else why_failed(error)
                _log.warning("object_store.incomplete", extra={"fields": {"reason": reason}})
            await asyncio.sleep(every_s)

    async def complete_store(self) -> int:
        """One round; returns the number of contents that were copied. Raises DatabaseUnavailable, ObjectStoreUnusable,
        and obstore's errors."""
        if self._store is None:
            self._store = await asyncio.to_thread(_open, self._url)
        live = await self._database.read(live_digests)
        copied = 0
        for digest in sorted(live):
            if ("adapters", digest) not in self._complete:
                copied += await asyncio.to_thread(self._copy_adapter, digest)
        for path in self._model_paths():
            copied += await asyncio.to_thread(self._copy_model, path)
        if time.monotonic() - self._swept_at >= self._sweep_s:
            self._swept_at = time.monotonic()
            await asyncio.to_thread(self._delete_unused, live)
        return copied

    def _copy_adapter(self, digest: str) -> bool:
        return self._copy("adapters", digest, self._manifests.adapter(digest))

    def _copy_model(self, path: str) -> bool:
        try:
            digest, manifest = self._manifests.model_at(path)
        except (OSError, ValueError) as error:
            _log.warning("model.without_manifest", extra={"fields": {"path": path, "reason": str(error)}})
            return False
        if ("models", digest) in self._complete:
            return False
        return self._copy("models", digest, StoredContent(Path(path), manifest))

    def _copy(self, kind: ContentKind, digest: str, content: StoredContent | None) -> bool:
        """Whether the content was copied now. A content that this host does not have is another gateway's."""
        import obstore

        if content is None:
            return False
        manifest = f"{kind}/{digest}/{MANIFEST}"
        try:
            obstore.head(self._store, manifest)
        except FileNotFoundError:
            pass
        else:
            self._complete.add((kind, digest))
            return False
        for file in content.manifest.files:
            obstore.put(
                self._store,
                f"{kind}/{digest}/{file.name}",
                content.directory / file.name,
                chunk_size=MULTIPART_BYTES,
                max_concurrency=UPLOADS_AT_ONCE,
            )
        obstore.put(self._store, manifest, encode_manifest(content.manifest))
        self._complete.add((kind, digest))
        fields = {"kind": kind, "digest": digest, "bytes": content.manifest.bytes}
        _log.info("object_store.copied", extra={"fields": fields})
        return True

    def _delete_unused(self, live: set[str]) -> None:
        import obstore

        before = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=self._sweep_s)
        unused: dict[str, list[str]] = {}
        for batch in obstore.list(self._store, "adapters"):
            for found in batch:
                digest = found["path"].split("/")[1]
                if DIGEST.fullmatch(digest) and digest not in live and found["last_modified"] < before:
                    unused.setdefault(digest, []).append(found["path"])
        for digest, paths in unused.items():
            # Delete the manifest first: an engine then finds either the whole content or no manifest.
            manifest = f"adapters/{digest}/{MANIFEST}"
            obstore.delete(self._store, [path for path in paths if path == manifest])
            obstore.delete(self._store, [path for path in paths if path != manifest])
            self._complete.discard(("adapters", digest))
            _log.info("object_store.deleted", extra={"fields": {"digest": digest}})


def _open(url: str) -> Any:
    if url.startswith("file://"):
        Path(urlsplit(url).path).mkdir(mode=0o700, parents=True, exist_ok=True)
    return open_object_store(url)


def _errors() -> tuple[type[Exception], ...]:
    try:
        return object_errors()
    except ImportError:
        return (OSError,)
