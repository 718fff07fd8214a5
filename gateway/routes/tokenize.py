"""POST /v1/tokenize and /v1/detokenize, in vLLM's shape. Both are free: a request counts under the rate limits, and
nothing is held or billed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from litestar import Request, post

from gateway.access.callers import Caller
from gateway.api.bodies import ParsedBody
from gateway.api.tokenize_wire import DetokenizeAnswer, TokenizeAnswer
from gateway.http.exchange import line_of, read_body
from gateway.routes.answering import hold_body, refund_on_error
from gateway.routes.guard import admit
from gateway.services import Services


@post(["/v1/tokenize", "/t/{tenant:str}/v1/tokenize"], status_code=200, opt={"route": "/v1/tokenize"})
async def tokenize(request: Request[Any, Any, Any], services: Services) -> TokenizeAnswer:
    """The token ids of a text or of a conversation, as a completion with it is billed. Free."""
    async with _admitted_body(services, request, "tokenize") as (caller, read):
        prompt = await services.generator.tokenize(caller, read.asked)
        texts = await prompt.token_texts() if read.wants_token_texts else None
    return TokenizeAnswer(
        count=len(prompt.ids), max_model_len=prompt.context_tokens, tokens=prompt.ids, token_strs=texts
    )


@post(["/v1/detokenize", "/t/{tenant:str}/v1/detokenize"], status_code=200, opt={"route": "/v1/detokenize"})
async def detokenize(request: Request[Any, Any, Any], services: Services) -> DetokenizeAnswer:
    """The text of token ids, special tokens included. Free."""
    async with _admitted_body(services, request, "detokenize") as (caller, read):
        text = await services.generator.detokenize(caller, read.asked)
    return DetokenizeAnswer(prompt=text)


@contextlib.asynccontextmanager
async def _admitted_body(
    services: Services, request: Request[Any, Any, Any], kind: str
) -> AsyncIterator[tuple[Caller, ParsedBody]]:
    """The caller and the parsed body of a request that takes no tokens from the limits. `kind`: that of
    `bodies.read_request`."""
    caller = await admit(services, request)
    admission = await services.generator.admit(caller)
    async with refund_on_error(admission):
        body = await read_body(request, services.config.gateway.body_bytes_max, hold_body(services, request, caller))
        read = await services.generator.read(caller, kind, body)
        line_of(request).record.ignored = read.ignored
        yield caller, read
    await admission.finish_request(0)
