"""Turns an HTTP request into the ASGI application that answers it, for every endpoint that generates tokens.

The order of the steps bounds the cost of a refused request: limits are checked before the body is read, and the body is
read before it is parsed. A 4xx after the limits still counts as a request under them (decision 0018).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from litestar import Request
from litestar.types import ASGIApp

from gateway.access.callers import Caller
from gateway.answers.responses_shape import ResponseShape
from gateway.answers.sse import ReplayedAnswer, Shape, StreamedAnswer, StreamTimeouts, WholeAnswer
from gateway.api.agent_hints import BETA_HEADER, ignored_headers
from gateway.api.generation_request import GenerationRequest
from gateway.config.settings import GatewaySection
from gateway.errors import BudgetExceeded, InvalidRequest, RateLimited, RequestTooLarge
from gateway.generation.inflight import InFlight
from gateway.generation.replays import HEADER, IdempotentCall, Replayed
from gateway.http.exchange import line_of, read_body
from gateway.limits.body_memory import HeldBody
from gateway.limits.limiter import Admission, end_refused
from gateway.log import RequestLine
from gateway.routes.background import answer_in_background, check_background
from gateway.routes.guard import admit
from gateway.services import Services
from gateway.stored.turns import OpenTurn, open_turn, refuse_without_turn

HASH_IN_LOOP_BYTES_MAX = 1024 * 1024  # about a millisecond
MESSAGES = "messages"
# The kinds of bodies in which agents send whole sessions: `gateway.messages_body_bytes_max` limits them.
SESSION_KINDS = (MESSAGES, "responses", "compact")


@dataclass(slots=True, frozen=True)
class Endpoint:
    """The parts that differ among endpoints. `kind`: that of `bodies.read_request`. `shape_of`: makes the answer's
    Shape; its second argument says whether a stream ends with the usage."""

    kind: str
    shape_of: Callable[[InFlight, bool], Shape]
    continues: bool = False  # a request may continue a stored response
    stores: bool = False  # a response may be stored

    def ignored_headers(self, request: Request[Any, Any, Any]) -> tuple[str, ...]:
        return ignored_headers(request.headers.getall(BETA_HEADER, [])) if self.kind == MESSAGES else ()

    def body_bytes_max(self, settings: GatewaySection) -> int:
        return settings.messages_body_bytes_max if self.kind in SESSION_KINDS else settings.body_bytes_max


async def answer(services: Services, request: Request[Any, Any, Any], endpoint: Endpoint) -> ASGIApp:
    """Raises ApiError for refusals before the hold; later errors are raised by the returned application."""
    caller = await admit(services, request)
    try:
        admission = await services.generator.admit(caller)
    except (RateLimited, BudgetExceeded):
        # A replay takes nothing from any limit, so an exhausted key may still fetch an answer that was paid for.
        replayed = await _replay(services, request, endpoint, caller)
        if replayed is None:
            raise
        return replayed
    async with refund_on_error(admission):
        return await _answer(services, request, endpoint, caller, admission)


@contextlib.asynccontextmanager
async def refund_on_error(admission: Admission) -> AsyncIterator[None]:
    """An exception in the block ends the admission with `end_refused`, and is raised again."""
    try:
        yield
    except BaseException as error:
        await end_refused(admission, error)
        raise


async def count_prompt(services: Services, request: Request[Any, Any, Any], endpoint: Endpoint, kind: str) -> int:
    """The tokens of a request's prompt. `kind`: that of `bodies.read_request`. The request counts under the limits on
    requests. Raises ApiError."""
    caller = await admit(services, request)
    admission = await services.generator.admit(caller)
    async with refund_on_error(admission):
        limit = endpoint.body_bytes_max(services.config.gateway)
        held, line = hold_body(services, request, caller), line_of(request)
        body = await read_body(request, limit, held)
        turn = await _open_turn(services, endpoint, caller, body, held, line) if endpoint.continues else None
        try:
            read = await services.generator.read(caller, kind, body if turn is None else turn.body)
            line.record.ignored = read.ignored + endpoint.ignored_headers(request)
            _check_size(services, caller, body, read.asked)
            if turn is None:
                refuse_without_turn(read.asked.continues, read.asked.conversation_id)
            counted = await services.generator.count(caller, read.asked)
        except InvalidRequest as error:
            raise error if turn is None else turn.own_index(error) from None
    await admission.finish_request(0)
    return counted


async def _answer(
    services: Services, request: Request[Any, Any, Any], endpoint: Endpoint, caller: Caller, admission: Admission
) -> ASGIApp:
    """Raises as `answer`; the admission stays open then."""
    line = line_of(request)
    held = hold_body(services, request, caller)
    body = await read_body(request, endpoint.body_bytes_max(services.config.gateway), held)
    turn = await _open_turn(services, endpoint, caller, body, held, line) if endpoint.continues else None
    try:
        return await _begin(services, request, endpoint, caller, admission, body, held, turn)
    except BaseException as error:
        if turn is not None:
            turn.abandon_turn()
            if isinstance(error, InvalidRequest):
                turn.own_index(error)
        raise


async def _open_turn(
    services: Services, endpoint: Endpoint, caller: Caller, body: bytes, held: HeldBody, line: RequestLine
) -> OpenTurn | None:
    """The request's turn in a stored conversation. Raises PreviousResponseNotFound, RateLimited, DatabaseDown; as
    `RequestPlanner.check_items`. The event loop reads the items: a body over `gateway.body_bytes_max` has no turn."""
    if caller.stores_responses:
        if len(body) > services.config.gateway.body_bytes_max:
            return None
        await services.generator.check_items(caller, body)
    response_id = "resp_" + line.record.request_id.removeprefix("req_") if endpoint.stores else None
    turn = await open_turn(services.responses, services.conversations, caller, body, response_id)
    if turn is not None:
        held.grow_to(len(turn.body))
    return turn


async def _begin(
    services: Services,
    request: Request[Any, Any, Any],
    endpoint: Endpoint,
    caller: Caller,
    admission: Admission,
    body: bytes,
    held: HeldBody,
    turn: OpenTurn | None,
) -> ASGIApp:
    """Parse the body, reserve and start. Raises ApiError."""
    line = line_of(request)
    read = await services.generator.read(caller, endpoint.kind, body if turn is None else turn.body)
    line.record.ignored = read.ignored + endpoint.ignored_headers(request)
    asked = read.asked
    _check_size(services, caller, body, asked)
    if turn is None:
        refuse_without_turn(asked.continues, asked.conversation_id)
    call = await _call(services, request, caller, body, streams=asked.stream)
    if asked.background:
        check_background(turn, idempotent=call is not None)
    begun: InFlight | Replayed | None = None if call is None else await call.look_up()
    if begun is None:
        if turn is not None:
            await turn.begin_turn(asked.continues)
        renderer = None if call is None else lambda request: endpoint.shape_of(request, read.wants_usage).whole_parts
        begun = await services.generator.begin_request(caller, asked, line, admission, call, renderer)
    if isinstance(begun, Replayed) or not begun.keeps_body:
        held.release()
    if isinstance(begun, Replayed):
        await admission.refund()
        line.record.replay_of = begun.request_id
        if turn is not None:
            turn.abandon_turn()
        return ReplayedAnswer(begun.body)
    work = begun
    work.stores = turn is not None and turn.stores
    shape = endpoint.shape_of(work, read.wants_usage)
    if asked.background and turn is not None and isinstance(shape, ResponseShape):
        return await answer_in_background(services, work, shape, turn)
    keeper = ResponseKeeper(turn, shape) if turn is not None and isinstance(shape, ResponseShape) else None
    if not asked.stream:
        return WholeAnswer(work.answer, work.admission, shape, kept=call is not None, keeper=keeper)
    settings = services.config.gateway
    waits = StreamTimeouts(settings.first_token_wait_s, settings.keep_alive_s)
    return StreamedAnswer(work.answer, work.admission, shape, waits, keeper)


def _check_size(services: Services, caller: Caller, body: bytes, asked: GenerationRequest) -> None:
    """Raises RequestTooLarge for a body that would have to be stored, or follow a stored response, and is too large."""
    limit = services.config.gateway.body_bytes_max
    fields = {
        "background": asked.background,
        "previous_response_id": asked.continues is not None,
        "conversation": asked.conversation_id is not None,
    }
    needing = [field for field, is_sent in fields.items() if is_sent]
    if caller.stores_responses and len(body) > limit and needing:
        raise RequestTooLarge(f"With {needing[0]!r} a body has at most {limit} bytes. Send the whole input without it.")


class ResponseKeeper:
    """Implements `gateway.answers.sse.Keeper` for a stored response."""

    def __init__(self, turn: OpenTurn, shape: ResponseShape) -> None:
        self._turn = turn
        self._shape = shape

    async def keep_answer(self, data: bytes) -> bytes:
        # The body of an idempotent call was rendered by another shape: it is the response object.
        return await self._turn.keep_answer(data, self._shape.response or data)

    def abandon_answer(self) -> None:
        self._turn.abandon_turn()


async def _replay(
    services: Services, request: Request[Any, Any, Any], endpoint: Endpoint, caller: Caller
) -> ASGIApp | None:
    """The stored answer for a call that the limits refused; None: there is none. The body is read, but not parsed, and
    only if a call with this Idempotency-Key exists. Raises as `IdempotentCall.look_up`."""
    name = request.headers.get(HEADER)
    if name is None or not await services.replays.came_before(caller.key_id, name):
        return None
    held = hold_body(services, request, caller)
    body = await read_body(request, endpoint.body_bytes_max(services.config.gateway), held)
    call = await _call(services, request, caller, body, streams=False)
    replayed = None if call is None else await call.look_up()
    if replayed is None:
        return None
    line_of(request).record.replay_of = replayed.request_id
    return ReplayedAnswer(replayed.body)


def hold_body(services: Services, request: Request[Any, Any, Any], caller: Caller) -> HeldBody:
    """Counts the bytes of the request's body, until it is released or the request has ended."""
    held = services.body_memory.body_of(caller.tenant_id or caller.key_id)
    line_of(request).on_end(held.release)
    return held


async def _call(
    services: Services, request: Request[Any, Any, Any], caller: Caller, body: bytes, *, streams: bool
) -> IdempotentCall | None:
    """The idempotent call of a request with an Idempotency-Key; None without one. Raises InvalidRequest for a stream,
    whose answer cannot be stored."""
    name = request.headers.get(HEADER)
    if name is None:
        return None
    if streams:
        raise InvalidRequest(f"{HEADER!r} is not supported for a call that streams.", param=HEADER)
    route = str(request.scope["route_handler"].opt["route"])
    request_id = line_of(request).record.request_id
    make = functools.partial(
        services.replays.call,
        tenant_id=caller.tenant_id,
        key_id=caller.key_id,
        name=name,
        route=route,
        body=body,
        request_id=request_id,
    )
    return make() if len(body) <= HASH_IN_LOOP_BYTES_MAX else await asyncio.to_thread(make)
