"""Problems of the whole deployment: what each gateway finds, which problems are open, and their events with an outbox.

All gateways of a database run `step_problems`, one after another under the lock of the revision's row, so a change
becomes one event. This module must never know how a part is checked or how an event is sent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import msgspec
import sqlalchemy as sa

from billing import revision
from billing.accounts.outbox import RECEIVER, Receiver, State, WebhookOutbox
from billing.accounts.webhooks import PROBLEMS
from billing.clock import SECOND, database_now
from billing.ids import new_id
from billing.ledger.leases import AHEAD_MAX
from billing.tables import leases, webhooks
from gateway.tables import problem_deliveries, problem_events, problem_reports, problems
from gateway.upkeep.health_checks import RANK, Finding, Status

EventType = Literal["opened", "worsened", "resolved"]
DETAIL_CHARS_MAX = 500
HOSTS_MAX = 10  # named in an event
# The part of the database itself, which no event can be written about while it is unavailable.
DATABASE = "database"
RETAIN_S = 90 * 24 * 3600  # events of resolved problems are deleted after this time

_reports, _problems, _events, _deliveries = (
    problem_reports.c, problems.c, problem_events.c, problem_deliveries.c,
)  # fmt: skip


class ProblemEvent(msgspec.Struct, frozen=True):
    """A part of the deployment became bad, became worse, or is sound again. `opened_by`: the id of the event that
    opened the problem, its own for `opened`. `hosts`: of the gateways that found it, at most HOSTS_MAX. `occurred_at`
    in microseconds UTC."""

    id: str
    type: EventType
    part: str
    status: Status
    detail: str
    hosts: list[str]
    gateways: int
    opened_by: str
    occurred_at: int


class ProblemDelivery(msgspec.Struct, frozen=True):
    """The delivery of an event to one webhook; moments in microseconds UTC."""

    event_id: str
    webhook_id: str
    state: State
    attempts: int
    next_attempt_at: int | None
    delivered_at: int | None
    last_error: str | None


class OpenProblem(msgspec.Struct, frozen=True):
    """The row of a part in `problems`; moments in microseconds UTC."""

    part: str
    bad_since: int | None = None
    down_since: int | None = None
    good_since: int | None = None
    opened_by: str | None = None
    status: Status | None = None


class ProblemsView(msgspec.Struct, frozen=True):
    """The rows that a gateway reads before it checks its parts. `newest`: the id of the newest event, "" without
    events."""

    receivers: list[Receiver]
    rows: int
    database: OpenProblem | None
    newest: str


class _Report(msgspec.Struct, frozen=True):
    """One gateway's finding about one part."""

    part: str
    host: str
    status: Status
    detail: str


class Outage(msgspec.Struct, frozen=True):
    """An event about the database that a gateway sent without it, and the webhooks that received it."""

    event: ProblemEvent
    delivered_to: frozenset[str]


class ReportTimes(msgspec.Struct, frozen=True):
    """Seconds. `after_s`: how long a part is bad, or sound again, before an event. `renew_s`: between two renewals of
    a lease. `report_s_max`: the age at which a report is ignored, since its gateway checks no more."""

    after_s: float
    renew_s: float
    report_s_max: float


_SELECT = sa.select(*(_events[name] for name in ProblemEvent.__struct_fields__))
_earlier, _before = problem_deliveries.alias("earlier"), problem_events.alias("before")
# Events of one problem reach a webhook in their order: a resolution never overtakes the event that opened.
_WAITS = (
    sa.select(_earlier.c.event_id)
    .join(_before, _before.c.id == _earlier.c.event_id)
    .where(
        _before.c.opened_by == _events.opened_by,
        _before.c.sequence < _events.sequence,
        _earlier.c.webhook_id == _deliveries.webhook_id,
        _earlier.c.state == "pending",
    )
    .exists()
)
OUTBOX = WebhookOutbox(
    problem_deliveries,
    "event_id",
    _SELECT.join(problem_deliveries, _deliveries.event_id == _events.id)
    .join(webhooks, webhooks.c.id == _deliveries.webhook_id)
    .where(~_WAITS),
    ProblemEvent,
)


def read_problems(connection: sa.Connection) -> ProblemsView:
    """The webhooks that receive problems, the number of rows about problems, and the open problems that an outage of
    the database would continue."""
    rows = [
        int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())
        for table in (problems, problem_reports)
    ]
    newest = connection.execute(sa.select(_events.id).order_by(_events.sequence.desc()).limit(1)).scalar()
    return ProblemsView(_receivers(connection), sum(rows), _open(connection).get(DATABASE), newest or "")


def step_problems(
    connection: sa.Connection,
    gateway_id: str,
    host: str,
    findings: Mapping[str, Finding],
    times: ReportTimes,
    outage: Outage | None = None,
) -> list[ProblemEvent]:
    """Replace what this gateway found, and write an event for each problem that all living gateways together have had,
    or have not had, for `times.after_s`. Returns the events."""
    revision.lock(connection)
    now = database_now(connection)
    if outage is not None:
        _record_outage(connection, outage, now)
    _write_reports(connection, gateway_id, host, findings, now)
    reports = _read_reports(connection, now, times)
    made: list[ProblemEvent] = []
    for part, before in _open(connection, set(reports)).items():
        after, event = _step(before, reports.get(part, []), round(times.after_s * SECOND), now)
        if event is not None:
            _insert(connection, event, now)
            made.append(event)
        _store(connection, before, after)
    if made:
        _delete_old(connection, now)
    return made


def list_problem_events(connection: sa.Connection, limit: int) -> list[tuple[ProblemEvent, list[ProblemDelivery]]]:
    """Events, newest first, with their deliveries."""
    found = [ProblemEvent(*row) for row in connection.execute(_SELECT.order_by(_events.sequence.desc()).limit(limit))]
    query = sa.select(problem_deliveries).where(_deliveries.event_id.in_([event.id for event in found]))
    deliveries = [ProblemDelivery(*row) for row in connection.execute(query.order_by(_deliveries.webhook_id))]
    return [(event, [one for one in deliveries if one.event_id == event.id]) for event in found]


def _step(
    before: OpenProblem, reports: Sequence[_Report], after: int, now: int
) -> tuple[OpenProblem | None, ProblemEvent | None]:
    """The problem after these reports of one part, None if it is over, and the event of its change. `after` in
    microseconds."""
    if not reports:
        good_since = before.good_since or now
        if before.opened_by is None:
            return None, None
        if now - good_since < after:
            return OpenProblem(before.part, None, None, good_since, before.opened_by, before.status), None
        return None, ProblemEvent(
            new_id("evt"), "resolved", before.part, "ok", "the part is sound again", [], 0, before.opened_by, now
        )
    worst = max(reports, key=lambda report: RANK[report.status])
    bad_since = before.bad_since or now
    down_since = (before.down_since or now) if worst.status == "down" else None
    opens = before.opened_by is None and now - bad_since >= after
    worsens = before.status == "degraded" and down_since is not None and now - down_since >= after
    opened_by, status = before.opened_by, before.status
    event = None
    if opens or worsens:
        hosts = sorted({report.host for report in reports})[:HOSTS_MAX]
        id_, status = new_id("evt"), worst.status
        opened_by = id_ if opens else before.opened_by
        assert opened_by is not None
        type_: EventType = "opened" if opens else "worsened"
        event = ProblemEvent(id_, type_, before.part, status, worst.detail, hosts, len(reports), opened_by, now)
    return OpenProblem(before.part, bad_since, down_since, None, opened_by, status), event


def _receivers(connection: sa.Connection) -> list[Receiver]:
    open_ = sa.and_(webhooks.c.active, ~webhooks.c.paused, webhooks.c.tenant_id.is_(None))
    query = sa.select(*RECEIVER, webhooks.c.events).where(open_)
    return [Receiver(*row[:-1]) for row in connection.execute(query.order_by(webhooks.c.id)) if PROBLEMS in row.events]


def _open(connection: sa.Connection, parts: Collection[str] = ()) -> dict[str, OpenProblem]:
    """The rows of `problems` by part, and new ones for the other `parts`."""
    query = sa.select(*(_problems[name] for name in OpenProblem.__struct_fields__))
    rows = {row.part: OpenProblem(*row) for row in connection.execute(query)}
    return {part: rows.get(part, OpenProblem(part)) for part in sorted({*rows, *parts})}


def _write_reports(
    connection: sa.Connection, gateway_id: str, host: str, findings: Mapping[str, Finding], now: int
) -> None:
    connection.execute(sa.delete(problem_reports).where(_reports.gateway_id == gateway_id))
    rows = [
        {
            "gateway_id": gateway_id,
            "part": part,
            "host": host,
            "status": status,
            "detail": detail[:DETAIL_CHARS_MAX],
            "found_at": now,
        }
        for part, (status, detail) in findings.items()
        if status != "ok"
    ]
    if rows:
        connection.execute(sa.insert(problem_reports), rows)


def _read_reports(connection: sa.Connection, now: int, times: ReportTimes) -> dict[str, list[_Report]]:
    """Reports of living gateways by part. The others are deleted."""
    living = sa.select(leases.c.gateway_id).where(
        leases.c.expires_at > now,
        leases.c.renewed_at > now - round(3 * times.renew_s * SECOND),
        leases.c.renewed_at <= now + AHEAD_MAX,
    )
    over = sa.or_(_reports.gateway_id.not_in(living), _reports.found_at < now - round(times.report_s_max * SECOND))
    connection.execute(sa.delete(problem_reports).where(over))
    found: dict[str, list[_Report]] = {}
    columns = (_reports[name] for name in _Report.__struct_fields__)
    for row in connection.execute(sa.select(*columns).order_by(_reports.host, _reports.gateway_id)):
        found.setdefault(row.part, []).append(_Report(*row))
    return found


def _store(connection: sa.Connection, before: OpenProblem, after: OpenProblem | None) -> None:
    if after == before:
        return
    connection.execute(sa.delete(problems).where(_problems.part == before.part))
    if after is not None:
        connection.execute(sa.insert(problems).values(msgspec.structs.asdict(after)))


def _insert(
    connection: sa.Connection, event: ProblemEvent, now: int, delivered_to: Collection[str] = frozenset()
) -> None:
    """Write the event and its deliveries: of a problem's first event to every webhook for problems, of a later one to
    the webhooks of the first."""
    connection.execute(sa.insert(problem_events).values(msgspec.structs.asdict(event)))
    receivers = {receiver.id for receiver in _receivers(connection)}
    if event.type != "opened":
        first = sa.select(_deliveries.webhook_id).where(_deliveries.event_id == event.opened_by)
        receivers &= set(connection.execute(first).scalars())
    rows = [
        {
            "event_id": event.id,
            "webhook_id": webhook_id,
            "state": "delivered" if webhook_id in delivered_to else "pending",
            "attempts": 1 if webhook_id in delivered_to else 0,
            "next_attempt_at": None if webhook_id in delivered_to else now,
            "delivered_at": now if webhook_id in delivered_to else None,
        }
        for webhook_id in sorted(receivers)
    ]
    if rows:
        connection.execute(sa.insert(problem_deliveries), rows)


def _record_outage(connection: sa.Connection, outage: Outage, now: int) -> None:
    """Write the event of an outage after it, unless another gateway has written it. The problem is then open, and is
    resolved as any other event."""
    event = outage.event
    if connection.execute(sa.select(_events.id).where(_events.id == event.id)).first() is not None:
        sent = sa.update(problem_deliveries).where(
            _deliveries.event_id == event.id,
            _deliveries.webhook_id.in_(outage.delivered_to),
            _deliveries.state == "pending",
        )
        connection.execute(sent.values(state="delivered", delivered_at=now, next_attempt_at=None, last_error=None))
        return
    before = _open(connection, {DATABASE})[DATABASE]
    if before.opened_by != (None if event.type == "opened" else event.opened_by):
        return  # another gateway has opened or resolved it meanwhile
    _insert(connection, event, now, outage.delivered_to)
    _store(connection, before, OpenProblem(DATABASE, event.occurred_at, now, None, event.opened_by, "down"))


def _delete_old(connection: sa.Connection, now: int) -> None:
    """Delete the events of problems that were resolved RETAIN_S ago."""
    resolved = sa.select(_events.opened_by).where(
        _events.type == "resolved", _events.occurred_at < now - RETAIN_S * SECOND
    )
    old = list(connection.execute(sa.select(_events.id).where(_events.opened_by.in_(resolved))).scalars())
    if old:
        connection.execute(sa.delete(problem_deliveries).where(_deliveries.event_id.in_(old)))
        connection.execute(sa.delete(problem_events).where(_events.id.in_(old)))
