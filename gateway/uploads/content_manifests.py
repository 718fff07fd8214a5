"""The manifests of this host's adapters and models, for engines on other hosts.

A model's manifest needs the SHA-256 of every file: it is computed once, and kept in the data directory until a file
changes. The calls block: run them in a thread.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from pathlib import Path
from typing import NamedTuple

import msgspec

from adapters.files.store import AdapterStore
from engine.contents.manifests import (
    ADAPTER_FILES,
    CONFIG,
    INDEX,
    ContentKind,
    ContentManifest,
    ManifestFile,
    manifest_digest,
    weight_names,
)
from gateway.config.private_files import make_private, write_private

# Beside config.json and the weights: what tokenizers, chat templates and the engine read. Each is small.
SIDE_SUFFIXES = (".json", ".jinja")
SIDE_BYTES_MAX = 64 * 1024 * 1024

_log = logging.getLogger(__name__)
_Stamp = tuple[str, int, int]  # name, size, modification time in ns


class StoredContent(NamedTuple):
    """A directory of this host, and the files of it that engines may read."""

    directory: Path
    manifest: ContentManifest


class _KeptManifest(msgspec.Struct):
    """A model's manifest on disk, and the files that it was made of."""

    path: str
    stamps: list[_Stamp]
    digest: str
    manifest: ContentManifest


class ContentManifests:
    """Thread-safe. `cache`: the directory of kept manifests, which the workers of a host share."""

    def __init__(self, store: AdapterStore, cache: Path) -> None:
        self._store = store
        self._cache = cache
        self._kept: dict[str, _KeptManifest] = {}  # by path of the model
        self._reading = threading.Lock()  # one model at a time is read

    def content(self, kind: ContentKind, digest: str) -> StoredContent | None:
        """The files of a content in this host's store; None if the store lacks it. Raises OSError, and ValueError for a
        string that is no digest."""
        return self.adapter(digest) if kind == "adapters" else self.model(digest)

    def adapter(self, digest: str) -> StoredContent | None:
        """As `content`, for an adapter; None also if the adapter is not resolved yet. Raises as `content`."""
        directory = self._store.path(digest)
        try:
            sizes = {name: (directory / name).stat().st_size for name in sorted(ADAPTER_FILES)}
        except FileNotFoundError:
            return None
        return StoredContent(
            directory, ContentManifest(tuple(ManifestFile(name, size) for name, size in sizes.items()))
        )

    def model(self, digest: str) -> StoredContent | None:
        """A model whose manifest was computed before, by any process of this host."""
        kept = next((kept for kept in list(self._kept.values()) if kept.digest == digest), None)
        if kept is None:
            for file in self._cache.glob("*.json") if self._cache.is_dir() else ():
                if (found := _read_kept(file)) is not None and found.digest == digest:
                    kept = self._kept[found.path] = found
        if kept is None or _stamps_or_none(Path(kept.path)) != kept.stamps:
            return None
        return StoredContent(Path(kept.path), kept.manifest)

    def model_at(self, path: str) -> tuple[str, ContentManifest]:
        """The digest and the manifest of a model's directory. Reads all of its files the first time. Raises OSError,
        and ValueError for a directory without a model."""
        directory = Path(os.path.abspath(path))
        with self._reading:
            stamps = _stamps(directory)
            file = self._cache / f"{hashlib.sha256(os.fsencode(directory)).hexdigest()[:32]}.json"
            kept = self._kept.get(str(directory)) or _read_kept(file)
            if kept is None or kept.stamps != stamps or kept.path != str(directory):
                kept = _make(directory, stamps)
                make_private(self._cache)
                write_private(file, msgspec.json.encode(kept).decode(), replace=True)
            self._kept[str(directory)] = kept
        return kept.digest, kept.manifest


def _make(directory: Path, stamps: list[_Stamp]) -> _KeptManifest:
    began = time.monotonic()
    files = tuple(ManifestFile(name, size, _sum(directory / name)) for name, size, _ in stamps)
    if _stamps(directory) != stamps:
        raise ValueError(f"{directory}: its files changed while they were read")
    manifest = ContentManifest(files)
    fields = {"path": str(directory), "bytes": manifest.bytes, "seconds": round(time.monotonic() - began, 3)}
    _log.info("model.manifest_made", extra={"fields": fields})
    return _KeptManifest(str(directory), stamps, manifest_digest(manifest), manifest)


def _stamps(directory: Path) -> list[_Stamp]:
    """The stamps of the files that belong to the manifest, sorted by name. Raises OSError, ValueError."""
    names = {CONFIG, *weight_names(directory)}
    for path in directory.iterdir():
        is_side_file = path.suffix in SIDE_SUFFIXES and not path.name.startswith(".")
        if is_side_file and path.is_file() and path.stat().st_size <= SIDE_BYTES_MAX:
            names.add(path.name)
    if INDEX in names and (directory / INDEX).stat().st_size > SIDE_BYTES_MAX:
        raise ValueError(f"{directory / INDEX}: more than {SIDE_BYTES_MAX} bytes")
    found = [(name, (directory / name).stat()) for name in sorted(names)]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in found]


def _stamps_or_none(directory: Path) -> list[_Stamp] | None:
    try:
        return _stamps(directory)
    except (OSError, ValueError):
        return None


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_kept(file: Path) -> _KeptManifest | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_KeptManifest)
    except (OSError, msgspec.MsgspecError):
        return None
