"""POST /v1/chat/completions: bytes to a typed request, and the answer back as one body or as a stream."""

from __future__ import annotations

from typing import Any

from litestar import Request, post
from litestar.types import ASGIApp

from gateway import wire
from gateway.access import admit
from gateway.http import line_of, read_body
from gateway.services import Services
from gateway.sse import StreamedAnswer, Waits, WholeAnswer


@post(
    ["/v1/chat/completions", "/t/{tenant:str}/v1/chat/completions"],
    status_code=200,
    opt={"route": "/v1/chat/completions"},
)
async def chat_completions(request: Request[Any, Any, Any], services: Services) -> ASGIApp:
    """Create a chat completion."""
    settings = services.config.gateway
    caller = await admit(services, request)
    asked = wire.parse_chat(await read_body(request, settings.body_bytes_max))
    work = await services.generator.begin(caller, asked, line_of(request))
    if not asked.stream:
        return WholeAnswer(work)
    waits = Waits(settings.first_token_wait_s, settings.keep_alive_s)
    return StreamedAnswer(work, waits, asked.wants_usage())
