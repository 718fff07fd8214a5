"""Limits how many bytes of request bodies the event loop reads in one turn.

Otherwise a hundred connections that send large bodies are all read in each turn, 256 KiB at a time. A turn then takes
tens of milliseconds, and another tenant's request needs about ten turns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

# uvloop reads up to 256,000 bytes of a connection at once; copying and parsing them takes about 0.1 ms. A connection
# that sends at full speed exceeds the turn's bytes with each read, so that such connections are read one after another.
BYTES_PER_TURN = 128 * 1024


class PausableReads(Protocol):
    """The reading half of a connection."""

    def pause_turn(self) -> None:
        """Read nothing until `resume_turn`."""

    def resume_turn(self) -> None:
        """Read again, unless the connection is closed."""


class ReadPace:
    """Not thread-safe: for one event loop. A connection that exceeds the turn's bytes is paused; each later turn
    resumes one, in the order in which they were paused."""

    def __init__(self, bytes_per_turn: int = BYTES_PER_TURN) -> None:
        self._bytes_per_turn = self._left = bytes_per_turn
        self._paused: deque[PausableReads] = deque()
        self._turn_is_due = False

    def count_read(self, reads: PausableReads, size: int) -> None:
        """Count `size` bytes of an unfinished body, and pause its connection if the turn's bytes are used up."""
        self._left -= size
        if self._left < 0:
            reads.pause_turn()
            self._paused.append(reads)
        self._schedule_turn()

    def _schedule_turn(self) -> None:
        if not self._turn_is_due:
            self._turn_is_due = True
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._turn_is_due = False
        self._left = self._bytes_per_turn
        if self._paused:
            self._paused.popleft().resume_turn()
        if self._paused:
            self._schedule_turn()
