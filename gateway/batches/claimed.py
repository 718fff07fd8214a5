"""A batch that this gateway has claimed: its lease, its lines that wait, and why it ends. `claims_of` chooses which
batches it claims next."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from billing.clock import SECOND
from gateway.access.callers import Caller
from gateway.batches.claims import Claimable, LineTask
from gateway.batches.rows import HOUR_S, BatchRow
from gateway.files.backends import ContentStoreFailed
from gateway.files.contents import ContentReader
from gateway.files.rows import new_file_id
from gateway.generation.answer import Answer
from gateway.stored.texts import TextKey

PAUSE_S_MIN, PAUSE_S_MAX = 0.5, 60.0
BUDGET_PAUSE_S_MAX = 10.0  # a budget may be raised, or its window end, at any time
BATCHES_MAX = 64  # that one gateway process has claimed, beside batches that only wait
CLAIMED_MAX = 512  # that one gateway process has claimed, with batches that only wait
# After the deadline: failures to read the input, one after another, after which its unread lines end without it.
INPUT_FAILURES_MAX = 5


class InputUnavailable(ContentStoreFailed):
    """The input file of a batch cannot be read now."""


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
    # While a budget refuses lines, one line runs at a time: holds of further lines would reduce the amount that each
    # line needs.
    budget_pause: Pause = field(default_factory=lambda: Pause(BUDGET_PAUSE_S_MAX))
    is_refused_alone: bool = False  # the last line was refused, and no line of its tenant had a hold
    is_out_of_budget: bool = False  # the next line was refused so too
    numbers: dict[int, int] = field(default_factory=dict)  # of the last attempt of each line under this lease
    # The file ids of this lease. A later lease has other ids, see `plan_assembly`.
    output_file_id: str = field(default_factory=new_file_id)
    error_file_id: str = field(default_factory=new_file_id)
    input_failures: int = 0  # one after another
    has_lost_input: bool = False  # a line could not be read: the input file is to be opened again
    is_past_deadline: bool = False
    early_end: EarlyEnd | None = None
    is_lost: bool = False  # this worker runs it no longer
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

    @property
    def is_input_given_up(self) -> bool:
        return self.is_past_deadline and self.input_failures >= INPUT_FAILURES_MAX

    @property
    def only_waits(self) -> bool:
        """Its last attempts were refused by a budget, or by the models of all its lines."""
        open_queues = [queue for queue in self.queues if not queue.is_empty]
        refused = bool(open_queues) and all(queue.pause.is_doubling for queue in open_queues)
        return not self.is_stopping and (refused or self.budget_pause.is_doubling)

    def next_number(self, line: int) -> int:
        """The number of the next attempt of a line under this lease, from 1. No number is used twice."""
        self.numbers[line] = self.numbers.get(line, 0) + 1
        return self.numbers[line]

    def close_input(self) -> None:
        """Forget the open input file and the key: a repeated stage opens both again."""
        if self.reader is not None:
            self.reader.close()
        self.reader = self.key = None

    def end_early(self, code: str, message: str, *, listed: bool = False) -> None:
        """No further line runs. The first reason counts."""
        if self.early_end is None:
            self.early_end = EarlyEnd(code, message, listed)
        self.changed.set()

    def note_budget(self, *, covers: bool) -> None:
        """A line was answered, or, if its tenant does not wait, its refusal by a budget is its output. Lines then run
        at once again."""
        self.budget_pause.reset()
        self.is_refused_alone = self.is_out_of_budget = not covers

    def note_refusal(self, *, is_alone: bool) -> None:
        """A budget refused a line. `is_alone`: no line of the tenant has a hold now. Another line may have had one at
        the refusal, so two refusals without a hold are final."""
        self.is_out_of_budget |= is_alone and self.is_refused_alone
        self.is_refused_alone = is_alone

    def lose(self) -> None:
        """This worker runs the batch no longer: another gateway has claimed it, or its lease is released."""
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


def claims_of(claimable: Sequence[Claimable], claimed: Collection[ClaimedBatch]) -> list[Claimable]:
    """Which batches a worker claims next: of tenants with few claims first, then by deadline. A tenant has at most half
    of the claims that other tenants leave, so a tenant with many batches leaves claims to others. Batches that only
    wait have a limit of their own."""
    all_of = Counter(batch.tenant_id for batch in claimed)
    busy_of = Counter(batch.tenant_id for batch in claimed if not batch.only_waits)
    chosen = []
    for found in sorted(claimable, key=lambda found: busy_of[found.tenant_id] + found.rank):  # stable: by deadline
        tenant_id = found.tenant_id
        if _has_room(busy_of, tenant_id, BATCHES_MAX) and _has_room(all_of, tenant_id, CLAIMED_MAX):
            chosen.append(found)
            busy_of[tenant_id] += 1
            all_of[tenant_id] += 1
    return chosen


def _has_room(claims: Counter[str], tenant_id: str, limit: int) -> bool:
    own, total = claims[tenant_id], claims.total()
    return total < limit and own < max(1, (limit - (total - own)) // 2)
