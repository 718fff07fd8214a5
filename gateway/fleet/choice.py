"""Chooses the engine of a text: the engine with the least predicted time to its first token, by `engine.routing`.

It translates between members and the router's names, and feeds the router with what heartbeats and page lists report.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.protocol.frames import Heartbeat, PagesChanged
from engine.routing.engine_state import Placement
from engine.routing.router import EngineRouter, RankedEngine, RoutableRequest
from gateway.engines.engine import EngineRequest
from gateway.engines.local import LocalEngine
from gateway.fleet.member import Member


class EngineChoice(NamedTuple):
    """Where a text is submitted; `ranked`: the router's predictions, if it had a choice."""

    member: Member
    ranked: RankedEngine | None


class EngineChooser:
    """One per gateway process."""

    def __init__(self, tiers: Sequence[str]) -> None:
        """`tiers`: names by rank, the highest first."""
        self.router = EngineRouter(tiers)
        self._beats: dict[str, Heartbeat | None] = {}  # by member: the newest heartbeat that the router has
        self._models: dict[str, object] = {}  # by member: the models that the router has

    def add_member(self, member: Member) -> None:
        """Call it at each connection: a new engine process has no cached page."""
        self.router.remove_engine(member.name)
        self._beats.pop(member.name, None)
        self._models.pop(member.name, None)
        if isinstance(member.engine, LocalEngine):
            member.engine.on_pages = lambda frame: self._note_pages(member.name, frame)

    def remove_member(self, member: Member) -> None:
        self.router.remove_engine(member.name)
        self._beats.pop(member.name, None)
        self._models.pop(member.name, None)

    def choose_member(self, request: EngineRequest, members: Sequence[Member], now: float) -> EngineChoice:
        """Choose one of `members`, which must not be empty. Where there is no choice, nothing is predicted."""
        if len(members) == 1:
            return EngineChoice(members[0], None)
        by_name = {member.name: member for member in members}
        for member in members:
            self._refresh_member(member, now)
        others = self._models.keys() - by_name.keys()
        ranked = self.router.rank_engines(routable(request), now, others, 1)
        if not ranked:
            return EngineChoice(members[0], None)
        return EngineChoice(by_name[ranked[0].name], ranked[0])

    def note_submitted(self, choice: EngineChoice, request: EngineRequest, now: float) -> Placement | None:
        """Note a submission. Returns the argument of `note_first_output` and `note_ended`."""
        if choice.ranked is None:
            return None
        uncached = len(request.prompt_ids) - choice.ranked.cached_tokens
        return self.router.note_submitted(choice.member.name, routable(request), uncached, now)

    def note_first_output(self, member: Member, placement: Placement | None) -> None:
        if placement is not None:
            self.router.note_first_output(member.name, placement)

    def note_ended(self, member: Member, placement: Placement | None) -> None:
        if placement is not None:
            self.router.note_ended(member.name, placement)

    def _refresh_member(self, member: Member, now: float) -> None:
        """Pass the member's reports since the last choice to the router."""
        models = member.engine.models
        if self._models.get(member.name) is not models:
            self._models[member.name] = models
            self.router.set_engine(member.name, models)
        beat = member.engine.last_heartbeat
        if beat is not self._beats.get(member.name):
            self._beats[member.name] = beat
            if beat is not None:
                self.router.note_load(member.name, beat.load, beat.draining, now)

    def _note_pages(self, name: str, frame: PagesChanged) -> None:
        self.router.note_pages(name, frame)  # after a gap the client itself asks for a full list


def routable(request: EngineRequest) -> RoutableRequest:
    """The fields of a request that the router needs."""
    return RoutableRequest(
        model=request.model,
        adapter=request.adapter,
        namespace=request.namespace,
        tier=request.tier,
        ids=request.prompt_ids,
        conversation=request.conversation,
    )
