"""POST /v1/responses: OpenAI's Responses API without storage. The client sends its whole input with each turn."""

from __future__ import annotations

from typing import Any

from litestar import Request, post
from litestar.types import ASGIApp

from gateway.answers.responses_shape import ResponseShape
from gateway.routes.answering import Endpoint, answer
from gateway.services import Services


@post(["/v1/responses", "/t/{tenant:str}/v1/responses"], status_code=200, opt={"route": "/v1/responses"})
async def responses(request: Request[Any, Any, Any], services: Services) -> ASGIApp:
    """Create a response."""
    return await answer(services, request, RESPONSES)


RESPONSES = Endpoint("responses", lambda work, _wants_usage: ResponseShape(work))
