"""Erasures outside the database: a file of JSON lines that is only ever appended to. A restore reads it, so that a
backup from before an erasure does not restore the tenant.

The file names tenants by id and has no personal data. This module knows no database.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

FILE = "erasures.jsonl"  # beside the archives in a folder of backups


class Erasure(msgspec.Struct, frozen=True):
    """A tenant was erased at `at`, in microseconds UTC."""

    id: str
    tenant_id: str
    at: int


class ErasuresUnreadable(OSError):
    """A line of the file is damaged; the message names file and line."""


def read_erasures(path: Path) -> list[Erasure]:
    """The erasures in the file, in their order; a missing file has no erasures. Raises ErasuresUnreadable, OSError."""
    try:
        return parse_erasures(path.read_bytes(), str(path))
    except FileNotFoundError:
        return []


def parse_erasures(text: bytes, name: str) -> list[Erasure]:
    """The erasures in the contents of a file. Raises ErasuresUnreadable, whose message has `name`."""
    found = []
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        try:
            if not line.endswith(b"\n"):
                raise ValueError("it is cut off")
            found.append(msgspec.json.decode(line, type=Erasure))
        except (msgspec.DecodeError, ValueError) as error:
            raise ErasuresUnreadable(f"{name}, line {number}: {error}") from error
    return found


def append_erasures(path: Path, erasures: Iterable[Erasure]) -> None:
    """Append the erasures that the file lacks; they are on the disk when this returns. Raises ErasuresUnreadable,
    OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        known = {erasure.id for erasure in read_erasures(path)}
        lines = [msgspec.json.encode(erasure) + b"\n" for erasure in erasures if erasure.id not in known]
        if lines:
            _write_whole(descriptor, b"".join(lines))
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_whole(descriptor: int, data: bytes) -> None:
    """Append all of `data` or nothing: no gateway starts with a line that is cut off. Raises OSError."""
    size = os.fstat(descriptor).st_size
    try:
        if (written := os.write(descriptor, data)) < len(data):
            raise OSError(errno.ENOSPC, f"{written} of {len(data)} bytes were written")
    except OSError:
        os.ftruncate(descriptor, size)
        raise
