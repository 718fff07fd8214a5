"""Serves a gateway process: uvicorn over bounded connections, settings of the garbage collector, and a stop that loses
no request: the gateway lingers, stops listening, lets requests end, and settles the remaining requests before it closes
their connections (`gateway.host.stop_state` has the times).
"""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import math
import os
import signal
import socket
import sys
import time
from types import FrameType

import msgspec
import uvicorn
from litestar.types import ASGIApp

from billing.database import DatabaseUnavailable
from billing.ledger.leases import GatewayRefused
from gateway.access.deployment_secret import WrongSecret
from gateway.config.file import Config
from gateway.host.schema_check import SchemaOutdated
from gateway.host.stop_state import FIRST_BYTE_S, StopReason
from gateway.host.workers import WorkerIndex
from gateway.http.connection import BoundedProtocol
from gateway.http.listeners import close_listeners
from gateway.limits.connection_limits import Connections, raise_descriptor_limit
from gateway.limits.read_pace import ReadPace
from gateway.services import Services

_log = logging.getLogger(__name__)

BACKLOG = 2048
IDLE_CONNECTION_S = 75
# Threshold of the collector's youngest generation. Python's default of 700 objects makes it run hundreds of times a
# second here.
YOUNG_OBJECTS_MAX = 20_000
# A thread that needs the GIL asks its owner to release it after this long. The event loop must not wait Python's 5 ms
# to have it back from a thread that writes to the database or renders a prompt.
SWITCH_INTERVAL_S = 0.0005
FINISH_CHECK_S = 0.05  # between two polls of the remaining requests


class GatewayServer(uvicorn.Server):
    """Serves while the services run. At a stop, requests end while their connections are open, so that clients receive
    the end of their streams."""

    def __init__(self, config: uvicorn.Config, services: Services) -> None:
        super().__init__(config)
        self._services = services
        self._stop = services.stopping

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            async with self._services.running():
                _tune_interpreter()
                await super().serve(sockets)
        except (DatabaseUnavailable, GatewayRefused, SchemaOutdated, WrongSecret, OSError) as error:
            if self.started:
                raise
            _log.critical("gateway.cannot_start", extra={"fields": {"reason": str(error)}})

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening. One of several workers prints a ready line on stdout: they share a port, so the supervisor
        cannot probe one of them over HTTP."""
        replaced = functools.partial(self._stop.begin_stop, StopReason.REPLACED)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, replaced)
        await super().startup(sockets)
        index = self._services.worker_index
        if self.started and index.shares_port:
            ready = {"event": "ready", "worker": index.number, "pid": os.getpid()}
            sys.stdout.buffer.write(msgspec.json.encode(ready) + b"\n")
            sys.stdout.flush()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM begins an orderly stop and SIGINT a quick one; a second SIGINT ends the process without waiting for
        requests. Unlike in uvicorn the signal is not raised again after the shutdown, so the exit status is 0."""
        self.force_exit = self._stop.is_quick and sig == signal.SIGINT
        self._stop.begin_stop(StopReason.QUICK if sig == signal.SIGINT else StopReason.STOP)

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._stop.stops_listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        queued = await close_listeners(self.servers, sockets or [], self._new_connection)
        self._stop.note_closed()
        if not self._stop.is_quick:
            _log.info("gateway.drains", extra={"fields": {"queued": queued, "reason": self._stop.reason.name.lower()}})
            await self._finish_requests()
        times = self._stop.times
        left_s = sum(times) if self._stop.is_quick else times.settle_s + times.close_s
        self.config.timeout_graceful_shutdown = max(1, math.ceil(left_s))
        drain = asyncio.create_task(self._services.drain())
        await super().shutdown(sockets)
        await drain

    async def _finish_requests(self) -> None:
        """Serve the open connections until all are closed and no request runs, or until the remaining ones are cut.
        After `laneway drain` also wait for the signal that ends the process."""
        self._services.live.close()
        closed_at = time.monotonic()
        for connection in list(self.server_state.connections):
            connection.close_after_answer()  # type: ignore[union-attr]  # it is a BoundedProtocol
        while not self._stop.is_overdue():
            unused = time.monotonic() - closed_at >= FIRST_BYTE_S
            if self._stop.closes_idle:
                for connection in list(self.server_state.connections):
                    connection.close_without_request(unused=unused)  # type: ignore[union-attr]
            if not self.server_state.connections and not self._services.generator.requests_running():
                self._stop.note_drained()
                if self._stop.exits:
                    return
            await asyncio.sleep(FINISH_CHECK_S)

    def _new_connection(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


def _tune_interpreter() -> None:
    """Exempt the objects that exist now from collection: they live until the process ends, and a pass over them stops
    every stream for tens of milliseconds. And let the event loop's thread have the GIL soon."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS_MAX)
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def serve(config: Config, services: Services, app: ASGIApp) -> bool:
    """Listen until SIGTERM or SIGINT. Returns False if the server could not start."""
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
            http=functools.partial(  # type: ignore[arg-type]  # uvicorn calls it like the class
                BoundedProtocol,
                reader_patience_s=config.gateway.reader_patience_s,
                connections=connections,
                read_pace=ReadPace(),
                stopping=lambda: services.stopping.is_stopping,
            ),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=IDLE_CONNECTION_S,
        ),
        services,
    )
    try:
        server.run(_sockets(config, services.worker_index))
    except OSError as error:
        if server.started:
            raise
        _log.critical("gateway.cannot_start", extra={"fields": {"reason": str(error)}})
    return server.started


def _sockets(config: Config, index: WorkerIndex) -> list[socket.socket] | None:
    """The listening sockets of the API and, with gateway.metrics_address, of /metrics. None: uvicorn binds the API's
    socket. Raises OSError."""
    metrics = config.gateway.metrics_host_port
    if not index.shares_port and metrics is None:
        return None
    sockets = [bound_socket(config.gateway.host, config.gateway.port, shared=index.shares_port)]
    if metrics is not None:
        try:
            sockets.append(bound_socket(*metrics, shared=index.shares_port))
        except OSError as error:
            sockets[0].close()
            raise OSError(error.errno, f"gateway.metrics_address: {error.strerror}") from error
    return sockets


def bound_socket(host: str, port: int, *, shared: bool) -> socket.socket:
    """A socket bound to the address. `shared`: several workers bind the same address (SO_REUSEPORT), and the kernel
    spreads connections over them. Raises OSError."""
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
