"""GET /health/live and /health/ready, which is also /health: for supervisors and load balancers; no key is needed and
no secret is told."""

from __future__ import annotations

import msgspec
from litestar import Response, get

from gateway.services import Services


class Health(msgspec.Struct):
    """`ready`, or what is wrong, by part."""

    ready: bool
    problems: dict[str, str]


@get("/health/live", sync_to_thread=False)
def live() -> dict[str, bool]:
    """The process runs."""
    return {"live": True}


@get(["/health", "/health/ready"], opt={"route": "/health/ready"})
async def ready(services: Services) -> Response[Health]:
    """Whether requests can be served now: 200, or 503 with what is wrong."""
    await services.watch.freshen()
    problems = problems_of(services)
    health = Health(ready=not problems, problems=problems)
    return Response(health, status_code=503 if problems else 200)


def problems_of(services: Services) -> dict[str, str]:
    """Why requests cannot be served now, by part."""
    problems: dict[str, str] = {}
    if not services.engine.ready:
        problems["engine"] = "no engine is connected and loaded"
    elif services.engine.stuck:
        problems["engine"] = "the engine answers, and its loop does not move"
    if not services.watch.fresh:
        problems["database"] = "the revision row was not read within the last second"
    elif not services.leases.held:
        problems["lease"] = "this gateway's lease has run out"
    if (why := services.generator.unrecordable()) is not None:
        problems["journal"] = why
    return problems
