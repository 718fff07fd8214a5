"""GET /health/live and /health/ready (also /health), for supervisors and load balancers: without a key, and without
secrets in the answer."""

from __future__ import annotations

import msgspec
from litestar import Response, get

from gateway.services import Services


class Health(msgspec.Struct):
    """`problems`: why requests cannot be served now, by part."""

    ready: bool
    problems: dict[str, str]


@get("/health/live", sync_to_thread=False)
def live() -> dict[str, bool]:
    """Whether the process runs."""
    return {"live": True}


@get(["/health", "/health/ready"], opt={"route": "/health/ready"})
async def ready(services: Services) -> Response[Health]:
    """Whether requests can be served now: 200, or 503 with the problems."""
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
        problems["engine"] = "the engine is connected, but its loop makes no progress"
    if not services.watch.fresh:
        problems["database"] = (
            "the gateway has not read the revision for over a second, so it cannot know of revoked keys"
        )
    elif not services.leases.held:
        problems["lease"] = "the lease of this gateway has expired, so it may not hold budgets"
    if (why := services.generator.unrecordable()) is not None:
        problems["journal"] = why
    return problems
