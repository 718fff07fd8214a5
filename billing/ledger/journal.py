"""The journal: a file with endings, on this host's disk, for the time in which the database is unavailable. It has one
writer.

The file is created with its full size, filled with zeros, so that later writes need no free disk space. A record is the
length of its text, the text's CRC-32, and the text, which is JSON; a length of 0 ends the records. All functions block:
call them in a thread. This module knows no database.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from billing.ledger.messages import Settlement, Void

# The size of the largest record, with its header. The settler reserves this space in the journal for each running
# request.
RECORD_BYTES_MAX = 4096
READ_RECORDS_MAX = 256
SUFFIX = ".journal"
CREATE_TRIES = 3
REJECTED = "endings.rejected"
REJECTED_BYTES_MAX = 16 * 1024 * 1024

_HEADER = struct.Struct(">II")  # bytes of the text, its CRC-32
_ZEROS = bytes(1024 * 1024)

_log = logging.getLogger("laneway.billing")
_decoder = msgspec.json.Decoder(Settlement | Void)

JournalRecord = Settlement | Void


class JournalFailed(Exception):
    """The journal is full, or a write to the disk failed. None of the endings was recorded."""


class Journal:
    """The file at `path`, locked by this process. Its first `used` bytes are records."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Use `create` or `adopt`."""
        self.path = path
        self.bytes_max = os.fstat(descriptor).st_size
        self.used = 0
        self._descriptor = descriptor
        self.failed = ""  # the reason why this journal accepts no more records; "": it does

    @classmethod
    def create(cls, path: Path, bytes_max: int) -> Journal:
        """Create a journal of `bytes_max` bytes. Raises OSError, for example when the disk has less space."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for _ in range(CREATE_TRIES):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.fstat(descriptor).st_nlink:
                    _allocate(descriptor, bytes_max)
                    _sync_folder(path.parent)
                    return cls(path, descriptor)
            except OSError:
                path.unlink(missing_ok=True)
                os.close(descriptor)
                raise
            os.close(descriptor)  # before we locked the file, another process adopted and removed it
        raise OSError(f"{path} was removed {CREATE_TRIES} times while it was created")

    @classmethod
    def adopt(cls, path: Path) -> Journal | None:
        """The journal of a dead gateway; None while its writer lives, or when another process has adopted it.
        Raises OSError."""
        try:
            descriptor = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:
                journal = cls(path, descriptor)
                for _text, end in journal._records(0):
                    journal.used = end
                journal._report_torn()
                return journal
        except BlockingIOError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    def append(self, endings: Sequence[JournalRecord]) -> None:
        """Write the endings; they are on the disk when this returns. Raises JournalFailed: none of them is recorded."""
        if self.failed:
            raise JournalFailed(self.failed)
        data = b"".join([_record(ending) for ending in endings])
        if self.used + len(data) > self.bytes_max:
            raise JournalFailed(f"{self.path} is full: {self.used} of {self.bytes_max} bytes are used")
        try:
            _write(self._descriptor, data, self.used)
            os.fsync(self._descriptor)
        except OSError as error:
            # The contents of the disk are unknown now: a further fsync may succeed although these pages were not
            # written.
            self.failed = f"{self.path}: {error.strerror}"
            with contextlib.suppress(OSError):  # an adopting process must not settle endings that were reported lost
                _write(self._descriptor, bytes(_HEADER.size), self.used)
            raise JournalFailed(self.failed) from error
        self.used += len(data)

    def read(self, start: int) -> tuple[list[JournalRecord], int]:
        """At most READ_RECORDS_MAX endings from offset `start`, and the offset after them. Raises JournalFailed if
        the next record cannot be read."""
        endings: list[JournalRecord] = []
        for text, end in self._records(start):
            if end > self.used or len(endings) == READ_RECORDS_MAX:
                break
            endings.append(_decoder.decode(text))
            start = end
        if not endings and start < self.used:
            self.failed = f"{self.path}: the record at {start} of {self.used} bytes cannot be read"
            _log.critical("journal.unreadable", extra={"fields": {"reason": self.failed}})
            raise JournalFailed(self.failed)
        return endings, start

    def clear(self, upto: int) -> bool:
        """Remove all records and return True; return False if there are records after the offset `upto`. The records of
        a failed journal remain in the file. Raises JournalFailed."""
        if self.used > upto:
            return False
        if not self.used or self.failed:
            return True
        try:
            for start in range(0, self.used, len(_ZEROS)):
                _write(self._descriptor, _ZEROS[: self.used - start], start)
            os.fsync(self._descriptor)
        except OSError as error:
            self.failed = f"{self.path}: {error.strerror}"
            raise JournalFailed(self.failed) from error
        self.used = 0
        return True

    def close(self) -> None:
        """Close the file, and delete it if it has no records. Idempotent."""
        if self._descriptor < 0:
            return
        if not self.used:
            with contextlib.suppress(OSError):
                self.path.unlink()
        os.close(self._descriptor)
        self._descriptor = -1

    def _records(self, start: int) -> Iterator[tuple[bytes, int]]:
        """Complete records from offset `start`: the text of each, and the offset after it."""
        while len(header := os.pread(self._descriptor, _HEADER.size, start)) == _HEADER.size:
            length, checksum = _HEADER.unpack(header)
            if not 0 < length <= RECORD_BYTES_MAX - _HEADER.size:
                return
            text = os.pread(self._descriptor, length, start + _HEADER.size)
            if len(text) < length or zlib.crc32(text) != checksum:
                return
            start += _HEADER.size + length
            yield text, start

    def _report_torn(self) -> None:
        """Log an incomplete last record. Its process or machine died before `append` returned."""
        tail = os.pread(self._descriptor, RECORD_BYTES_MAX, self.used)
        if tail.strip(b"\0"):
            fields = {"journal": self.path.name, "at": self.used}
            _log.warning("journal.torn", extra={"fields": fields})


def paths(folder: Path) -> list[Path]:
    """The journals in `folder`, of living and dead gateways."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def reject(folder: Path, refused: Sequence[tuple[JournalRecord, str]]) -> None:
    """Append endings that can never be settled, each with its reason, to the file REJECTED in `folder`, for operators:
    one JSON object a line. They are on the disk when this returns. If the file would exceed REJECTED_BYTES_MAX, they
    are in the log only. Raises OSError."""
    rows = [{"reason": reason, "ending": ending} for ending, reason in refused]
    data = b"".join([msgspec.json.encode(row) + b"\n" for row in rows])
    descriptor = os.open(folder / REJECTED, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if size + len(data) > REJECTED_BYTES_MAX:
            _log.error("journal.rejected_full", extra={"fields": {"bytes": size, "endings": len(rows)}})
            return
        _write(descriptor, data, size)
        os.fsync(descriptor)
        _sync_folder(folder)
    finally:
        os.close(descriptor)


def _record(ending: JournalRecord) -> bytes:
    text = msgspec.json.encode(ending)
    assert len(text) + _HEADER.size <= RECORD_BYTES_MAX, f"a record has more than {RECORD_BYTES_MAX} bytes"
    return _HEADER.pack(len(text), zlib.crc32(text)) + text


def _allocate(descriptor: int, size: int) -> None:
    """Allocate blocks of the disk for `size` zeros."""
    os.truncate(descriptor, 0)
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        for start in range(0, size, len(_ZEROS)):
            _write(descriptor, _ZEROS[: size - start], start)
    os.fsync(descriptor)


def _write(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
