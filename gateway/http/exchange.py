"""The parts common to all HTTP exchanges: request id, log line, error answers, and reading a body within a limit.

Plain ASGI, outside the web framework, so that the framework's own refusals have the same format.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Any

from litestar import Request
from litestar.enums import ScopeType
from litestar.exceptions import HTTPException, ValidationException
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from billing.database import DatabaseUnavailable
from billing.ids import new_id
from gateway import errors
from gateway.api.dialects import anthropic_error, speaks_anthropic
from gateway.api.endpoints import method_not_allowed, not_found
from gateway.api.unknown_fields import header_value
from gateway.http.parameter_faults import parameter_refusal
from gateway.limits.body_memory import HeldBody
from gateway.limits.client_pace import ClientPace
from gateway.limits.turn_pace import RequestPace
from gateway.log import RequestLine, RequestRecord
from gateway.metrics import Metrics
from gateway.telemetry.request_errors import note_error
from gateway.telemetry.tracing import Tracing

BODY_S_MAX = 60.0
# A body in chunks that is larger counts with the route's limit: a tenant could otherwise have hundreds of large bodies
# read in part, all of which are refused in the end.
UNDECLARED_BYTES_MAX = 1024 * 1024
JOIN_BYTES_MAX = 1024 * 1024  # of a body that is joined in the event loop
# Otherwise a browser may guess a content type and show an error's text as a page.
NO_SNIFFING = (b"x-content-type-options", b"nosniff")
IGNORED_HEADER = b"laneway-ignored"  # names the unknown fields of the body that were ignored
LINE = "laneway.line"  # in the ASGI scope: this exchange's RequestLine
SERVER_SEND = "laneway.send"  # in the ASGI scope: the server's own `send`, which bypasses all middleware

_log = logging.getLogger(__name__)


class Front:
    """The outermost ASGI application."""

    def __init__(
        self,
        inner: ASGIApp,
        metrics: Metrics,
        pace: RequestPace,
        refusal_pace: ClientPace,
        tracing: Tracing,
        public_cause: Callable[[str], str] = lambda _: "",
        note_end: Callable[[RequestLine], None] = lambda _: None,
    ) -> None:
        """`public_cause`: of refusals with this code now, as in Readiness. `note_end`: called when a request of an
        exchange has ended; it must not wait."""
        self._public_cause = public_cause
        self._note_end = note_end
        self._inner = inner
        self._metrics = metrics
        self._pace = pace
        self._refusal_pace = refusal_pace
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._inner(scope, receive, send)
            return
        line = RequestLine(RequestRecord(request_id=new_id("req"), method=scope["method"]))
        self._tracing.begin_trace(line, scope["method"], scope["path"], scope["headers"])
        line.on_end(functools.partial(self._note_end, line))
        scope[LINE] = line  # type: ignore[literal-required]  # ASGI allows further keys
        scope[SERVER_SEND] = send  # type: ignore[literal-required]
        record = line.record
        request_id = [NO_SNIFFING, (b"x-request-id", record.request_id.encode())]
        if speaks_anthropic(scope["path"], scope["headers"]):
            request_id.append((b"request-id", record.request_id.encode()))

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                elapsed = (b"openai-processing-ms", b"%d" % round(line.age_s() * 1000))
                ignored = [(IGNORED_HEADER, header_value(record.ignored))] if record.ignored else []
                message["headers"] = [*message["headers"], *request_id, elapsed, *ignored]
            await send(message)

        try:
            await self._pace.wait_turn()
            await self._answer(scope, receive, send_named, line)
        finally:
            del scope[SERVER_SEND]  # type: ignore[misc]  # `send` refers to the scope: a reference cycle
            record.route = _route(scope)
            if not record.status:
                record.status = errors.STATUS_CLIENT_LEFT
            self._metrics.responses.labels(record.route, str(record.status)).inc()
            line.release()

    async def _answer(self, scope: Scope, receive: Receive, send: Send, line: RequestLine) -> None:
        try:
            await self._inner(scope, receive, send)
        except Exception as error:  # any other error is counted, logged and answered with 500
            refusal = self._as_api_error(error, line, scope)
            if line.record.status:  # the answer has begun: only the connection can be closed
                if refusal.status >= 500:
                    note_error(line, refusal)
                raise
            if refusal.status < 500 and await self._refusal_pace.wait(_client(scope, line.record)):
                self._metrics.refusals_delayed.inc()
            await self._refuse(send, refusal, line, scope)
            # The error, its traceback and this frame are a reference cycle of 80 objects. After some hundreds of such
            # cycles the garbage collector stops the event loop for 100 ms.
            error.__traceback__ = refusal.__traceback__ = None

    def _as_api_error(self, error: Exception, line: RequestLine, scope: Scope) -> errors.ApiError:
        match error:
            case errors.ApiError():
                return error
            case DatabaseUnavailable():
                return errors.DatabaseDown("The database is unavailable. Try again in a moment.")
            case ValidationException():
                return parameter_refusal(error, scope.get("route_handler"))
            case HTTPException():
                return _framework_refusal(error, scope["path"])
        self._metrics.errors.inc()
        _log.error("http.failed", exc_info=error, extra={"fields": {"request_id": line.record.request_id}})
        return errors.InternalError()

    async def _refuse(self, send: Send, error: errors.ApiError, line: RequestLine, scope: Scope) -> None:
        if error.status == 503 and (cause := self._public_cause(error.code or "")):
            error.message = f"{error.message} The cause: {cause}."
        line.record.code = error.code or error.type
        note_error(line, error)
        line.record.message = error.message[:200] if error.status >= 500 else None
        self._metrics.refusals.labels(error.code or error.type).inc()
        anthropic = speaks_anthropic(scope["path"], scope["headers"])
        body = anthropic_error(error, line.record.request_id) if anthropic else error.body()
        headers = [*error.headers(), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": error.status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})


def _client(scope: Scope, record: RequestRecord) -> str:
    """The client whose refusals are counted together: the tenant, else the operator's key, else the address."""
    address = scope.get("client")
    return record.tenant or record.key or (address[0] if address else "")


def _route(scope: Scope) -> str:
    """The route that matched, or "unknown": arbitrary paths would be too many values of the metric's label."""
    handler = scope.get("route_handler")
    return "unknown" if handler is None else str(handler.opt.get("route") or min(handler.paths))


def _framework_refusal(error: HTTPException, path: str) -> errors.ApiError:
    if error.status_code == 404:
        return not_found(path)
    if error.status_code == 405:
        return method_not_allowed((error.headers or {}).get("allow"))
    if error.status_code == 413:
        return errors.RequestTooLarge("The body is too large.")
    return errors.OtherStatus(error.status_code, error.detail)


def line_of(request: Request[Any, Any, Any]) -> RequestLine:
    line: RequestLine = request.scope[LINE]  # type: ignore[literal-required]
    return line


def check_encoding(request: Request[Any, Any, Any]) -> None:
    """Refuse a compressed body. Raises UnsupportedEncoding."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() not in ("identity", ""):
        raise errors.UnsupportedEncoding(encoding)


async def read_body(request: Request[Any, Any, Any], limit: int, held: HeldBody | None = None) -> bytes:
    """The whole body, of at most `limit` bytes. `held` counts them: by Content-Length before anything is read, else as
    they arrive, and `limit` bytes of a body over UNDECLARED_BYTES_MAX. Raises RequestTooLarge, UnsupportedEncoding,
    OtherStatus (408 after BODY_S_MAX seconds; STATUS_CLIENT_LEFT); as `HeldBody.grow_to`."""
    check_encoding(request)
    too_large = errors.RequestTooLarge(f"The body is over the limit of {limit} bytes.")
    length = request.headers.get("content-length", "0")
    if length.isascii() and length.isdigit():
        if int(length) > limit:
            raise too_large
        if held is not None:
            held.grow_to(int(length))
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_S_MAX):
            while True:
                message = await request.receive()
                if message["type"] != "http.request":
                    raise errors.OtherStatus(errors.STATUS_CLIENT_LEFT, "The client disconnected.")
                part = message["body"]
                size += len(part)
                if size > limit:
                    raise too_large
                if held is not None:
                    held.grow_to(size if size <= UNDECLARED_BYTES_MAX else limit)
                parts.append(part)
                if not message["more_body"]:
                    # A join of large parts releases the interpreter's lock; in the loop it takes 50 ms for 32 MiB.
                    return await asyncio.to_thread(b"".join, parts) if size > JOIN_BYTES_MAX else b"".join(parts)
    except TimeoutError:
        raise errors.OtherStatus(408, f"The body took over {BODY_S_MAX:g} s to arrive.") from None
