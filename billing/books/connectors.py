"""Usage that connectors push to other systems: tokens by tenant, UTC hour and meter, each amount once.

Usage is added up in the order of its sequence, up to the roll-ups' cursor. Before an event is sent, its amount and the
number of its part are committed, and both change only after the receiver has the event. So an event that is repeated,
after a crash for example, has the same identifier and the same amount, and the receiver drops it. Usage that arrives
after its hour was sent is the hour's next part. This module knows no HTTP.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.accounts.outbox import ERROR_CHARS_MAX, wait_s
from billing.accounts.prices import METERS
from billing.books import rollups
from billing.books.rollups import HOUR
from billing.clock import SECOND, Clock, database_now
from billing.errors import RowNotFound
from billing.finance_tables import OPEN_HOURS, SENT_HOURS, billing_profiles, connector_hours, connectors

COLLECT_MAX = 50_000  # usage rows in one transaction
ALL_TENANTS: Collection[str] | None = None

_usage = tables.usage
_hours = connector_hours.c
TOTAL_HOUR = 0  # of the rows that have the sums of deleted hours
KEYS_AT_ONCE = 100  # of rows that one statement deletes


class PushEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An amount to send now. `hour`: its start, microseconds UTC. `attempt` counts from 1. `maybe_sent`: an earlier
    attempt had no answer, so the receiver may have the event."""

    connector: str
    tenant_id: str
    meter: str
    hour: int
    tokens: int
    part: int
    attempt: int
    maybe_sent: bool

    @property
    def identifier(self) -> str:
        """The same for each attempt; at most 100 characters. Two connectors may push to one account."""
        name = hashlib.sha256(self.connector.encode()).hexdigest()[:8]
        return f"{name}-{self.tenant_id}-{self.meter}-{self.hour // SECOND}-{self.part}"


class PushFailure(msgspec.Struct, frozen=True):
    """`certain`: the receiver does not have the event."""

    reason: str
    certain: bool


class ConnectorState(msgspec.Struct, frozen=True, kw_only=True):
    """`waiting`: hours and meters with tokens that are due and not sent. `lag_s`: the time since the end of the oldest
    of these hours; 0: none. `retrying`: hours and meters whose last attempt failed or has no answer yet;
    `next_attempt_at`: the first of their next attempts. `stuck`: hours and meters that are sent only after an
    operator's release; `stuck_reason`: the reason of one of them."""

    name: str
    gateway_id: str | None = None
    sequence: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    lag_s: int = 0
    sent_tokens: int = 0
    retrying: int = 0
    next_attempt_at: int | None = None
    stuck: int = 0
    stuck_reason: str | None = None
    without_account: int = 0
    sent_at: int | None = None
    failed_at: int | None = None
    last_error: str | None = None


def take_lease(
    connection: sa.Connection, name: str, gateway_id: str, lease_s: float, clock: Clock = database_now
) -> bool:
    """Whether this gateway pushes for the connector until `lease_s` from now. A connector that is new begins with the
    usage after the roll-ups' cursor."""
    now = clock(connection)
    until = now + round(lease_s * SECOND)
    if connection.execute(sa.select(connectors.c.name).where(connectors.c.name == name)).first() is None:
        folded = rollups.lock_cursor(connection).sequence
        if connection.execute(sa.select(connectors.c.name).where(connectors.c.name == name)).first() is None:
            connection.execute(sa.insert(connectors).values(name=name, start_sequence=folded, sequence=folded))
    free = sa.or_(connectors.c.gateway_id == gateway_id, connectors.c.lease_until.is_(None))
    mine = sa.and_(connectors.c.name == name, sa.or_(free, connectors.c.lease_until <= now))
    taken = connection.execute(sa.update(connectors).where(mine).values(gateway_id=gateway_id, lease_until=until))
    return taken.rowcount == 1


def collect(connection: sa.Connection, name: str, *, limit: int = COLLECT_MAX) -> bool:
    """Add the usage rows after the connector's sequence to its hours, about `limit` of them. Returns whether there may
    be more."""
    row = connection.execute(sa.select(connectors).where(connectors.c.name == name).with_for_update()).one()
    folded = rollups.read_cursor(connection).sequence
    upto = min(folded, row.sequence + limit)
    if upto <= row.sequence:
        return False
    batch = sa.and_(_usage.c.sequence > row.sequence, _usage.c.sequence <= upto)
    nothing = sa.literal_column("0", sa.BigInteger)
    for meter in METERS:
        tokens = sa.func.sum(rollups.meters()[f"{meter}_tokens"])
        key = {"tenant_id": _usage.c.tenant_id.expression, "hour": rollups.hour()}
        counters = dict.fromkeys(("sent", "part", "attempts", "next_attempt_at"), nothing)
        named = {"connector": sa.literal(name, sa.String), "meter": sa.literal(meter, sa.String)}
        columns = named | key | {"recorded": tokens} | counters
        rows = sa.select(*columns.values()).where(batch).group_by(*key.values()).having(tokens > 0)
        rollups.add_sums(connection, connector_hours, rows, columns)
    connection.execute(sa.update(connectors).where(connectors.c.name == name).values(sequence=upto))
    return bool(upto < folded)


def claim_push_events(
    connection: sa.Connection,
    name: str,
    *,
    after_s: float,
    retry_s: float,
    sure_s: float,
    age_s_max: float,
    limit: int,
    tenant_ids: Collection[str] | None = ALL_TENANTS,
    clock: Clock = database_now,
) -> list[PushEvent]:
    """Events that are due, the oldest hours first, of hours that ended `after_s` ago. They are due again after
    `retry_s`, doubled with each attempt, unless `record_push_results` records success. An event that may have arrived
    over `sure_s` ago, or whose hour is over `age_s_max` ago, is stuck: the receiver would not know the identifier any
    more, or would refuse it."""
    now = clock(connection)
    due = sa.and_(OPEN_HOURS, _hours.connector == name, _hours.stuck.is_(None), _hours.next_attempt_at <= now)
    query = sa.select(connector_hours).where(due, _hours.hour <= now - HOUR - round(after_s * SECOND))
    if tenant_ids is not None:
        query = query.where(_hours.tenant_id.in_(tenant_ids))
    rows = connection.execute(
        query.order_by(_hours.hour, _hours.tenant_id, _hours.meter).limit(limit).with_for_update(skip_locked=True)
    ).all()
    found: list[PushEvent] = []
    for row in rows:
        if now - row.hour > age_s_max * SECOND:
            _set(connection, row, stuck="the hour is older than the receiver accepts")
            continue
        if row.unsure_since is not None and now - row.unsure_since > sure_s * SECOND:
            _set(connection, row, stuck="an attempt without an answer is too long ago to be repeated safely")
            continue
        is_new = row.sending is None
        event = PushEvent(
            connector=name,
            tenant_id=row.tenant_id,
            meter=row.meter,
            hour=row.hour,
            tokens=row.recorded - row.sent if is_new else row.sending,
            part=row.part + 1 if is_new else row.part,
            attempt=1 if is_new else row.attempts + 1,
            maybe_sent=row.unsure_since is not None,
        )
        _set(
            connection,
            row,
            sending=event.tokens,
            part=event.part,
            attempts=event.attempt,
            next_attempt_at=now + round(wait_s(event.attempt, retry_s) * SECOND),
            unsure_since=now if row.unsure_since is None else row.unsure_since,
        )
        found.append(event)
    return found


def record_push_results(
    connection: sa.Connection,
    name: str,
    results: Sequence[tuple[PushEvent, PushFailure | None]],
    clock: Clock = database_now,
) -> None:
    """Record attempts; a failure None: the receiver has the event. An event whose success another gateway recorded
    meanwhile does not change."""
    now = clock(connection)
    sent = 0
    for event, failure in results:
        own = sa.and_(_is(event), _hours.part == event.part, _hours.sending == event.tokens)
        if failure is None:
            done = {"sent": _hours.sent + event.tokens, "sending": None, "unsure_since": None}
            update = sa.update(connector_hours).where(own).values(**done, attempts=0, next_attempt_at=0)
            sent += event.tokens * connection.execute(update).rowcount
        elif failure.certain and not event.maybe_sent:
            connection.execute(sa.update(connector_hours).where(own).values(unsure_since=None))
    last = next((failure for _, failure in reversed(results) if failure is not None), None)
    values: dict[str, object] = {"failed_at": None, "last_error": None}
    if last is not None:
        values = {"failed_at": now, "last_error": last.reason[:ERROR_CHARS_MAX]}
    if any(failure is None for _, failure in results):
        values |= {"sent_at": now, "sent_tokens": connectors.c.sent_tokens + sent}
    connection.execute(sa.update(connectors).where(connectors.c.name == name).values(values))


def release(connection: sa.Connection, name: str) -> int:
    """Send stuck events again, with their identifiers and amounts. Returns their number. Raises RowNotFound."""
    if connection.execute(sa.select(connectors.c.name).where(connectors.c.name == name)).first() is None:
        raise RowNotFound(f"there is no connector {name!r}, or it has not run yet", "name")
    stuck = sa.and_(_hours.connector == name, _hours.stuck.is_not(None))
    free = sa.update(connector_hours).where(stuck).values(stuck=None, unsure_since=None, next_attempt_at=0)
    return connection.execute(free).rowcount


def fold_old_hours(connection: sa.Connection, before: int, limit: int) -> int:
    """Replace at most `limit` hours that began before a moment and were sent by their sums, in rows of TOTAL_HOUR, so
    that the proof of the recorded tokens still has them. Returns their number."""
    connection.execute(sa.select(connectors.c.name).order_by(connectors.c.name).with_for_update())
    old = sa.and_(SENT_HOURS, _hours.sending.is_(None), _hours.hour > TOTAL_HOUR, _hours.hour < before)
    key = (_hours.connector, _hours.tenant_id, _hours.meter, _hours.hour)
    query = sa.select(*key, _hours.recorded).where(old).order_by(_hours.hour).limit(limit)
    rows = connection.execute(query.with_for_update(skip_locked=True)).all()
    sums: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        sums[row.connector, row.tenant_id, row.meter] += row.recorded
    for at in range(0, len(rows), KEYS_AT_ONCE):
        some = [tuple(row[:4]) for row in rows[at : at + KEYS_AT_ONCE]]
        connection.execute(sa.delete(connector_hours).where(sa.tuple_(*key).in_(some)))
    for (name, tenant_id, meter), tokens in sorted(sums.items()):
        total = {"connector": name, "tenant_id": tenant_id, "meter": meter, "hour": TOTAL_HOUR}
        own = [_hours[column] == value for column, value in total.items()]
        added = {"recorded": _hours.recorded + tokens, "sent": _hours.sent + tokens}
        if not connection.execute(sa.update(connector_hours).where(*own).values(added)).rowcount:
            counters = {"recorded": tokens, "sent": tokens, "part": 0, "attempts": 0, "next_attempt_at": 0}
            connection.execute(sa.insert(connector_hours).values(total | counters))
    return len(rows)


def accounts(connection: sa.Connection, name: str) -> dict[str, str]:
    """The accounts of tenants in the connector's system, by tenant."""
    query = sa.select(billing_profiles.c.tenant_id, billing_profiles.c.accounts)
    return {row.tenant_id: row.accounts[name] for row in connection.execute(query) if name in row.accounts}


def list_connector_states(
    connection: sa.Connection, *, after_s: float, needs_account: Collection[str] = (), clock: Clock = database_now
) -> list[ConnectorState]:
    """All connectors that have run, by name. `needs_account`: the names of connectors that push only for tenants
    with an account."""
    now = clock(connection)
    found = []
    for row in connection.execute(sa.select(connectors).order_by(connectors.c.name)):
        own = _hours.connector == row.name
        left = _hours.recorded - _hours.sent
        due = sa.and_(own, OPEN_HOURS, _hours.hour <= now - HOUR - round(after_s * SECOND))
        sums = sa.select(sa.func.count(), sa.func.sum(left), sa.func.min(_hours.hour)).where(due)
        waiting, tokens, oldest = connection.execute(sums).one()
        stuck = connection.execute(
            sa.select(sa.func.count(), sa.func.min(_hours.stuck)).where(due, _hours.stuck.is_not(None))
        ).one()
        tried = sa.and_(due, _hours.stuck.is_(None), _hours.attempts > 0)
        retrying, next_attempt_at = connection.execute(
            sa.select(sa.func.count(), sa.func.min(_hours.next_attempt_at)).where(tried)
        ).one()
        without = 0
        if row.name in needs_account:
            known = list(accounts(connection, row.name))
            lacking = sa.select(sa.func.count(sa.distinct(_hours.tenant_id))).where(due, _hours.tenant_id.not_in(known))
            without = int(connection.execute(lacking).scalar_one())
        found.append(
            ConnectorState(
                name=row.name,
                gateway_id=row.gateway_id if row.lease_until is not None and row.lease_until > now else None,
                sequence=row.sequence,
                waiting=int(waiting),
                waiting_tokens=int(tokens or 0),
                lag_s=0 if oldest is None else max(0, (now - oldest - HOUR) // SECOND),
                sent_tokens=row.sent_tokens,
                retrying=int(retrying),
                next_attempt_at=next_attempt_at,
                stuck=int(stuck[0]),
                stuck_reason=stuck[1],
                without_account=without,
                sent_at=row.sent_at,
                failed_at=row.failed_at,
                last_error=row.last_error,
            )
        )
    return found


def _is(event: PushEvent) -> sa.ColumnElement[bool]:
    return sa.and_(
        _hours.connector == event.connector,
        _hours.tenant_id == event.tenant_id,
        _hours.meter == event.meter,
        _hours.hour == event.hour,
    )


def _set(connection: sa.Connection, row: sa.Row[tuple[object, ...]], **values: object) -> None:
    key = row._mapping
    own = sa.and_(
        _hours.connector == key["connector"],
        _hours.tenant_id == key["tenant_id"],
        _hours.meter == key["meter"],
        _hours.hour == key["hour"],
    )
    connection.execute(sa.update(connector_hours).where(own).values(values))
