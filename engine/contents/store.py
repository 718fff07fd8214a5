"""The engine's own store: adapters and models that it fetched, each in a directory named by digest, which appears
complete. Engines of one host may share a store.

Entries that no engine has registered are evicted, the least recently used first, when the disk or the store is full.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from engine.contents.holds import EntryHolds
from engine.contents.manifests import DIGEST, MANIFEST, ContentKind, ManifestRefused, read_manifest

KINDS: tuple[ContentKind, ...] = ("adapters", "models")

_log = logging.getLogger(__name__)


class StoreFull(OSError):
    """Bytes that are needed do not fit, though every entry that may leave was evicted."""


class _Entry(NamedTuple):
    """An entry, or an unfinished download."""

    used_at: int  # ns; of the directory's modification time
    path: Path
    bytes: int


def free_bytes(directory: Path) -> int:
    """Free disk space for this user."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


class ContentStore:
    """`<root>/{adapters,models}/<digest>/`. `bytes_max`: of all entries; 0: no limit. `free_min_bytes`: disk space that
    the store leaves free. Thread-safe; another process may use the same root."""

    def __init__(
        self, root: Path, *, bytes_max: int = 0, free_min_bytes: int = 0, free: Callable[[Path], int] = free_bytes
    ) -> None:
        self.root = root
        self._bytes_max = bytes_max
        self._free_min_bytes = free_min_bytes
        self._free = free
        self._incoming = root / ".incoming"
        self._trash = root / ".trash"
        self._holds = EntryHolds(root / ".held")
        self._holders: dict[str, set[str]] = {}  # entry → what uses it in this process
        self._mutex = threading.Lock()

    def entry(self, kind: ContentKind, digest: str) -> Path:
        """The directory of a digest, which need not exist. Raises ValueError for a string that is no digest."""
        if not DIGEST.fullmatch(digest):
            raise ValueError(f"not a digest: {digest[:80]!r}")
        return self.root / kind / digest

    def hold_entry(self, kind: ContentKind, digest: str, holder: str) -> Path | None:
        """The directory of a complete entry, which is not evicted until `release_entry`. None: there is none. Raises
        OSError, ValueError."""
        path, name = self.entry(kind, digest), f"{kind}-{digest}"
        if not path.is_dir():
            return None
        with self._locked():
            if not _is_complete(path, kind, digest):
                self._throw_away(path)
                return None
            os.utime(path)
            self._holds.hold_entry(name)
            self._holders.setdefault(name, set()).add(holder)
        return path

    def release_entry(self, kind: ContentKind, digest: str, holder: str) -> None:
        """`holder` no longer uses the entry. Idempotent. Raises OSError."""
        name = f"{kind}-{digest}"
        if holder not in self._holders.get(name, ()):
            return
        with self._locked():
            holders = self._holders.get(name, set())
            holders.discard(holder)
            if not holders:
                self._holders.pop(name, None)
                self._holds.release_entry(name)
                with contextlib.suppress(OSError):
                    os.utime(self.entry(kind, digest))

    @contextlib.contextmanager
    def incoming(self, kind: ContentKind, digest: str) -> Iterator[Path]:
        """The directory to receive this digest in, for one thread of all processes at a time. Files of an earlier
        download that was cut are in it. Raises OSError."""
        path = self._incoming / f"{kind}-{digest}"
        while True:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if path.is_dir() and path.stat().st_ino == os.fstat(descriptor).st_ino:
                break
            os.close(descriptor)  # the thread before renamed it to its digest, or evicted it
        try:
            yield path
        finally:
            os.close(descriptor)

    def keep_content(self, incoming: Path, kind: ContentKind, digest: str) -> None:
        """Rename a verified directory to its digest, after all its bytes are on the disk. Raises OSError."""
        for file in incoming.iterdir():
            _sync(file)
        _sync(incoming)
        path = self.entry(kind, digest)
        with self._locked():
            path.parent.mkdir(mode=0o700, exist_ok=True)
            if path.exists():
                self._throw_away(path)
            incoming.rename(path)
            _sync(path.parent)

    def ensure_space(self, needed: int) -> None:
        """Evict entries until `needed` more bytes fit. Raises StoreFull, OSError."""
        with self._locked():
            held = self._holds.held()
            entries = self._entries()
            total = sum(entry.bytes for entry in entries)
            for entry in sorted(entry for entry in entries if _name(entry.path) not in held):
                if not (lacking := self._lacking(total, needed)):
                    return
                if not self._is_receiving(entry.path):
                    _log.info("content.evicted", extra={"fields": {"path": str(entry.path), "bytes": entry.bytes}})
                    self._throw_away(entry.path)
                    total -= entry.bytes
            if lacking := self._lacking(total, needed):
                raise StoreFull(errno.ENOSPC, lacking)

    def _lacking(self, total: int, needed: int) -> str:
        """Why `needed` bytes do not fit; "" if they do."""
        if self._bytes_max and total + needed > self._bytes_max:
            return f"the store would have {total + needed} bytes, more than store_bytes_max ({self._bytes_max})"
        free = self._free(self.root)
        if free - needed < self._free_min_bytes:
            return f"{free} bytes are free, {needed} are needed, and {self._free_min_bytes} stay free"
        return ""

    def _entries(self) -> list[_Entry]:
        """Entries and unfinished downloads."""
        directories = [self.root / kind for kind in KINDS] + [self._incoming]
        found = []
        for path in [path for parent in directories if parent.is_dir() for path in parent.iterdir()]:
            try:
                size = sum(file.stat().st_size for file in path.iterdir())
                found.append(_Entry(path.stat().st_mtime_ns, path, size))
            except OSError:  # another process renamed it
                continue
        return found

    def _is_receiving(self, path: Path) -> bool:
        """Whether this is the directory of a download in progress, in this or another process."""
        if path.parent != self._incoming:
            return False
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def _throw_away(self, path: Path) -> None:
        """Delete a directory: readers see all of it or nothing."""
        self._trash.mkdir(mode=0o700, exist_ok=True)
        trash = self._trash / uuid.uuid4().hex
        path.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """The store's lock, over all threads and processes. Raises OSError."""
        with self._mutex:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
            finally:
                os.close(descriptor)


def _name(path: Path) -> str:
    """The name of an entry for `EntryHolds`. An unfinished download has a name that no process holds."""
    return f"{path.parent.name}-{path.name}"


def _is_complete(path: Path, kind: ContentKind, digest: str) -> bool:
    """Whether all files of the entry's manifest are there, with their sizes."""
    try:
        manifest = read_manifest((path / MANIFEST).read_bytes(), kind, digest)
        return all((path / file.name).stat().st_size == file.bytes for file in manifest.files)
    except (OSError, ManifestRefused):
        return False


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
