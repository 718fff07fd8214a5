"""Where encrypted contents are: a directory of this host or of a shared file system, or an object store by URL.

A content is written as a whole or not at all, and is named by the id of its file. A content may be written again under
the same name; readers see the old or the new content.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import errno
import functools
import os
import re
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar
from urllib.parse import urlsplit

from billing.ids import new_id
from billing.ledger.settler import free_bytes
from engine.contents.object_stores import ObjectStoreUnusable, object_errors, open_object_store, why_failed

CONTENT_NAME = re.compile(r"file-[0-9a-f]{32}")
INCOMING = "incoming"  # the folder of contents that are being written
SHARD_CHARS = 2  # of the random part of a name: the folder of the content
MULTIPART_BYTES = 5 * 1024 * 1024  # S3's smallest part
PARTS_AT_ONCE = 2  # of one content that is written to an object store
FULL = (errno.ENOSPC, errno.EDQUOT)
T = TypeVar("T")


class ContentStoreFailed(Exception):
    """The store cannot be read or written now. `is_full`: it has too little space."""

    def __init__(self, message: str, *, is_full: bool = False) -> None:
        super().__init__(message)
        self.is_full = is_full


class ContentMissing(ContentStoreFailed):
    """The store has no content of this name, or its directory was removed."""


class OpenContent(Protocol):
    """An encrypted content that is open for reading. `size`: its bytes."""

    size: int

    async def read_range(self, start: int, length: int) -> bytes:
        """The bytes from `start` on, fewer than `length` at the end. Raises ContentStoreFailed."""

    def close(self) -> None: ...


class ContentBackend(Protocol):
    """A store of encrypted contents. `name`: matches CONTENT_NAME."""

    async def write_content(self, name: str, parts: AsyncIterator[bytes]) -> None:
        """Write or replace a content. If `parts` raises, the store is unchanged. Raises ContentStoreFailed."""

    async def open_content(self, name: str) -> OpenContent:
        """Raises ContentStoreFailed."""

    async def delete_content(self, name: str) -> None:
        """Idempotent. Raises ContentStoreFailed."""

    async def old_names(self, age_s: float) -> list[str]:
        """Names of the contents that were written at least `age_s` seconds ago. Deletes the remains of incomplete
        writes that are at least as old. Raises ContentStoreFailed."""

    async def check_writable(self) -> None:
        """Write and delete a small object. Raises ContentStoreFailed."""


class ContentDirectory:
    """A store in a directory, which gateways of several hosts may share. `free_min_bytes`: bytes that stay free on its
    file system."""

    def __init__(self, directory: Path, free_min_bytes: int = 0, free: Callable[[Path], int] = free_bytes) -> None:
        self.directory = directory
        self._free_min_bytes = free_min_bytes
        self._free = free

    async def write_content(self, name: str, parts: AsyncIterator[bytes]) -> None:
        """See ContentBackend."""
        target, incoming = self._path(name), self.directory / INCOMING / new_id("content")
        try:
            file = await _in_thread(lambda: _create_file(incoming))
            try:
                async for part in parts:
                    await _in_thread(functools.partial(self._append, file, part))
                await _in_thread(lambda: _sync_and_rename(file, incoming, target))
            finally:
                file.close()
        finally:
            incoming.unlink(missing_ok=True)

    async def open_content(self, name: str) -> OpenContent:
        """See ContentBackend."""
        return _FileContent(await _in_thread(lambda: self._path(name).open("rb", buffering=0)))

    async def delete_content(self, name: str) -> None:
        """See ContentBackend."""
        await _in_thread(lambda: self._path(name).unlink(missing_ok=True))

    async def old_names(self, age_s: float) -> list[str]:
        """See ContentBackend."""
        return await _in_thread(lambda: list(self._old_names(time.time() - age_s)))

    async def check_writable(self) -> None:
        """See ContentBackend."""
        try:
            await _in_thread(self._write_probe)
        except ContentMissing as error:  # a file system such as /proc
            raise ContentStoreFailed("no file can be made in the directory") from error

    def _path(self, name: str) -> Path:
        assert CONTENT_NAME.fullmatch(name), "a content's name is the id of its file"
        return self.directory / name.removeprefix("file-")[:SHARD_CHARS] / name

    def _append(self, file: BinaryIO, data: bytes) -> None:
        if self._free(self.directory) - len(data) < self._free_min_bytes:
            raise OSError(errno.ENOSPC, "fewer bytes would be free than the configuration requires")
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]

    def _old_names(self, before: float) -> Iterator[str]:
        if not self.directory.is_dir():
            return
        for path in self.directory.glob(f"{INCOMING}/*"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < before:
                    path.unlink()
        for path in self.directory.glob(f"{'?' * SHARD_CHARS}/file-*"):
            with contextlib.suppress(FileNotFoundError):
                if CONTENT_NAME.fullmatch(path.name) and path.stat().st_mtime < before:
                    yield path.name

    def _write_probe(self) -> None:
        directory = self.directory
        while not directory.exists():  # the first upload makes it
            directory = directory.parent
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"probe")
            file.flush()


class _FileContent:
    """An open file. It can be read after its name was deleted."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = os.fstat(file.fileno()).st_size

    async def read_range(self, start: int, length: int) -> bytes:
        """See OpenContent."""
        return await _in_thread(lambda: os.pread(self._file.fileno(), length, start))

    def close(self) -> None:
        """See OpenContent."""
        self._file.close()


class ContentBucket:
    """A store below the URL of an object store (engine.contents.object_stores). An upload of several parts whose
    gateway is killed leaves parts that only the bucket's own rules delete."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._store: Any = None

    async def write_content(self, name: str, parts: AsyncIterator[bytes]) -> None:
        """See ContentBackend."""
        import obstore

        store = await self._open_store()
        failed: list[BaseException] = []  # an error of `parts` is its caller's, not the store's

        async def noted() -> AsyncIterator[bytes]:
            try:
                async for part in parts:
                    yield part
            except BaseException as error:
                failed.append(error)
                raise

        put = obstore.put_async(
            store, _object_name(name), noted(), chunk_size=MULTIPART_BYTES, max_concurrency=PARTS_AT_ONCE
        )
        try:
            await _of_store(put)
        except ContentStoreFailed:
            if failed:
                raise failed[0] from None
            raise

    async def open_content(self, name: str) -> OpenContent:
        """See ContentBackend."""
        import obstore

        store = await self._open_store()
        found = await _of_store(obstore.head_async(store, _object_name(name)))
        return _ObjectContent(store, _object_name(name), found["size"])

    async def delete_content(self, name: str) -> None:
        """See ContentBackend."""
        import obstore

        with contextlib.suppress(ContentMissing):
            await _of_store(obstore.delete_async(await self._open_store(), _object_name(name)))

    async def old_names(self, age_s: float) -> list[str]:
        """See ContentBackend."""
        store = await self._open_store()
        before = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age_s)
        return await _of_store(asyncio.to_thread(_list_old, store, before))

    async def check_writable(self) -> None:
        """See ContentBackend."""
        import obstore

        store, name = await self._open_store(), f"{INCOMING}/{new_id('probe')}"
        await _of_store(obstore.put_async(store, name, b"probe"))
        await _of_store(obstore.delete_async(store, name))

    async def _open_store(self) -> Any:
        """Raises ContentStoreFailed."""
        if self._store is None:
            try:
                self._store = await asyncio.to_thread(open_object_store, self._url)
            except ObjectStoreUnusable as error:
                raise ContentStoreFailed(str(error)) from error
        return self._store


class _ObjectContent:
    def __init__(self, store: Any, path: str, size: int) -> None:
        self._store = store
        self._path = path
        self.size = size

    async def read_range(self, start: int, length: int) -> bytes:
        """See OpenContent."""
        import obstore

        end = min(start + length, self.size)
        if start >= end:
            return b""
        return bytes(await _of_store(obstore.get_range_async(self._store, self._path, start=start, end=end)))

    def close(self) -> None:
        """See OpenContent. There is nothing to release."""


def open_backend(url: str, default: Path, free_min_bytes: int) -> ContentBackend:
    """The store of `files.store`; an empty URL is the directory `default`. Raises nothing: an object store is opened at
    its first use."""
    if not url:
        return ContentDirectory(default, free_min_bytes)
    parts = urlsplit(url)
    return ContentDirectory(Path(parts.path), free_min_bytes) if parts.scheme == "file" else ContentBucket(url)


def _object_name(name: str) -> str:
    assert CONTENT_NAME.fullmatch(name), "a content's name is the id of its file"
    return name


def _create_file(path: Path) -> BinaryIO:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    return os.fdopen(descriptor, "wb", buffering=0)


def _sync_and_rename(file: BinaryIO, path: Path, target: Path) -> None:
    """The content is on the disk before it has its name."""
    os.fsync(file.fileno())
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.rename(target)
    for folder in (target.parent, target.parent.parent):
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _list_old(store: Any, before: datetime.datetime) -> list[str]:
    import obstore

    found = (entry for batch in obstore.list(store) for entry in batch if entry["last_modified"] < before)
    return [entry["path"] for entry in found if CONTENT_NAME.fullmatch(entry["path"])]


async def _in_thread(function: Callable[[], T]) -> T:
    """Run a function on the disk. Raises ContentStoreFailed."""
    try:
        return await asyncio.to_thread(function)
    except FileNotFoundError as error:
        raise ContentMissing(str(error)) from error
    except OSError as error:
        is_full = error.errno in FULL
        reason = "the disk has too little space" if is_full else f"the directory answered {error.strerror or error}"
        raise ContentStoreFailed(reason, is_full=is_full) from error


async def _of_store(request: Awaitable[T]) -> T:
    """Await a request of an object store. Raises ContentStoreFailed."""
    try:
        return await request
    except FileNotFoundError as error:
        raise ContentMissing("the object store has no such object") from error
    except object_errors() as error:
        raise ContentStoreFailed(why_failed(error)) from error
