"""Adapters that come over HTTP: received into the store's anteroom, and checked by a process of their own.

Whatever a file makes the check do, this process goes on serving. Nothing here touches the database or the engine; an
upload that ends in any way but `keep` leaves nothing on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

import msgspec
from litestar import Request

from adapters.facts import Facts
from adapters.header import AdapterRefused
from adapters.store import CONFIG_FILE, FILES, WEIGHTS_FILE, AdapterStore, Incoming
from billing.ids import new_id
from gateway import errors
from gateway.config import Config
from gateway.form import Fields, Form
from gateway.metrics import Metrics
from gateway.model_rows import BaseModel
from gateway.sections import AdaptersSection
from gateway.staging import Base, Staged, base_for

FIELDS = ("name", "base", "tenant", "shared", "pinned", "notes", "promote")
ANSWER_BYTES_MAX = 1024 * 1024  # of the process that checks
REASON_CHARS_MAX = 500
STDERR_CHARS_LOGGED = 2000
FULL_RETRY_S = 5.0

_log = logging.getLogger(__name__)


class UploadView(msgspec.Struct, kw_only=True):
    """How an upload goes. `bytes_total`: what its caller announced, if it did; `started_at` in Unix seconds."""

    id: str
    state: Literal["receiving", "checking"] = "receiving"
    bytes_received: int = 0
    bytes_total: int | None
    started_at: int


class Upload:
    """One that has arrived whole, and is not checked yet."""

    def __init__(self, uploads: Uploads, incoming: Incoming, view: UploadView, fields: Fields) -> None:
        self.fields = fields
        self._uploads = uploads
        self._incoming = incoming
        self._view = view

    async def base(self, config: Config, models: Sequence[BaseModel], name: str | None) -> Base:
        """What it is checked against (`staging.base_for`). Raises NotFound."""
        return await asyncio.to_thread(base_for, config, models, name, self._incoming.path)

    async def check(self, base: Base) -> Staged:
        """Raises AdapterRefused with the reason, OSError."""
        self._view.state = "checking"
        facts = await self._uploads.check(self._incoming, base)
        await asyncio.to_thread(self._incoming.sync)
        return Staged(self._uploads.store, self._incoming, facts)


class Uploads:
    """Those of one gateway process, a bounded number at once."""

    def __init__(self, store: AdapterStore, settings: AdaptersSection, metrics: Metrics) -> None:
        self.store = store
        self._settings = settings
        self._metrics = metrics
        self._running: dict[str, UploadView] = {}

    def running(self) -> list[UploadView]:
        """Oldest first."""
        return list(self._running.values())

    @contextlib.asynccontextmanager
    async def receive(self, request: Request[Any, Any, Any]) -> AsyncIterator[Upload]:
        """An upload, until the block is left. Raises ApiError, for a full disk too."""
        if len(self._running) >= self._settings.uploads_max:
            raise errors.Overloaded(
                f"{self._settings.uploads_max} uploads are running, which is the limit. Try again later.",
                retry_after_s=FULL_RETRY_S,
            )
        length = request.headers.get("content-length", "")
        total = int(length) if length.isascii() and length.isdigit() else None
        view = UploadView(id=new_id("upl"), bytes_total=total, started_at=int(time.time()))
        self._running[view.id] = view
        incoming: Incoming | None = None
        try:
            incoming = await asyncio.to_thread(self.store.begin)
            limits = {CONFIG_FILE: FILES[CONFIG_FILE], WEIGHTS_FILE: self._settings.upload_bytes_max}
            form = Form(incoming.path, limits, FIELDS)

            def note(count: int) -> None:
                view.bytes_received += count
                self._metrics.upload_bytes.inc(count)

            fields = await form.read(request, self._settings.upload_bytes_max, self._settings.upload_idle_s, note)
            yield Upload(self, incoming, view, fields)
        except OSError as error:
            _log.error("upload.failed", extra={"fields": {"reason": str(error)}})
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            message = "There is no room on the disk for it." if full else "The store of adapters cannot be written."
            raise errors.OtherStatus(507 if full else 500, message) from error
        finally:
            del self._running[view.id]
            if incoming is not None:
                await asyncio.to_thread(incoming.close)

    async def check(self, incoming: Incoming, base: Base) -> Facts:
        """Ask a process that does nothing else. Raises AdapterRefused."""
        arguments = ["--model", str(base.path), "--name", base.name, "--rank-max", str(base.rank_max)]
        arguments += ["--slab"] if base.slabs else []
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "adapters", "check", str(incoming.path), *arguments, "--dtype", base.dtype,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=ANSWER_BYTES_MAX,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # it multiplies nothing
        )  # fmt: skip
        try:
            async with asyncio.timeout(self._settings.check_s_max):
                out, problems = await process.communicate()
        except TimeoutError:
            raise AdapterRefused(f"checking it took over {self._settings.check_s_max:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        text = out.decode()
        if process.returncode == 0:
            return Facts.from_json(text)
        if (reason := _reason(text)) is not None:
            raise AdapterRefused(reason)
        _log.error(
            "check.failed", extra={"fields": {"status": process.returncode, "stderr": problems.decode()[-2000:]}}
        )
        raise errors.InternalError()


def _reason(text: str) -> str | None:
    """Why the check refuses; None when it says nothing of the kind."""
    try:
        return str(json.loads(text)["refused"])[:REASON_CHARS_MAX]
    except (ValueError, KeyError, TypeError):
        return None
