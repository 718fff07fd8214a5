"""GET /health/live and /health/ready: for supervisors and load balancers; no key is needed and no secret is told."""

from __future__ import annotations

import asyncio

import msgspec
from litestar import Response, get

from billing.database import DatabaseUnavailable
from gateway.services import Services

DATABASE_S_MAX = 1.0


class Health(msgspec.Struct):
    """`ready`, or what is wrong, by part."""

    ready: bool
    problems: dict[str, str]


@get("/health/live", sync_to_thread=False)
def live() -> dict[str, bool]:
    """The process runs."""
    return {"live": True}


@get("/health/ready")
async def ready(services: Services) -> Response[Health]:
    """Whether requests can be served now: 200, or 503 with what is wrong."""
    problems: dict[str, str] = {}
    if not services.engine.ready:
        problems["engine"] = "no engine is connected and loaded"
    elif services.engine.stuck:
        problems["engine"] = "the engine answers, and its loop does not move"
    if not services.watch.fresh:
        problems["revision"] = "the revision row was not read within the last second"
    try:
        async with asyncio.timeout(DATABASE_S_MAX):
            await services.database.read(lambda connection: connection.exec_driver_sql("SELECT 1").scalar_one())
    except (DatabaseUnavailable, TimeoutError):
        problems["database"] = "it does not answer"
    health = Health(ready=not problems, problems=problems)
    return Response(health, status_code=503 if problems else 200)
