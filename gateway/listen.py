"""The listening side of the process: uvicorn with a bound on request heads, and a stop that settles first."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from http import HTTPStatus
from types import FrameType

import uvicorn
from litestar.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from billing.database import DatabaseUnavailable
from billing.ids import new_id
from billing.leases import GatewayRefused
from gateway import errors
from gateway.config import Config
from gateway.services import Services

_log = logging.getLogger(__name__)

HEAD_BYTES_MAX = 64 * 1024
BACKLOG = 2048
IDLE_CONNECTION_S = 75


class RequestHeadTooLarge(errors.RequestTooLarge):
    status = 431


class BoundedProtocol(HttpToolsProtocol):
    """The parser keeps an unfinished head in memory for ever; here one is refused above HEAD_BYTES_MAX."""

    _in_head = True
    _unparsed_bytes = 0  # of a head that is not complete
    _field_bytes = 0  # of its complete fields
    _refused = False

    def on_message_begin(self) -> None:
        self._in_head = True
        self._unparsed_bytes = self._field_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._field_bytes += len(name) + len(value)
        if self._field_bytes <= HEAD_BYTES_MAX:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._field_bytes + len(self.url) > HEAD_BYTES_MAX:
            self._refused = True
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._refused:
            super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        if self._in_head:
            self._unparsed_bytes += len(data)
        if self._refused or (self._in_head and self._unparsed_bytes > HEAD_BYTES_MAX):
            self._refused = True
            self._refuse(RequestHeadTooLarge(f"The request's head is over the limit of {HEAD_BYTES_MAX} bytes."))

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is refused in our shape too."""
        self._refuse(errors.InvalidRequest(msg))

    def _refuse(self, error: errors.ApiError) -> None:
        if self.transport.is_closing():
            return
        body = error.body()
        head = (
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
            f"x-request-id: {new_id('req')}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


class Server(uvicorn.Server):
    """Serves while the services run. At a stop, what runs is stopped and settled while the connections are still open
    to hear of it."""

    def __init__(self, config: uvicorn.Config, services: Services) -> None:
        super().__init__(config)
        self._services = services

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            async with self._services.running():
                await super().serve(sockets)
        except (DatabaseUnavailable, GatewayRefused) as error:
            if self.started:
                raise
            _log.critical("gateway.cannot_start", extra={"fields": {"reason": str(error)}})

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """As uvicorn's own, but a stop that was asked for ends with status 0, not with the signal raised again."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        drain = asyncio.create_task(self._services.drain())
        await super().shutdown(sockets)
        await drain


def serve(config: Config, services: Services, app: ASGIApp) -> bool:
    """Listen until SIGTERM or SIGINT. False when it could not start."""
    server = Server(
        uvicorn.Config(
            app,
            host=config.gateway.host,
            port=config.gateway.port,
            loop="uvloop",
            http=BoundedProtocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=IDLE_CONNECTION_S,
            timeout_graceful_shutdown=max(1, int(config.gateway.shutdown_grace_s)),
        ),
        services,
    )
    server.run()
    return server.started
