"""Adapters on disk, named by the digest of their content: a directory of two files per digest, which appears complete,
and beside them files that can be made of them again (`modules-1.json`, slab files).

A new adapter is in a separate directory until it is checked: `begin_incoming`, write, `sync`, then `keep_content`. This
module loads no torch and executes nothing from a file. It does not know tenants or names of adapters.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import uuid
from pathlib import Path
from types import TracebackType

from adapters.files.check import (
    CONFIG_FILE,
    FILES,
    WEIGHTS_FILE,
    CheckedAdapter,
    Progress,
    check_stored,
    read_adapter,
    resolve_stored,
)
from adapters.files.header import AdapterRefused
from adapters.files.resolved import is_resolved
from adapters.files.slab_names import SLAB_FORMAT, slab_name
from adapters.files.spec import BaseShape

__all__ = [
    "CONFIG_FILE",
    "FILES",
    "WEIGHTS_FILE",
    "AdapterRefused",
    "AdapterStore",
    "IncomingAdapter",
    "read_adapter",
]

DIGEST = re.compile(r"[0-9a-f]{64}")
COPY_BYTES = 1024 * 1024
OLD_SLABS = re.compile(rf"slab-(?!{SLAB_FORMAT}\.)[0-9]+\..*")


class IncomingAdapter:
    """The directory of one adapter that is being stored, locked by this process. `close` deletes it, unless
    `keep_content` has renamed it."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    def copy_files(self, source: Path, on_bytes: Progress | None = None) -> None:
        """Copy the two files of the directory `source`, and no other. Raises AdapterRefused, OSError."""
        for name, bytes_max in FILES.items():
            _copy(source / name, self.path / name, bytes_max, on_bytes)

    @property
    def bytes(self) -> int:
        """The bytes of both files."""
        return sum((self.path / name).stat().st_size for name in FILES)

    def sync(self) -> None:
        """fsync the files and their directory."""
        for path in self.path.iterdir():
            _sync(path)
        _sync(self.path)

    def close(self) -> None:
        """Idempotent."""
        if self._lock < 0:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1

    def __enter__(self) -> IncomingAdapter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class AdapterStore:
    """`<root>/<digest>/{adapter_config.json,adapter_model.safetensors,modules-1.json,slab-…}`. Processes and threads
    may share a root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._incoming = root / ".incoming"

    def begin_incoming(self) -> IncomingAdapter:
        """A private directory to receive one adapter in. Raises OSError."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._incoming.mkdir(mode=0o700, exist_ok=True)
        while True:
            path = self._incoming / uuid.uuid4().hex
            path.mkdir(mode=0o700)
            lock = _locked(path)
            if lock is not None:
                return IncomingAdapter(path, lock)
            # A sweep locked it between mkdir and lock, as the leftover of a process that ended.

    def keep_content(self, incoming: IncomingAdapter, digest: str) -> Path:
        """Rename a checked and synced adapter to its digest. If the digest is stored already, nothing changes."""
        path = self.path(digest)
        try:
            incoming.path.rename(path)
        except OSError:
            if not path.is_dir():
                raise
            return path  # the same content was stored before
        for file in path.iterdir():
            file.chmod(0o600)
        _sync(self.root)
        return path

    def lacks_slab(self, digest: str, dtype: str) -> bool:
        """Whether the adapter is stored without a slab file of this dtype."""
        path = self.path(digest)
        return path.is_dir() and not (path / slab_name(dtype)).exists()

    def lacks_modules(self, digest: str) -> bool:
        """Whether the adapter is stored without `modules-1.json`."""
        path = self.path(digest)
        return path.is_dir() and not is_resolved(path)

    def resolve(self, digest: str) -> None:
        """Write `modules-1.json` if it is missing: for adapters stored before it existed, or whose file was damaged and
        deleted. Matching patterns may take unlimited time: call it in a process with a CPU limit. Raises
        AdapterRefused, OSError."""
        if self.lacks_modules(digest):
            resolve_stored(self.path(digest))

    def add_slab(self, digest: str, base: BaseShape, dtype: str) -> None:
        """Make the slab of a resolved adapter that has no slab or a slab of an older format; atomically. Raises
        AdapterRefused for content that does not match the digest, ModulesUnresolved, OSError."""
        from adapters.files.slab_file import make_slab  # which loads numpy

        directory = self.path(digest)
        checked = check_stored(directory, base, dtype)
        if checked.digest != digest:
            raise AdapterRefused(f"its content is {checked.digest} now")
        with self.begin_incoming() as incoming:
            made = make_slab(directory, incoming.path, checked, base, dtype)
            made.chmod(0o600)
            _sync(made)
            made.rename(directory / made.name)
        for old in directory.iterdir():
            if OLD_SLABS.fullmatch(old.name):
                old.unlink(missing_ok=True)
        _sync(directory)

    def path(self, digest: str) -> Path:
        """The directory of a digest, which need not exist. Raises ValueError for a string that is no digest."""
        if not DIGEST.fullmatch(digest):
            raise ValueError(f"not an adapter digest: {digest[:80]!r}")
        return self.root / digest

    def has(self, digest: str) -> bool:
        return self.path(digest).is_dir()

    def digests(self) -> set[str]:
        """The digests of all stored adapters."""
        if not self.root.is_dir():
            return set()
        return {path.name for path in self.root.iterdir() if DIGEST.fullmatch(path.name)}

    def remove_content(self, digest: str) -> None:
        """Delete a digest's directory. Idempotent."""
        path = self.path(digest)
        self._incoming.mkdir(parents=True, exist_ok=True)
        trash = self._incoming / uuid.uuid4().hex
        try:
            path.rename(trash)  # readers see all of it or nothing
        except FileNotFoundError:
            return
        shutil.rmtree(trash, ignore_errors=True)  # the next sweep deletes leftovers

    def sweep(self) -> int:
        """Delete incoming directories whose process has ended. Returns their number."""
        swept = 0
        for left in list(self._incoming.iterdir()) if self._incoming.is_dir() else []:
            lock = _locked(left)
            if lock is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(lock)
                swept += 1
        return swept


def slab_of(directory: Path, checked: CheckedAdapter, base: BaseShape, dtype: str) -> bool:
    """Make the slab file of an incoming adapter, in its directory. False if the disk has no space: an adapter is served
    without a slab file too."""
    from adapters.files.slab_file import make_slab  # which loads numpy

    try:
        make_slab(directory, directory, checked, base, dtype)
    except OSError:
        return False
    return True


def _locked(path: Path) -> int | None:
    """An open descriptor of the directory that holds its lock, which the kernel releases when the process ends. None if
    another process has the lock or the directory no longer exists."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.stat().st_ino == os.fstat(lock).st_ino:
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def _copy(source: Path, target: Path, bytes_max: int, on_bytes: Progress | None) -> None:
    """Copy one regular file of at most `bytes_max` bytes; a symbolic link is refused."""
    try:
        fileno = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise AdapterRefused(f"{source.name}: {_why_not_opened(source, error)}") from error
    found = os.fstat(fileno)
    if not stat.S_ISREG(found.st_mode) or found.st_size > bytes_max:
        os.close(fileno)
        if stat.S_ISREG(found.st_mode):
            raise AdapterRefused(f"{source.name}: {found.st_size} bytes, more than {bytes_max}")
        raise AdapterRefused(f"{source.name}: not a regular file")
    with os.fdopen(fileno, "rb") as reader, target.open("xb") as writer:
        copied = 0
        while block := reader.read(COPY_BYTES):
            copied += len(block)
            if copied > bytes_max:  # the file grew during the copy
                raise AdapterRefused(f"{source.name}: more than {bytes_max} bytes")
            writer.write(block)
            if on_bytes is not None:
                on_bytes(len(block))


def _why_not_opened(source: Path, error: OSError) -> str:
    if source.is_symlink():
        return "a symbolic link"
    if source.with_suffix(".bin").exists():
        return "missing; a pickled .bin is never read, save the adapter with safe_serialization"
    return os.strerror(error.errno or 0)


def _sync(path: Path) -> None:
    fileno = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fileno)
    finally:
        os.close(fileno)
