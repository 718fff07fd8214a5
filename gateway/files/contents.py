"""Contents of files, encrypted in chunks under the text key of their tenant.

A content is a header and sealed chunks of CHUNK_BYTES plain bytes; the last chunk may be shorter. Each chunk is bound
to the file's id, to the random salt in the header, to its number, and to whether it is the last one. So a chunk that
was changed or moved, or that is of another write, does not decrypt, nor does the last chunk of a truncated content.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator

import msgspec

from gateway.files.backends import ContentBackend, OpenContent
from gateway.stored.texts import NONCE_BYTES, TextKey, TextUnreadable

CHUNK_BYTES = 256 * 1024
SEAL_BYTES = 1 + NONCE_BYTES + 16  # what TextKey.seal adds: format, nonce and tag
MAGIC, SALT_BYTES = b"LWF1", 16
HEADER_BYTES = len(MAGIC) + SALT_BYTES
STREAM_CHUNKS = 4  # read at once


class WrittenFile(msgspec.Struct, frozen=True):
    """Result of a write: bytes of the plain content, and their SHA-256 in hex."""

    size: int
    sha256: str


class ContentReader:
    """One open content; close it. `size`: bytes of the plain content."""

    def __init__(self, content: OpenContent, key: TextKey, file_id: str, salt: bytes) -> None:
        self._content = content
        self._key = key
        self._file_id = file_id
        self._salt = salt.hex()
        self._chunks = -(-(content.size - HEADER_BYTES) // (CHUNK_BYTES + SEAL_BYTES))
        self.size = content.size - HEADER_BYTES - self._chunks * SEAL_BYTES
        if self._chunks < 1 or self.size < 0:
            raise TextUnreadable("the content has no chunk")

    async def read(self, start: int, length: int) -> bytes:
        """The plain bytes from `start` on, fewer than `length` at the end of the content. They are in memory at once.
        Raises TextUnreadable, ContentStoreFailed."""
        end = min(start + length, self.size)
        if start >= end:
            return b""
        first, last = start // CHUNK_BYTES, (end - 1) // CHUNK_BYTES
        plain = await self._read_chunks(first, last)
        return plain[start - first * CHUNK_BYTES : end - first * CHUNK_BYTES]

    async def stream_bytes(self, start: int = 0) -> AsyncIterator[bytes]:
        """The plain bytes from `start` to the end, in parts. The last chunk is always opened, so the end of this
        iterator proves that the content is complete. Raises as `read`."""
        for first in range(min(start // CHUNK_BYTES, self._chunks - 1), self._chunks, STREAM_CHUNKS):
            plain = await self._read_chunks(first, min(first + STREAM_CHUNKS, self._chunks) - 1)
            if part := plain[max(0, start - first * CHUNK_BYTES) :]:
                yield part

    def close(self) -> None:
        """Idempotent."""
        self._content.close()

    async def _read_chunks(self, first: int, last: int) -> bytes:
        stride = CHUNK_BYTES + SEAL_BYTES
        sealed = await self._content.read_range(HEADER_BYTES + first * stride, (last - first + 1) * stride)
        return await asyncio.to_thread(self._open_chunks, sealed, first, last)

    def _open_chunks(self, sealed: bytes, first: int, last: int) -> bytes:
        stride = CHUNK_BYTES + SEAL_BYTES
        parts = []
        for number in range(first, last + 1):
            chunk = sealed[(number - first) * stride : (number - first + 1) * stride]
            place = chunk_place(self._file_id, self._salt, number, is_last=number == self._chunks - 1)
            parts.append(self._key.open(chunk, place))
        return b"".join(parts)


class FileContents:
    """The contents of one gateway process, in the backend that all gateways share."""

    def __init__(self, backend: ContentBackend) -> None:
        self.backend = backend

    async def write(self, key: TextKey, file_id: str, parts: AsyncIterator[bytes]) -> WrittenFile:
        """Write or replace the content of a file, a chunk at a time. If `parts` raises, nothing is stored and the error
        is raised. Raises ContentStoreFailed."""
        sealer = _Sealer(key, file_id)
        await self.backend.write_content(file_id, sealer.seal_parts(parts))
        return WrittenFile(sealer.size, sealer.digest.hexdigest())

    async def open_reader(self, key: TextKey, file_id: str) -> ContentReader:
        """For several reads of one content. Raises TextUnreadable, ContentStoreFailed."""
        content = await self.backend.open_content(file_id)
        try:
            header = await content.read_range(0, HEADER_BYTES)
            if len(header) != HEADER_BYTES or not header.startswith(MAGIC):
                raise TextUnreadable("the content has another format")
            return ContentReader(content, key, file_id, header[len(MAGIC) :])
        except BaseException:
            content.close()
            raise

    async def read(self, key: TextKey, file_id: str, start: int, length: int) -> bytes:
        """Plain bytes of a content, as `ContentReader.read`."""
        reader = await self.open_reader(key, file_id)
        try:
            return await reader.read(start, length)
        finally:
            reader.close()

    async def stream(self, key: TextKey, file_id: str, start: int = 0) -> AsyncIterator[bytes]:
        """The plain bytes of a content from `start` on, as `ContentReader.stream_bytes`."""
        reader = await self.open_reader(key, file_id)
        try:
            async for part in reader.stream_bytes(start):
                yield part
        finally:
            reader.close()

    async def delete(self, file_id: str) -> None:
        """Idempotent. Raises ContentStoreFailed."""
        await self.backend.delete_content(file_id)


class _Sealer:
    """Seals one content while its parts arrive."""

    def __init__(self, key: TextKey, file_id: str) -> None:
        self._key = key
        self._file_id = file_id
        self._salt = os.urandom(SALT_BYTES)
        self._number = 0
        self.size = 0
        self.digest = hashlib.sha256()

    async def seal_parts(self, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The header and the sealed chunks. The last chunk is sealed when the parts have ended."""
        yield MAGIC + self._salt
        waiting = bytearray()
        async for part in parts:
            waiting += part
            while len(waiting) > CHUNK_BYTES:
                chunk = bytes(memoryview(waiting)[:CHUNK_BYTES])
                del waiting[:CHUNK_BYTES]
                yield await asyncio.to_thread(self._seal, chunk, is_last=False)
        yield await asyncio.to_thread(self._seal, bytes(waiting), is_last=True)

    def _seal(self, chunk: bytes, *, is_last: bool) -> bytes:
        self.size += len(chunk)
        self.digest.update(chunk)
        place = chunk_place(self._file_id, self._salt.hex(), self._number, is_last=is_last)
        self._number += 1
        return self._key.seal(chunk, place)


def chunk_place(file_id: str, salt: str, number: int, *, is_last: bool) -> str:
    """To which a chunk is bound."""
    return f"file {file_id} write {salt} {'last chunk' if is_last else 'chunk'} {number}"
