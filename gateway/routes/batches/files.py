"""OpenAI's Files API: files of a tenant, which batches read and write. Any of the tenant's keys that calls models may
use them.
"""

from __future__ import annotations

import functools
import logging
from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, delete, get, post
from litestar.params import Parameter
from litestar.types import ASGIApp

from billing.clock import SECOND
from gateway.errors import ApiError, InternalError, InvalidRequest, NotFound
from gateway.files.backends import ContentMissing, ContentStoreFailed
from gateway.files.contents import ContentReader
from gateway.files.rows import StoredFile
from gateway.routes.batches.admission import admitted
from gateway.routes.batches.downloads import Download, Unreadable
from gateway.services import Services
from gateway.stored.texts import TextKey, TextUnreadable
from gateway.uploads.file_uploads import store_error

COLLECTION = "/v1/files"
PATH = f"{COLLECTION}/{{file:str}}"
CONTENT = f"{PATH}/content"
TENANT = "/t/{tenant:str}"
PAGE_MAX = 10_000
ID_CHARS_SHOWN = 64

_log = logging.getLogger(__name__)


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    """A file. `created_at`, `expires_at`: seconds UTC."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"] = "processed"


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


@post([COLLECTION, TENANT + COLLECTION], status_code=200, opt={"route": COLLECTION})
async def upload_file(request: Request[Any, Any, Any], services: Services) -> FileObject:
    """Upload a file for a batch, as a form with `purpose` and `file`. Counts as a request under the limits, as every
    endpoint of files does."""
    async with admitted(request, services) as (caller, _):
        pass  # an upload takes no slot of the limit on concurrent requests: `[files]` limits uploads
    return file_object(await services.file_uploads.receive_file(request, caller))


@get([COLLECTION, TENANT + COLLECTION], opt={"route": COLLECTION})
async def list_files(
    request: Request[Any, Any, Any],
    services: Services,
    after: str | None = None,
    limit: Annotated[int, Parameter(ge=1, le=PAGE_MAX)] = PAGE_MAX,
    order: Literal["asc", "desc"] = "desc",
    purpose: Literal["batch", "batch_output"] | None = None,
) -> FileList:
    """The tenant's files, in the order of their creation."""
    async with admitted(request, services) as (_, tenant_id):
        page = await services.files.list_files(tenant_id, after, limit, order, purpose)
        if page is None:
            raise InvalidRequest(f"'after' is wrong: {file_not_found(after or '').message}", param="after")
    data = [file_object(stored) for stored in page.files]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return FileList(data=data, first_id=first, last_id=last, has_more=page.more)


@get([PATH, TENANT + PATH], opt={"route": PATH})
async def get_file(request: Request[Any, Any, Any], services: Services, file: str) -> FileObject:
    """A file, without its content."""
    async with admitted(request, services) as (_, tenant_id):
        found = await services.files.find_file(tenant_id, file)
        if found is None:
            raise file_not_found(file)
    return file_object(found)


@delete([PATH, TENANT + PATH], status_code=200, opt={"route": PATH})
async def delete_file(request: Request[Any, Any, Any], services: Services, file: str) -> DeletedFile:
    """Delete a file. A running batch still reads the file."""
    async with admitted(request, services) as (_, tenant_id):
        if not await services.files.delete_file(tenant_id, file):
            raise file_not_found(file)
    return DeletedFile(id=file)


@get([CONTENT, TENANT + CONTENT], opt={"route": CONTENT})
async def get_file_content(request: Request[Any, Any, Any], services: Services, file: str) -> ASGIApp:
    """The content of a file, as it was uploaded or written by a batch."""
    async with admitted(request, services) as (_, tenant_id):
        found = await services.files.open_file(tenant_id, file)
        if found is None:
            raise file_not_found(file)
        stored, key = found
        reader = await open_stored(services, stored, key)
    headers = download_headers(stored)
    return Download(reader.stream_bytes(), [reader], headers, functools.partial(unreadable, stored.id))


def download_headers(stored: StoredFile) -> list[tuple[bytes, bytes]]:
    """Of the answer with the file's content."""
    return [
        (b"content-type", b"application/octet-stream"),
        (b"content-length", b"%d" % stored.bytes),
        (b"content-disposition", b"attachment"),
    ]


async def open_stored(services: Services, stored: StoredFile, key: TextKey) -> ContentReader:
    """The content of a file; close it. Raises NotFound for a lost content, FileStoreDown, InternalError."""
    try:
        reader = await services.files.contents.open_reader(key, stored.id)
    except (ContentStoreFailed, TextUnreadable) as error:
        raise unreadable(stored.id, error) from error
    if reader.size != stored.bytes:
        reader.close()
        raise unreadable(stored.id, TextUnreadable("the content has another size than its row"))
    return reader


def file_object(stored: StoredFile) -> FileObject:
    """As clients read it."""
    return FileObject(
        id=stored.id,
        bytes=stored.bytes,
        created_at=stored.created_at // SECOND,
        expires_at=None if stored.expires_at is None else stored.expires_at // SECOND,
        filename=stored.filename,
        purpose="batch" if stored.purpose == "batch" else "batch_output",
    )


def file_not_found(file_id: str) -> NotFound:
    """The refusal of an id that is unknown, another tenant's, deleted or expired."""
    return NotFound(f"File with id '{file_id[:ID_CHARS_SHOWN]}' not found.")


def unreadable(file_id: str, error: Unreadable) -> ApiError:
    """The answer for a content that cannot be read; its reason is logged."""
    if isinstance(error, ContentStoreFailed) and not isinstance(error, ContentMissing):
        return store_error(error)
    _log.error("files.unreadable", extra={"fields": {"file": file_id, "reason": str(error)}})
    if isinstance(error, ContentMissing):
        return NotFound(f"The content of the file '{file_id}' is lost: the store of files does not have it.")
    return InternalError()
