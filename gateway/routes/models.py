"""GET /v1/models: the names that this tenant may use as `model`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from litestar import Request, get

from gateway.catalog.registry import ModelCard
from gateway.routes.guard import admit
from gateway.services import Services


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]


@get(["/v1/models", "/t/{tenant:str}/v1/models"], opt={"route": "/v1/models"})
async def list_models(request: Request[Any, Any, Any], services: Services) -> ModelList:
    """List the base models, adapters and aliases that the key's tenant may use."""
    caller = await admit(services, request)
    return ModelList(data=services.router.visible(caller))


@get(["/v1/models/{model:path}", "/t/{tenant:str}/v1/models/{model:path}"], opt={"route": "/v1/models/{model}"})
async def get_model(request: Request[Any, Any, Any], services: Services, model: str) -> ModelCard:
    """One model, adapter or alias that the key's tenant may use."""
    caller = await admit(services, request)
    return services.router.card(caller, model.removeprefix("/"))
