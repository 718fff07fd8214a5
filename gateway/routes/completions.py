"""POST /v1/completions: texts that go on from a prompt, without a chat template."""

from __future__ import annotations

from typing import Any

from litestar import Request, post
from litestar.types import ASGIApp

from gateway.access import admit
from gateway.answering import answer
from gateway.completions_shape import CompletionShape
from gateway.completions_wire import parse_completion
from gateway.http import read_body
from gateway.services import Services


@post(["/v1/completions", "/t/{tenant:str}/v1/completions"], status_code=200, opt={"route": "/v1/completions"})
async def completions(request: Request[Any, Any, Any], services: Services) -> ASGIApp:
    """Create completions of one or several prompts."""
    caller = await admit(services, request)
    body = await read_body(request, services.config.gateway.body_bytes_max)
    asked = parse_completion(body)
    wants_usage = asked.wants_usage()
    return await answer(services, request, caller, body, asked.asked(), lambda work: CompletionShape(work, wants_usage))
