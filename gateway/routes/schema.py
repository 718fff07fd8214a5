"""GET /schema: the OpenAPI description, completed with what the framework cannot see of the raw routes' bodies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from litestar import Request
from litestar.openapi.plugins import JsonRenderPlugin

from adapters.files.store import FILES
from gateway.api import (
    chat_wire,
    compact_wire,
    completions_wire,
    messages_wire,
    responses_answers,
    responses_wire,
    tokenize_wire,
)
from gateway.api.dialects import AnthropicError, speaks_anthropic
from gateway.api.parsing import UnservedFields
from gateway.api.pooling import embeddings_wire, rerank_wire
from gateway.config.files_settings import EXPIRES_S_MAX, EXPIRES_S_MIN
from gateway.errors import ErrorBody
from gateway.files.rows import UPLOAD_PURPOSE
from gateway.generation import replays
from gateway.routes import conversations
from gateway.routes.automation.client_schemas import for_clients
from gateway.routes.batches import batches, message_batches
from gateway.routes.component_names import REFERENCE, join_schemas, without_module_paths
from gateway.routes.guard import COOKIE, CSRF_HEADER, HOST_PREFIX
from gateway.uploads import file_uploads
from gateway.uploads.uploads import BOOLEANS, FIELDS
from gateway.views.live import AwayEvent, EngineEvent

_STREAMED = "Server-sent events: `data: ` with a {chunk} each, then `data: [DONE]`; an error event ends the stream."
_SESSION = (
    f"The cookie of POST /v1/admin/session. Its name ends with the port of the address, if that has one, and begins "
    f"with {HOST_PREFIX} over https. Writes carry the session's csrf_token as {CSRF_HEADER}."
)
_LIVE = "Server-sent events named `engine` and `away`, and comments. The stream does not end by itself."
_EVENTS = "Server-sent events, named by their type, from message_start to message_stop; an error event ends the stream."
_RESPONSE_EVENTS = (
    "Server-sent events, named by their type and numbered by `sequence_number`, from response.created to "
    "response.completed, response.incomplete or response.failed."
)

_REPEATED_ANSWER = (
    "A request that does not stream and repeats an Idempotency-Key within ten minutes gets the first answer again."
)
_REPEATED_BATCH = (
    "A request that repeats an Idempotency-Key within a day gets the batch of the first request, in its present state."
)


@dataclass(frozen=True)
class _Body:
    """The body of a route that parses it itself. `whole` None: the framework describes the answer."""

    request: type[msgspec.Struct]
    unserved: UnservedFields
    whole: Any = None
    streamed: Any = None
    description: str = ""
    repeated: str = ""  # description of the Idempotency-Key where the route stores no answer


_BODIES = {
    "/v1/chat/completions": _Body(
        chat_wire.ChatRequest,
        chat_wire.UNSUPPORTED_FIELDS,
        chat_wire.ChatCompletion,
        chat_wire.ChatCompletionChunk,
        _STREAMED.format(chunk="ChatCompletionChunk"),
    ),
    "/v1/completions": _Body(
        completions_wire.CompletionRequest,
        completions_wire.UNSUPPORTED_FIELDS,
        completions_wire.Completion,
        completions_wire.Completion,
        _STREAMED.format(chunk="Completion"),
    ),
    "/v1/embeddings": _Body(
        embeddings_wire.EmbeddingsRequest, embeddings_wire.UNSUPPORTED_FIELDS, embeddings_wire.EmbeddingList
    ),
    "/v1/rerank": _Body(rerank_wire.RerankRequest, rerank_wire.UNSUPPORTED_FIELDS, rerank_wire.RerankAnswer),
    "/v1/score": _Body(rerank_wire.ScoreRequest, rerank_wire.UNSUPPORTED_OF_SCORES, rerank_wire.ScoreAnswer),
    "/v1/messages": _Body(
        messages_wire.MessagesRequest,
        messages_wire.UNSUPPORTED_FIELDS,
        messages_wire.MessageAnswer,
        messages_wire.Event,
        _EVENTS,
    ),
    "/v1/responses": _Body(
        responses_wire.ResponsesRequest,
        responses_wire.UNSUPPORTED_FIELDS,
        responses_answers.ResponseObject,
        responses_answers.ResponseEvent,
        _RESPONSE_EVENTS,
    ),
    "/v1/responses/compact": _Body(
        compact_wire.CompactRequest,
        {},
        compact_wire.CompactedResponse,
        description="The compacted conversation",
    ),
    "/v1/responses/input_tokens": _Body(responses_wire.ResponsesRequest, responses_wire.UNSUPPORTED_FIELDS),
    "/v1/conversations": _Body(conversations.NewConversation, {}),
    "/v1/conversations/{conversation}": _Body(conversations.ConversationChange, {}),
    "/v1/conversations/{conversation}/items": _Body(conversations.NewItems, {}),
    "/v1/batches": _Body(batches.BatchRequest, {}, repeated=_REPEATED_BATCH),
    "/v1/messages/batches": _Body(message_batches.MessageBatchRequest, {}, repeated=_REPEATED_BATCH),
    "/v1/messages/count_tokens": _Body(messages_wire.CountRequest, messages_wire.UNSUPPORTED_IN_PROMPTS),
    "/v1/tokenize": _Body(tokenize_wire.TokenizeRequest, tokenize_wire.UNSUPPORTED_FIELDS),
    "/v1/detokenize": _Body(tokenize_wire.DetokenizeRequest, {}),
}


class SchemaPlugin(JsonRenderPlugin):
    """Litestar's description, with ours added. It is made once: that takes a tenth of a second."""

    _rendered: bytes | None = None

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        if self._rendered is None:
            self._rendered = msgspec.json.encode(complete(openapi_schema))
        return self._rendered


# The form of an adapter upload. `base`: the base model, if several are served.
_FORM: dict[str, Any] = {
    "type": "object",
    "required": [*FILES],
    "additionalProperties": False,
    "properties": {
        **{name: {"type": "string", "format": "binary"} for name in FILES},
        **{name: {"type": "string"} for name in FIELDS},
        **{name: {"type": "string", "enum": [*BOOLEANS]} for name in ("pinned", "promote")},
        "shared": {"type": "string", "description": "tenants (ids or slugs), separated by commas; * for all"},
    },
}
# The form of an upload to /v1/files.
_FILE_FORM: dict[str, Any] = {
    "type": "object",
    "required": [file_uploads.FILE, file_uploads.PURPOSE],
    "additionalProperties": False,
    "properties": {
        file_uploads.FILE: {"type": "string", "format": "binary"},
        file_uploads.PURPOSE: {"type": "string", "enum": [UPLOAD_PURPOSE]},
        file_uploads.ANCHOR: {"type": "string", "enum": ["created_at"]},
        file_uploads.SECONDS: {"type": "integer", "minimum": EXPIRES_S_MIN, "maximum": EXPIRES_S_MAX},
    },
}
_FORMS = {
    "/v1/files": _FILE_FORM,
    "/v1/admin/adapters": _FORM | {"required": [*FILES, "name"]},
    "/v1/admin/adapters/check": _FORM,
}


# Routes that answer with the bytes of a file.
_DOWNLOADS = (
    "/v1/files/{file}/content",
    "/v1/messages/batches/{batch}/results",
    "/v1/admin/files/{file_id}/content",
)
# Routes whose answer is a stored response, and whether the route also streams it. The framework describes no schema of
# such an answer, because the handlers return bytes.
_STORED = {
    ("get", "/v1/responses/{response}"): True,
    ("post", "/v1/responses/{response}/cancel"): False,
}
# Routes that answer with events only, and the types of the events' data.
_STREAMS: dict[str, tuple[str, list[type[msgspec.Struct]]]] = {
    "/v1/admin/engine/live": (_LIVE, [EngineEvent, AwayEvent])
}


def complete(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy of `schema` with keys, errors and the raw bodies described, and no module path in a component's name."""
    schema = without_module_paths(schema)
    kinds: list[Any] = [ErrorBody, AnthropicError, *(kind for _, kinds in _STREAMS.values() for kind in kinds)]
    for body in _BODIES.values():
        kinds += [kind for kind in (body.request, body.whole, body.streamed) if kind is not None]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=REFERENCE)
    described = dict(zip(kinds, schemas, strict=True))
    for body in _BODIES.values():
        _describe_unserved(components[body.request.__name__], body.unserved)
    paths: dict[str, Any] = {}
    for path, operations in _with_restore_path(schema["paths"]).items():
        error = described[AnthropicError if speaks_anthropic(path) else ErrorBody]
        plain = path.removeprefix("/t/{tenant}")
        paths[path] = {method: _operation(path, method, operation, error) for method, operation in operations.items()}
        for method, operation in paths[path].items():
            if (streamed := _STORED.get((method, plain))) is not None:
                operation["responses"]["200"] = _stored_response(described, streamed)
        if plain in _DOWNLOADS:
            binary = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
            paths[path]["get"]["responses"]["200"] = {"description": "The content of the file", "content": binary}
        if (form := _FORMS.get(plain)) is not None:
            content = {"multipart/form-data": {"schema": form}}
            paths[path]["post"]["requestBody"] = {"required": True, "content": content}
        if (stream := _STREAMS.get(path)) is not None:
            content = {"text/event-stream": {"schema": {"oneOf": [described[kind] for kind in stream[1]]}}}
            paths[path]["get"]["responses"]["200"] = {"description": stream[0], "content": content}
        if (raw := _BODIES.get(plain)) is not None:
            paths[path]["post"] = _with_body(paths[path]["post"], raw, described)
    known = schema.get("components", {})
    keys = {"key": {"type": "http", "scheme": "bearer"}, "x-api-key": {"type": "apiKey", "in": "header"}}
    keys["x-api-key"]["name"] = "x-api-key"
    keys["session"] = {"type": "apiKey", "in": "cookie", "name": COOKIE, "description": _SESSION}
    whole = schema | {
        "paths": paths,
        "security": [{"key": []}, {"x-api-key": []}],
        "components": known | {"schemas": join_schemas(known.get("schemas", {}), components), "securitySchemes": keys},
    }
    return for_clients(whole)


def _with_restore_path(paths: dict[str, Any]) -> dict[str, Any]:
    """Describe POST /v1/admin/models/{model} as a separate path, …/restore. The framework cannot route it separately: a
    model's name may contain slashes, so the parameter takes the rest of the path."""
    *_, model = [path for path in paths if path.startswith("/v1/admin/models/")]
    operations = dict(paths[model])
    return paths | {f"{model}/restore": {"post": operations.pop("post")}, model: operations}


def _stored_response(described: Mapping[Any, dict[str, Any]], streamed: bool) -> dict[str, Any]:
    content = {"application/json": {"schema": described[responses_answers.ResponseObject]}}
    if streamed:
        content["text/event-stream"] = {"schema": described[responses_answers.ResponseEvent]}
    return {"description": _RESPONSE_EVENTS if streamed else "The response", "content": content}


def _describe_unserved(component: dict[str, Any], unserved: UnservedFields) -> None:
    for field, entry in unserved.items():
        component["properties"][field] = {
            "enum": [None, *entry.neutral],
            "default": None,
            "description": f"{entry.why}: only these values are accepted.",
        }


def _operation(path: str, method: str, operation: dict[str, Any], error: dict[str, Any]) -> dict[str, Any]:
    refusal = {"description": "A refusal, with its reason", "content": {"application/json": {"schema": error}}}
    responses = {status: answer for status, answer in operation["responses"].items() if status < "400"}
    if "204" in responses:  # the framework describes a body for some of them
        responses["204"] = {"description": responses["204"]["description"]}
    described = operation | {"responses": responses | {"4XX": refusal, "5XX": refusal}}
    if path.startswith("/health") or path == "/version":
        described["security"] = []
    elif path == "/metrics":
        described["security"] = [{"key": []}, {"x-api-key": []}, {"session": []}]
    elif path == "/v1/admin/session":
        described["security"] = [] if method == "post" else [{"session": []}]
    elif path.startswith(("/v1/admin", "/v1/organization")):
        described["security"] = [{"key": []}, {"x-api-key": []}, {"session": []}]
    elif speaks_anthropic(path):
        described["security"] = [{"x-api-key": []}, {"key": []}]
    return described


_IDEMPOTENCY_KEY = {
    "name": replays.HEADER,
    "in": "header",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[\x21-\x7e]+$"},
}


def _with_body(operation: dict[str, Any], body: _Body, described: Mapping[Any, dict[str, Any]]) -> dict[str, Any]:
    operation = operation | {
        "requestBody": {"required": True, "content": {"application/json": {"schema": described[body.request]}}}
    }
    if body.whole is not None:
        content = {"application/json": {"schema": described[body.whole]}}
        if body.streamed is not None:
            content["text/event-stream"] = {"schema": described[body.streamed]}
        operation["responses"] = operation["responses"] | {"200": {"description": body.description, "content": content}}
    repeated = body.repeated or (_REPEATED_ANSWER if body.whole is not None else "")
    if repeated:
        header = _IDEMPOTENCY_KEY | {"description": repeated}
        operation["parameters"] = [*operation.get("parameters", []), header]
    return operation
