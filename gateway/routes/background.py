"""Responses in the background: the request is answered once its tokens are held; the response is made without it."""

from __future__ import annotations

from litestar.types import ASGIApp

from billing.database import DatabaseUnavailable
from gateway.answers.recording import FollowedResponse, ResponseRecorder
from gateway.answers.responses_shape import ResponseShape
from gateway.answers.sse import BodyAnswer, answer_headers
from gateway.errors import DatabaseDown, InvalidRequest
from gateway.generation.answer import TokenUsage
from gateway.generation.inflight import InFlight
from gateway.services import Services
from gateway.stored.turns import OpenTurn

NO_USAGE = TokenUsage(0, 0, 0)


def check_background(turn: OpenTurn | None, *, idempotent: bool) -> None:
    """Raises InvalidRequest for a response in the background that would not be stored, or has an Idempotency-Key."""
    if turn is None or not turn.stores:
        raise InvalidRequest(
            "'background' needs a stored response: 'store' must not be false, and the tenant must have its responses "
            "stored.",
            param="background",
        )
    if idempotent:
        raise InvalidRequest("'Idempotency-Key' is not supported with 'background'.", param="background")


async def answer_in_background(services: Services, work: InFlight, shape: ResponseShape, turn: OpenTurn) -> ASGIApp:
    """Start to store the answer once its tokens are held. Raises the answer's ApiError before that, and DatabaseDown.
    A stream begins with the first event."""
    answer = work.answer
    await answer.wait_granted()
    if answer.error is not None:
        raise answer.error
    response_id = turn.response_id
    assert response_id is not None, "a response in the background is stored"
    queued = shape.queued()
    recorder = ResponseRecorder(
        answer,
        shape,
        services.background,
        tenant_id=turn.tenant_id,
        response_id=response_id,
        request_id=work.request_id,
        usage_shown=lambda: NO_USAGE if work.runs is None else work.runs.usage_shown(),
        added_items=turn.added_items,
    )
    try:
        is_queued = await services.background.queue_response(turn.tenant_id, response_id, queued)
    except DatabaseUnavailable:
        recorder.abandon()
        raise DatabaseDown("The response cannot be stored now. Try again in a moment.") from None
    turn.hand_over()
    if is_queued:
        services.recordings.start(response_id, recorder)
    else:  # the tenant opted out meanwhile
        recorder.abandon()
    headers = [*answer_headers(answer), *work.admission.headers()]
    if not work.asked.stream:
        return BodyAnswer(queued, headers)
    keep_alive_s = services.config.gateway.keep_alive_s
    store = services.background
    return FollowedResponse(store, turn.tenant_id, response_id, after=-1, headers=headers, keep_alive_s=keep_alive_s)
