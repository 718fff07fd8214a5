"""`python3 healthy.py gateway|engine`: exit status 0 when it serves, 1 when it does not; for containers' health checks.

The gateway answers /health/ready on its port; an engine greets whoever connects to its socket. It must never import
anything but the standard library: it runs every few seconds.
"""

import os
import socket
import sys
from http.client import HTTPConnection, HTTPException

ANSWER_S_MAX = 4.0
PORT = 8080
ENGINE_SOCKET = "/var/lib/laneway/run/engine.sock"


def gateway_is_ready() -> bool:
    """Whether the gateway of this container answers 200 at /health/ready."""
    connection = HTTPConnection("127.0.0.1", int(os.environ.get("LANEWAY_PORT") or PORT), timeout=ANSWER_S_MAX)
    try:
        connection.request("GET", "/health/ready")
        return connection.getresponse().status == 200
    except HTTPException:
        return False
    finally:
        connection.close()


def engine_is_ready() -> bool:
    """Whether the engine of this container sends its greeting; it listens once its models are loaded."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.settimeout(ANSWER_S_MAX)
        stream.connect(os.environ.get("LANEWAY_ENGINE_SOCKET") or ENGINE_SOCKET)
        return bool(stream.recv(1))


CHECKS = {"gateway": gateway_is_ready, "engine": engine_is_ready}


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in CHECKS:
        sys.stderr.write("usage: healthy.py gateway|engine\n")
        return 2
    try:
        return 0 if CHECKS[arguments[0]]() else 1
    except OSError as error:
        sys.stderr.write(f"{arguments[0]}: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
