"""Turns the digest, path and sources of an adapter or a model into a directory that this engine can read: the path
itself, an entry of the engine's store, or a verified download.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import queue
import shutil
import threading
import time
from pathlib import Path
from typing import NamedTuple

from adapters.files.check import stored_digest
from adapters.files.header import AdapterRefused
from engine.contents.manifests import (
    ADAPTER_FILES,
    CONFIG,
    DIGEST,
    MANIFEST,
    WEIGHTS_SUFFIX,
    ContentKind,
    ContentManifest,
    ManifestFile,
    ManifestRefused,
    read_manifest,
    weight_names,
)
from engine.contents.sources import ContentSource, FleetContexts, SourceCut, SourceFailed, open_source
from engine.contents.store import ContentStore

# Seconds before the remaining bytes of a file are requested again after a cut connection. The source has failed if the
# connection is cut once more after these waits without a new byte.
CUT_WAITS_S = (0.2, 1.0, 3.0)
PROGRESS_S = 5.0
# Bytes between two checks of the free disk space.
SPACE_CHECK_BYTES = 64 * 1024 * 1024
READ_BYTES = 1024 * 1024
FULL = (errno.ENOSPC, errno.EDQUOT)

_log = logging.getLogger(__name__)


class WantedContent(NamedTuple):
    """`holder`: what uses the directory, such as a model's name."""

    kind: ContentKind
    digest: str
    path: str
    sources: tuple[str, ...]
    holder: str


class FetchFailed(OSError):
    """No source has the content. The message names each source and its reason, without credentials."""


class ContentMismatch(Exception):
    """The bytes do not have the digest."""


class ContentFetcher:
    """Thread-safe. Without `sources` a path is used as it is."""

    def __init__(self, store: ContentStore, contexts: FleetContexts | None = None) -> None:
        """`contexts`: as of `open_source`."""
        self._store = store
        self._contexts = contexts
        self._releases: queue.SimpleQueue[WantedContent] = queue.SimpleQueue()
        self._releasing: threading.Thread | None = None

    def find(self, wanted: WantedContent) -> Path | None:
        """The content's readable directory on this host; None: it must be fetched. Raises OSError, and ValueError for a
        string that is no digest."""
        path = Path(wanted.path)
        if not wanted.sources or (wanted.path and is_readable(wanted.kind, path)):
            return path
        return self._store.hold_entry(wanted.kind, wanted.digest, wanted.holder)

    def fetch(self, wanted: WantedContent) -> Path:
        """Download the content from the first source that has it. Takes minutes for a large model. Raises FetchFailed,
        OSError, ValueError."""
        if not DIGEST.fullmatch(wanted.digest):
            raise ValueError(f"not a digest: {wanted.digest[:80]!r}")
        with self._store.incoming(wanted.kind, wanted.digest) as directory:
            found = self._store.hold_entry(wanted.kind, wanted.digest, wanted.holder)
            if found is not None:  # another thread or process has fetched it meanwhile
                shutil.rmtree(directory, ignore_errors=True)
                return found
            try:
                self._fetch_from_any(wanted, directory)
            except BaseException:
                with contextlib.suppress(OSError):  # the bytes of an interrupted download remain for the next
                    directory.rmdir()
                raise
            self._store.keep_content(directory, wanted.kind, wanted.digest)
        found = self._store.hold_entry(wanted.kind, wanted.digest, wanted.holder)
        if found is None:
            raise FetchFailed(errno.ENOENT, f"{wanted.digest} was evicted at once")
        return found

    def release(self, kind: ContentKind, digest: str, holder: str) -> None:
        """The holder no longer reads the directory. Idempotent; returns at once."""
        if self._releasing is None:
            self._releasing = threading.Thread(target=self._release_entries, name="store-releases", daemon=True)
            self._releasing.start()
        self._releases.put(WantedContent(kind, digest, "", (), holder))

    def _release_entries(self) -> None:
        while True:
            unused = self._releases.get()
            try:
                self._store.release_entry(unused.kind, unused.digest, unused.holder)
            except OSError as error:
                _log.warning("content.not_released", extra={"fields": {"reason": str(error)}})

    def _fetch_from_any(self, wanted: WantedContent, directory: Path) -> None:
        reasons = []
        for url in wanted.sources:
            try:
                source = open_source(url, self._contexts)
                _Download(self._store, source, wanted, directory).run()
                return
            except SourceFailed as error:
                reasons.append(str(error))
            except (ContentMismatch, ManifestRefused) as error:
                _empty(directory)
                reasons.append(f"{source.name}: {error}")
            except OSError as error:
                if error.errno in FULL:
                    _empty(directory)  # frees the partial download; another source cannot help a full disk
                raise
            fields = {"kind": wanted.kind, "digest": wanted.digest, "reason": reasons[-1]}
            _log.warning("content.source_failed", extra={"fields": fields})
        raise FetchFailed(f"it is not at the path, and no source has it: {'; '.join(reasons)}")


class _Download:
    """One content from one source, into `directory`."""

    def __init__(self, store: ContentStore, source: ContentSource, wanted: WantedContent, directory: Path) -> None:
        self._store = store
        self._source = source
        self._wanted = wanted
        self._directory = directory
        self._began = self._said = time.monotonic()
        self._received = 0
        self._unchecked = 0  # bytes since the last check of the free space
        self._bytes = 0  # of all files

    def run(self) -> None:
        """Raises SourceFailed, ContentMismatch, ManifestRefused, OSError."""
        manifest = self._manifest()
        self._bytes = manifest.bytes
        kept = self._keep_usable(manifest)
        self._log("content.fetch_begun", kept=kept)
        try:
            self._receive_files(manifest)
        except ContentMismatch:
            if not kept:
                raise
            # The bytes of an earlier download may be the wrong ones: this source is tried once more without them.
            _empty(self._directory)
            self._receive_files(manifest)
        (self._directory / MANIFEST).write_bytes(self._manifest_data)
        self._log("content.fetched", seconds=round(time.monotonic() - self._began, 3))

    def _manifest(self) -> ContentManifest:
        data = self._manifest_data = self._source.read_manifest()
        expected = self._source.manifest_sum
        if expected and hashlib.sha256(data).hexdigest() != expected:
            raise ManifestRefused("its manifest is another one than the source says")
        return read_manifest(data, self._wanted.kind, self._wanted.digest)

    def _keep_usable(self, manifest: ContentManifest) -> int:
        """Delete files that are no prefix of a file of the manifest; returns the bytes that remain."""
        kept = 0
        for path in list(self._directory.iterdir()):
            file = manifest.file(path.name)
            if file is None or path.stat().st_size > file.bytes:
                path.unlink()
            else:
                kept += path.stat().st_size
        return kept

    def _receive_files(self, manifest: ContentManifest) -> None:
        here = sum(path.stat().st_size for path in self._directory.iterdir())
        self._store.ensure_space(manifest.bytes - here)
        for file in manifest.files:
            self._receive_file(file)
        _verify(self._wanted, self._directory, manifest)

    def _receive_file(self, file: ManifestFile) -> None:
        path = self._directory / file.name
        total = hashlib.sha256()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "r+b", buffering=0) as target:
            size = 0
            while block := target.read(READ_BYTES):
                total.update(block)
                size += len(block)
            cuts = 0
            while size < file.bytes:
                before = size
                try:
                    for part in self._source.read_file(file.name, size, file.bytes):
                        _write(target.fileno(), part)
                        total.update(part)
                        size += len(part)
                        self._note_bytes(len(part))
                    if size < file.bytes:
                        raise SourceCut(f"{self._source.name}: {file.name} ends at byte {size}, not {file.bytes}")
                except SourceFailed as error:
                    if not isinstance(error, SourceCut) and not self._received:
                        raise  # it never sent bytes of this content; a source that did may be restarting
                    cuts = 0 if size > before else cuts + 1
                    if cuts > len(CUT_WAITS_S):
                        raise
                    time.sleep(CUT_WAITS_S[max(0, cuts - 1)])
        if size > file.bytes:
            raise ContentMismatch(f"{file.name} is longer than {file.bytes} bytes")
        if file.sha256 and total.hexdigest() != file.sha256:
            raise ContentMismatch(f"{file.name} has another SHA-256 than its manifest says")

    def _note_bytes(self, count: int) -> None:
        self._received += count
        self._unchecked += count
        if self._unchecked >= SPACE_CHECK_BYTES:
            self._unchecked = 0
            self._store.ensure_space(0)
        if time.monotonic() - self._said >= PROGRESS_S:
            self._said = time.monotonic()
            self._log("content.fetching", seconds=round(self._said - self._began, 1))

    def _log(self, event: str, **more: object) -> None:
        fields = {"kind": self._wanted.kind, "digest": self._wanted.digest, "source": self._source.name}
        numbers = {"bytes": self._received, "bytes_total": self._bytes}
        _log.info(event, extra={"fields": {**fields, **numbers, **more}})


def is_readable(kind: ContentKind, directory: Path) -> bool:
    """Whether the files that an engine reads are here, and it may read them."""
    try:
        names = list(ADAPTER_FILES) if kind == "adapters" else [CONFIG, *weight_names(directory)]
        return all((directory / name).is_file() and os.access(directory / name, os.R_OK) for name in names)
    except (OSError, ValueError):
        return False


def _verify(wanted: WantedContent, directory: Path, manifest: ContentManifest) -> None:
    """Raises ContentMismatch. A model's files have the digests of its manifest, which add up to the model's digest."""
    if wanted.kind == "adapters":
        try:
            found = stored_digest(directory)
        except AdapterRefused as error:
            raise ContentMismatch(str(error)) from error
        if found != wanted.digest:
            raise ContentMismatch(f"its content is {found}")
        return
    weights = sorted(file.name for file in manifest.files if file.name.endswith(WEIGHTS_SUFFIX))
    try:
        found_names = weight_names(directory)
    except ValueError as error:
        raise ContentMismatch(str(error)) from error
    if found_names != weights:
        raise ContentMismatch("its index names other weight files than its manifest")


def _write(descriptor: int, part: bytes | memoryview) -> None:
    rest = memoryview(part)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _empty(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink(missing_ok=True)
