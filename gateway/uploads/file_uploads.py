"""Uploads to /v1/files: a file is encrypted and stored while it arrives. An upload that does not end with a file leaves
nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Container
from typing import Any

from litestar import Request

from gateway import errors
from gateway.access.callers import Caller
from gateway.config.files_settings import EXPIRES_S_MAX, EXPIRES_S_MIN
from gateway.files.backends import ContentStoreFailed
from gateway.files.contents import WrittenFile
from gateway.files.files import Files
from gateway.files.rows import FILENAME_CHARS_MAX, UPLOAD_PURPOSE, NewFile, StoredFile, new_file_id
from gateway.http.form import Form
from gateway.uploads.abortable import AbortableUpload, announced_bytes

FILE = "file"
PURPOSE, ANCHOR, SECONDS = "purpose", "expires_after[anchor]", "expires_after[seconds]"
FIELDS = (PURPOSE, ANCHOR, SECONDS)
FORM_BYTES_MAX = 1024 * 1024  # of a form beside its file
PARTS_WAITING_MAX = 4  # pieces of a file that wait for the store
UPLOAD_RETRY_S = 5.0
DEFAULT_NAME = "file"  # of a file whose client sends no name

_log = logging.getLogger(__name__)


class _RunningFileUpload(AbortableUpload):
    def __init__(self, caller: Caller) -> None:
        super().__init__()
        self.tenant_id = caller.tenant_id
        self.key_id = caller.key_id


class FileUploads:
    """The uploads of files to one gateway process."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._section = files.section
        self._running: set[_RunningFileUpload] = set()

    def key_ids(self) -> set[str]:
        """Keys of the running uploads."""
        return {running.key_id for running in self._running}

    def end_uploads_of(self, key_ids: Container[str]) -> None:
        """Abort the uploads of these keys."""
        for running in self._running:
            if running.key_id in key_ids:
                running.abort_upload()

    async def receive_file(self, request: Request[Any, Any, Any], caller: Caller) -> StoredFile:
        """Receive one form with a file of the caller's tenant. Raises ApiError, DatabaseUnavailable."""
        assert caller.tenant_id is not None, "a key without a tenant calls no models"
        self._check_announced(request)
        async with self.run_upload(caller):
            return await self._receive(request, caller.tenant_id, caller.key_id)

    @contextlib.asynccontextmanager
    async def run_upload(self, caller: Caller) -> AsyncIterator[None]:
        """The block receives and stores the body of one request. It ends early if its key is revoked. Raises
        RateLimited, Overloaded, FileStoreFull, FileStoreDown, and as `AbortableUpload.bounded`."""
        self._check_running(caller.tenant_id)
        running = _RunningFileUpload(caller)
        self._running.add(running)
        try:
            async with running.bounded(self._section.upload_s_max):
                yield
        except ContentStoreFailed as error:
            raise store_error(error) from error
        finally:
            self._running.discard(running)

    async def _receive(self, request: Request[Any, Any, Any], tenant_id: str, key_id: str) -> StoredFile:
        key, left = await self._files.begin_upload(tenant_id)
        file_id, filename = new_file_id(), DEFAULT_NAME
        too_large: errors.ApiError = _too_large(self._section.file_bytes_max)
        if left.count < self._section.file_bytes_max:
            too_large = left.exceeded()
        received = _ReceivedFile(
            lambda parts: self._files.contents.write(key, file_id, parts),
            min(left.count, self._section.file_bytes_max),
            too_large,
        )

        def open_file(_: str, client_name: str) -> _ReceivedFile:
            nonlocal filename
            filename = _checked_name(client_name)
            if (purpose := form.text_of(PURPOSE)) is not None:
                check_purpose(purpose)  # most clients send it before the file
            return received

        async def ignore(_: int) -> None:
            """The store checks its space when it writes."""

        form = Form(open_file, (FILE,), FIELDS)
        try:
            await form.read(request, self._section.file_bytes_max + FORM_BYTES_MAX, self._section.upload_idle_s, ignore)
            check_purpose(form.text_of(PURPOSE))
            expires_s = _expires_s(form.text_of(ANCHOR), form.text_of(SECONDS), self._section.expires_s)
            new = NewFile(
                id=file_id,
                tenant_id=tenant_id,
                key_id=key_id,
                purpose=UPLOAD_PURPOSE,
                filename=filename,
                expires_s=expires_s,
            )
            assert received.written is not None, "the form has its file"
        except BaseException:
            await received.discard(lambda: self._files.remove_content(file_id))
            raise
        return await self._files.create_file(new, key, received.written)

    def _check_running(self, tenant_id: str | None) -> None:
        """Raises RateLimited, Overloaded."""
        section = self._section
        if sum(running.tenant_id == tenant_id for running in self._running) >= section.uploads_per_tenant_max:
            raise errors.RateLimited(
                f"{section.uploads_per_tenant_max} uploads of files of this tenant are running, which is the limit "
                "(files.uploads_per_tenant_max).",
                retry_after_s=UPLOAD_RETRY_S,
            )
        if len(self._running) >= section.uploads_max:
            raise errors.Overloaded(
                f"{len(self._running)} uploads of files are running, which is the limit (files.uploads_max). Try again "
                "later.",
                retry_after_s=UPLOAD_RETRY_S,
            )

    def _check_announced(self, request: Request[Any, Any, Any]) -> None:
        """Raises RequestTooLarge."""
        announced = announced_bytes(request)
        if announced is not None and announced > self._section.file_bytes_max + FORM_BYTES_MAX:
            raise _too_large(self._section.file_bytes_max)


class _ReceivedFile:
    """A FormFile whose pieces are queued for a task that stores them."""

    def __init__(
        self,
        store: Callable[[AsyncIterator[bytes]], Awaitable[WrittenFile]],
        bytes_max: int,
        too_large: errors.ApiError,
    ) -> None:
        self.written: WrittenFile | None = None
        self._store = store
        self._bytes_max = bytes_max
        self._too_large = too_large
        self._bytes = 0
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue(PARTS_WAITING_MAX)
        self._task: asyncio.Task[WrittenFile] | None = None

    async def write(self, data: bytes) -> None:
        """See FormFile. Raises RequestTooLarge or QuotaExceeded, and what the store raises."""
        self._bytes += len(data)
        if self._bytes > self._bytes_max:
            raise self._too_large
        await self._enqueue(data)

    async def finish_file(self) -> None:
        """See FormFile. Raises InvalidRequest for an empty file, and what the store raises."""
        if not self._bytes:
            raise errors.InvalidRequest("The file is empty.", param=FILE)
        await self._enqueue(None)
        assert self._task is not None
        self.written = await self._task

    def close(self) -> None:
        """See FormFile. `discard` waits for the end of the task."""
        if self._task is not None:
            self._task.cancel()

    async def discard(self, remove: Callable[[], Awaitable[None]]) -> None:
        """End the task, and remove its stored bytes."""
        self.close()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        if self.written is not None:
            await remove()

    async def _enqueue(self, data: bytes | None) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._store_parts(), name="file-upload")
        if not self._task.done():
            await self._waiting.put(data)
        if self._task.done():
            self._task.result()

    async def _store_parts(self) -> WrittenFile:
        try:
            return await self._store(self._parts())
        finally:
            while not self._waiting.empty():  # a `put` must not wait for a task that has failed
                self._waiting.get_nowait()

    async def _parts(self) -> AsyncIterator[bytes]:
        while (data := await self._waiting.get()) is not None:
            yield data


def check_purpose(purpose: str | None) -> None:
    """Raises InvalidRequest, UnsupportedValue."""
    if purpose is None:
        raise errors.InvalidRequest(f"'purpose' is missing; files are served for: {UPLOAD_PURPOSE}.", param=PURPOSE)
    if purpose != UPLOAD_PURPOSE:
        raise errors.UnsupportedValue(
            f"'purpose' is {purpose[:64]!r}, which nothing here uses; files are served for: {UPLOAD_PURPOSE}.",
            param=PURPOSE,
        )


def store_error(error: ContentStoreFailed) -> errors.ApiError:
    """The answer for a store that failed. Its reason is logged, and never shown: it can name a host or a path."""
    _log.error("files.store_failed", extra={"fields": {"reason": str(error)}})
    if error.is_full:
        return errors.FileStoreFull(
            "The store of files has too little space for the upload. An operator must free some."
        )
    return errors.FileStoreDown("The store of files is unavailable. Try again in a moment.")


def _too_large(bytes_max: int) -> errors.RequestTooLarge:
    return errors.RequestTooLarge(
        f"The file is over the limit of {bytes_max} bytes (files.file_bytes_max).", param=FILE
    )


def _checked_name(client_name: str) -> str:
    """The name under which a file is listed. Raises InvalidRequest."""
    if len(client_name) > FILENAME_CHARS_MAX or not client_name.isprintable():
        raise errors.InvalidRequest(
            f"The file's name must have at most {FILENAME_CHARS_MAX} characters, and no control characters.", param=FILE
        )
    return client_name or DEFAULT_NAME


def _expires_s(anchor: str | None, seconds: str | None, default: int) -> int:
    """Seconds from a file's creation to its expiry. Raises InvalidRequest."""
    if anchor is None and seconds is None:
        return default
    if anchor != "created_at":
        raise errors.InvalidRequest(f"{ANCHOR!r} must be 'created_at'.", param=ANCHOR)
    number = (
        int(seconds) if seconds is not None and seconds.isascii() and seconds.isdigit() and len(seconds) < 12 else 0
    )
    if not EXPIRES_S_MIN <= number <= EXPIRES_S_MAX:
        raise errors.InvalidRequest(
            f"{SECONDS!r} must be an integer from {EXPIRES_S_MIN} to {EXPIRES_S_MAX}.", param=SECONDS
        )
    return number
