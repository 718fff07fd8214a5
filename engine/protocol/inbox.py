"""What passes between the engine's threads: commands to the loop, and the loop's progress for the heartbeat.

One I/O thread puts, the loop takes. It knows nothing of scheduling or of sockets.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass

from engine.protocol.frames import ToEngine

# Above this the I/O thread stops reading its streams until the loop has caught up. One frame more may come on top.
INBOX_BYTES_MAX = 64 * 1024 * 1024
# What one command weighs beside its bytes, so that many small ones are bounded too.
COMMAND_BYTES = 512


@dataclass(slots=True, frozen=True)
class ReceivedFrame:
    """A frame from gateway `gateway`, at `at` (seconds of the monotonic clock)."""

    gateway: int
    frame: ToEngine
    at: float
    weight: int


@dataclass(slots=True, frozen=True)
class GatewayDisconnected:
    """Its stream ended. Nothing more comes from it."""

    gateway: int


@dataclass(slots=True, frozen=True)
class LoopCall:
    """Run `function` between two steps: how a helper thread hands its result to the loop."""

    function: Callable[[], None]


@dataclass(slots=True, frozen=True)
class Stop:
    """End all requests and leave the loop."""

    why: str


Command = ReceivedFrame | GatewayDisconnected | LoopCall | Stop


class Inbox:
    """Commands to the loop, in order of arrival. `full()` is for the I/O thread, which then reads no more."""

    def __init__(self) -> None:
        # SimpleQueue: safe from any thread, and a blocked `get` wakes at once.
        self._queue: queue.SimpleQueue[Command] = queue.SimpleQueue()
        # Each counter has one writer (the I/O thread, the loop), so neither needs a lock.
        self._put_bytes = 0
        self._taken_bytes = 0

    def receive(self, gateway: int, frame: ToEngine, at: float, size: int) -> None:
        """From the I/O thread only. `size` is the frame's length in bytes."""
        weight = size + COMMAND_BYTES
        self._put_bytes += weight
        self._queue.put(ReceivedFrame(gateway, frame, at, weight))

    def put(self, command: GatewayDisconnected | LoopCall | Stop) -> None:
        """From any thread. These are bounded by the streams and by the adapters being loaded."""
        self._queue.put(command)

    def full(self) -> bool:
        return self._put_bytes - self._taken_bytes > INBOX_BYTES_MAX

    def take_commands(self, timeout_s: float | None) -> list[Command]:
        """All that is there; when nothing is, wait for one command up to `timeout_s` (None: for ever). From the loop
        only."""
        commands: list[Command] = []
        try:
            if timeout_s is None or timeout_s > 0:
                commands.append(self._queue.get(timeout=timeout_s))
            while True:
                commands.append(self._queue.get_nowait())
        except queue.Empty:
            pass
        self._taken_bytes += sum(command.weight for command in commands if isinstance(command, ReceivedFrame))
        return commands


@dataclass(slots=True)
class LoopProgress:
    """Where the loop is. The loop writes, the I/O thread reads; each field is one word, so neither locks."""

    step: int = 0
    busy: bool = False
    running: int = 0
    waiting: int = 0
