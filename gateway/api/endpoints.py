"""Refusals of a path that is not served (404), or not with this method (405). Each names what to use instead.

The tables list endpoints of the OpenAI and Anthropic APIs, for clients that were written for these.
"""

from __future__ import annotations

import re

from gateway.errors import MethodNotAllowed, NotFound

CHAT = "POST /v1/chat/completions"
# The endpoint to use instead, by the first part of the path below /v1.
INSTEAD = {
    "engines": "POST /v1/completions or POST /v1/chat/completions, with the model named in the body",
    "edits": CHAT,
    "responses": "POST /v1/responses, and GET or DELETE /v1/responses/{id}",
    "complete": "POST /v1/messages",
    "assistants": CHAT,
    "threads": CHAT,
    "conversations": "POST /v1/conversations, and GET, POST or DELETE /v1/conversations/{id}",
    "batches": "POST and GET /v1/batches, GET /v1/batches/{id}, and POST /v1/batches/{id}/cancel",
    "files": "POST and GET /v1/files, GET or DELETE /v1/files/{id}, and GET /v1/files/{id}/content",
    "uploads": "POST /v1/files",
    "organization": "GET /v1/usage and GET /v1/budget",
    "dashboard": "GET /v1/usage and GET /v1/budget",
    "chat": CHAT,
}
# Why nothing can be used instead, by the first part of the path below /v1.
ABSENT = {
    "images": "images are not made",
    "videos": "videos are not made",
    "audio": "audio is neither read nor made",
    "realtime": "audio is neither read nor made",
    "moderations": "nothing is moderated",
    "vector_stores": "files are stored for batches alone",
    "containers": "files are stored for batches alone",
    "fine_tuning": "nothing is trained; an operator registers adapters",
    "fine-tunes": "nothing is trained; an operator registers adapters",
    "evals": "nothing is evaluated",
}
SERVED = (
    "POST /v1/chat/completions, /v1/responses, /v1/completions, /v1/messages, /v1/embeddings, /v1/rerank, /v1/score, "
    "/v1/tokenize, /v1/detokenize, /v1/files, /v1/batches and /v1/messages/batches, and GET /v1/models, "
    "/v1/usage, /v1/budget and /health"
)

_TENANT = re.compile(r"^/t/[^/]+(?=/|$)")
_NAMES = (
    "chat/completions",
    "completions",
    "messages",
    "tokenize",
    "detokenize",
    "models",
    "usage",
    "budget",
    "embeddings",
    "rerank",
    "score",
    "responses",
    "conversations",
    "files",
    "batches",
)


def not_found(path: str) -> NotFound:
    """The refusal of an unknown path, with the endpoint to use. The path comes from the client and is not quoted."""
    rest = _TENANT.sub("", path).strip("/")
    if rest.startswith("v1/v1"):
        return NotFound("There is no such endpoint: the path has /v1 twice. Leave it out of the client's base URL.")
    if rest.startswith(_NAMES):
        return NotFound("There is no such endpoint: the path lacks /v1. Let the client's base URL end with it.")
    if rest.startswith("openai/"):
        return NotFound("There is no such endpoint: Azure's paths are not served. Use OpenAI(base_url='…/v1') instead.")
    if not rest.startswith("v1/"):
        return NotFound(f"There is no such endpoint. Served are {SERVED}.")
    first = rest.split("/")[1]
    if why := ABSENT.get(first):
        return NotFound(f"There is no such endpoint: {why} here. Served are {SERVED}.")
    return NotFound(f"There is no such endpoint. Use {INSTEAD.get(first, SERVED)}.")


def method_not_allowed(allowed: str | None) -> MethodNotAllowed:
    """The refusal of a method. `allowed`: the methods that the path serves, as in the Allow header."""
    methods = [method for method in (allowed or "").split(", ") if method and method not in ("OPTIONS", "HEAD")]
    error = MethodNotAllowed(f"This endpoint does not take this method. Use {' or '.join(methods) or 'another'}.")
    # The framework has no HEAD routes: `gateway/http/head_requests.py` answers HEAD wherever GET is served.
    error.allow = f"{allowed}, HEAD" if "GET" in methods and allowed and "HEAD" not in allowed else allowed
    return error
