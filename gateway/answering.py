"""From a typed request to the application that answers it: the same for every endpoint that makes tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from litestar import Request
from litestar.types import ASGIApp

from gateway.asked import Asked
from gateway.callers import Caller
from gateway.http import line_of
from gateway.inflight import InFlight
from gateway.services import Services
from gateway.sse import Shape, StreamedAnswer, Waits, WholeAnswer


async def answer(
    services: Services,
    request: Request[Any, Any, Any],
    caller: Caller,
    asked: Asked,
    shape_of: Callable[[InFlight], Shape],
) -> ASGIApp:
    """Raises ApiError while nothing is held yet; what is refused later is raised by the application."""
    work = await services.generator.begin(caller, asked, line_of(request))
    shape = shape_of(work)
    if not asked.stream:
        return WholeAnswer(work.answer, work.admission, shape)
    settings = services.config.gateway
    waits = Waits(settings.first_token_wait_s, settings.keep_alive_s)
    return StreamedAnswer(work.answer, work.admission, shape, waits)
