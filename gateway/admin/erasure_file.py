"""Erasures outside the database: a file of JSON lines that is only ever appended to. A restore reads it, so that a
backup from before an erasure does not bring the tenant back.

The file names tenants by id and has no personal data. This module knows no database.
"""

from __future__ import annotations

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


def read(path: Path) -> list[Erasure]:
    """The erasures in the file, in their order; a missing file has none. Raises ErasuresUnreadable, OSError."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    found = []
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        try:
            if not line.endswith(b"\n"):
                raise ValueError("it is cut off")
            found.append(msgspec.json.decode(line, type=Erasure))
        except (msgspec.DecodeError, ValueError) as error:
            raise ErasuresUnreadable(f"{path}, line {number}: {error}") from error
    return found


def append(path: Path, erasures: Iterable[Erasure]) -> None:
    """Append the erasures that the file lacks; they are on the disk when this returns. Raises ErasuresUnreadable,
    OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        known = {erasure.id for erasure in read(path)}
        lines = [msgspec.json.encode(erasure) + b"\n" for erasure in erasures if erasure.id not in known]
        if lines:
            os.write(descriptor, b"".join(lines))
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
