"""The attacker: plain sockets in a separate process, so that its work does not distort the victim's times.

`play` runs weapons against a port and reports the answers. Every weapon has a quiet form: the same bytes over as many
connections, sent to `serve_reads`, which only reads them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import selectors
import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.synchronize import Event

ANSWER_S_MAX = 90.0
RECONNECT_S = 1.0
READ_BYTES = 1024 * 1024
LARGE_PAUSE_S = 1.0  # of a connection with large bodies, after an answer: the shortest Retry-After
CLOSED = "closed"  # the connection ended without an answer


@dataclass(frozen=True)
class Flood:
    """Each connection sends `request` again after each answer, at most `times` times. At the end of the attack running
    requests are awaited, or with `leaves` abandoned."""

    request: bytes
    connections: int
    times: int | None = None
    leaves: bool = False


@dataclass(frozen=True)
class Trickle:
    """Each connection sends `first`, then `drip` every `every_s`. A connection that the server ends is replaced."""

    first: bytes
    drip: bytes
    every_s: float
    connections: int
    addresses: int = 1  # number of client addresses, which connections use in turn


@dataclass(frozen=True)
class Unread:
    """Each connection sends `request` and reads `read_bytes` of the answer every `every_s`, until the end."""

    request: bytes
    connections: int
    read_bytes: int = 1
    every_s: float = 1.0


@dataclass(frozen=True)
class Paced:
    """The quiet form of a Flood: each connection sends `request` at a steady pace without awaiting answers."""

    request: bytes
    connections: int
    per_s: float  # of all connections together


@dataclass(frozen=True)
class LargeBodies:
    """Each connection sends `first`, `piece` `pieces` times, and `last`, reads the answer, and begins again. It stops
    sending when the answer arrives. The quiet form, with `answered` False, awaits no answer."""

    first: bytes
    piece: bytes
    pieces: int
    last: bytes
    connections: int
    answered: bool = True


Weapon = Flood | Trickle | Unread | Paced | LargeBodies


@dataclass
class Report:
    """`attempts`: requests, or connections of a Trickle. `statuses`: the HTTP status, or CLOSED, of each answer."""

    attempts: int = 0
    seconds: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    open_at_end: int = 0

    def refused(self) -> int:
        return sum(count for status, count in self.statuses.items() if status[0] in "45" or status == CLOSED)


def quiet(weapon: Weapon, report: Report) -> Weapon:
    """The quiet form: the same bytes at the pace of the attack in `report`."""
    match weapon:
        case Flood():
            return Paced(weapon.request, weapon.connections, report.attempts / max(report.seconds, 1e-3))
        case Unread():
            return Paced(weapon.request, weapon.connections, weapon.connections / max(report.seconds, 1e-3))
        case LargeBodies():
            return replace(weapon, answered=False)
    return weapon


def begin() -> None:
    """Prepare an attacking process: lower its priority, and raise its limit of descriptors."""
    os.nice(10)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def play(weapons: Sequence[Weapon], port: int, seconds: float) -> Report:
    """Run all weapons at once for `seconds`. Then running requests are awaited, unless the weapon leaves."""
    return asyncio.run(_play(weapons, port, seconds))


async def _play(weapons: Sequence[Weapon], port: int, seconds: float) -> Report:
    report, began = Report(), time.monotonic()
    end = began + seconds
    tasks = [_user(weapon, number, port, end, report) for weapon in weapons for number in range(weapon.connections)]
    await asyncio.gather(*tasks)
    report.seconds = time.monotonic() - began
    return report


async def _user(weapon: Weapon, number: int, port: int, end: float, report: Report) -> None:
    match weapon:
        case Flood():
            await _flood(weapon, port, end, report)
        case Trickle():
            await _trickle(weapon, f"127.0.0.{2 + number % weapon.addresses}", port, end, report)
        case Unread():
            await _leave_unread(weapon, port, end, report)
        case Paced():
            await _send_paced(weapon, number, port, end, report)
        case LargeBodies():
            await _send_large(weapon, port, end, report)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _connect(port: int, address: str = "127.0.0.2") -> Streams:
    """Connect from an address that no victim uses, so that bounds per address do not affect victims."""
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0), limit=READ_BYTES)


async def _flood(weapon: Flood, port: int, end: float, report: Report) -> None:
    streams: Streams | None = None
    asked = 0
    while time.monotonic() < end and asked != weapon.times:
        asked += 1
        report.attempts += 1
        try:
            async with asyncio.timeout(end - time.monotonic() if weapon.leaves else ANSWER_S_MAX):
                streams = streams or await _connect(port)
                streams[1].write(weapon.request)  # not drained: the server may answer before it has read everything
                status, keep = await _answer(streams[0])
        except (OSError, EOFError, TimeoutError, ValueError):
            status, keep = CLOSED, False
            if weapon.leaves and time.monotonic() >= end:
                report.open_at_end += 1
                break
        report.statuses[status] += 1
        if not keep and streams is not None:
            streams[1].transport.abort()
            streams = None
        if status == CLOSED:
            await asyncio.sleep(0.05)  # no listener, or an overrun one: avoid a busy loop
    if streams is not None:
        streams[1].transport.abort()


async def _answer(reader: asyncio.StreamReader) -> tuple[str, bool]:
    """The status of a whole answer, and whether the connection remains open."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
    if b"content-length" in fields:
        await reader.readexactly(int(fields[b"content-length"]))
    elif fields.get(b"transfer-encoding") == b"chunked":
        while size := int(await reader.readline(), 16):
            await reader.readexactly(size + 2)
        await reader.readline()
    return head[9:12].decode(), fields.get(b"connection") != b"close"


async def _trickle(weapon: Trickle, address: str, port: int, end: float, report: Report) -> None:
    while (left := end - time.monotonic()) > 0:
        report.attempts += 1
        writer: asyncio.StreamWriter | None = None
        dripping: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(left):
                reader, writer = await _connect(port, address)
                writer.write(weapon.first)
                dripping = asyncio.create_task(_drip(weapon, writer))
                answer = await _until_ended(reader)
            report.statuses[answer[9:12].decode() or CLOSED] += 1
        except TimeoutError:
            report.open_at_end += writer is not None
        except OSError:
            report.statuses[CLOSED] += 1
        finally:
            if dripping is not None:
                dripping.cancel()
            if writer is not None:
                writer.transport.abort()
        await asyncio.sleep(min(RECONNECT_S, max(0.0, end - time.monotonic())))


async def _drip(weapon: Trickle, writer: asyncio.StreamWriter) -> None:
    while weapon.drip and not writer.transport.is_closing():
        await asyncio.sleep(weapon.every_s)
        writer.write(weapon.drip)


async def _until_ended(reader: asyncio.StreamReader) -> bytes:
    """The first bytes that the server sent before it closed the connection."""
    answer = b""
    with contextlib.suppress(OSError):
        while part := await reader.read(READ_BYTES):
            answer = answer or part
    return answer


async def _leave_unread(weapon: Unread, port: int, end: float, report: Report) -> None:
    report.attempts += 1
    loop = asyncio.get_running_loop()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    connection.setblocking(False)
    connection.bind(("127.0.0.2", 0))
    with contextlib.closing(connection):
        await loop.sock_connect(connection, ("127.0.0.1", port))
        await loop.sock_sendall(connection, weapon.request)
        head = b""
        while (left := end - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    part = await loop.sock_recv(connection, 12 if len(head) < 12 else weapon.read_bytes)
                    if not part:
                        break
                    if len(head) < 12:
                        head += part
                        continue
            await asyncio.sleep(min(weapon.every_s, max(0.0, end - time.monotonic())))
        report.statuses[head[9:12].decode() or CLOSED] += 1


async def _send_paced(weapon: Paced, number: int, port: int, end: float, report: Report) -> None:
    _, writer = await _connect(port)
    every_s = weapon.connections / max(weapon.per_s, 1e-6)
    due = time.monotonic() + every_s * number / weapon.connections
    while due < end:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        report.attempts += 1
        writer.write(weapon.request)
        await writer.drain()
        due += every_s
    writer.transport.abort()


async def _send_large(weapon: LargeBodies, port: int, end: float, report: Report) -> None:
    while time.monotonic() < end:
        report.attempts += 1
        writer: asyncio.StreamWriter | None = None
        sending: asyncio.Task[None] | None = None
        status = CLOSED
        try:
            async with asyncio.timeout(max(0.0, end - time.monotonic()) if not weapon.answered else ANSWER_S_MAX):
                reader, writer = await _connect(port)
                sending = asyncio.create_task(_send_pieces(weapon, writer))
                if weapon.answered:
                    status, _ = await _answer(reader)
                else:
                    await sending
        except (OSError, EOFError, TimeoutError, ValueError):
            pass
        finally:
            if sending is not None:
                sending.cancel()
            if writer is not None:
                writer.transport.abort()
        if weapon.answered:
            report.statuses[status] += 1
        await asyncio.sleep(LARGE_PAUSE_S)


async def _send_pieces(weapon: LargeBodies, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        writer.write(weapon.first)
        for _ in range(weapon.pieces):
            writer.write(weapon.piece)
            await writer.drain()
        writer.write(weapon.last)


def serve_reads(listening: socket.socket, ready: Event) -> None:
    """The quiet server: reads everything, answers nothing, runs until it is killed. Sets `ready` when it serves."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    buffer = bytearray(READ_BYTES)
    listening.setblocking(False)
    with selectors.DefaultSelector() as selector:
        selector.register(listening, selectors.EVENT_READ)
        ready.set()
        while True:
            for key, _ in selector.select():
                ready = key.fileobj
                assert isinstance(ready, socket.socket)
                if ready is listening:
                    connection, _ = listening.accept()
                    connection.setblocking(False)
                    selector.register(connection, selectors.EVENT_READ)
                    continue
                try:
                    count = ready.recv_into(buffer)
                except OSError:
                    count = 0
                if not count:
                    selector.unregister(ready)
                    ready.close()
