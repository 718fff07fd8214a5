"""The responses that are stored for a tenant: read and deleted by id. Any of the tenant's keys may."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.params import Parameter

from gateway.errors import InvalidRequest
from gateway.limits.limiter import Admission
from gateway.routes.answering import refund_on_error
from gateway.routes.guard import admit
from gateway.services import Services
from gateway.stored.turns import input_items, response_not_found

ITEMS_DEFAULT, ITEMS_MAX = 20, 100
PATH = "/v1/responses/{response:str}"


class DeletedResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputItems(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the items that a response had as its input, those of earlier turns included."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


@get([PATH, f"/t/{{tenant:str}}{PATH}"], opt={"route": PATH})
async def get_response(request: Request[Any, Any, Any], services: Services, response: str) -> Response[bytes]:
    """A stored response."""
    tenant_id, admission = await _admit(request, services)
    async with refund_on_error(admission):
        turn = await services.responses.get_turn(tenant_id, response)
        if turn is None or not turn.answer:
            raise response_not_found(response)
    await admission.finish_request(0)
    return Response(turn.answer, media_type="application/json")


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
    """Refuses: only a response in the background can be cancelled, and none is made."""
    tenant_id, admission = await _admit(request, services)
    async with refund_on_error(admission):
        if await services.responses.get_turn(tenant_id, response) is None:
            raise response_not_found(response)
        raise InvalidRequest("Only responses made with 'background' can be cancelled.", param="response_id")


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
