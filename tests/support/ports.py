"""A port for a server that a test starts, and may start again."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """A free port below those of outgoing connections: another process's connection may take one of the latter
    between this check and the server's start, or while the server is down."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_768)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as a server does
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
