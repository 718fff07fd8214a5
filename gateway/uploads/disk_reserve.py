"""Disk space that an upload will need, allocated before its bytes arrive.

The reserve is a file of allocated blocks beside the uploaded files, and shrinks as these are written. All gateways of a
store share the file system, so each sees the reserves of the others; the store's sweep removes reserves that a crash
left. The calls block: run them in a thread.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from billing.ledger.settler import free_bytes

RESERVE_FILE = "reserve"


class DiskFull(OSError):
    """The allocation failed, or would leave less than `free_min_bytes` free."""


class DiskReserve:
    """The reserve of one upload, in its directory. `free_min_bytes`: bytes that stay free on the file system."""

    def __init__(self, directory: Path, free_min_bytes: int, free: Callable[[Path], int] = free_bytes) -> None:
        self.bytes = 0
        self._path = directory / RESERVE_FILE
        self._free_min_bytes = free_min_bytes
        self._free = free

    def resize(self, size: int) -> None:
        """Grow or shrink to `size` bytes. Raises DiskFull when it cannot grow; the old size is kept then."""
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
        """Release all of it. Idempotent."""
        self._path.unlink(missing_ok=True)
        self.bytes = 0

    def _grow(self, descriptor: int, before: int, size: int) -> None:
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, before, size - before)
            self._check(0)  # another process may have grown its reserve at the same time: then both shrink
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, before)
            raise error if isinstance(error, DiskFull) else DiskFull(*error.args) from error

    def _check(self, more: int) -> None:
        free = self._free(self._path.parent)
        if free - more < self._free_min_bytes:
            raise DiskFull(f"{free} bytes are free, {more} are needed, and {self._free_min_bytes} stay free")
