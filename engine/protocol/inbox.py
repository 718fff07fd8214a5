"""The queue from the engine's I/O thread to its loop, and the loop's progress for the heartbeat."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.protocol.frames import ToEngine
from engine.protocol.snapshot_parts import EngineLoad, TokenAge

# Above this the I/O thread stops reading its streams until the loop has caught up. One frame may exceed it.
INBOX_BYTES_MAX = 64 * 1024 * 1024
# Counted for each command beside its bytes, so that the number of small commands is bounded too.
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
    """The gateway's stream ended."""

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
    """Commands to the loop, in order of arrival. While `full()`, the I/O thread stops reading."""

    def __init__(self) -> None:
        # SimpleQueue: safe from any thread, and a blocked `get` wakes at once.
        self._queue: queue.SimpleQueue[Command] = queue.SimpleQueue()
        # Each counter has one writer (the I/O thread, the loop), so neither needs a lock.
        self._put_bytes = 0
        self._taken_bytes = 0

    def receive(self, gateway: int, frame: ToEngine, at: float, size: int) -> None:
        """Call it from the I/O thread only. `size` is the frame's length in bytes."""
        weight = size + COMMAND_BYTES
        self._put_bytes += weight
        self._queue.put(ReceivedFrame(gateway, frame, at, weight))

    def put(self, command: GatewayDisconnected | LoopCall | Stop) -> None:
        """Thread-safe. The number of streams and of loads in flight bounds these."""
        self._queue.put(command)

    def full(self) -> bool:
        return self._put_bytes - self._taken_bytes > INBOX_BYTES_MAX

    def take_commands(self, timeout_s: float | None) -> list[Command]:
        """All queued commands; if the queue is empty, wait for a command up to `timeout_s` (None: without limit). From
        the loop only."""
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


class TokenTimes(NamedTuple):
    """When a resident model made its last token, and since when it owes one to failed probes (None: it owes none). Both
    in seconds of the monotonic clock. `error`: of its last probe."""

    token_at: float
    owed_since: float | None = None
    error: str = ""


@dataclass(slots=True)
class LoopProgress:
    """The loop's progress. The loop writes, the I/O thread reads; each field is one word, so no lock is needed."""

    step: int = 0
    busy: bool = False
    running: int = 0
    waiting: int = 0
    draining: bool = False
    load: EngineLoad | None = None
    tokens: Mapping[str, TokenTimes] = field(default_factory=dict)  # by resident model
    awaited: tuple[str, float] | None = None  # the model of the oldest step in flight, and since when it is the oldest
    silent_after_s: float = 0.0  # a model that owes a token for longer is silent; 0: no model is

    def token_ages(self, now: float) -> dict[str, TokenAge]:
        """Ages by resident model. The loop may hang in a step: then only this thread can say for how long."""
        awaited = self.awaited
        ages = {}
        for model, own in self.tokens.items():
            owed = [now - own.owed_since] if own.owed_since is not None else []
            owed += [now - awaited[1]] if awaited is not None and awaited[0] == model else []
            silent = self.silent_after_s > 0 and max(owed, default=0.0) > self.silent_after_s
            ages[model] = TokenAge(max(0.0, now - own.token_at), silent, own.error if silent else "")
        return ages
