"""Base of uploads of adapters and of files: a time limit, an end when their key is revoked, the announced size."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from litestar import Request

from gateway import errors


class AbortableUpload:
    """One upload that is running."""

    def __init__(self) -> None:
        self._aborted = False
        self._timeout: asyncio.Timeout | None = None

    @contextlib.asynccontextmanager
    async def bounded(self, limit_s: float | None) -> AsyncIterator[None]:
        """Bound the block. Raises OtherStatus (408) after `limit_s` (None: no limit), AccessEnded after
        `abort_upload`."""
        if self._aborted:
            raise errors.AccessEnded()
        try:
            async with asyncio.timeout(limit_s) as self._timeout:
                yield
        except TimeoutError:
            if self._aborted:
                raise errors.AccessEnded() from None
            raise errors.OtherStatus(408, f"The upload took over {limit_s:g} s, which is the limit.") from None
        finally:
            self._timeout = None

    def abort_upload(self) -> None:
        """End `bounded`, now and later."""
        self._aborted = True
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(0.0)


def announced_bytes(request: Request[Any, Any, Any]) -> int | None:
    """Content-Length; None: the client sent none."""
    length = request.headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() else None
