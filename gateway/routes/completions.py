"""POST /v1/completions: texts that continue a prompt, without a chat template."""

from __future__ import annotations

from typing import Any

from litestar import Request, post
from litestar.types import ASGIApp

from gateway.answers.completions_shape import CompletionShape
from gateway.routes.answering import Endpoint, answer
from gateway.services import Services


@post(["/v1/completions", "/t/{tenant:str}/v1/completions"], status_code=200, opt={"route": "/v1/completions"})
async def completions(request: Request[Any, Any, Any], services: Services) -> ASGIApp:
    """Create completions of one or several prompts."""
    return await answer(services, request, COMPLETIONS)


COMPLETIONS = Endpoint("completions", CompletionShape)
