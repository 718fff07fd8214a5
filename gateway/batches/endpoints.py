"""The endpoints that a line of a batch may name: how its body is parsed, and how its answer is rendered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.answers.chat_shape import ChatShape
from gateway.answers.completions_shape import CompletionShape
from gateway.answers.embeddings_shape import EmbeddingsShape
from gateway.answers.messages_shape import MessageShape
from gateway.answers.responses_shape import ResponseShape
from gateway.answers.sse import Shape
from gateway.api.dialects import anthropic_error
from gateway.config.settings import GatewaySection
from gateway.errors import ApiError
from gateway.generation.inflight import InFlight


@dataclass(slots=True, frozen=True)
class BatchEndpoint:
    """An endpoint that lines may name. `kind`: as in `bodies.read_request`. `shape_of`: makes the answer's Shape.
    `is_large`: a body may have `gateway.messages_body_bytes_max` bytes. `error_of`: makes an error's body from the
    error and the request id. `embeds`: the endpoint answers with embeddings, all of one model."""

    kind: str
    shape_of: Callable[[InFlight], Shape]
    is_large: bool = False
    error_of: Callable[[ApiError, str], bytes] = lambda error, _request_id: error.body()
    embeds: bool = False

    def body_bytes_max(self, settings: GatewaySection) -> int:
        return settings.messages_body_bytes_max if self.is_large else settings.body_bytes_max


ENDPOINTS = {
    "/v1/chat/completions": BatchEndpoint("chat", lambda request: ChatShape(request, False)),
    "/v1/completions": BatchEndpoint("completions", lambda request: CompletionShape(request, False)),
    "/v1/responses": BatchEndpoint("responses", ResponseShape, is_large=True),
    "/v1/embeddings": BatchEndpoint("embeddings", EmbeddingsShape, embeds=True),
    "/v1/messages": BatchEndpoint("messages", MessageShape, is_large=True, error_of=anthropic_error),
}
# The endpoints that a batch of OpenAI's API may name.
OPENAI_ENDPOINTS = tuple(name for name in ENDPOINTS if name != "/v1/messages")
