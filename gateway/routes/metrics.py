"""GET /metrics: the gateway's own laneway_* metrics, then the engine's, under vLLM's names."""

from __future__ import annotations

import asyncio

from litestar import Response, get

from engine.client import EngineUnavailable
from gateway.services import Services

ENGINE_S_MAX = 2.0
TEXT_FORMAT = "text/plain; version=0.0.4"  # the framework adds the charset


@get("/metrics", media_type=TEXT_FORMAT)
async def metrics(services: Services) -> Response[bytes]:
    """Prometheus text format. Without an engine, the gateway's part alone. Of several workers any tells all, each
    series with the label `worker`."""
    text = await services.siblings.metrics()
    try:
        async with asyncio.timeout(ENGINE_S_MAX):
            text += (await services.engine.status()).metrics
    except (EngineUnavailable, TimeoutError):
        pass
    return Response(text, media_type=TEXT_FORMAT)
