"""GET /v1/models: the names that this tenant may use as `model`, in OpenAI's or Anthropic's shape."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from litestar import Request, Response, get

from gateway.answers.models_shape import anthropic_model, anthropic_page
from gateway.api.dialects import speaks_anthropic
from gateway.catalog.registry import ModelCard
from gateway.routes.guard import admit
from gateway.services import Services


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]


@get(["/v1/models", "/t/{tenant:str}/v1/models"], opt={"route": "/v1/models"})
async def list_models(request: Request[Any, Any, Any], services: Services) -> Response[ModelList]:
    """List the base models, adapters and aliases that the key's tenant may use. With the header `anthropic-version`
    the answer is a page in Anthropic's shape, by `limit`, `after_id` and `before_id`."""
    caller = await admit(services, request)
    cards = services.router.visible(caller)
    if not _is_anthropic(request):
        return Response(ModelList(data=cards))
    query = request.query_params
    page = anthropic_page(
        cards,
        limit=query.get("limit"),
        after_id=query.get("after_id"),
        before_id=query.get("before_id"),
        lifecycle=[*query.getall("lifecycle", []), *query.getall("lifecycle[]", [])],
    )
    return Response(page)  # type: ignore[arg-type]  # the description of the API has one shape of each answer


@get(["/v1/models/{model:path}", "/t/{tenant:str}/v1/models/{model:path}"], opt={"route": "/v1/models/{model}"})
async def get_model(request: Request[Any, Any, Any], services: Services, model: str) -> Response[ModelCard]:
    """One model, adapter or alias that the key's tenant may use. With the header `anthropic-version` in Anthropic's
    shape."""
    caller = await admit(services, request)
    card = services.router.card(caller, model.removeprefix("/"))
    if not _is_anthropic(request):
        return Response(card)
    return Response(anthropic_model(card))  # type: ignore[arg-type]  # as in `list_models`


def _is_anthropic(request: Request[Any, Any, Any]) -> bool:
    return speaks_anthropic(request.scope["path"], request.scope["headers"])
