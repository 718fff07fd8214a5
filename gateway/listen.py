"""The listening side of the process: uvicorn over bounded connections, a garbage collector that keeps out of the way,
and a stop that settles first.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import signal
import socket
import sys
from types import FrameType

import msgspec
import uvicorn
from litestar.types import ASGIApp

from billing.database import DatabaseUnavailable
from billing.ledger.leases import GatewayRefused
from gateway.config.file import Config
from gateway.host.workers import WorkerIndex
from gateway.http.connection import BoundedProtocol
from gateway.limits.connection_limits import Connections, raise_descriptor_limit
from gateway.services import Services

_log = logging.getLogger(__name__)

BACKLOG = 2048
IDLE_CONNECTION_S = 75
# New objects that Python's collector waits for; its own 700 has it run hundreds of times a second here.
YOUNG_OBJECTS_MAX = 20_000


class GatewayServer(uvicorn.Server):
    """Serves while the services run. At a stop, what runs is stopped and settled while the connections are still open
    to hear of it."""

    def __init__(self, config: uvicorn.Config, services: Services) -> None:
        super().__init__(config)
        self._services = services

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            async with self._services.running():
                _calm_collector()
                await super().serve(sockets)
        except (DatabaseUnavailable, GatewayRefused, OSError) as error:
            if self.started:
                raise
            _log.critical("gateway.cannot_start", extra={"fields": {"reason": str(error)}})

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """A worker shares its port, so who keeps it cannot ask it over HTTP: it says on stdout that it listens."""
        await super().startup(sockets)
        place = self._services.place
        if self.started and not place.alone:
            ready = {"event": "ready", "worker": place.number, "pid": os.getpid()}
            sys.stdout.buffer.write(msgspec.json.encode(ready) + b"\n")
            sys.stdout.flush()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """As uvicorn's own, but a stop that was asked for ends with status 0, not with the signal raised again."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        drain = asyncio.create_task(self._services.drain())
        await super().shutdown(sockets)
        await drain


def _calm_collector() -> None:
    """What exists now exists until the end: the collector need not look through it again, which stops every stream for
    tens of milliseconds each time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS_MAX)


def serve(config: Config, services: Services, app: ASGIApp) -> bool:
    """Listen until SIGTERM or SIGINT. False when it could not start."""
    raise_descriptor_limit()
    connections = Connections(
        services.metrics,
        per_address_max=config.gateway.connections_per_address_max,
        uploads_max=config.adapters.uploads_max,
    )
    server = GatewayServer(
        uvicorn.Config(
            app,
            host=config.gateway.host,
            port=config.gateway.port,
            loop="uvloop",
            http=functools.partial(  # type: ignore[arg-type]  # called as the class would be
                BoundedProtocol, reader_patience_s=config.gateway.reader_patience_s, connections=connections
            ),
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
    try:
        server.run(_sockets(config, services.place))
    except OSError as error:
        if server.started:
            raise
        _log.critical("gateway.cannot_start", extra={"fields": {"reason": str(error)}})
    return server.started


def _sockets(config: Config, place: WorkerIndex) -> list[socket.socket] | None:
    """The API's listening socket and the one for metrics; None: uvicorn binds the only one. Raises OSError."""
    metrics = config.gateway.metrics_host_port
    if place.alone and metrics is None:
        return None
    sockets = [bound_socket(config.gateway.host, config.gateway.port, shared=not place.alone)]
    if metrics is not None:
        try:
            sockets.append(bound_socket(*metrics, shared=not place.alone))
        except OSError as error:
            sockets[0].close()
            raise OSError(error.errno, f"gateway.metrics_address: {error.strerror}") from error
    return sockets


def bound_socket(host: str, port: int, *, shared: bool) -> socket.socket:
    """`shared`: beside those of other workers; the kernel spreads connections over them. Raises OSError."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound
