"""Idempotency-Key on the routes of administrative writes: `begin_idempotent` in the guard, `keep_answers` around the
route.

An upload of an adapter is compared by its form's fields and the digest of its files, which are known once the files are
checked: `begin_idempotent_upload`.
"""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Middleware, Receive, Scope, Send
from litestar.types.asgi_types import HTTPResponseStartEvent

from gateway.access.write_replays import HEADER, IdempotentWrite, WriteReplayed, WrittenAnswer
from gateway.admin.writes import Actor
from gateway.http.exchange import line_of
from gateway.http.form import Fields
from gateway.services import Services

REPLAYED = "idempotent-replayed"
_STATE = "idempotent_write"  # in the request's state


def replay_write(_: Request[Any, Any, Any], replayed: WriteReplayed) -> Response[bytes]:
    answer = replayed.answer
    headers = {REPLAYED: "true", "cache-control": "no-store"}
    return Response(answer.body, status_code=answer.status, media_type=answer.content_type, headers=headers)


async def begin_idempotent(services: Services, request: Request[Any, Any, Any], actor: Actor) -> None:
    """Note the write of a request with an Idempotency-Key. Raises InvalidRequest; as `IdempotentWrite.look_up`."""
    if HEADER in request.headers and not request.headers.get("content-type", "").startswith("multipart/"):
        await _begin(services, request, actor, await request.body())


async def begin_idempotent_upload(
    services: Services, request: Request[Any, Any, Any], actor: Actor, fields: Fields, digest: str
) -> IdempotentWrite | None:
    """As `begin_idempotent`, of an upload with these fields whose files have this digest. None: the request has no
    Idempotency-Key."""
    if HEADER in request.headers:
        await _begin(services, request, actor, msgspec.json.encode([sorted(fields.items()), digest]))
    return write_of(request)


async def _begin(services: Services, request: Request[Any, Any, Any], actor: Actor, content: bytes) -> None:
    name = request.headers[HEADER]
    query = request.scope["query_string"]
    asked = b"\n".join((request.method.encode(), request.scope["path"].encode(), query, content))
    request_id = line_of(request).record.request_id
    write = IdempotentWrite(services.secrets, actor_id=actor.id, name=name, request=asked, request_id=request_id)
    await write.look_up(services.database)
    setattr(request.state, _STATE, write)


def write_of(request: Request[Any, Any, Any]) -> IdempotentWrite | None:
    found: IdempotentWrite | None = request.state.get(_STATE)
    return found


def keep_answers(services: Services) -> Middleware:
    """ASGI middleware of all admin routes: stores the whole answer of a successful write with an Idempotency-Key before
    the client gets it."""

    def around(app: ASGIApp) -> ASGIApp:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != ScopeType.HTTP:
                await app(scope, receive, send)
                return
            start: HTTPResponseStartEvent | None = None
            body = bytearray()

            async def keep(message: Message) -> None:
                nonlocal start
                write: IdempotentWrite | None = scope["state"].get(_STATE)
                if message["type"] == "http.response.start":
                    if write is not None and write.begun and message["status"] < 400:
                        start = message
                        return
                elif start is not None and write is not None and message["type"] == "http.response.body":
                    body.extend(message["body"])
                    if message["more_body"]:
                        return
                    headers = {name.lower(): value for name, value in start["headers"]}
                    kind = headers.get(b"content-type")
                    made = WrittenAnswer(start["status"], None if kind is None else kind.decode(), bytes(body))
                    await write.keep_write(services.database, made)
                    await send(start)
                    message = {"type": "http.response.body", "body": bytes(body), "more_body": False}
                await send(message)

            await app(scope, receive, keep)

        return answer

    return around
