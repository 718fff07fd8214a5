"""From one HTTP exchange to the application that answers it: the same for every endpoint that makes tokens.

The order of the steps is what a refused request costs: the limits are asked before the body is read, the body is read
before it is parsed, and what is refused after that keeps its request under the limits (decision 0018).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from litestar import Request
from litestar.types import ASGIApp

from gateway.access import admit
from gateway.callers import Caller
from gateway.errors import BudgetExceeded, InvalidRequest, RateLimited
from gateway.http import line_of, read_body
from gateway.inflight import InFlight
from gateway.limiter import Admission, end_refused
from gateway.replays import HEADER, Call, Replayed
from gateway.services import Services
from gateway.sse import ReplayedAnswer, Shape, StreamedAnswer, Waits, WholeAnswer


@dataclass(slots=True, frozen=True)
class Endpoint:
    """What endpoints differ in. `kind`: of `bodies.READERS`. `shape_of`: how the answer is said, given whether a stream
    ends with the usage."""

    kind: str
    shape_of: Callable[[InFlight, bool], Shape]


async def answer(
    services: Services, request: Request[Any, Any, Any], endpoint: Endpoint, *, api_key: str | None = None
) -> ASGIApp:
    """`api_key`: as of `access.admit`. Raises ApiError while nothing is held yet; what is refused later is raised by
    the application."""
    caller = await admit(services, request, api_key=api_key)
    try:
        admission = await services.generator.admit(caller)
    except (RateLimited, BudgetExceeded):
        # A replay takes nothing from any limit: an answer that was paid for is there for a key that has used them up.
        replayed = await _replay(services, request, caller)
        if replayed is None:
            raise
        return replayed
    async with refunded(admission):
        return await _answer(services, request, endpoint, caller, admission)


@contextlib.asynccontextmanager
async def refunded(admission: Admission) -> AsyncIterator[None]:
    """What raises inside ends the admission as a refusal."""
    try:
        yield
    except BaseException as error:
        await end_refused(admission, error)
        raise


async def _answer(
    services: Services, request: Request[Any, Any, Any], endpoint: Endpoint, caller: Caller, admission: Admission
) -> ASGIApp:
    """Raises as `answer`; the admission is open then."""
    line = line_of(request)
    body = await read_body(request, services.config.gateway.body_bytes_max)
    read = await services.generator.read(caller, endpoint.kind, body)
    asked = read.asked
    call = _call(services, request, caller, body, streams=asked.stream)
    begun: InFlight | Replayed | None = None if call is None else await call.look()
    if begun is None:
        begun = await services.generator.begin(caller, asked, line, admission, call)
    if isinstance(begun, Replayed):
        await admission.give_back()
        line.record.replay_of = begun.request_id
        return ReplayedAnswer(begun.body)
    work = begun
    shape = endpoint.shape_of(work, read.wants_usage)
    if not asked.stream:
        if call is not None:
            work.answer.whole = shape.whole_parts
        return WholeAnswer(work.answer, work.admission, shape, kept=call is not None)
    settings = services.config.gateway
    waits = Waits(settings.first_token_wait_s, settings.keep_alive_s)
    return StreamedAnswer(work.answer, work.admission, shape, waits)


async def _replay(services: Services, request: Request[Any, Any, Any], caller: Caller) -> ASGIApp | None:
    """Of a call that the limits refuse. The body is read only if a call of this name came before, and is not parsed.
    Raises as `Call.look`."""
    name = request.headers.get(HEADER)
    if name is None or not await services.replays.came_before(caller.key_id, name):
        return None
    body = await read_body(request, services.config.gateway.body_bytes_max)
    call = _call(services, request, caller, body, streams=False)
    replayed = None if call is None else await call.look()
    if replayed is None:
        return None
    line_of(request).record.replay_of = replayed.request_id
    return ReplayedAnswer(replayed.body)


def _call(
    services: Services, request: Request[Any, Any, Any], caller: Caller, body: bytes, *, streams: bool
) -> Call | None:
    """None without an Idempotency-Key. Raises InvalidRequest when it cannot be kept."""
    name = request.headers.get(HEADER)
    if name is None:
        return None
    if streams:
        raise InvalidRequest(f"{HEADER!r} is not supported for a call that streams.", param=HEADER)
    route = str(request.scope["route_handler"].opt["route"])
    request_id = line_of(request).record.request_id
    return services.replays.call(key_id=caller.key_id, name=name, route=route, body=body, request_id=request_id)
