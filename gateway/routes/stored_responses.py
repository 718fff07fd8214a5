"""The responses that are stored for a tenant: read and deleted by id. Any of the tenant's keys may."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.params import Parameter
from litestar.types import ASGIApp

from gateway.answers.recording import POLL_S, FollowedResponse
from gateway.answers.sse import BodyAnswer
from gateway.errors import InvalidRequest
from gateway.limits.limiter import Admission
from gateway.routes.answering import refund_on_error
from gateway.routes.guard import admit
from gateway.services import Services
from gateway.stored.background import BackgroundState
from gateway.stored.turns import input_items, response_not_found

ITEMS_DEFAULT, ITEMS_MAX = 20, 100
CANCEL_WAIT_S = 5.0  # the longest wait for the end of a cancelled response
PATH = "/v1/responses/{response:str}"


class DeletedResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputItems(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the input items of a response, items of earlier turns included."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


@get([PATH, f"/t/{{tenant:str}}{PATH}"], opt={"route": PATH})
async def get_response(
    request: Request[Any, Any, Any],
    services: Services,
    response: str,
    stream: bool = False,
    starting_after: Annotated[int, Parameter(ge=0)] | None = None,
) -> ASGIApp:
    """A stored response. A response in the background may be streamed, from the event after `starting_after` on."""
    tenant_id, admission = await _admit(request, services)
    async with refund_on_error(admission):
        if stream:
            return await _stream(services, admission, tenant_id, response, starting_after)
        if starting_after is not None:
            raise InvalidRequest("'starting_after' needs 'stream=true'.", param="starting_after")
        state = await services.background.current_response(tenant_id, response)
        if state is None or not state.response:
            raise response_not_found(response)
    await admission.finish_request(0)
    return BodyAnswer(state.response, admission.headers())


async def _stream(
    services: Services, admission: Admission, tenant_id: str, response: str, starting_after: int | None
) -> ASGIApp:
    """The admission counts as a running request until the stream ends. Raises NotFound, InvalidRequest."""
    after = -1 if starting_after is None else starting_after
    state = await services.background.read_response(tenant_id, response, after)
    if state is None or not state.response:
        raise response_not_found(response)
    if state.events is None:
        why = "its events are deleted" if state.background else "it was not made with 'background'"
        raise InvalidRequest(f"This response cannot be streamed: {why}.", param="stream")
    return FollowedResponse(
        services.background,
        tenant_id,
        response,
        after=after,
        events=state.events,
        headers=admission.headers(),
        keep_alive_s=services.config.gateway.keep_alive_s,
        on_end=lambda: admission.finish_request(0),
    )


@delete([PATH, f"/t/{{tenant:str}}{PATH}"], status_code=200, opt={"route": PATH})
async def delete_response(request: Request[Any, Any, Any], services: Services, response: str) -> DeletedResponse:
    """Delete a stored response. Responses that continue it can then not be continued."""
    tenant_id, admission = await _admit(request, services)
    async with refund_on_error(admission):
        if not await services.responses.delete_turn(tenant_id, response):
            raise response_not_found(response)
    await admission.finish_request(0)
    return DeletedResponse(id=response)


@post([f"{PATH}/cancel", f"/t/{{tenant:str}}{PATH}/cancel"], status_code=200, opt={"route": f"{PATH}/cancel"})
async def cancel_response(request: Request[Any, Any, Any], services: Services, response: str) -> Response[bytes]:
    """Cancel a response in the background. Its text so far is stored and billed. A response that has ended is returned
    unchanged."""
    tenant_id, admission = await _admit(request, services)
    async with refund_on_error(admission):
        state = await services.background.read_response(tenant_id, response)
        if state is None or not state.response:
            raise response_not_found(response)
        if not state.background:
            raise InvalidRequest("Only responses made with 'background' can be cancelled.", param="response_id")
        if not state.has_ended:
            state = await _cancel(services, tenant_id, response)
    await admission.finish_request(0)
    return Response(state.response, media_type="application/json")


async def _cancel(services: Services, tenant_id: str, response: str) -> BackgroundState:
    """Cancel it, and wait up to CANCEL_WAIT_S for its end. Raises NotFound if it is deleted meanwhile."""
    if not services.recordings.cancel_response(response):
        await services.background.request_cancel(tenant_id, response)
    deadline = time.monotonic() + CANCEL_WAIT_S
    while True:
        changed = services.background.change_of(response)
        state = await services.background.current_response(tenant_id, response)
        if state is None:
            raise response_not_found(response)
        if state.has_ended or time.monotonic() > deadline:
            return state
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await changed.wait()


@get([f"{PATH}/input_items", f"/t/{{tenant:str}}{PATH}/input_items"], opt={"route": f"{PATH}/input_items"})
async def list_input_items(
    request: Request[Any, Any, Any],
    services: Services,
    response: str,
    after: str | None = None,
    limit: Annotated[int, Parameter(ge=1, le=ITEMS_MAX)] = ITEMS_DEFAULT,
    order: Literal["asc", "desc"] = "desc",
) -> InputItems:
    """The input of a stored response."""
    tenant_id, admission = await _admit(request, services)
    async with refund_on_error(admission):
        turns = await services.responses.conversation(tenant_id, response)
        if turns is None:
            raise response_not_found(response)
        items = input_items(turns)
        if order == "desc":
            items.reverse()
        if after is not None:
            ids = [item["id"] for item in items]
            if after not in ids:
                raise InvalidRequest("'after' is not the id of an item of this response.", param="after")
            items = items[ids.index(after) + 1 :]
    await admission.finish_request(0)
    page = items[:limit]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return InputItems(data=page, first_id=first, last_id=last, has_more=len(items) > limit)


async def _admit(request: Request[Any, Any, Any], services: Services) -> tuple[str, Admission]:
    """The caller's tenant. The request counts under the limits on requests."""
    caller = await admit(services, request)
    assert caller.tenant_id is not None
    return caller.tenant_id, await services.generator.admit(caller)
