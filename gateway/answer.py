"""One answer in the making, between the task that owns its generation and the HTTP exchange that reads it.

The owner writes and never waits for the reader: what is not read yet lies here, as text, bounded by max_tokens. It
must never know a socket, an engine or money.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.errors import ApiError
from gateway.wire import FinishReason, Usage


class Answer:
    """Written by one owner, read by one reader, on one event loop."""

    __slots__ = ("_abort", "_pieces", "_stream", "_waiter", "begun", "error", "finish_reason", "left", "usage")

    def __init__(self, *, stream: bool) -> None:
        """Without `stream` the reader is woken by the end alone."""
        self._stream = stream
        self.begun = False  # the first token is here
        self.left = False  # the reader is gone
        self.finish_reason: FinishReason | None = None
        self.usage: Usage | None = None  # set, with finish_reason, after the settlement
        self.error: ApiError | None = None
        self._pieces: list[str] = []
        self._waiter: asyncio.Future[None] | None = None
        self._abort: Callable[[], None] | None = None

    # ---- the owner's side

    def on_leave(self, abort: Callable[[], None]) -> None:
        """What to do when the reader leaves; done at once when it has left already."""
        self._abort = abort
        if self.left:
            abort()

    def add(self, text: str) -> None:
        """More text; "" when tokens came that show nothing yet."""
        self.begun = True
        if text:
            self._pieces.append(text)
        if self._stream:
            self.wake()

    def finish(self, reason: FinishReason, usage: Usage) -> None:
        self.finish_reason = reason
        self.usage = usage
        self.wake()

    def fail(self, error: ApiError) -> None:
        self.error = error
        self.wake()

    # ---- the reader's side

    @property
    def ended(self) -> bool:
        return self.usage is not None or self.error is not None

    def take(self) -> str:
        """The text that came since the last call."""
        if not self._pieces:
            return ""
        text = self._pieces[0] if len(self._pieces) == 1 else "".join(self._pieces)
        self._pieces.clear()
        return text

    def has_text(self) -> bool:
        return bool(self._pieces)

    async def changed(self) -> None:
        """Until something is added, it ends, or `wake` is called. Look first: what came before is not announced."""
        assert self._waiter is None, "an answer has one reader"
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def stop(self) -> None:
        """The process ends: stop the generation, whoever reads."""
        if self._abort is not None and not self.ended:
            self._abort()

    def leave(self) -> None:
        """The caller is gone. Idempotent; after the end it means nothing."""
        if self.left or self.ended:
            return
        self.left = True
        if self._abort is not None:
            self._abort()
        self.wake()
