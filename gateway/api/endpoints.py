"""What is said of a path that is not served, or not with this method: what to use instead.

It knows names of endpoints, ours and those of the APIs that clients come from; nothing here serves one.
"""

from __future__ import annotations

import re

from gateway.errors import MethodNotAllowed, NotFound

CHAT = "POST /v1/chat/completions"
# Of the OpenAI and Anthropic APIs, by the first part of the path below /v1.
INSTEAD = {
    "engines": "POST /v1/completions or POST /v1/chat/completions, with the model named in the body",
    "edits": CHAT,
    "responses": CHAT,
    "complete": "POST /v1/messages",
    "assistants": CHAT,
    "threads": CHAT,
    "conversations": CHAT,
    "batches": f'{CHAT} with "service_tier": "flex"',
    "organization": "GET /v1/usage and GET /v1/budget",
    "dashboard": "GET /v1/usage and GET /v1/budget",
    "chat": CHAT,
}
# What is done here by nothing.
ABSENT = {
    "embeddings": "embeddings are not made",
    "images": "images are not made",
    "videos": "videos are not made",
    "audio": "audio is neither read nor made",
    "realtime": "audio is neither read nor made",
    "moderations": "nothing is moderated",
    "rerank": "nothing is ranked",
    "files": "no files are kept",
    "uploads": "no files are kept",
    "vector_stores": "no files are kept",
    "containers": "no files are kept",
    "fine_tuning": "nothing is trained; an operator registers adapters",
    "fine-tunes": "nothing is trained; an operator registers adapters",
    "evals": "nothing is evaluated",
}
SERVED = (
    "POST /v1/chat/completions, /v1/completions and /v1/messages, and GET /v1/models, /v1/usage, /v1/budget and /health"
)

_TENANT = re.compile(r"^/t/[^/]+(?=/|$)")
_NAMES = ("chat/completions", "completions", "messages", "models", "usage", "budget", "embeddings", "responses")


def not_found(path: str) -> NotFound:
    """Names what to use. The path is the caller's own, and is not repeated."""
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
    """`allowed`: the methods that the path takes, as the Allow header has them."""
    methods = [method for method in (allowed or "").split(", ") if method and method not in ("OPTIONS", "HEAD")]
    error = MethodNotAllowed(f"This endpoint does not take this method. Use {' or '.join(methods) or 'another'}.")
    # HEAD is answered wherever GET is, though the framework has no such routes (head_requests.py).
    error.allow = f"{allowed}, HEAD" if "GET" in methods and allowed and "HEAD" not in allowed else allowed
    return error
