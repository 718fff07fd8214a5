"""POST /v1/chat/completions: bytes to a typed request, and the answer back as one body or as a stream."""

from __future__ import annotations

from typing import Any

from litestar import Request, post
from litestar.types import ASGIApp

from gateway.answers.chat_shape import ChatShape
from gateway.routes.answering import Endpoint, answer
from gateway.services import Services


@post(
    ["/v1/chat/completions", "/t/{tenant:str}/v1/chat/completions"],
    status_code=200,
    opt={"route": "/v1/chat/completions"},
)
async def chat_completions(request: Request[Any, Any, Any], services: Services) -> ASGIApp:
    """Create a chat completion."""
    return await answer(services, request, CHAT)


CHAT = Endpoint("chat", ChatShape)
