"""Remembers keys for which the ledger has just refused even the smallest request: their next requests are refused
before the bodies are read.

The ledger decides: an entry expires after REMEMBER_S, at the end of the budget's window, and when an administrative
write moves the revision. This module must never know a request's contents.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from billing.clock import SECOND
from gateway.access.callers import Caller
from gateway.errors import BudgetExceeded, ReachedLimit

REMEMBER_S = 1.0
KEYS_MAX = 10_000  # beyond it the oldest entry is dropped


class _Memory(msgspec.Struct, frozen=True, gc=False):
    revision: int | None  # when it was noted; a later write may have raised the budget
    until: float  # by `clock`
    resets_at: int | None  # microseconds UTC, by the database's clock
    message: str
    code: str
    limit: ReachedLimit | None


class ExhaustedBudgets:
    """The memory of one gateway process."""

    def __init__(
        self,
        now_s: Callable[[], float],
        revision: Callable[[], int | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now_s`: Unix seconds by the database's clock. `revision`: the last revision that this gateway has read."""
        self._now_s = now_s
        self._revision = revision
        self._clock = clock
        self._known: dict[str, _Memory] = {}

    def note_refusal(self, caller: Caller, error: BudgetExceeded) -> None:
        """Note a refusal by the ledger. Only a budget whose posted usage alone leaves too little for any request is
        remembered."""
        if not error.nothing_left:
            return
        self._known.pop(caller.key_id, None)
        if len(self._known) >= KEYS_MAX:
            del self._known[next(iter(self._known))]
        until = self._clock() + REMEMBER_S
        self._known[caller.key_id] = _Memory(
            self._revision(), until, error.resets_at, error.message, error.code or "", error.limit
        )

    def check_budget(self, caller: Caller) -> None:
        """Raises BudgetExceeded with the ledger's message while the refusal is remembered."""
        known = self._known.get(caller.key_id)
        if known is None:
            return
        over = known.resets_at is not None and known.resets_at <= self._now_s() * SECOND
        if known.revision != self._revision() or known.until <= self._clock() or over:
            del self._known[caller.key_id]
            return
        raise BudgetExceeded(known.message, code=known.code, limit=known.limit)
