"""A slab on disk, beside the file from which it was made: an adapter's numbers in the engine's order and dtype, so that
a load is a read and no arithmetic.

It is a copy that may be deleted at any time: an incomplete or altered slab is not read. It loads no torch, and
must never know about pages, devices or requests.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Sequence
from io import FileIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

from adapters.files.check import WEIGHTS_FILE, CheckedAdapter
from adapters.files.slab_names import SLAB_FORMAT, slab_name
from adapters.files.slab_order import (
    ITEM_BYTES,
    ReadStopped,
    TileSpan,
    cuts_of,
    pieces,
    ranks_of,
    read_past_header,
    slab_bytes,
)
from adapters.files.spec import BaseShape

MAGIC = b"laneway-slab\n\0\0\0"
# Bytes per checksum, which detects damage by a disk, a copy or a crash.
SUMMED_BYTES = 4096
WORD_BYTES = 8
DIGEST_BYTES = 32
# The bytes before the numbers, which begin at a page boundary of the page cache.
HEADER_BYTES = 4096
# Read at once: large, as each time between two is a turn for the interpreter's lock.
BLOCK_BYTES = 16 * 1024 * 1024
PART_BYTES_MIN = 4 * 1024 * 1024
WRITTEN_BLOCK_BYTES = 1024 * 1024

Sums = npt.NDArray[np.uint64]


class SlabUnusable(Exception):
    """The slab's file is damaged or has another key than expected. It can be made again from the adapter's file."""


def slab_key(content: str, header: bytes, cuts: Sequence[TileSpan], dtype: str) -> bytes:
    """The identity of a slab: its content by name, its file by the SHA-256 of its header, and the positions of its
    tiles. A different shape of the base, order or dtype gives a different key."""
    meant = [SLAB_FORMAT, content, header.hex(), dtype, SUMMED_BYTES, [list(cut) for cut in cuts]]
    return hashlib.sha256(json.dumps(meant, separators=(",", ":")).encode()).digest()


def make_slab(source: Path, target: Path, checked: CheckedAdapter, base: BaseShape, dtype: str) -> Path:
    """Write the slab of the adapter in the directory `source` into the directory `target`, in memory that does not grow
    with the slab. Returns its file, which is not synced to the disk. Raises AdapterRefused, OSError, without a file."""
    spec, path = checked.spec, target / slab_name(dtype)
    cuts = cuts_of(ranks_of(spec), base, ITEM_BYTES[dtype])
    size = slab_bytes(cuts)
    with (source / WEIGHTS_FILE).open("rb", buffering=0) as raw, path.open("x+b", buffering=0) as out:
        try:
            # The whole size first, so that a full disk fails here.
            os.posix_fallocate(out.fileno(), 0, HEADER_BYTES + size + _sums_bytes(size))
            key = slab_key(checked.digest, read_past_header(raw, spec), cuts, dtype)
            for start, numbers in pieces(raw, spec, cuts, dtype, check=True):
                _write(out, np.ascontiguousarray(numbers).data.cast("B"), HEADER_BYTES + start)
            sums = _summed(out, size)
            _write(out, sums.data.cast("B"), HEADER_BYTES + size)
            _write(out, memoryview(MAGIC + key + hashlib.sha256(sums.data).digest()), 0)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    return path


def read_slab(path: Path, key: bytes, slab: memoryview, stopped: Callable[[], bool], threads: int = 1) -> None:
    """Read into memory of the slab's size, on `threads` threads, this one included. The interpreter's lock is held only
    for moments. Raises SlabUnusable, after which the memory's content is undefined; OSError, including
    FileNotFoundError; ReadStopped soon after `stopped()`."""
    size = len(slab)
    with path.open("rb", buffering=0) as raw:
        descriptor, found = raw.fileno(), os.fstat(raw.fileno()).st_size
        if found != HEADER_BYTES + size + _sums_bytes(size):
            raise SlabUnusable(f"{path.name}: {found} bytes, not {HEADER_BYTES + size + _sums_bytes(size)}")
        header = os.pread(descriptor, len(MAGIC) + 2 * DIGEST_BYTES, 0)
        if header[:-DIGEST_BYTES] != MAGIC + key:
            raise SlabUnusable(f"{path.name}: not a slab of this adapter as it is laid out here")
        parts = _parts(descriptor, path.name, slab, stopped, threads)
        others = [threading.Thread(target=part.run, name="adapter-read", daemon=True) for part in parts[1:]]
        for other in others:
            other.start()
        parts[0].run()
        for other in others:
            other.join()
        for part in parts:
            if part.error is not None:
                raise part.error
        written = bytearray(_sums_bytes(size))
        _fill(descriptor, memoryview(written), HEADER_BYTES + size, path.name)
    if header[-DIGEST_BYTES:] != hashlib.sha256(written).digest():
        raise SlabUnusable(f"{path.name}: its sums are damaged")
    sums = np.concatenate([part.sums for part in parts])
    if wrong := np.flatnonzero(sums != np.frombuffer(written, np.uint64)).tolist():
        at = HEADER_BYTES + wrong[0] * SUMMED_BYTES
        raise SlabUnusable(f"{path.name}: {len(wrong)} blocks are damaged, the first at byte {at}")


class _Part:
    """Bytes `start ≤ i < start + len(data)` of a slab on their way, for one thread."""

    def __init__(self, descriptor: int, name: str, start: int, data: memoryview, stopped: Callable[[], bool]) -> None:
        self.sums = np.zeros(_sums_bytes(len(data)) // WORD_BYTES, np.uint64)
        self.error: Exception | None = None
        self._file = descriptor, name
        self._start = start
        self._data = data
        self._stopped = stopped

    def run(self) -> None:
        words, (descriptor, name) = np.frombuffer(self._data, np.uint64), self._file
        try:
            for at in range(0, len(self._data), BLOCK_BYTES):
                if self._stopped():
                    raise ReadStopped
                block = self._data[at : at + BLOCK_BYTES]
                _fill(descriptor, block, HEADER_BYTES + self._start + at, name)
                own = words[at // WORD_BYTES : (at + len(block)) // WORD_BYTES]
                _sum(own, self.sums[at // SUMMED_BYTES : (at + len(block) + SUMMED_BYTES - 1) // SUMMED_BYTES])
        except (SlabUnusable, OSError, ReadStopped) as error:
            self.error = error


def _parts(descriptor: int, name: str, slab: memoryview, stopped: Callable[[], bool], threads: int) -> list[_Part]:
    """Split the slab into parts of equal size, except the last; a part is large enough to be worth a thread."""
    size = max(PART_BYTES_MIN, -(-len(slab) // (threads * SUMMED_BYTES)) * SUMMED_BYTES)
    return [_Part(descriptor, name, at, slab[at : at + size], stopped) for at in range(0, len(slab), size)]


def _sums_bytes(size: int) -> int:
    return -(-size // SUMMED_BYTES) * WORD_BYTES


def _summed(raw: FileIO, size: int) -> Sums:
    """The digest of the written bytes."""
    sums = np.zeros(_sums_bytes(size) // WORD_BYTES, np.uint64)
    block = np.empty(WRITTEN_BLOCK_BYTES // WORD_BYTES, np.uint64)
    for start in range(0, size, block.nbytes):
        data = block[: min(block.nbytes, size - start) // WORD_BYTES]
        _fill(raw.fileno(), data.data.cast("B"), HEADER_BYTES + start, "slab")
        _sum(data, sums[start // SUMMED_BYTES : -(-(start + data.nbytes) // SUMMED_BYTES)])
    return sums


def _sum(words: Sums, sums: Sums) -> None:
    """Sum each block of SUMMED_BYTES modulo 2⁶⁴; the last block may be shorter."""
    each = SUMMED_BYTES // WORD_BYTES
    whole = len(words) // each
    np.add.reduce(words[: whole * each].reshape(-1, each), axis=1, out=sums[:whole])
    if len(words) % each:
        sums[whole] = np.add.reduce(words[whole * each :])


def _fill(descriptor: int, data: memoryview, at: int, name: str) -> None:
    while data:
        count = os.preadv(descriptor, [data], at)
        if not count:
            raise SlabUnusable(f"{name}: it ends too soon")
        data, at = data[count:], at + count


def _write(out: FileIO, data: memoryview, at: int) -> None:
    while data:
        done = os.pwrite(out.fileno(), data, at)
        data, at = data[done:], at + done
