"""Watches the parts of this gateway's health for operators' webhooks, and reports bad parts to the database, where
all gateways together make the events.

While the database is unavailable the gateways cannot agree. Then the first worker of each host sends the event about
the database itself, without the outbox, and all of them send the same event id.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
import time
from collections.abc import Awaitable, Callable

from billing.accounts.outbox import ATTEMPTS_MAX, ClaimedDelivery, Receiver, wait_s
from billing.clock import SECOND
from billing.database import Database, DatabaseUnavailable
from gateway.config.file import Config
from gateway.host.workers import WorkerIndex
from gateway.metrics import Metrics
from gateway.upkeep.health_checks import HealthReport
from gateway.upkeep.problem_events import (
    DATABASE,
    DETAIL_CHARS_MAX,
    Outage,
    ProblemEvent,
    ProblemsView,
    ReportTimes,
    read_problems,
    step_problems,
)

REPORTS_LATE = 3  # rounds after which a report without a newer one is ignored
CHECKS_S_MAX = 30.0  # beside them
READ_S_MAX = 10.0
STATUS_S = 30.0  # between two checks of the parts while no webhook is for problems
# These read the database: while it is down, their own state is unknown.
OF_DATABASE = frozenset(("gateways", "books", "exports", "connectors"))

_log = logging.getLogger(__name__)

Attempt = Callable[[ClaimedDelivery[ProblemEvent]], Awaitable[str | None]]


class _OutageNotice:
    """The event about an unavailable database, and its attempts, in this process's memory."""

    def __init__(self, known: ProblemsView, reason: str) -> None:
        self.began = time.monotonic()
        self.reason = reason
        self._known = known
        self.event: ProblemEvent | None = None
        self._attempts: dict[str, int] = {}
        self._due: dict[str, float] = {}
        self._delivered: set[str] = set()

    @property
    def is_new(self) -> bool:
        """False: webhooks were notified before that the database is down."""
        return self._known.database is None or self._known.database.status != "down"

    def make_event(self, host: str) -> ProblemEvent:
        """Make an event. Its id depends on the rows that all gateways have read, so all of them make the same id."""
        if self.event is None:
            first = min((receiver.id for receiver in self._known.receivers), default="")
            id_ = "evt_" + hashlib.sha256(f"{self._known.newest} {first}".encode()).hexdigest()[:32]
            opened_by = None if self._known.database is None else self._known.database.opened_by
            self.event = ProblemEvent(
                id=id_,
                type="opened" if opened_by is None else "worsened",
                part=DATABASE,
                status="down",
                detail=self.reason[:DETAIL_CHARS_MAX],
                hosts=[host],
                gateways=1,
                opened_by=opened_by or id_,
                occurred_at=round(time.time() * SECOND),
            )
        return self.event

    def claim_due(self, event: ProblemEvent, retry_s: float) -> list[ClaimedDelivery[ProblemEvent]]:
        """Count an attempt of each delivery that is due, as an outbox does."""
        now = time.monotonic()
        claimed = []
        for receiver in self._known.receivers:
            attempt = self._attempts.get(receiver.id, 0) + 1
            if self._is_due(receiver, now) and attempt <= ATTEMPTS_MAX:
                self._attempts[receiver.id] = attempt
                self._due[receiver.id] = now + wait_s(attempt, retry_s)
                claimed.append(ClaimedDelivery(event, receiver, attempt))
        return claimed

    def note_delivered(self, receiver: Receiver) -> None:
        self._delivered.add(receiver.id)

    def outage(self) -> Outage | None:
        """The event to write after the outage; None: it was too short for an event."""
        return None if self.event is None else Outage(self.event, frozenset(self._delivered))

    def _is_due(self, receiver: Receiver, now: float) -> bool:
        return receiver.id not in self._delivered and self._due.get(receiver.id, now) <= now


class ProblemWatch:
    """One per gateway process."""

    def __init__(
        self,
        config: Config,
        gateway_id: str,
        *,
        database: Database,
        place: WorkerIndex,
        check: Callable[[], Awaitable[HealthReport]],
        attempt: Attempt,
        metrics: Metrics,
    ) -> None:
        """`check`: the health of all parts. `attempt`: posts one delivery, and returns why it failed."""
        self._gateway_id = gateway_id
        self._database = database
        self._sends_outages = place.number == 0
        self._check = check
        self._attempt = attempt
        self._metrics = metrics
        self._host = socket.gethostname()
        self._retry_s = config.webhooks.retry_s
        self._times = ReportTimes(
            after_s=config.webhooks.problem_after_s,
            renew_s=config.lease.renew_s,
            report_s_max=REPORTS_LATE * config.webhooks.poll_s + CHECKS_S_MAX,
        )
        self._known: ProblemsView | None = None
        self._notice: _OutageNotice | None = None
        self._reading: asyncio.Task[ProblemsView] | None = None
        self._checked_at = -STATUS_S  # when a round without webhooks last checked the parts, on the monotonic clock

    async def run(self, every_s: float) -> None:
        """Check the parts until cancelled."""
        try:
            while True:
                try:
                    await self.run_once()
                except Exception as fault:  # noqa: BLE001 - requests are served even if problems cannot be watched
                    self._metrics.errors.inc()
                    _log.exception("problems.failed", exc_info=fault)
                await asyncio.sleep(every_s)
        finally:
            if self._reading is not None:
                self._reading.cancel()

    async def run_once(self) -> None:
        """Check the parts once, if a webhook is for problems or a problem is open, and report bad parts. Otherwise
        check them every STATUS_S: the health report says since when a part has its status."""
        try:
            self._known = await self._read_known()
            if not self._known.receivers and not self._known.rows and self._notice is None:
                if time.monotonic() - self._checked_at >= STATUS_S:
                    self._checked_at = time.monotonic()
                    await self._check()
                return
            await self._report(self._known)
        except DatabaseUnavailable as error:
            _log.warning("problems.later", extra={"fields": {"reason": str(error)}})
            if self._known is not None and self._known.receivers:
                await self._send_outage(self._known, error.write_fault or str(error))

    async def _read_known(self) -> ProblemsView:
        """Raises DatabaseUnavailable, also if the database has not answered for READ_S_MAX. The next round waits for
        the same read: a second one would only occupy another reader thread."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._database.read(read_problems), name="problems-read")
        done, _ = await asyncio.wait([self._reading], timeout=READ_S_MAX)
        if not done:
            raise DatabaseUnavailable(f"it has not answered for {READ_S_MAX:g} s")
        read, self._reading = self._reading, None
        return read.result()

    async def _report(self, known: ProblemsView) -> None:
        """Raises DatabaseUnavailable."""
        report = await self._check()
        found = {item.name: (item.status, item.detail) for item in report.data if item.status != "ok"}
        if any(item.name == DATABASE and item.status == "down" for item in report.data):
            found = {name: finding for name, finding in found.items() if name not in OF_DATABASE}
        outage = None if self._notice is None else self._notice.outage()
        if not found and not known.rows and outage is None:
            self._notice = None
            return  # nothing to write, so a sound SQLite database has no writes of this watch
        made = await self._database.write_in_background(
            lambda connection: step_problems(connection, self._gateway_id, self._host, found, self._times, outage)
        )
        self._notice = None
        for event in made:
            fields = {"id": event.id, "part": event.part, "status": event.status, "opened_by": event.opened_by}
            _log.warning(f"problem.{event.type}", extra={"fields": fields})

    async def _send_outage(self, known: ProblemsView, reason: str) -> None:
        if self._notice is None:
            self._notice = _OutageNotice(known, f"the database is unavailable: {reason}")
        notice = self._notice
        if not self._sends_outages or not notice.is_new or time.monotonic() - notice.began < self._times.after_s:
            return
        claimed = notice.claim_due(notice.make_event(self._host), self._retry_s)
        errors = await asyncio.gather(*map(self._attempt, claimed))
        for delivery, error in zip(claimed, errors, strict=True):
            if error is None:
                notice.note_delivered(delivery.receiver)
