"""The interface of a reader of calls."""

from __future__ import annotations

import enum
from typing import Protocol

import msgspec


class ReadState(enum.Enum):
    MORE = "more"  # everything that could be decided is consumed
    DONE = "done"  # the section of calls is over
    FAILED = "failed"  # unconsumed characters are text of the answer


class CallOpened(msgspec.Struct, frozen=True, gc=False):
    """The name of a call is known."""

    name: str


class CallText(msgspec.Struct, frozen=True, gc=False):
    """Arguments of the opened call, as JSON."""

    text: str


class CallClosed(msgspec.Struct, frozen=True, gc=False):
    complete: bool


ReadEvent = CallOpened | CallText | CallClosed


class CallReader(Protocol):
    """Reads one section of calls, from its first character on. Each section has a new reader."""

    def read(self, text: str, events: list[ReadEvent], *, last: bool) -> tuple[int, ReadState]:
        """Read from the beginning of `text`: the characters that were not consumed before, and the newly arrived ones.
        Returns the number of consumed characters, and the next state. `last`: no more text arrives."""
        ...
