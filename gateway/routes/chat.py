"""POST /v1/chat/completions: bytes to a typed request, and the answer back as one body or as a stream."""

from __future__ import annotations

from typing import Any

from litestar import Request, post
from litestar.types import ASGIApp

from gateway import wire
from gateway.access import admit
from gateway.answering import answer
from gateway.chat_shape import ChatShape
from gateway.http import read_body
from gateway.services import Services


@post(
    ["/v1/chat/completions", "/t/{tenant:str}/v1/chat/completions"],
    status_code=200,
    opt={"route": "/v1/chat/completions"},
)
async def chat_completions(request: Request[Any, Any, Any], services: Services) -> ASGIApp:
    """Create a chat completion."""
    caller = await admit(services, request)
    body = await read_body(request, services.config.gateway.body_bytes_max)
    chat = wire.parse_chat(body)
    return await answer(services, request, caller, body, chat.asked(), lambda work: ChatShape(work, chat.wants_usage()))
