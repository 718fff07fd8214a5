"""What a reader of calls is."""

from __future__ import annotations

import enum
from typing import Protocol

import msgspec


class ReadState(enum.Enum):
    MORE = "more"  # everything that could be decided is consumed
    DONE = "done"  # the section of calls is over
    FAILED = "failed"  # what is not consumed is text of the answer


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
    """Reads one section of calls, from its first character on. It is new for each section."""

    def read(self, text: str, events: list[ReadEvent], *, last: bool) -> tuple[int, ReadState]:
        """Read from the beginning of `text`, which is what was not consumed before, and what arrived since. Returns
        the characters consumed, and what follows. `last`: no more text arrives."""
        ...
