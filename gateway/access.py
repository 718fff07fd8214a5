"""The door: whether this request may come in at all, and as whom. Routes ask here before they read anything."""

from __future__ import annotations

from typing import Any

from litestar import Request

from gateway import errors
from gateway.callers import Caller
from gateway.endpoints import not_found
from gateway.http import line_of
from gateway.keys import INFERENCE
from gateway.services import Services


async def admit(
    services: Services, request: Request[Any, Any, Any], scope: str = INFERENCE, *, api_key: str | None = None
) -> Caller:
    """The caller, with `scope`: by `api_key` where one came, else by the bearer. On a path below /t/<tenant>/ the key
    must be that tenant's, else the path does not exist. Raises LedgerAway while revocations cannot be seen,
    InvalidApiKey, InsufficientScope, NotFound."""
    line = line_of(request)
    if not await services.watch.freshen():
        services.watch.note_refused()
        raise errors.LedgerAway("Keys cannot be checked now. Try again in a moment.")
    authorization = request.headers.get("authorization") if api_key is None else f"Bearer {api_key}"
    caller = await services.callers.identify(authorization)
    line.record.tenant, line.record.key = caller.tenant_id, caller.key_id
    tenant = request.path_params.get("tenant")
    if tenant is not None and (caller.tenant_id is None or tenant not in (caller.tenant_id, caller.tenant_slug)):
        raise not_found(request.url.path)
    if scope not in caller.scopes or (scope == INFERENCE and caller.tenant_id is None):
        raise errors.InsufficientScope(f"This key lacks the scope {scope!r}.")
    return caller
