"""GET /metrics: the gateway's own laneway_* metrics, then the engine's, under vLLM's names.

They are exact counters over all tenants: a tenant that polled them could observe other tenants' requests. So on the
API's port they need an admin key that may read the engine. `gateway.metrics_address` is a listener without a key, for a
Prometheus on the same host.
"""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, get
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from gateway import errors
from gateway.catalog.metrics_names import adapters_in_use, without_restricted
from gateway.routes.guard import admit_operator
from gateway.services import Services
from gateway.views.engine_metrics import merge_metrics

TEXT_FORMAT = "text/plain; version=0.0.4"  # the framework adds the charset
AREA = {"area": "engine"}
BY_LISTENER = "laneway.metrics_listener"  # in the ASGI scope: this request arrived at gateway.metrics_address
ON_LISTENER = ("/metrics", "/health", "/health/live", "/health/ready")


class MetricsListener:
    """ASGI: only the paths of ON_LISTENER are served on the port of `gateway.metrics_address`."""

    def __init__(self, inner: ASGIApp, port: int) -> None:
        self._inner = inner
        self._port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Recognised by the socket's own port: the Host header is the client's choice."""
        if scope["type"] == ScopeType.HTTP and (scope["server"] or ("", 0))[1] == self._port:
            if scope["path"] not in ON_LISTENER:
                raise errors.NotFound(f"This port serves only {', '.join(ON_LISTENER)}.")
            scope[BY_LISTENER] = True  # type: ignore[literal-required]  # ASGI lets a server add keys
        await self._inner(scope, receive, send)


@get("/metrics", media_type=TEXT_FORMAT, opt=AREA)
async def metrics(request: Request[Any, Any, Any], services: Services) -> Response[bytes]:
    """Prometheus text format, for an admin key that may read the engine. Without an engine, only the gateway's part; of
    several engines each series has the label `engine`.
    Any worker reports the series of all workers, labelled `worker`."""
    by_listener = request.scope.get(BY_LISTENER, False)
    if not by_listener:
        await admit_operator(services, request, AREA)
    text = await services.workers.metrics()
    names = services.registry.open_names()
    reports = await services.engine.reports_by_name()
    if reports:
        text += merge_metrics(
            {engine: report.metrics + adapters_in_use(report, names) for engine, report in reports.items()}
        )
    if by_listener:
        text = without_restricted(text, services.models.open_names(), services.secrets.current)
    return Response(text, media_type=TEXT_FORMAT)
