"""Adapter uploads over HTTP: received into the store's `.incoming` directory and checked by a separate process. Their
number, time and disk space are bounded per tenant and in all.

A file that crashes or stalls the check does not affect this process. Nothing here touches the database or the engine;
an upload that ends without `keep` leaves nothing on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import time
from collections.abc import AsyncIterator, Container, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from litestar import Request

from adapters.files.facts import Facts
from adapters.files.header import AdapterRefused
from adapters.files.slab_names import slab_name
from adapters.files.store import CONFIG_FILE, FILES, WEIGHTS_FILE, AdapterStore, IncomingAdapter
from billing.ids import new_id
from gateway import errors
from gateway.admin.writes import Actor
from gateway.catalog.base_models import BaseModel
from gateway.config.file import Config
from gateway.host.adapter_process import run_adapters
from gateway.http.form import Fields, Form, files_in
from gateway.metrics import Metrics
from gateway.uploads.abortable import AbortableUpload, announced_bytes
from gateway.uploads.disk_reserve import DiskFull, DiskReserve
from gateway.uploads.staged import AdapterBase, StagedAdapter, base_for

FIELDS = ("name", "base", "tenant", "shared", "pinned", "notes", "promote")
BOOLEANS = {"true": True, "1": True, "false": False, "0": False}  # values of a form's field
STDERR_CHARS_LOGGED = 2000
FULL_RETRY_S = 5.0
# The fewest bytes per parameter in an adapter's files (float16, bfloat16).
ITEM_BYTES_MIN = 2
# Bytes reserved beyond the received bytes of an upload without Content-Length; also the step in which a reserve
# shrinks.
STEP_BYTES = 8 * 1024 * 1024
SLAB_POLL_S = 0.05

_log = logging.getLogger(__name__)


class UploadView(msgspec.Struct, kw_only=True):
    """Progress and owner of an upload. `tenant_id` null: the operator's. `key_id`: the admin key that sends it.
    `bytes_total`: Content-Length, if the client sent it. `started_at` in Unix seconds."""

    id: str
    tenant_id: str | None
    key_id: str
    state: Literal["receiving", "checking"] = "receiving"
    bytes_received: int = 0
    bytes_total: int | None
    started_at: int


class UploadSpace:
    """The disk space of one upload: a reserve for the announced bytes, or for STEP_BYTES beyond the received bytes, and
    for the adapter's slab. `slab_share`: upper bound of slab bytes per byte of the files."""

    def __init__(self, reserve: DiskReserve, announced: int | None, slab_share: float) -> None:
        self._reserve = reserve
        self._promised = STEP_BYTES if announced is None else announced
        self._slab_share = slab_share
        self._came = 0
        self._settled = 0  # bytes received when the reserve was last resized

    async def reserve_space(self) -> None:
        """Reserve the space, before the first byte. Raises DiskFull."""
        await asyncio.to_thread(self._resize)

    async def count_bytes(self, count: int) -> None:
        """Call before writing `count` bytes: shrinks the reserve, or extends it. Raises DiskFull."""
        self._came += count
        if self._came > self._promised:
            self._promised = self._came + STEP_BYTES
        elif self._came - self._settled < STEP_BYTES:
            return
        await asyncio.to_thread(self._resize)

    async def keep_slabs(self) -> None:
        """Call it after the last byte: only the slab's space remains reserved."""
        await asyncio.to_thread(self._reserve.resize, self._slab_bytes())

    async def release_for(self, slab: Path) -> None:
        """Wait until `slab` exists, and release the reserve. The process that makes the slab allocates all its space at
        once, so the space is taken twice for at most about SLAB_POLL_S."""
        while not await asyncio.to_thread(slab.exists):  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(SLAB_POLL_S)
        await asyncio.to_thread(self.close)

    def _resize(self) -> None:
        self._settled = self._came
        self._reserve.resize(self._promised - self._came + self._slab_bytes())

    def close(self) -> None:
        """Release the whole reserve."""
        self._reserve.close()

    def _slab_bytes(self) -> int:
        return int(self._promised * self._slab_share)


class ReceivedUpload:
    """A completely received upload that is not checked yet."""

    def __init__(
        self, uploads: Uploads, incoming: IncomingAdapter, running: _RunningUpload, fields: Fields, space: UploadSpace
    ) -> None:
        self.fields = fields
        self._uploads = uploads
        self._incoming = incoming
        self._running = running
        self._space = space

    async def base(self, config: Config, models: Sequence[BaseModel], name: str | None) -> AdapterBase:
        """The base model that the adapter must fit (`staged.base_for`). Raises RowNotFound."""
        return await asyncio.to_thread(base_for, config, models, name, self._incoming.path)

    async def check_adapter(self, base: AdapterBase) -> StagedAdapter:
        """Check it in a separate process. Raises AdapterRefused with the reason, AccessEnded, OSError."""
        self._running.view.state = "checking"
        slab = self._incoming.path / slab_name(base.dtype)
        await self._space.keep_slabs()
        releasing = asyncio.create_task(self._space.release_for(slab), name="upload-space")
        try:
            async with self._running.bounded(None):
                facts = await self._uploads.check_incoming(self._incoming, base)
        finally:
            releasing.cancel()
            await asyncio.gather(releasing, return_exceptions=True)
        await asyncio.to_thread(self._space.close)
        await asyncio.to_thread(self._incoming.sync)
        return StagedAdapter(self._uploads.store, self._incoming, facts)


class _RunningUpload(AbortableUpload):
    """An upload that is being received or checked."""

    def __init__(self, view: UploadView) -> None:
        super().__init__()
        self.view = view


class Uploads:
    """The uploads of one gateway process."""

    def __init__(self, store: AdapterStore, config: Config, metrics: Metrics) -> None:
        self.store = store
        self._settings = config.adapters
        self._metrics = metrics
        self._free_min_bytes = config.upload_free_min_bytes
        self._slab_share = config.slab_item_bytes / ITEM_BYTES_MIN
        self._running: dict[str, _RunningUpload] = {}

    def list_running(self) -> list[UploadView]:
        """Oldest first."""
        return [running.view for running in self._running.values()]

    def key_ids(self) -> set[str]:
        """Keys of the running uploads."""
        return {running.view.key_id for running in self._running.values()}

    def end_uploads_of(self, key_ids: Container[str]) -> None:
        """Abort the uploads of these keys."""
        for running in self._running.values():
            if running.view.key_id in key_ids:
                running.abort_upload()

    @contextlib.asynccontextmanager
    async def receive(
        self, request: Request[Any, Any, Any], by: Actor, bytes_left: int | None = None
    ) -> AsyncIterator[ReceivedUpload]:
        """Receive an upload, which exists until the block is left. `bytes_left`: of the quota of the actor's tenant;
        None: no quota. Raises ApiError, with 507 for a full disk."""
        self._check_upload_limits(by)
        view = UploadView(
            id=new_id("upl"),
            tenant_id=by.tenant_id,
            key_id=by.id,
            bytes_total=announced_bytes(request),
            started_at=int(time.time()),
        )
        bytes_max = self._bytes_max(view.bytes_total, bytes_left)
        running = self._running[view.id] = _RunningUpload(view)
        incoming: IncomingAdapter | None = None
        try:
            incoming = await asyncio.to_thread(self.store.begin_incoming)
            space = UploadSpace(DiskReserve(incoming.path, self._free_min_bytes), view.bytes_total, self._slab_share)
            await space.reserve_space()
            limits = {CONFIG_FILE: FILES[CONFIG_FILE], WEIGHTS_FILE: bytes_max}

            async def note(count: int) -> None:
                view.bytes_received += count
                self._metrics.upload_bytes.inc(count)
                await space.count_bytes(count)

            async with running.bounded(self._settings.upload_s_max):
                form = Form(files_in(incoming.path, limits), limits, FIELDS)
                fields = await form.read(request, bytes_max, self._settings.upload_idle_s, note)
            yield ReceivedUpload(self, incoming, running, fields, space)
        except OSError as error:
            full = isinstance(error, DiskFull) or error.errno in (errno.ENOSPC, errno.EDQUOT)
            _log.error("upload.failed", extra={"fields": {"reason": str(error)}})
            message = (
                "The disk has too little space for the upload." if full else "The adapter store cannot be written."
            )
            raise errors.OtherStatus(507 if full else 500, message) from error
        finally:
            del self._running[view.id]
            if incoming is not None:
                await asyncio.to_thread(incoming.close)

    def _check_upload_limits(self, by: Actor) -> None:
        """Raises RateLimited when the tenant has adapters.uploads_per_tenant_max uploads running, Overloaded when this
        process has adapters.uploads_max."""
        tenants = [view.tenant_id for view in self.list_running() if view.tenant_id is not None]
        if by.tenant_id is not None and tenants.count(by.tenant_id) >= self._settings.uploads_per_tenant_max:
            raise errors.RateLimited(
                f"{self._settings.uploads_per_tenant_max} uploads of this tenant are running, which is the limit "
                "(adapters.uploads_per_tenant_max).",
                retry_after_s=FULL_RETRY_S,
            )
        limit = self._settings.uploads_max
        if by.tenant_id is not None and len(tenants) >= max(1, limit - 1):
            limit = 0  # the last upload is reserved for operators
        if len(self._running) >= limit:
            raise errors.Overloaded(
                f"{len(self._running)} uploads are running, which is the limit. Try again later.",
                retry_after_s=FULL_RETRY_S,
            )

    def _bytes_max(self, announced: int | None, bytes_left: int | None) -> int:
        """The most bytes of this upload. Raises RequestTooLarge if the client announced more."""
        limit, why = self._settings.upload_bytes_max, "adapters.upload_bytes_max"
        if bytes_left is not None and bytes_left < limit:
            limit, why = bytes_left, "what is left of adapters.tenant_bytes_max for this tenant"
        if not limit or (announced is not None and announced > limit):
            raise errors.RequestTooLarge(f"The upload is over the limit of {limit} bytes, {why}.", param=WEIGHTS_FILE)
        return limit

    async def check_incoming(self, incoming: IncomingAdapter, base: AdapterBase) -> Facts:
        """Check the files in a separate process. Raises AdapterRefused."""
        arguments = ["check", str(incoming.path), "--model", str(base.path), "--name", base.name]
        arguments += ["--rank-max", str(base.rank_max), "--dtype", base.dtype, *(["--slab"] if base.slabs else [])]
        try:
            ran = await run_adapters(arguments, self._settings.check_s_max)
        except TimeoutError:
            raise AdapterRefused(f"checking it took over {self._settings.check_s_max:g} s") from None
        if ran.status == 0:
            return Facts.from_json(ran.out)
        if ran.refused is not None:
            raise AdapterRefused(ran.refused)
        _log.error(
            "check.failed", extra={"fields": {"status": ran.status, "stderr": ran.problems[-STDERR_CHARS_LOGGED:]}}
        )
        raise errors.InternalError()
