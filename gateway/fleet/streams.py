"""The stream of one text, which moves from engine to engine without its reader noticing.

A stream is the engine client's own object: an id takes no further call on its way, and a move attaches the object to
another connection. Which engine continues a text is decided in `fleet.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from engine.protocol.frames import AttemptTokens, EngineUsage, Finished, Logprobs, PromptLogprobs
from gateway.engines.engine import EngineRequest, RefusalReason, StreamEnd, StreamEnding
from gateway.engines.local import EngineLink, LocalEnding, LocalStream, lost_ending, stream_ending
from gateway.fleet.hedges import SideAttempt

if TYPE_CHECKING:
    from engine.routing.engine_state import Placement
    from gateway.fleet.member import Member

# Refusals after which another engine may accept the text.
MOVABLE_REFUSALS = frozenset(
    (
        RefusalReason.STALE_EPOCH,
        RefusalReason.MODEL_UNKNOWN,
        RefusalReason.ADAPTER_UNKNOWN,
        RefusalReason.QUEUE_FULL,
        RefusalReason.SHUTTING_DOWN,
    )
)


class Mover(Protocol):
    """Decides what happens to a stream whose attempt ended."""

    def note_first_output(self, stream: FleetStream) -> None:
        """The first output of the attempt arrived."""
        ...

    def note_attempt_ended(self, stream: FleetStream, attempt: EndedAttempt) -> None:
        """An attempt ended, whether or not the stream continues."""
        ...

    def move_stream(self, stream: FleetStream, final: StreamEnding) -> bool:
        """Whether the stream continues on another engine, or may later; then it has not ended."""
        ...

    def note_recorded(self, epoch: str, tokens: AttemptTokens) -> None:
        """The ledger has tokens of an attempt, and the engine was sent the confirmation."""
        ...

    def reclaim_tokens(self, epoch: str, tokens: AttemptTokens) -> None:
        """The ledger has tokens of an attempt whose connection was lost."""
        ...

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call it in the next turn of the event loop."""
        ...


class EndedAttempt(NamedTuple):
    """One submission of a text, after its end. `tokens`: made by the engine and received, or reported as made."""

    member: Member
    epoch: str
    number: int
    tokens: int
    link: EngineLink | None
    handle: int
    placement: Placement | None

    def confirm_recorded(self, request: EngineRequest, mover: Mover) -> None:
        """The ledger has the attempt's tokens."""
        if not self.tokens:
            return
        self.member.unconfirmed -= 1
        counted = AttemptTokens(request.request_id, request.sampling.choice, self.number, self.tokens)
        if self.link is not None and self.link.open:
            self.link.recorded(self.handle)
            mover.note_recorded(self.epoch, counted)
        else:
            mover.reclaim_tokens(self.epoch, counted)


class FleetStream(LocalStream):
    """Implements `TokenStream`. Between two attempts, and before the first, it has no member and waits."""

    __slots__ = (
        "_cached", "_ended", "_heard_at", "_held", "_losers", "_mover", "_prompt_until", "_started", "fruitless",
        "hedge", "last_member", "made", "member", "number", "placement", "request", "resumed", "signature",
        "submissions", "tried",
    )  # fmt: skip

    def __init__(self, mover: Mover, request: EngineRequest) -> None:
        self._cached = 0  # before the base class sets `cached_tokens`
        self.resumed = 0  # ids of earlier attempts, in the present one
        super().__init__()
        self.request = request
        self.made: list[int] = []  # ids that were taken, of all attempts
        self.submissions = 0  # attempts so far, hedges included
        self.number = 0  # of the present attempt
        self.member: Member | None = None
        self.last_member: Member | None = None  # of the attempt that ended last
        self.signature: tuple[str, str, str] | None = None  # that an engine must have to continue the text
        self.fruitless = 0  # attempts in a row whose engine was lost before it made an id
        self.tried: set[str] = set()  # names of members that refused the text since it last moved
        self.placement: Placement | None = None  # of the router, for the present attempt
        self.hedge: SideAttempt | None = None  # a second attempt, while neither has made a token
        self._losers = 0  # side attempts that were aborted and have not ended
        self._held: tuple[LocalEnding, StreamEnding] | None = None  # the ending, until the losers have ended
        self._ended: list[EndedAttempt] = []
        self._mover = mover
        self._started = False  # output of the present attempt has arrived
        self._heard_at = 0.0  # when its connection was last heard before the attempt was submitted
        self._prompt_until = 0  # prompt tokens whose log probabilities were received

    # ---- for the reader

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the first engine that made a token found in its prefix cache."""
        return self._cached

    @cached_tokens.setter
    def cached_tokens(self, tokens: int) -> None:
        if not self.resumed:
            self._cached = tokens

    @property
    def attempts(self) -> Mapping[str, int]:
        """Tokens by the epoch of the engine that made them; their sum is the number of tokens made for this text. The
        last key is the epoch of the text's own newest attempt: a hedge that lost may have ended later."""
        if self.member is None and len(self._ended) == 1 and self._ended[0].epoch == self.epoch:  # nearly every text
            return {self.epoch: self._ended[0].tokens}
        tokens: dict[str, int] = {}
        for attempt in self._ended:
            tokens[attempt.epoch] = tokens.get(attempt.epoch, 0) + attempt.tokens
        present = 0 if self.member is None else self.received - self.resumed
        if self.member is not None or self.epoch in tokens:
            tokens[self.epoch] = tokens.pop(self.epoch, 0) + present
        return tokens

    def take_ids(self) -> list[int]:
        ids, self._ids = self._ids, []
        self.made += ids
        if self._logprobs or self._logprobs_taken:
            self._logprobs_taken, self._logprobs = self._logprobs, []
        return ids

    take_output = take_ids

    def abort(self) -> None:
        if self._aborted or self.ending is not None:
            return
        super().abort()
        self._abort_hedge()
        if self.member is None:  # no engine has it, so none would end it
            self._end_now(Finished(0, "aborted", self._usage()))

    def confirm_recorded(self) -> None:
        for attempt in self._ended:
            attempt.confirm_recorded(self.request, self._mover)

    # ---- for the connection

    def push_id(self, token: int, logprobs: Logprobs | None = None) -> None:
        if self._aborted:
            return
        self._ids.append(token)
        if logprobs is not None:
            self._logprobs.append(logprobs)
        if not self._started:
            self._started = True
            self.fruitless = 0
            self._abort_hedge()
            self._mover.note_first_output(self)

    def push_prompt(self, part: PromptLogprobs) -> None:
        """An engine that begins the text again reports its prompt again: only the parts that are new are passed on."""
        until = part.position + part.tokens()
        known = max(0, self._prompt_until - part.position) if self._prompt_until else 0
        if known < part.tokens():
            super().push_prompt(_without_first(part, known) if known else part)
            self._prompt_until = until

    def set_ending(self, ending: LocalEnding) -> None:
        final = stream_ending(ending)
        self._close_attempt(final)
        if not self._aborted:
            if self.hedge is not None and (final.end is not StreamEnd.ERROR or final.resumable):
                self._adopt(self.hedge)
                return
            if self._mover.move_stream(self, final):
                return
        self._abort_hedge()
        self._end_once_alone(ending, final)

    # ---- for the fleet

    @property
    def is_over(self) -> bool:
        return self.ending is not None or self._held is not None

    @property
    def connection(self) -> tuple[EngineLink | None, int]:
        """The connection of the present attempt."""
        return self._link, self.handle

    @property
    def is_aborted(self) -> bool:
        return self._aborted

    @property
    def has_started(self) -> bool:
        """Whether the present attempt made output."""
        return self._started

    @property
    def received(self) -> int:
        """Ids of all attempts."""
        return len(self.made) + len(self._ids)

    def received_ids(self) -> list[int]:
        """All ids of the text, including ids that the reader has not taken."""
        return self.made + self._ids

    def next_request(self) -> EngineRequest:
        """The Submit of the next attempt: the prompt, and behind it the ids that were made."""
        request = self.request
        if not self.submissions:
            return request
        ids = self.received_ids()
        if not ids:
            return msgspec.structs.replace(request, attempt=self.submissions)
        sampling = request.sampling
        if sampling.prompt_logprobs >= 0:
            sampling = msgspec.structs.replace(sampling, prompt_logprobs=-1)
        return msgspec.structs.replace(
            request,
            prompt_ids=request.prompt_ids + ids,
            sampling=sampling,
            resumed=len(ids),
            attempt=self.submissions,
        )

    def note_submitted(self, member: Member, resumed: int, placement: Placement | None) -> None:
        """The next attempt was submitted to `member`."""
        self.member = member
        self.number = self.submissions
        self.submissions += 1
        self.resumed, self._started, self.placement = resumed, False, placement
        self._heard_at = 0.0 if self._link is None else self._link.heard_at

    def make_hedge(self, member: Member) -> SideAttempt:
        """A second attempt, to be submitted to `member` as `next_request`, and then given to `note_hedged`."""
        return SideAttempt(
            self, member, self.submissions, on_first_id=self._adopt_faster, on_ended=self._note_side_ended
        )

    def note_hedged(self, hedge: SideAttempt) -> None:
        """The hedge was submitted."""
        self.hedge = hedge
        self.submissions += 1

    def end_complete(self) -> bool:
        """End the stream if its ids are the whole text, so that nothing is left for another engine. Returns whether
        they are."""
        ids = self.received_ids()
        if ids and ids[-1] in self.request.stop_ids:
            self._end_now(Finished(0, "stop", self._usage()))
        elif len(ids) >= self.request.max_tokens > 0:
            self._end_now(Finished(0, "length", self._usage()))
        else:
            return False
        return True

    def end_refused(self, final: StreamEnding) -> None:
        """No engine is left that may take the text."""
        self._end_now(lost_ending(final.message), final)

    # ---- private

    def _close_attempt(self, final: StreamEnding) -> None:
        """The present attempt ended."""
        member = self.member
        if member is None:
            return
        tokens = self.received - self.resumed
        if final.usage is not None:
            tokens = max(tokens, final.usage.completion_tokens - self.resumed)
        if final.end is StreamEnd.LOST and not self._started and not self._was_unheard():
            self.fruitless += 1
        self.member, self.last_member = None, member
        self._note_ended(EndedAttempt(member, self.epoch, self.number, tokens, self._link, self.handle, self.placement))

    def _was_unheard(self) -> bool:
        """Whether the engine was silent for the whole attempt: it may have been unreachable before the attempt, so the
        text is not the cause."""
        link = self._link
        return link is not None and link.fell_silent and link.heard_at <= self._heard_at

    def _note_ended(self, attempt: EndedAttempt) -> None:
        self._ended.append(attempt)
        self._mover.note_attempt_ended(self, attempt)

    def _adopt_faster(self, hedge: SideAttempt) -> bool:
        """The hedge made its first token: it becomes the text's attempt, unless that has a token already."""
        if self.hedge is not hedge or self.is_over or self._started or self._aborted:
            return False
        if self.member is not None:
            loser = SideAttempt(
                self, self.member, self.number, on_first_id=lambda _: False, on_ended=self._note_side_ended
            )
            loser.placement = self.placement
            loser.take_over(self)
            self._losers += 1
            loser.abort()
        self._adopt(hedge)
        return True

    def _adopt(self, hedge: SideAttempt) -> None:
        self.hedge = None
        hedge.hand_over(self)
        self.member, self.number = hedge.member, hedge.number
        self.placement = hedge.placement

    def _abort_hedge(self) -> None:
        if self.hedge is not None:
            hedge, self.hedge = self.hedge, None
            self._losers += 1
            hedge.abort()

    def _note_side_ended(self, side: SideAttempt, tokens: int) -> None:
        link, handle = side.connection
        self._note_ended(EndedAttempt(side.member, side.epoch, side.number, tokens, link, handle, side.placement))
        if self.hedge is side:  # it was refused or lost; the main attempt continues
            self.hedge = None
            return
        self._losers -= 1
        if not self._losers and self._held is not None:
            self._end_with(*self._held)
            self._mover.call_soon(self.announce)

    def _end_once_alone(self, ending: LocalEnding, final: StreamEnding) -> bool:
        """End, unless losing attempts have not reported their tokens yet: the books need them. Returns whether it
        ended."""
        if self._losers:
            self._held = ending, final
            return False
        self._end_with(ending, final)
        return True

    def _end_with(self, ending: LocalEnding, final: StreamEnding) -> None:
        self.set_final(ending, self._with_whole_usage(final))

    def _end_now(self, ending: LocalEnding, final: StreamEnding | None = None) -> None:
        """End without an engine's word. The reader is called in the next turn of the event loop: its own call may be
        what ends the stream."""
        if self._end_once_alone(ending, final or stream_ending(ending)):
            self._mover.call_soon(self.announce)

    def _with_whole_usage(self, final: StreamEnding) -> StreamEnding:
        """The cached tokens are the first engine's, and the made tokens are the sum of all attempts."""
        if final.usage is None or len(self._ended) < 2:
            return final
        made = max(final.usage.completion_tokens, sum([attempt.tokens for attempt in self._ended]))
        usage = msgspec.structs.replace(final.usage, cached_tokens=self._cached, completion_tokens=made)
        return msgspec.structs.replace(final, usage=usage)

    def _usage(self) -> EngineUsage:
        return EngineUsage(len(self.request.prompt_ids), self._cached, self.received)


def _without_first(part: PromptLogprobs, tokens: int) -> PromptLogprobs:
    """The part without its first tokens; ids, values and ranks take 4 bytes each."""
    row = tokens * part.width * 4
    return PromptLogprobs(
        part.position + tokens, part.width, part.ids[row:], part.values[row:], part.ranks[tokens * 4 :]
    )
