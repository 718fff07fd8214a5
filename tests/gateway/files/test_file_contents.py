"""Encrypted contents in a directory and in an object store: what is read is what was written, or an error."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from engine.contents.object_stores import open_object_store
from gateway.files.backends import (
    INCOMING,
    ContentBackend,
    ContentBucket,
    ContentDirectory,
    ContentMissing,
    ContentStoreFailed,
    open_backend,
)
from gateway.files.contents import CHUNK_BYTES, HEADER_BYTES, SEAL_BYTES, FileContents
from gateway.files.rows import new_file_id
from gateway.stored.texts import TextKey, TextUnreadable
from support.gateway.s3_server import BUCKET, s3_server

KEY = TextKey("txk_1", "ten_1", os.urandom(32))
STRIDE = CHUNK_BYTES + SEAL_BYTES
PLAIN = os.urandom(3 * CHUNK_BYTES + 17)


@pytest.fixture(params=["directory", "bucket"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> ContentBackend:
    """The bucket is a directory behind obstore: `test_object_store_server` uses S3."""
    if request.param == "directory":
        return ContentDirectory(tmp_path)
    return ContentBucket(tmp_path.as_uri())


async def pieces(data: bytes, size: int = 100_000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def write(contents: FileContents, data: bytes, *, key: TextKey = KEY, file_id: str = "") -> str:
    file_id = file_id or new_file_id()
    await contents.write(key, file_id, pieces(data))
    return file_id


async def whole(contents: FileContents, file_id: str, *, key: TextKey = KEY, start: int = 0) -> bytes:
    return b"".join([part async for part in contents.stream(key, file_id, start)])


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, len(PLAIN)])
def test_a_content_is_read_as_it_was_written(backend: ContentBackend, size: int) -> None:
    async def run() -> None:
        contents = FileContents(backend)
        file_id = await write(contents, PLAIN[:size])
        assert await whole(contents, file_id) == PLAIN[:size]
        reader = await contents.open_reader(KEY, file_id)
        assert reader.size == size
        reader.close()

    asyncio.run(run())


@pytest.mark.parametrize("start", [0, 5, CHUNK_BYTES - 1, CHUNK_BYTES, len(PLAIN) - 1, len(PLAIN), len(PLAIN) + 9])
def test_any_range_is_read(backend: ContentBackend, start: int) -> None:
    async def run() -> None:
        contents = FileContents(backend)
        file_id = await write(contents, PLAIN)
        for length in (0, 1, CHUNK_BYTES + 2, 10 * CHUNK_BYTES):
            assert await contents.read(KEY, file_id, start, length) == PLAIN[start : start + length]
        assert await whole(contents, file_id, start=start) == PLAIN[start:]

    asyncio.run(run())


def path_of(directory: Path, file_id: str) -> Path:
    [path] = directory.rglob(file_id)
    return path


def stored(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def chunks_of(sealed: bytes) -> list[bytes]:
    return [sealed[start : start + STRIDE] for start in range(HEADER_BYTES, len(sealed), STRIDE)]


def changed(sealed: bytes, at: int) -> bytes:
    return sealed[:at] + bytes((sealed[at] ^ 1,)) + sealed[at + 1 :]


def swapped(sealed: bytes) -> bytes:
    first, second, *rest = chunks_of(sealed)
    return sealed[:HEADER_BYTES] + second + first + b"".join(rest)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "a bit of a chunk": lambda sealed: changed(sealed, HEADER_BYTES + STRIDE + 99),
    "a bit of the salt": lambda sealed: changed(sealed, HEADER_BYTES - 1),
    "a bit of the format": lambda sealed: changed(sealed, 0),
    "the order of two chunks": swapped,
    "without the last chunk": lambda sealed: sealed[: HEADER_BYTES + 3 * STRIDE],
    "without a chunk in the middle": lambda sealed: (
        sealed[: HEADER_BYTES + STRIDE] + sealed[HEADER_BYTES + 2 * STRIDE :]
    ),
    "without the last byte": lambda sealed: sealed[:-1],
    "a byte more": lambda sealed: sealed + b"x",
    "a chunk twice": lambda sealed: sealed[: HEADER_BYTES + STRIDE] + sealed[HEADER_BYTES:],
    "the header alone": lambda sealed: sealed[:HEADER_BYTES],
    "nothing": lambda _: b"",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_content_is_detected(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    async def run() -> None:
        contents = FileContents(ContentDirectory(tmp_path))
        file_id = await write(contents, PLAIN)
        path = path_of(tmp_path, file_id)
        path.write_bytes(damage(path.read_bytes()))
        with pytest.raises(TextUnreadable):
            await whole(contents, file_id)

    asyncio.run(run())


def test_a_content_is_bound_to_its_file_its_tenant_and_its_write(tmp_path: Path) -> None:
    async def run() -> None:
        contents = FileContents(ContentDirectory(tmp_path))
        one, other = await write(contents, PLAIN), await write(contents, PLAIN)
        path = path_of(tmp_path, one)
        first = path.read_bytes()
        with pytest.raises(TextUnreadable):
            await whole(contents, one, key=TextKey(KEY.id, "ten_2", KEY.key))
        path_of(tmp_path, other).write_bytes(first)
        with pytest.raises(TextUnreadable):
            await whole(contents, other)
        await write(contents, PLAIN, file_id=one)
        second = path.read_bytes()
        path.write_bytes(second[: HEADER_BYTES + STRIDE] + first[HEADER_BYTES + STRIDE :])
        with pytest.raises(TextUnreadable):
            await whole(contents, one)

    asyncio.run(run())


def test_a_second_write_replaces_the_content(backend: ContentBackend) -> None:
    async def run() -> None:
        contents = FileContents(backend)
        file_id = await write(contents, PLAIN)
        await write(contents, b"shorter", file_id=file_id)
        assert await whole(contents, file_id) == b"shorter"

    asyncio.run(run())


def test_an_error_of_the_parts_leaves_nothing(backend: ContentBackend, tmp_path: Path) -> None:
    class Left(Exception):
        pass

    async def failing() -> AsyncIterator[bytes]:
        yield PLAIN
        raise Left

    async def run() -> None:
        contents = FileContents(backend)
        with pytest.raises(Left):
            await contents.write(KEY, new_file_id(), failing())
        assert await contents.backend.old_names(-1) == []

    asyncio.run(run())
    assert stored(tmp_path) == []


def test_a_write_that_is_cancelled_leaves_nothing(backend: ContentBackend, tmp_path: Path) -> None:
    async def run() -> None:
        begun = asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield PLAIN
            begun.set()
            await asyncio.sleep(60)

        writing = asyncio.create_task(FileContents(backend).write(KEY, new_file_id(), slow()))
        await begun.wait()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing

    asyncio.run(run())
    assert stored(tmp_path) == []


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    free = iter([10 * CHUNK_BYTES, 10 * CHUNK_BYTES, CHUNK_BYTES // 2])
    backend = ContentDirectory(tmp_path, 0, lambda _: next(free))

    async def run() -> None:
        with pytest.raises(ContentStoreFailed) as failed:
            await write(FileContents(backend), PLAIN)
        assert failed.value.is_full
        assert "too little space" in str(failed.value)

    asyncio.run(run())
    assert stored(tmp_path) == []


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("no directory")

    async def run() -> None:
        with pytest.raises(ContentStoreFailed) as failed:
            await ContentDirectory(tmp_path / "files").check_writable()
        assert not failed.value.is_full

    asyncio.run(run())


def test_a_deleted_content_is_missing_and_an_open_one_is_read_to_its_end(tmp_path: Path) -> None:
    async def run() -> None:
        contents = FileContents(ContentDirectory(tmp_path))
        file_id = await write(contents, PLAIN)
        reader = await contents.open_reader(KEY, file_id)
        await contents.delete(file_id)
        await contents.delete(file_id)
        assert b"".join([part async for part in reader.stream_bytes()]) == PLAIN
        reader.close()
        with pytest.raises(ContentMissing):
            await contents.read(KEY, file_id, 0, 1)

    asyncio.run(run())


def test_old_contents_are_listed_and_abandoned_writes_are_removed(backend: ContentBackend, tmp_path: Path) -> None:
    async def run() -> None:
        contents = FileContents(backend)
        file_id = await write(contents, PLAIN)
        assert await backend.old_names(60) == []
        assert await backend.old_names(-1) == [file_id]
        if isinstance(backend, ContentDirectory):
            (tmp_path / INCOMING / "content_lost").write_bytes(b"of a killed gateway")
            await backend.old_names(-1)
            assert list((tmp_path / INCOMING).iterdir()) == []

    asyncio.run(run())


@pytest.fixture
def bucket_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with s3_server() as environ:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        yield f"s3://{BUCKET}/files"


def test_object_store_server(bucket_url: str, tmp_path: Path) -> None:
    """Above MULTIPART_BYTES, so that the upload has several parts."""
    data = os.urandom(11 * 1024 * 1024)

    async def run() -> None:
        contents = FileContents(open_backend(bucket_url, tmp_path, 0))
        await contents.backend.check_writable()
        file_id = await write(contents, data)
        assert await whole(contents, file_id) == data
        assert await contents.read(KEY, file_id, 7_000_000, 9) == data[7_000_000:7_000_009]
        assert await contents.backend.old_names(-1) == [file_id]
        await contents.delete(file_id)
        await contents.delete(file_id)
        with pytest.raises(ContentMissing):
            await whole(contents, file_id)

    asyncio.run(run())
    import obstore

    assert [entry for batch in obstore.list(open_object_store(bucket_url)) for entry in batch] == []
    assert list(tmp_path.iterdir()) == []
