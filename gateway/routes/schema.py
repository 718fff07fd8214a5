"""GET /schema: the OpenAPI description, completed with what the framework cannot see of the raw chat route."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request
from litestar.openapi.plugins import JsonRenderPlugin

from gateway import wire
from gateway.errors import ErrorBody

_REFERENCE = "#/components/schemas/{name}"
_STREAMED = "Server-sent events: `data: ` and a ChatCompletionChunk, then `data: [DONE]`; an error ends it."


class SchemaPlugin(JsonRenderPlugin):
    """Litestar's description, with ours added."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        return msgspec.json.encode(complete(openapi_schema))


def complete(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy of `schema` with keys, errors and the chat bodies described."""
    (request, answer, chunk, error), components = msgspec.json.schema_components(
        [wire.ChatRequest, wire.ChatCompletion, wire.ChatCompletionChunk, ErrorBody], ref_template=_REFERENCE
    )
    for field, allowed in wire.NEUTRAL.items():
        components["ChatRequest"]["properties"][field] = {
            "enum": [None, *allowed],
            "default": None,
            "description": "Not supported beyond these neutral values.",
        }
    refusal = {"description": "A refusal, with its reason", "content": {"application/json": {"schema": error}}}
    paths: dict[str, Any] = {}
    for path, operations in schema["paths"].items():
        paths[path] = {method: _operation(path, operation, refusal) for method, operation in operations.items()}
        if path.endswith("/chat/completions"):
            paths[path]["post"] |= {
                "requestBody": {"required": True, "content": {"application/json": {"schema": request}}},
                "responses": paths[path]["post"]["responses"]
                | {"200": {"description": _STREAMED, "content": _either(answer, chunk)}},
            }
    known = schema.get("components", {})
    return schema | {
        "paths": paths,
        "security": [{"key": []}],
        "components": known
        | {
            "schemas": known.get("schemas", {}) | components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(path: str, operation: dict[str, Any], refusal: dict[str, Any]) -> dict[str, Any]:
    responses = {status: answer for status, answer in operation["responses"].items() if status < "400"}
    described = operation | {"responses": responses | {"4XX": refusal, "5XX": refusal}}
    if path.startswith(("/health", "/metrics")):
        described["security"] = []
    return described


def _either(whole: dict[str, Any], chunk: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": whole}, "text/event-stream": {"schema": chunk}}
