"""The listening side of the process: uvicorn with a bound on request heads, and a stop that settles first."""

from __future__ import annotations

import asyncio
import socket

import uvicorn
from litestar.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway import errors
from gateway.config import Config
from gateway.services import Services

HEAD_BYTES_MAX = 64 * 1024
BACKLOG = 2048
IDLE_CONNECTION_S = 75


class RequestHeadTooLarge(errors.RequestTooLarge):
    status = 431


class BoundedProtocol(HttpToolsProtocol):
    """The parser keeps an unfinished head in memory for ever; here it is refused above HEAD_BYTES_MAX."""

    _head_bytes = 0

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_bytes = -1
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        if self._head_bytes >= 0:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self._refuse_head()

    def _refuse_head(self) -> None:
        body = RequestHeadTooLarge(f"The request's head is over the limit of {HEAD_BYTES_MAX} bytes.").body()
        head = (
            "HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


class Server(uvicorn.Server):
    """Stops what runs, and settles it, while the connections are still open to hear of it."""

    def __init__(self, config: uvicorn.Config, services: Services) -> None:
        super().__init__(config)
        self._services = services

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
            backlog=BACKLOG,
            timeout_keep_alive=IDLE_CONNECTION_S,
            timeout_graceful_shutdown=max(1, int(config.gateway.shutdown_grace_s)),
        ),
        services,
    )
    server.run()
    return server.started
