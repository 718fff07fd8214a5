"""GET /health/live and /health/ready (also /health), for supervisors and load balancers: without a key, and without
secrets in the answer."""

from __future__ import annotations

import msgspec
from litestar import Response, get

from gateway.services import Services
from gateway.views.engines import EngineCounts


class Health(msgspec.Struct, omit_defaults=True):
    """`problems`: why requests cannot be served now, by part. One ready engine of `engines` is enough to serve.
    `silent_models`: those that make no tokens now, and why; other models are served. Absent: there is none."""

    ready: bool
    problems: dict[str, str]
    engines: EngineCounts
    silent_models: dict[str, str] = {}


@get("/health/live", sync_to_thread=False)
def live() -> dict[str, bool]:
    """Whether the process runs."""
    return {"live": True}


@get(["/health", "/health/ready"], opt={"route": "/health/ready"})
async def ready(services: Services) -> Response[Health]:
    """Whether requests can be served now: 200, or 503 with the problems."""
    await services.watch.freshen()
    problems = services.readiness.problems()
    readiness = services.readiness
    health = Health(not problems, problems, readiness.engines(), readiness.silent_models())
    return Response(health, status_code=503 if problems else 200)
