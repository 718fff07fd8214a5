"""A fleet of engines as one `Engine`: it chooses an engine for each text, and continues the text on another engine when
its own is lost, drains or stops.

It knows requests as an engine does: names by digest and hash, no tenant and no price.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Container, Mapping
from types import MappingProxyType

from engine.protocol.frames import AttemptTokens
from gateway.engines.engine import (
    AdapterFailed,
    EngineRequest,
    EngineUnavailable,
    RefusalReason,
    StreamEnd,
    StreamEnding,
    TokenStream,
)
from gateway.engines.local import LocalEngine
from gateway.fleet.choice import EngineChoice, EngineChooser
from gateway.fleet.hedges import HedgeBudget
from gateway.fleet.member import Member
from gateway.fleet.members import WAIT_S, BuildMember, MemberGroup, OnRefused
from gateway.fleet.roster import Roster
from gateway.fleet.streams import MOVABLE_REFUSALS, EndedAttempt, FleetStream

# A text whose attempts were lost this often in a row, each before it made an id, may itself cause the engines'
# failures.
FRUITLESS_MAX = 3

_log = logging.getLogger(__name__)


class Fleet(MemberGroup):
    """Implements `Engine`, and `Mover` for its streams."""

    def __init__(
        self,
        roster: Roster,
        build_member: BuildMember,
        chooser: EngineChooser,
        *,
        resume_wait_s: float,
        on_refused: OnRefused,
        hedge_after_s: Mapping[str, float] = MappingProxyType({}),
        hedges: HedgeBudget | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`resume_wait_s`: for which a text waits for an engine that can continue it; 0: no text is continued.
        `hedge_after_s`: by tier, after which a text without a token is begun on a second engine."""
        super().__init__(roster, build_member, chooser, on_refused=on_refused)
        self.resumptions = 0  # texts resumed with ids of another engine
        self.moves = 0  # texts moved before they had an id
        self.losses = 0  # texts that no engine could continue
        self.hedged = 0  # texts that were begun on a second engine
        self._hedge_after_s = hedge_after_s
        self._hedges = hedges or HedgeBudget()
        self._resume_wait_s = resume_wait_s
        self._clock = clock

    def submit(self, request: EngineRequest) -> TokenStream:
        """Submit to the engine with the least predicted time to the first token. Raises EngineUnavailable when no
        engine is ready."""
        choice = self._choose(request, ())
        if choice is None:
            raise EngineUnavailable("no engine is ready")
        member = choice.member
        if not isinstance(member.engine, LocalEngine):
            return member.engine.submit(request)
        stream = FleetStream(self, request)
        if self._must_load(member, request):
            self._spawn(self._place_stream(stream))
        else:
            self._submit_to(choice, stream)
        return stream

    def note_first_output(self, stream: FleetStream) -> None:
        assert stream.member is not None
        self.chooser.note_first_output(stream.member, stream.placement)

    def note_attempt_ended(self, stream: FleetStream, attempt: EndedAttempt) -> None:
        attempt.member.streams -= 1
        attempt.member.unconfirmed += attempt.tokens > 0
        self.chooser.note_ended(attempt.member, attempt.placement)

    def move_stream(self, stream: FleetStream, final: StreamEnding) -> bool:
        """Of `streams.Mover`."""
        last = stream.last_member
        assert last is not None
        if final.end is StreamEnd.REFUSED:
            return self._move_refused(stream, last, final)
        lost = final.end is StreamEnd.LOST
        if not lost and not (final.end is StreamEnd.ERROR and final.resumable):
            return False
        if self._closed or self._resume_wait_s <= 0 or stream.fruitless >= FRUITLESS_MAX:
            self.losses += 1
            return False
        _log.info("text.moves", extra={"fields": self._fields(stream, last, final.message)})
        stream.tried.clear()
        self._spawn(self._resume_stream(stream, final))
        return True

    def note_recorded(self, epoch: str, tokens: AttemptTokens) -> None:
        """Of `streams.Mover`."""
        self.confirmations.note_recorded(epoch, tokens)

    def reclaim_tokens(self, epoch: str, tokens: AttemptTokens) -> None:
        """Implements `streams.Mover`: the frame is sent now, and again at each new connection to the engine process."""
        self.confirmations.note_reclaimed(epoch, tokens)
        for member in self.members.values():
            if member.engine.epoch == epoch:
                member.send_reclaims([tokens])

    def call_soon(self, function: Callable[[], None]) -> None:
        """Of `streams.Mover`."""
        asyncio.get_running_loop().call_soon(function)

    def _move_refused(self, stream: FleetStream, last: Member, final: StreamEnding) -> bool:
        """Whether another engine may accept the text that `last` refused."""
        if final.refusal not in MOVABLE_REFUSALS or self._closed:
            return False
        if final.refusal is RefusalReason.ADAPTER_UNKNOWN and stream.request.adapter is not None:
            last.loader.forget_adapter(stream.request.adapter)
        stream.tried.add(last.name)
        if stream.received:
            self._spawn(self._resume_stream(stream, final))
            return True
        if self._choose(stream.request, stream.tried) is None:
            return False
        self._spawn(self._place_stream(stream, final))
        return True

    async def _place_stream(self, stream: FleetStream, refusal: StreamEnding | None = None) -> None:
        """Submit a text without ids to the best engine that has not refused it; if every engine has, the text ends."""
        while not stream.is_over:
            choice = self._choose(stream.request, stream.tried)
            if choice is None:
                stream.end_refused(refusal or StreamEnding(StreamEnd.LOST, "no engine is ready"))
                return
            try:
                await self._ensure_adapter(choice.member, stream.request)
                if not stream.is_over:
                    self._submit_to(choice, stream)
                return
            except (AdapterFailed, EngineUnavailable, OSError, ValueError) as error:
                stream.tried.add(choice.member.name)
                refusal = StreamEnding(StreamEnd.REFUSED, str(error), None, RefusalReason.SHUTTING_DOWN)

    async def _resume_stream(self, stream: FleetStream, final: StreamEnding) -> None:
        """Continue a text on an engine that makes the same ids, as soon as such an engine is ready."""
        if stream.end_complete():
            return
        deadline = self._clock() + self._resume_wait_s
        while not stream.is_over:
            choice = self._choose_for(stream)
            if choice is not None:
                try:
                    await self._ensure_adapter(choice.member, stream.request)
                    if not stream.is_over:
                        self._submit_to(choice, stream)
                    return
                except (AdapterFailed, EngineUnavailable, OSError, ValueError) as error:
                    stream.tried.add(choice.member.name)
                    fields = self._fields(stream, choice.member, str(error))
                    _log.warning("text.not_resumed", extra={"fields": fields})
                    continue
            if (left_s := deadline - self._clock()) <= 0:
                self.losses += 1
                message = f"{final.message}; no engine could continue the text within {self._resume_wait_s:g} s"
                stream.end_refused(StreamEnding(StreamEnd.LOST, message))
                return
            stream.tried.clear()  # an engine that refused the text may accept it now
            await self._wait_change(min(WAIT_S, left_s))

    def _choose(self, request: EngineRequest, tried: Container[str]) -> EngineChoice | None:
        """The usable engine with the least predicted time to the first token; None: there is none."""
        only = self.only_member  # a fleet of one engine costs a request next to nothing
        if only is not None and not tried:
            return EngineChoice(only, None) if only.engine.ready and not only.draining else None
        usable = [member for name, member in self.members.items() if name not in tried and member.usable]
        if not usable:  # an engine that seems stuck is better than no engine
            usable = [
                member
                for name, member in self.members.items()
                if name not in tried and member.engine.ready and not member.draining
            ]
        serving = [member for member in usable if member.serves(request)]
        if not serving and request.pooling is None:
            serving = usable
        return self.chooser.choose_member(request, serving, self._clock()) if serving else None

    def _choose_for(self, stream: FleetStream) -> EngineChoice | None:
        """The engine on which a text continues. A text that has ids continues only on an engine that draws the same
        ids."""
        request, received = stream.next_request(), stream.received
        usable = [
            member
            for name, member in self.members.items()
            if name not in stream.tried
            and member.usable
            and member.resumes
            and member.serves(request)
            and (not received or (stream.signature and member.signature(request.model) == stream.signature))
        ]
        return self.chooser.choose_member(request, usable, self._clock()) if usable else None

    def _submit_to(self, choice: EngineChoice, stream: FleetStream) -> None:
        """Raises EngineUnavailable."""
        member = choice.member
        assert isinstance(member.engine, LocalEngine)
        request = stream.next_request()
        now = self._clock()
        member.engine.submit(request, stream)
        member.streams += 1
        after_s = self._hedge_after_s.get(request.tier)
        if after_s is not None and request.max_tokens and not request.resumed and len(self.members) > 1:
            self._hedges.note_text()
            asyncio.get_running_loop().call_later(after_s, self._hedge_stream, stream)
        if stream.submissions:
            if request.resumed:
                self.resumptions += 1
            else:
                self.moves += 1
        if not request.resumed:
            stream.signature = member.signature(request.model)
        placement = self.chooser.note_submitted(choice, request, now)
        stream.note_submitted(member, request.resumed, placement)

    def _hedge_stream(self, stream: FleetStream) -> None:
        """The text's first token is overdue: begin it on a second engine, if that has less to do."""
        member = stream.member
        is_overdue = member is not None and not stream.received and not stream.is_over and not stream.is_aborted
        if member is None or not is_overdue or stream.hedge is not None or self._closed:
            return
        request = stream.next_request()
        choice = self._choose(request, {member.name, *stream.tried})
        if choice is None:
            return
        second = choice.member
        if not second.resumes or self._must_load(second, request):
            return
        if not second.usable or not self._hedges.take_hedge():
            return
        assert isinstance(second.engine, LocalEngine)
        hedge = stream.make_hedge(second)
        try:
            second.engine.submit(request, hedge)
        except EngineUnavailable:
            return
        second.streams += 1
        self.hedged += 1
        hedge.placement = self.chooser.note_submitted(choice, request, self._clock())
        stream.note_hedged(hedge)

    def _must_load(self, member: Member, request: EngineRequest) -> bool:
        return request.adapter is not None and not member.loader.has_adapter(request.adapter)

    async def _ensure_adapter(self, member: Member, request: EngineRequest) -> None:
        if request.adapter is not None:
            await member.loader.ensure(request.adapter, request.model)

    @staticmethod
    def _fields(stream: FleetStream, member: Member, reason: str) -> dict[str, object]:
        return {
            "request_id": stream.request.request_id,
            "engine": member.name,
            "attempt": stream.number,
            "tokens": stream.received,
            "reason": reason,
        }
