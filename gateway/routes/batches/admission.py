"""Admits requests for files and batches, which cost nothing themselves."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from litestar import Request

from gateway.access.callers import Caller
from gateway.routes.answering import refund_on_error
from gateway.routes.guard import admit
from gateway.services import Services


@contextlib.asynccontextmanager
async def admitted(request: Request[Any, Any, Any], services: Services) -> AsyncIterator[tuple[Caller, str]]:
    """The caller and its tenant. The request counts under the limits on requests while the block runs. Unlike
    `Generator.admit`, an exhausted budget does not refuse it: an output that was paid for can be downloaded. Raises as
    `guard.admit`, RateLimited."""
    caller = await admit(services, request)
    assert caller.tenant_id is not None, "a key that calls models has a tenant"
    admission = await services.limiter.admit(caller.subjects, 0)
    async with refund_on_error(admission):
        yield caller, caller.tenant_id
    await admission.finish_request(0)
