"""Disk space that an upload will need, allocated before its bytes arrive.

It is a file of allocated blocks beside them, which shrinks as they are written: the file system is the one account that
all gateways of a store share, and the store's sweep removes what a crash left. All of it blocks: it is for a thread.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from billing.settler import free_bytes

RESERVE_FILE = "reserve"


class NoRoom(OSError):
    """The space is not there, or what is left after it would be below the mark."""


class Reserve:
    """Of one upload, in its own directory. `free_min_bytes`: what stays free on its file system."""

    def __init__(self, directory: Path, free_min_bytes: int, free: Callable[[Path], int] = free_bytes) -> None:
        self.bytes = 0
        self._path = directory / RESERVE_FILE
        self._free_min_bytes = free_min_bytes
        self._free = free

    def resize(self, size: int) -> None:
        """Raises NoRoom when it cannot grow; then it is as it was."""
        before = self.bytes
        if size == before:
            return
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if size > before:
                self._check(size - before)
                self._grow(descriptor, before, size)
            else:
                os.ftruncate(descriptor, size)
            self.bytes = size
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Idempotent."""
        self._path.unlink(missing_ok=True)
        self.bytes = 0

    def _grow(self, descriptor: int, before: int, size: int) -> None:
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, before, size - before)
            self._check(0)  # another process may have grown at the same time: then both shrink
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, before)
            raise error if isinstance(error, NoRoom) else NoRoom(*error.args) from error

    def _check(self, more: int) -> None:
        free = self._free(self._path.parent)
        if free - more < self._free_min_bytes:
            raise NoRoom(f"{free} bytes are free, {more} are needed, and {self._free_min_bytes} stay free")
