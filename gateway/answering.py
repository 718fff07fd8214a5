"""From a typed request to the application that answers it: the same for every endpoint that makes tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from litestar import Request
from litestar.types import ASGIApp

from gateway.asked import Asked
from gateway.callers import Caller
from gateway.errors import InvalidRequest
from gateway.http import line_of
from gateway.inflight import InFlight
from gateway.replays import HEADER, Call, Replayed
from gateway.services import Services
from gateway.sse import ReplayedAnswer, Shape, StreamedAnswer, Waits, WholeAnswer


async def answer(
    services: Services,
    request: Request[Any, Any, Any],
    caller: Caller,
    body: bytes,
    asked: Asked,
    shape_of: Callable[[InFlight], Shape],
) -> ASGIApp:
    """`body`: what `asked` was read from. Raises ApiError while nothing is held yet; what is refused later is raised by
    the application."""
    line = line_of(request)
    call = _call(services, request, caller, body, asked)
    # Who asks again takes nothing from any limit: an answer that was paid for is there for whoever has used them up.
    begun: InFlight | Replayed | None = None if call is None else await call.look()
    if begun is None:
        begun = await services.generator.begin(caller, asked, line, call)
    if isinstance(begun, Replayed):
        line.record.replay_of = begun.request_id
        return ReplayedAnswer(begun.body)
    work = begun
    shape = shape_of(work)
    if not asked.stream:
        if call is not None:
            work.answer.whole = shape.whole
        return WholeAnswer(work.answer, work.admission, shape, kept=call is not None)
    settings = services.config.gateway
    waits = Waits(settings.first_token_wait_s, settings.keep_alive_s)
    return StreamedAnswer(work.answer, work.admission, shape, waits)


def _call(
    services: Services, request: Request[Any, Any, Any], caller: Caller, body: bytes, asked: Asked
) -> Call | None:
    """None without an Idempotency-Key. Raises InvalidRequest when it cannot be kept."""
    name = request.headers.get(HEADER)
    if name is None:
        return None
    if asked.stream:
        raise InvalidRequest(f"{HEADER!r} is not supported for a call that streams.", param=HEADER)
    route = str(request.scope["route_handler"].opt["route"])
    request_id = line_of(request).record.request_id
    return services.replays.call(key_id=caller.key_id, name=name, route=route, body=body, request_id=request_id)
