"""A TCP relay between gateways and one engine, which delays bytes or holds them.

    python -m benchmarks.faults.relay 10.213.0.1:7802 10.213.1.2:7801

It listens at the first address and connects to the second. Commands on stdin, one a line: `delay LEAST_S MOST_S` delays
each read by a random time between the two, in order; `hold`: no byte is relayed in either direction and no connection
is closed, even if an end closes it; `pass`: held bytes are relayed. It ends with stdin.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import sys

READ_BYTES = 65_536
READS_MAX = 1024  # that wait in one direction; above it the sender's own socket fills
CONNECT_S_MAX = 5.0


class Relay:
    """For one event loop. `delay` and `held` may change at any time."""

    def __init__(self, host: str, port: int) -> None:
        """`host`, `port`: to which it connects."""
        self.delay = (0.0, 0.0)
        self.open = 0  # connections
        self._host, self._port = host, port
        self._passes = asyncio.Event()
        self._passes.set()

    def hold(self) -> None:
        self._passes.clear()

    def release(self) -> None:
        self._passes.set()

    def obey(self, line: str) -> None:
        """One command of stdin. Raises ValueError."""
        match line.split():
            case ["delay", least, most]:
                self.delay = (float(least), float(most))
            case ["hold"]:
                self.hold()
            case ["pass"]:
                self.release()
            case _:
                raise ValueError(f"unknown command {line!r}")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One accepted connection, until both ends have closed it."""
        self.open += 1
        try:
            await self._passes.wait()
            async with asyncio.timeout(CONNECT_S_MAX):
                far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        except (OSError, TimeoutError):
            self.open -= 1
            writer.transport.abort()
            return
        for end in (writer, far_writer):
            end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await asyncio.gather(self._relay(reader, far_writer), self._relay(far_reader, writer))
        finally:
            for end in (writer, far_writer):
                end.transport.abort()
                with contextlib.suppress(OSError):
                    await end.wait_closed()
            self.open -= 1

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction: its bytes, then its end."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(READS_MAX)
        writing = asyncio.create_task(self._write(queue, writer))
        clock, due = asyncio.get_running_loop().time, 0.0
        data = b"-"
        while data and not writing.done():
            try:
                data = await reader.read(READ_BYTES)
            except OSError:
                data = b""
            due = max(due, clock() + random.uniform(*self.delay))
            await queue.put((due, data))
        await writing

    async def _write(self, queue: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        clock = asyncio.get_running_loop().time
        broken = False
        while True:
            due, data = await queue.get()
            if (wait_s := due - clock()) > 0:
                await asyncio.sleep(wait_s)
            await self._passes.wait()
            if not data:
                with contextlib.suppress(OSError):
                    writer.close()  # the sender has closed its connection
                return
            if not broken:
                try:
                    writer.write(data)
                    await writer.drain()
                except OSError:
                    broken = True  # the rest is read and forgotten, until its sender closes


async def run_relay(listen: tuple[str, int], target: tuple[str, int]) -> None:
    relay = Relay(*target)
    server = await asyncio.start_server(relay.serve, *listen, backlog=256)
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    print("ready", flush=True)
    async with server:
        while line := await commands.readline():
            relay.obey(line.decode())


def parse_host_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    asyncio.run(run_relay(parse_host_port(sys.argv[1]), parse_host_port(sys.argv[2])))
