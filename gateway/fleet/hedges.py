"""A second attempt of a text whose first token is overdue, on another engine. The attempt with the first token wins,
and the other one is aborted: its tokens are made and not billed.

Which texts are hedged is decided in `fleet.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.protocol.frames import Logprobs, PromptLogprobs
from gateway.engines.local import EngineLink, LocalEnding, LocalStream, stream_ending

if TYPE_CHECKING:
    from engine.routing.engine_state import Placement
    from gateway.fleet.member import Member
    from gateway.fleet.streams import FleetStream

# Hedges are paid from a budget: HEDGE_PART of the texts that may be hedged, and at most HEDGES_SAVED_MAX at once, after
# a time without hedges.
HEDGE_PART = 0.02
HEDGES_SAVED_MAX = 4.0


class HedgeBudget:
    """Number of hedges that may still begin."""

    def __init__(self, part: float = HEDGE_PART) -> None:
        self.part = part
        self._saved = HEDGES_SAVED_MAX if part else 0.0

    def note_text(self) -> None:
        """A text that may be hedged was submitted."""
        self._saved = min(self._saved + self.part, HEDGES_SAVED_MAX)

    def take_hedge(self) -> bool:
        """Whether a hedge may begin; it is paid."""
        if self._saved < 1:
            return False
        self._saved -= 1
        return True


class SideAttempt(LocalStream):
    """An attempt beside a text's main attempt: a hedge, or the attempt that a hedge has replaced. It has no reader."""

    __slots__ = ("member", "number", "on_ended", "on_first_id", "placement", "text")

    def __init__(
        self,
        text: FleetStream,
        member: Member,
        number: int,
        *,
        on_first_id: Callable[[SideAttempt], bool],
        on_ended: Callable[[SideAttempt, int], None],
    ) -> None:
        """`on_first_id`: whether the text has taken over this attempt, whose ids are then the text's. `on_ended`
        receives the tokens that it made."""
        super().__init__()
        self.text = text
        self.member, self.number = member, number
        self.placement: Placement | None = None  # of the router
        self.on_first_id, self.on_ended = on_first_id, on_ended

    def push_id(self, token: int, logprobs: Logprobs | None = None) -> None:
        if self._aborted:
            return
        if self.on_first_id(self):
            self.text.push_id(token, logprobs)

    def push_prompt(self, part: PromptLogprobs) -> None:
        """Prompt logprobs arrived: the text passes on the parts that are new."""
        if not self._aborted:
            self.text.push_prompt(part)

    def announce(self) -> None:
        """Notify the reader of the text."""
        self.text.announce()

    def set_ending(self, ending: LocalEnding) -> None:
        final = stream_ending(ending)
        self.ending = ending
        self.on_ended(self, 0 if final.usage is None else final.usage.completion_tokens)

    @property
    def connection(self) -> tuple[EngineLink | None, int]:
        return self._link, self.handle

    def hand_over(self, text: FleetStream) -> None:
        """Direct the frames of this attempt to the text from now on."""
        link = self._link
        assert link is not None
        link.generations[self.handle] = text
        text.attach(link, self.handle)

    def take_over(self, text: FleetStream) -> None:
        """Direct the frames of the text's present attempt to this attempt from now on."""
        link, handle = text.connection
        assert link is not None
        if link.generations.get(handle) is text:
            link.generations[handle] = self
        self.attach(link, handle)
