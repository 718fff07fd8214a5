"""Tokens that the ledger has and whose engine process may not have received the confirmation.

They outlive a connection and a member: an engine that leaves the roster and returns, or that gets another address, is
still the same process, and has counted the tokens that a closed connection had not confirmed as lost.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from engine.protocol.frames import AttemptTokens

# Attempts whose tokens are reclaimed at each new connection to their engine process.
RECLAIMS_MAX = 65_536
# The newest attempts that were confirmed as recorded: a broken network may have lost the confirmation.
RECORDED_MAX = 32_768


class Confirmations:
    """One per gateway process."""

    def __init__(self) -> None:
        self._reclaims: OrderedDict[tuple[str, str, int, int], AttemptTokens] = OrderedDict()  # epoch first
        self._recorded: deque[tuple[str, AttemptTokens]] = deque(maxlen=RECORDED_MAX)  # with the epoch

    def note_reclaimed(self, epoch: str, tokens: AttemptTokens) -> None:
        """The ledger has tokens whose connection was lost before their confirmation."""
        self._reclaims[epoch, tokens.request_id, tokens.choice, tokens.attempt] = tokens
        if len(self._reclaims) > RECLAIMS_MAX:
            self._reclaims.popitem(last=False)

    def note_recorded(self, epoch: str, tokens: AttemptTokens) -> None:
        """A confirmation was sent. After a loss of the connection it is repeated as a reclaim, which an engine that
        received it ignores."""
        self._recorded.append((epoch, tokens))

    def of_engine(self, epoch: str) -> list[AttemptTokens]:
        """The tokens that a new connection to the engine process reclaims."""
        reclaims = [tokens for key, tokens in self._reclaims.items() if key[0] == epoch]
        return reclaims + [tokens for recorded, tokens in self._recorded if recorded == epoch]
