"""A batch that this gateway has claimed: its lease, its lines that wait, and why it ends."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass, field

from billing.clock import SECOND
from gateway.access.callers import Caller
from gateway.batches.claims import LineTask
from gateway.batches.rows import HOUR_S, BatchRow
from gateway.files.contents import ContentReader
from gateway.generation.answer import Answer
from gateway.stored.texts import TextKey

PAUSE_S_MIN, PAUSE_S_MAX = 0.5, 60.0
BUDGET_PAUSE_S_MAX = 10.0  # a budget may be raised, or its window end, at any time


class Pause:
    """A wait that doubles with each failure, until a success. Moments are of the event loop's clock."""

    def __init__(self, longest_s: float = PAUSE_S_MAX) -> None:
        self._longest_s = longest_s
        self._next_s = PAUSE_S_MIN
        self.until = 0.0

    def extend(self, began: float, now: float) -> None:
        """Begin the next wait, unless one was under way when the failed attempt began."""
        if began >= self.until:
            self.until = now + self._next_s
            self._next_s = min(2 * self._next_s, self._longest_s)

    def reset(self) -> None:
        self._next_s = PAUSE_S_MIN

    @property
    def is_doubling(self) -> bool:
        """The last attempt failed."""
        return self._next_s > PAUSE_S_MIN


@dataclass(slots=True, eq=False)
class TargetQueue:
    """The lines of one model or version of an adapter, in their order."""

    target: str
    after: int = -1  # position of the last line that was read
    lines: deque[LineTask] = field(default_factory=deque)
    is_read: bool = False  # all of its lines are read
    delayed: int = 0  # lines that wait before their next attempt
    pause: Pause = field(default_factory=Pause)

    @property
    def is_empty(self) -> bool:
        return self.is_read and not self.lines and not self.delayed


@dataclass(slots=True, eq=False)
class EarlyEnd:
    """Why the remaining lines do not run: the error of each. `listed`: the batch lists it as its own error too."""

    code: str
    message: str
    listed: bool = False


@dataclass(slots=True, eq=False)
class ClaimedBatch:
    """One per claim of this process."""

    row: BatchRow
    epoch: int
    caller: Caller | None = None
    caller_read_at: float = 0.0  # by the event loop's clock
    key: TextKey | None = None
    reader: ContentReader | None = None
    queues: list[TargetQueue] = field(default_factory=list)
    running: dict[int, Answer | None] = field(default_factory=dict)  # by line; None: its request has not begun
    tasks: set[asyncio.Task[None]] = field(default_factory=set)  # of these lines
    # While a budget refuses lines, one runs at a time: the others would hold what each lacks.
    budget_pause: Pause = field(default_factory=lambda: Pause(BUDGET_PAUSE_S_MAX))
    is_out_of_budget: bool = False  # a line was refused while no other line of its tenant ran
    early_end: EarlyEnd | None = None
    is_lost: bool = False  # another gateway has claimed it
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # lines ended, or one of the two before was set

    @property
    def id(self) -> str:
        return self.row.id

    @property
    def tenant_id(self) -> str:
        return self.row.tenant_id

    @property
    def deadline_hour(self) -> int:
        return self.row.deadline_at // (HOUR_S * SECOND)

    @property
    def weight(self) -> float:
        return 1.0 if self.caller is None else self.caller.share_weight

    @property
    def is_stopping(self) -> bool:
        return self.is_lost or self.early_end is not None

    def end_early(self, code: str, message: str, *, listed: bool = False) -> None:
        """No further line runs. The first reason counts."""
        if self.early_end is None:
            self.early_end = EarlyEnd(code, message, listed)
        self.changed.set()

    def note_budget(self, *, covers: bool) -> None:
        """A line was answered, or, if its tenant does not wait, its refusal by a budget is its output. Lines then run
        at once again."""
        self.budget_pause.reset()
        self.is_out_of_budget = not covers

    def lose(self) -> None:
        """Another gateway has the batch."""
        self.is_lost = True
        self.changed.set()

    def ready_queue(self, now: float) -> TargetQueue | None:
        """The first queue with a line that may run now; None: no line may."""
        if self.is_stopping or self.caller is None or now < self.budget_pause.until:
            return None
        if self.budget_pause.is_doubling and self.running:
            return None
        return next((queue for queue in self.queues if queue.lines and now >= queue.pause.until), None)

    def wakes_at(self, now: float) -> float:
        """When the next pause ends after which a line may run; infinite without one."""
        ends = [max(queue.pause.until, self.budget_pause.until) for queue in self.queues if queue.lines]
        return min([end for end in ends if end > now], default=math.inf)
