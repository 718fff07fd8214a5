"""The gateways' open streams, and which tokens of them are lost.

Every token that was made is in the end recorded by its gateway, overrun, or counted as lost once. It ends no request:
the engine loop does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from engine.loop.metrics import EngineMetrics
from engine.loop.unsettled import LostTokens, UnrecordedAttempt, UnrecordedRequests
from engine.protocol.frames import AttemptTokens, Recorded, ToEngine
from engine.step import Sequence

_log = logging.getLogger(__name__)


class GatewayStreams:
    """Used only by the loop's thread. A stream is the number that the I/O thread gave it; a gateway is the name that
    its GatewayHello had. One gateway has one stream: an older one of the same gateway is *superseded*. The gateway has
    closed it, and the engine may not have noticed yet."""

    def __init__(self, metrics: EngineMetrics) -> None:
        self.open: set[int] = set()
        self._metrics = metrics
        self._gateways: dict[int, str] = {}  # stream → gateway
        self._unrecorded = UnrecordedRequests()
        self._lost = LostTokens()
        # Superseded stream → gateway, and by handle the attempts that it had not recorded. A Recorded may still arrive.
        self._superseded: dict[int, tuple[str, dict[int, UnrecordedAttempt]]] = {}

    def accept_frame(self, stream: int, frame: ToEngine) -> bool:
        """Whether the loop handles the frame. Of a superseded stream only Recorded matters."""
        superseded = self._superseded.get(stream)
        if superseded is None:
            self.open.add(stream)
            return True
        gateway, attempts = superseded
        if isinstance(frame, Recorded):
            found = [attempts.pop(handle) for handle in frame.handles if handle in attempts]
            self._note_reclaimed(gateway, sum(self._lost.reclaim(gateway, attempt) for attempt in found))
        return False

    def name_stream(self, stream: int, gateway: str) -> list[int]:
        """The stream's GatewayHello. Returns the streams that it supersedes: the caller ends their requests, then calls
        `supersede`."""
        self._gateways[stream] = gateway
        return [other for other, name in self._gateways.items() if name == gateway and other != stream]

    def note_recorded(self, stream: int, handles: Iterable[int]) -> None:
        self._unrecorded.note_recorded(stream, handles)

    def note_ending(self, sequence: Sequence) -> bool:
        """A request ended: its tokens are unrecorded, or lost if its stream has closed. Returns whether the stream is
        open."""
        sampling = sequence.sampling
        attempt = UnrecordedAttempt(sequence.request_id, sampling.choice, sequence.attempt)
        if sequence.gateway in self.open:
            self._unrecorded.add_unrecorded(sequence.gateway, sequence.handle, attempt, sequence.made_here())
            return True
        self._count_lost(sequence.gateway, attempt, sequence.made_here())
        return False

    def forget_stream(self, stream: int) -> None:
        """The stream was closed, and its requests have ended: tokens that its gateway did not record are lost."""
        self._forget(stream)

    def supersede(self, stream: int) -> None:
        """As `forget_stream`, but the engine has not noticed the stream's end: late frames may arrive."""
        gateway = self._gateways[stream]
        self._superseded[stream] = gateway, self._forget(stream)

    def end_superseded(self, stream: int) -> bool:
        """The engine noticed the end of a superseded stream. False: it was not superseded."""
        return self._superseded.pop(stream, None) is not None

    def reclaim(self, stream: int, attempts: Iterable[AttemptTokens]) -> None:
        """The stream's gateway received these tokens over an earlier stream."""
        gateway = self._gateways.get(stream)
        if gateway is not None:
            named = ((UnrecordedAttempt(own.request_id, own.choice, own.attempt), own.tokens) for own in attempts)
            self._note_reclaimed(gateway, sum(self._lost.reclaim(gateway, attempt, count) for attempt, count in named))

    def _forget(self, stream: int) -> dict[int, UnrecordedAttempt]:
        """Count tokens that the stream did not record as lost, by handle."""
        self.open.discard(stream)
        unrecorded = self._unrecorded.take_unrecorded(stream)
        for attempt, tokens in unrecorded.values():
            self._count_lost(stream, attempt, tokens)
        self._gateways.pop(stream, None)
        return {handle: attempt for handle, (attempt, _) in unrecorded.items()}

    def _count_lost(self, stream: int, attempt: UnrecordedAttempt, tokens: int) -> None:
        if tokens:
            self._metrics.tokens_lost += tokens
            if (gateway := self._gateways.get(stream)) is not None:
                self._lost.add_lost(gateway, attempt, tokens)
            fields = {"request_id": attempt.request_id, "attempt": attempt.attempt, "tokens": tokens}
            _log.warning("tokens.lost", extra={"fields": fields})

    def _note_reclaimed(self, gateway: str, tokens: int) -> None:
        if tokens:
            self._metrics.tokens_reclaimed += tokens
            _log.info("tokens.reclaimed", extra={"fields": {"gateway": gateway, "tokens": tokens}})
