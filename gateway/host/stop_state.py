"""Whether and how this gateway process stops: the reason, the phases that follow from it, and their times."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import IntEnum
from typing import Literal, NamedTuple

from gateway.config.settings import GatewaySection

# After SIGINT a person waits at a terminal: running requests have no longer than this.
QUICK_GRACE_S = 2.0
# The parts of the grace time for `StopTimes.settle_s` and `close_s`; running requests have the time before
# (`finish_s`). Requests that then still run are stopped and settled in `settle_s`; ledger, journal and lease are closed
# in `close_s`.
SETTLE_PART, SETTLE_S_MAX = 0.3, 3.0
CLOSE_PART, CLOSE_S_MAX = 0.2, 2.0
# A connection that was accepted last has this long to send a request's first byte.
FIRST_BYTE_S = 2.0

Phase = Literal["serving", "lingering", "finishing", "drained"]


class StopReason(IntEnum):
    """Why the process stops; a later reason counts if it is higher."""

    NONE = 0
    DRAIN = 1  # `laneway drain`: the process runs on, without a listener, until a signal
    REPLACED = 2  # SIGHUP: another worker has taken over the port
    STOP = 3  # SIGTERM
    QUICK = 4  # SIGINT, or a background task that failed


class StopTimes(NamedTuple):
    """The grace time in three parts, in seconds: running requests may end, the remaining requests are settled, and
    journal, ledger and lease are closed."""

    finish_s: float
    settle_s: float
    close_s: float

    @classmethod
    def of(cls, grace_s: float) -> StopTimes:
        settle_s, close_s = min(grace_s * SETTLE_PART, SETTLE_S_MAX), min(grace_s * CLOSE_PART, CLOSE_S_MAX)
        return cls(grace_s - settle_s - close_s, settle_s, close_s)


class StopState:
    """The stop of one gateway process. `begin_stop` may be called from a signal handler: it sets fields only."""

    def __init__(self, gateway: GatewaySection, now: Callable[[], float] = time.monotonic) -> None:
        self._linger_s = gateway.linger_s
        self._grace_s = gateway.shutdown_grace_s
        self._now = now
        self._began_at = 0.0
        self.reason = StopReason.NONE
        self._listens = True  # until `note_closed`
        self._drained = False

    def begin_stop(self, reason: StopReason) -> None:
        """Stop for `reason`. A lower reason than the present one has no effect."""
        if self.reason is StopReason.NONE:
            self._began_at = self._now()
        self.reason = max(self.reason, reason)

    def note_closed(self) -> None:
        """The listener is closed."""
        self._listens = False

    def note_drained(self) -> None:
        """The listener is closed and no request runs."""
        self._drained = True

    @property
    def times(self) -> StopTimes:
        """The parts of the grace time, after SIGINT the parts of QUICK_GRACE_S."""
        return StopTimes.of(min(self._grace_s, QUICK_GRACE_S) if self.is_quick else self._grace_s)

    @property
    def is_stopping(self) -> bool:
        """Answers carry `Connection: close`, so that clients connect to another process or host."""
        return self.reason is not StopReason.NONE

    @property
    def is_quick(self) -> bool:
        return self.reason is StopReason.QUICK

    @property
    def exits(self) -> bool:
        """Whether the process ends when no request runs."""
        return self.reason >= StopReason.REPLACED

    @property
    def hides(self) -> bool:
        """Whether /health/ready answers 503. Not for a replaced worker: its host continues to serve."""
        return self.is_stopping and self.reason is not StopReason.REPLACED

    @property
    def phase(self) -> Phase:
        if not self.is_stopping:
            return "serving"
        if self._drained:
            return "drained"
        return "lingering" if self._listens else "finishing"

    @property
    def seconds(self) -> float:
        """Seconds since the stop began; 0 before."""
        return self._now() - self._began_at if self.is_stopping else 0.0

    def stops_listening(self) -> bool:
        """Whether the listener is to be closed now. Without a successor it remains open for `linger_s`."""
        if self.reason in (StopReason.DRAIN, StopReason.STOP):
            return self.seconds >= self._linger_s
        return self.is_stopping

    @property
    def closes_idle(self) -> bool:
        """Whether connections without a request are to be closed now. For `linger_s` they remain open, and a client
        that reuses one gets `Connection: close`: its request could be lost in a connection that is being closed."""
        return self.is_quick or self.seconds >= self._linger_s

    def is_overdue(self) -> bool:
        """Whether requests that still run are to be cut now. `laneway drain` alone cuts none."""
        return self.is_quick or (self.exits and self.seconds >= self._linger_s + self.times.finish_s)


def stop_s(gateway: GatewaySection) -> float:
    """The longest time from SIGTERM to the exit, in seconds."""
    return gateway.linger_s + gateway.shutdown_grace_s


def quick_stop_s(gateway: GatewaySection) -> float:
    """The longest time from SIGINT to the exit, in seconds."""
    return min(gateway.shutdown_grace_s, QUICK_GRACE_S)
