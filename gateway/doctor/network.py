"""Facts about ports, sockets and Redis for the doctor; `checks.py` judges them."""

from __future__ import annotations

import http.client
import json
import os
import socket
from pathlib import Path

ANSWER_S_MAX = 2.0
LOCKS = Path("/proc/locks")
LOCK_FILES = ("lock", "gateway-lock")
MIGRATE_REQUESTS = Path("/proc/sys/net/ipv4/tcp_migrate_req")


def why_not_bound(host: str, port: int) -> str | None:
    """Why no process can listen at this address now; None: it is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return error.strerror or str(error)
    return None


def is_laneway(host: str, port: int) -> bool:
    """Whether a Laneway gateway answers at this address."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    connection = http.client.HTTPConnection(reachable, port, timeout=ANSWER_S_MAX)
    try:
        connection.request("GET", "/health/live")
        answer = connection.getresponse()
        return answer.status == 200 and json.loads(answer.read(1000)) == {"live": True}
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()


def is_locked(data_dir: Path) -> bool:
    """Whether a `laneway serve`, or a gateway of several workers, has locked this data directory. The answer is read
    from the kernel's list of locks, since trying the lock could make a simultaneous start fail. False where the system
    has no such list (only Linux has one)."""
    inodes = {str(path.stat().st_ino) for name in LOCK_FILES if (path := data_dir / name).exists()}
    try:
        lines = LOCKS.read_text().splitlines()
    except OSError:
        return False
    held = {fields[5].split(":")[-1] for line in lines if len(fields := line.split()) > 5 and fields[1] == "FLOCK"}
    return bool(inodes & held)


def hands_connections_on() -> bool | None:
    """Whether the kernel hands the connections in the queue of a listener that closes to another listener of the same
    port (net.ipv4.tcp_migrate_req, for IPv6 too). None: this system has no such setting."""
    try:
        return MIGRATE_REQUESTS.read_text().strip() == "1"
    except OSError:
        return None


def answers(socket_path: Path) -> bool:
    """Whether a process listens on this Unix socket."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(ANSWER_S_MAX)
            probe.connect(os.fspath(socket_path))
    except OSError:
        return False
    return True


def redis_error(url: str) -> str | None:
    """Why the Redis at `url` does not answer; None: it does."""
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    client = redis.Redis.from_url(
        url, socket_timeout=ANSWER_S_MAX, socket_connect_timeout=ANSWER_S_MAX, retry=Retry(NoBackoff(), 0)
    )
    try:
        client.ping()
    except redis.RedisError as error:
        return str(error).splitlines()[0]
    finally:
        client.close()
    return None
