"""POST /v1/messages: the chat path in Anthropic's words, for its SDKs. The key comes as `x-api-key` or as a bearer."""

from __future__ import annotations

from typing import Any

from litestar import Request, post
from litestar.types import ASGIApp

from gateway.answers.messages_shape import MessageShape
from gateway.api.messages_wire import TokenCount
from gateway.routes.answering import Endpoint, answer, count_prompt
from gateway.services import Services


@post(["/v1/messages", "/t/{tenant:str}/v1/messages"], status_code=200, opt={"route": "/v1/messages"})
async def messages(request: Request[Any, Any, Any], services: Services) -> ASGIApp:
    """Create a message."""
    return await answer(services, request, MESSAGES)


@post(
    ["/v1/messages/count_tokens", "/t/{tenant:str}/v1/messages/count_tokens"],
    status_code=200,
    opt={"route": "/v1/messages/count_tokens"},
)
async def count_tokens(request: Request[Any, Any, Any], services: Services) -> TokenCount:
    """Count the tokens of a prompt, as it would be charged when nothing of it is cached. Free."""
    return TokenCount(await count_prompt(services, request, MESSAGES, "count"))


MESSAGES = Endpoint("messages", lambda work, _wants_usage: MessageShape(work))
