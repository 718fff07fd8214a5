"""Entries of a store that are in use: each process has a directory of their names, which it locks while it lives.

A lock of each entry would take an open file for each of thousands of adapters. The kernel releases a lock when its
process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from pathlib import Path

LOCK = "lock"


class EntryHolds:
    """The holds of this process, in its own directory below `root`. Not thread-safe: the caller holds the store's
    lock."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._own = root / f"{os.getpid()}-{uuid.uuid4().hex}"
        self._descriptor = -1

    def hold_entry(self, name: str) -> None:
        """Idempotent. Raises OSError."""
        if self._descriptor < 0:
            self._own.mkdir(mode=0o700, parents=True)
            self._descriptor = os.open(self._own / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        (self._own / name).touch(mode=0o600)

    def release_entry(self, name: str) -> None:
        """Idempotent. Raises OSError."""
        (self._own / name).unlink(missing_ok=True)

    def held(self) -> set[str]:
        """Whether any live process holds the entry. The directories of dead ones are removed. Raises OSError."""
        names: set[str] = set()
        for directory in list(self._root.iterdir()) if self._root.is_dir() else []:
            if directory == self._own or _is_locked(directory / LOCK):
                names.update(path.name for path in directory.iterdir() if path.name != LOCK)
            else:
                shutil.rmtree(directory, ignore_errors=True)
        return names


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
