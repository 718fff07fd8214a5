"""POST /v1/responses: OpenAI's Responses API. The client sends its whole input with each turn or, where its tenant has
responses stored, the id of the response before.
"""

from __future__ import annotations

from typing import Any

from litestar import Request, post
from litestar.types import ASGIApp

from gateway.answers.compact_shape import CompactShape
from gateway.answers.responses_shape import ResponseShape
from gateway.api.compact_wire import InputTokens
from gateway.routes.answering import Endpoint, answer, count_prompt
from gateway.services import Services


@post(["/v1/responses", "/t/{tenant:str}/v1/responses"], status_code=200, opt={"route": "/v1/responses"})
async def responses(request: Request[Any, Any, Any], services: Services) -> ASGIApp:
    """Create a response."""
    return await answer(services, request, RESPONSES)


@post(
    ["/v1/responses/input_tokens", "/t/{tenant:str}/v1/responses/input_tokens"],
    status_code=200,
    opt={"route": "/v1/responses/input_tokens"},
)
async def input_tokens(request: Request[Any, Any, Any], services: Services) -> InputTokens:
    """Count the tokens of a response's prompt. Free."""
    return InputTokens(await count_prompt(services, request, RESPONSES, "responses"))


@post(
    ["/v1/responses/compact", "/t/{tenant:str}/v1/responses/compact"],
    status_code=200,
    opt={"route": "/v1/responses/compact"},
)
async def compact(request: Request[Any, Any, Any], services: Services) -> ASGIApp:
    """Replace a conversation by its user messages and a summary that the model writes. Billed as an answer."""
    return await answer(services, request, COMPACT)


RESPONSES = Endpoint("responses", lambda work, _wants_usage: ResponseShape(work), continues=True, stores=True)
COMPACT = Endpoint("compact", lambda work, _wants_usage: CompactShape(work), continues=True)
