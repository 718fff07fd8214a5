"""Tokens that no ledger has yet: tokens of finished requests whose settlement their gateway has not confirmed, and
tokens that were counted as lost with a gateway's stream and that the gateway may reclaim.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

# Requests of one gateway. Above this the oldest count as recorded, so that a gateway which never confirms cannot fill
# the memory.
UNRECORDED_MAX = 65_536
# Lost attempts that are remembered: of one gateway, and of all. Above these the oldest remain lost.
LOST_MAX = 65_536
LOST_TOTAL_MAX = 4 * LOST_MAX


class UnrecordedAttempt(NamedTuple):
    """The Submit with these fields: what AttemptTokens names."""

    request_id: str
    choice: int
    attempt: int


class UnrecordedRequests:
    """Unrecorded requests by stream. For the loop's thread."""

    def __init__(self, limit: int = UNRECORDED_MAX) -> None:
        self._limit = limit
        self._gateways: dict[int, dict[int, tuple[UnrecordedAttempt, int]]] = {}  # handle → attempt, tokens

    def add_unrecorded(self, gateway: int, handle: int, attempt: UnrecordedAttempt, tokens: int) -> None:
        if not tokens:
            return
        requests = self._gateways.setdefault(gateway, {})
        requests[handle] = attempt, tokens
        if len(requests) > self._limit:
            del requests[next(iter(requests))]

    def note_recorded(self, gateway: int, handles: Iterable[int]) -> None:
        requests = self._gateways.get(gateway, {})
        for handle in handles:
            requests.pop(handle, None)

    def take_unrecorded(self, gateway: int) -> dict[int, tuple[UnrecordedAttempt, int]]:
        """The attempts and tokens, by handle, that a disconnected gateway did not record: they are lost."""
        return self._gateways.pop(gateway, {})


class LostTokens:
    """Tokens counted as lost, by the name of the gateway (GatewayHello) and attempt. For the loop's thread."""

    def __init__(self, limit: int = LOST_MAX, total_limit: int = LOST_TOTAL_MAX) -> None:
        self._limit, self._total_limit = limit, total_limit
        # The gateway that lost tokens last is at the end; of each gateway the oldest attempt is first.
        self._gateways: OrderedDict[str, dict[UnrecordedAttempt, int]] = OrderedDict()
        self._count = 0

    def add_lost(self, gateway: str, attempt: UnrecordedAttempt, tokens: int) -> None:
        own = self._gateways.setdefault(gateway, {})
        self._gateways.move_to_end(gateway)
        before = own.pop(attempt, 0)
        own[attempt] = before + tokens
        self._count += not before
        if len(own) > self._limit:
            self._forget_oldest(gateway)
        while self._count > self._total_limit:
            self._forget_oldest(next(iter(self._gateways)))

    def reclaim(self, gateway: str, attempt: UnrecordedAttempt, tokens: int | None = None) -> int:
        """The gateway received `tokens` of an attempt's tokens (None: all). Returns how many of them are no longer
        lost: 0 if the attempt is unknown or was reclaimed before."""
        own = self._gateways.get(gateway)
        lost = own.pop(attempt, 0) if own else 0
        if not lost:
            return 0
        self._count -= 1
        if not own:
            del self._gateways[gateway]
        return lost if tokens is None else max(0, min(tokens, lost))

    def _forget_oldest(self, gateway: str) -> None:
        own = self._gateways[gateway]
        del own[next(iter(own))]
        self._count -= 1
        if not own:
            del self._gateways[gateway]
