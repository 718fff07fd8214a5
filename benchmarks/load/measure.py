"""The outcome of every request, and the tool's own lag. Times are seconds on one clock.

It must never know how a figure is shown, nor a server.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import Counter, deque
from dataclasses import dataclass, field

OUTCOMES_MAX = 1_000_000
GAPS_MAX = 50_000_000  # 4 bytes each; later gaps are counted, not stored
ERROR_KINDS_MAX = 64  # later kinds are counted together
RECENT_MAX = 4096  # first tokens that the progress line looks back on
LAG_EVERY_S = 0.01
LAGS_MAX = 1_000_000


@dataclass(slots=True)
class Outcome:
    """One request, from its scheduled arrival to its end. `error` is None exactly when the whole answer arrived."""

    tenant: str
    tier: str | None  # the requested tier, else the tier that served it
    model: str
    due_s: float  # scheduled arrival; in a closed loop the moment of sending
    sent_s: float
    first_s: float | None = None  # first text
    end_s: float = 0.0
    gaps: array[float] = field(default_factory=lambda: array("f"))  # seconds between two events with text
    error: str | None = None
    usage: bool = False  # from the server; otherwise completion_tokens counts events
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    @property
    def ttft_s(self) -> float:
        """From the scheduled arrival, not from the sending, so that a late tool or server counts as latency."""
        return (self.end_s if self.first_s is None else self.first_s) - self.due_s

    @property
    def e2e_s(self) -> float:
        return self.end_s - self.due_s

    @property
    def tpot_s(self) -> float:
        """Mean time per output token after the first; 0 for one token."""
        if self.first_s is None or self.completion_tokens < 2:
            return 0.0
        return (self.end_s - self.first_s) / (self.completion_tokens - 1)


class Recorder:
    """Collects outcomes and counts requests in flight, for one phase of a run: the warm-up has a separate recorder."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.errors: Counter[str] = Counter()
        self.sent = self.in_flight = self.in_flight_max = 0
        self.abandoned = 0  # in flight when the run was stopped
        self.tokens = 0
        self.gaps_kept = self.gaps_dropped = 0
        self.recent_ttft: deque[float] = deque(maxlen=RECENT_MAX)

    @property
    def failed(self) -> int:
        return self.errors.total()

    def began(self) -> None:
        self.sent += 1
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)

    def abandon(self) -> None:
        self.in_flight -= 1
        self.abandoned += 1

    def ended(self, outcome: Outcome) -> None:
        self.in_flight -= 1
        self.add(outcome)

    def add(self, outcome: Outcome) -> None:
        assert len(self.outcomes) < OUTCOMES_MAX
        if self.gaps_kept + len(outcome.gaps) > GAPS_MAX:
            self.gaps_dropped += len(outcome.gaps)
            outcome.gaps = array("f")
        self.gaps_kept += len(outcome.gaps)
        self.outcomes.append(outcome)
        if outcome.error is not None:
            known = outcome.error in self.errors or len(self.errors) < ERROR_KINDS_MAX
            self.errors[outcome.error if known else "other"] += 1
            return
        self.tokens += outcome.completion_tokens
        self.recent_ttft.append(outcome.ttft_s)


class LoopLag:
    """How late this process's own event loop runs a timer, and the share of a core that it uses.

    A tool that lags measures itself, and the report has a warning.
    """

    def __init__(self) -> None:
        self.lags: array[float] = array("f")
        self._began_s = self._began_cpu_s = 0.0
        self.wall_s = self.cpu_s = 0.0

    async def watch(self) -> None:
        """Measure until cancelled."""
        self._began_s, self._began_cpu_s = time.perf_counter(), time.process_time()
        try:
            while True:
                due = time.perf_counter() + LAG_EVERY_S
                await asyncio.sleep(LAG_EVERY_S)
                if len(self.lags) < LAGS_MAX:
                    self.lags.append(max(0.0, time.perf_counter() - due))
        finally:
            self.wall_s = time.perf_counter() - self._began_s
            self.cpu_s = time.process_time() - self._began_cpu_s
