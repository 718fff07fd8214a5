"""An exchange leaves no reference cycles: collecting them stops the event loop and all streams on it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from gateway.config.settings import TelemetrySection
from gateway.errors import InvalidRequest
from gateway.http.exchange import Front
from gateway.limits.client_pace import ClientPace
from gateway.limits.turn_pace import RequestPace
from gateway.metrics import Metrics
from gateway.telemetry.tracing import Tracing


class Exchange:
    """As a server keeps it: `send` is its own, and it has the scope."""

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {
            "type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": [], "client": ("::1", 1)
        }  # fmt: skip
        self.statuses: list[int] = []

    async def receive(self) -> Any:
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.statuses.append(message["status"])


async def refuses(scope: Any, receive: Any, send: Any) -> None:
    raise InvalidRequest("no")


async def answers(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


@pytest.mark.parametrize(("inner", "status"), [(refuses, 400), (answers, 200)])
async def test_an_exchange_is_freed_without_the_collector(inner: Any, status: int) -> None:
    metrics = Metrics()
    front = Front(inner, metrics, RequestPace(), ClientPace(0.0), Tracing(TelemetrySection(), "gw_1", metrics))
    gc.collect()
    gc.disable()
    try:
        exchange = Exchange()
        await front(exchange.scope, exchange.receive, exchange.send)  # type: ignore[arg-type]
        assert exchange.statuses == [status]
        freed = weakref.ref(exchange)
        del exchange
        assert freed() is None
    finally:
        gc.enable()
