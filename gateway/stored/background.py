"""Responses in the background: written by the gateway that makes them, followed and cancelled at any gateway.

The events of a response are stored in groups as they are made, each group with a checkpoint of the tokens in it
(billing.ledger.checkpoints). Clients receive stored events only, so a client never has an event that is lost with its
gateway.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
import sqlalchemy as sa

from billing.clock import SECOND, database_now
from billing.coalescer import Coalescer
from billing.database import Database, DatabaseUnavailable
from billing.ledger.checkpoints import Checkpoint, record_checkpoint, usage_so_far
from gateway.errors import encode
from gateway.stored.conversation_items import TurnItems
from gateway.stored.conversations import append_turn
from gateway.stored.rebuilt import rebuild_response, split_events
from gateway.stored.responses import RESPONSE_ID, is_orphaned, readable
from gateway.stored.texts import TextKey, TextKeys, TextUnreadable
from gateway.tables import response_events, responses

EVENTS_KEPT_S = 3600.0  # after the end of a response
WRITES_MAX = 32  # groups of one transaction
GROUPS_READ_MAX = 64  # at once
ENDED_AT_ONCE = 20  # lost responses, and responses whose events are deleted, of one transaction
UNENDED = ("queued", "in_progress")
LOST_MESSAGE = "The gateway that made this response was lost."
REQUEST_PREFIX, RESPONSE_PREFIX = "req_", "resp_"  # of the ids of a request and of its response

_log = logging.getLogger(__name__)
# "cancelled": the group is written, and a client has cancelled the response. "gone": nothing is written: the
# row was deleted or the response has ended. "lost": nothing is written, because the Auditor took this gateway for dead
# and ended the hold.
WriteResult = Literal["written", "cancelled", "gone", "lost"]
# The `usage` of a response object, of prompt, cached and completion tokens.
UsageData = Callable[[Checkpoint], dict[str, Any]]


class EventGroup(msgspec.Struct, frozen=True):
    """Server-sent events with the numbers from `first` to `last`."""

    first: int
    last: int
    events: bytes


class ResponseEnd(msgspec.Struct, frozen=True):
    """The last state of a response: its status, the response object, and what its conversation gets."""

    status: str
    response: bytes
    added: TurnItems | None = None


class EventWrite(msgspec.Struct, frozen=True):
    """A group of events of one response. `checkpoint`: the tokens up to this group; None: no token is billed. `end`:
    set for the last group. `repeated`: an earlier attempt may have been committed, as its result was not received."""

    tenant_id: str
    response_id: str
    group: EventGroup
    checkpoint: Checkpoint | None
    end: ResponseEnd | None = None
    repeated: bool = False


class BackgroundState(msgspec.Struct, frozen=True):
    """A response, and its events after a number. `response`: the response object; without output until it has ended.
    `events` None: they are deleted, or the response was not made in the background."""

    status: str
    background: bool
    response: bytes
    events: list[bytes] | None

    @property
    def has_ended(self) -> bool:
        return self.status not in UNENDED


class BackgroundStore:
    """One per gateway process."""

    def __init__(self, database: Database, gateway_id: str, keys: TextKeys, usage_data: UsageData) -> None:
        self._database = database
        self._gateway_id = gateway_id
        self._keys = keys
        self._usage_data = usage_data
        self._writes: Coalescer[EventWrite, WriteResult] = Coalescer(
            self._write_groups, name="background-events", batch_max=WRITES_MAX
        )
        # By response id. An event lives as long as a reader waits for it.
        self._changes: weakref.WeakValueDictionary[str, asyncio.Event] = weakref.WeakValueDictionary()

    async def queue_response(self, tenant_id: str, response_id: str, response: bytes) -> bool:
        """Make the row of `ResponseStore.begin_turn` a response in the background. `response`: the object without
        output. False: the row was deleted meanwhile. Raises DatabaseUnavailable."""

        def update(connection: sa.Connection) -> bool:
            key = self._key(connection, tenant_id)
            if key is None:
                return False
            sealed = key.seal(response, f"{response_id} answer")
            values = {"background": True, "status": "queued", "answer": sealed}
            row = sa.update(responses).where(responses.c.id == response_id, responses.c.text_key_id == key.id)
            size = responses.c.bytes + len(sealed)
            return connection.execute(row.values(**values, bytes=size)).rowcount > 0

        return await self._database.write_in_background(update)

    async def write_events(self, write: EventWrite) -> WriteResult:
        """Store a group; in one transaction with groups of other responses. Raises DatabaseUnavailable."""
        result = await self._writes.submit(write)
        if (changed := self._changes.pop(write.response_id, None)) is not None:
            changed.set()
        return result

    def change_of(self, response_id: str) -> asyncio.Event:
        """Set when this process next stores a group of the response."""
        return self._changes.setdefault(response_id, asyncio.Event())  # the caller holds the only reference

    async def read_response(self, tenant_id: str, response_id: str, after: int | None = None) -> BackgroundState | None:
        """The response; with `after`, its first GROUPS_READ_MAX groups that have later events. None: unknown, another
        tenant's or expired. Raises DatabaseUnavailable."""
        return await self._database.read(lambda c: self._read(c, tenant_id, response_id, after))

    async def current_response(self, tenant_id: str, response_id: str) -> BackgroundState | None:
        """As `read_response`; the response object of a response that has not ended has its output so far."""

        def read(connection: sa.Connection) -> BackgroundState | None:
            state = self._read(connection, tenant_id, response_id, None)
            if state is None or state.has_ended or not state.response:
                return state
            key = self._key(connection, tenant_id)
            events = [] if key is None else self._events(connection, key, response_id)
            rebuilt = rebuild_response(state.response, events, status=state.status)
            return msgspec.structs.replace(state, response=rebuilt)

        return await self._database.read(read)

    async def request_cancel(self, tenant_id: str, response_id: str) -> None:
        """No effect on a response that has ended. Raises DatabaseUnavailable."""
        row = sa.update(responses).where(responses.c.id == response_id, responses.c.tenant_id == tenant_id)
        row = row.where(responses.c.background, responses.c.status.in_(UNENDED)).values(cancel_requested=True)
        await self._database.write_in_background(lambda connection: connection.execute(row).rowcount)

    async def cancelled_ids(self) -> list[str]:
        """The responses of this gateway that a client has asked to cancel. Raises DatabaseUnavailable."""
        query = sa.select(responses.c.id).where(responses.c.gateway_id == self._gateway_id)
        query = query.where(responses.c.status.in_(UNENDED), responses.c.cancel_requested)
        return await self._database.read(lambda connection: list(connection.execute(query).scalars()))

    async def end_lost(self, response_id: str) -> None:
        """End a response of this gateway as failed: it was taken for dead. Raises DatabaseUnavailable."""
        await self._database.write_in_background(lambda connection: self._end_lost(connection, [response_id]))
        if (changed := self._changes.pop(response_id, None)) is not None:
            changed.set()

    async def run(self, every_s: float) -> None:
        """End the responses of dead gateways, and delete events that are older than EVENTS_KEPT_S, every `every_s`
        seconds until cancelled."""
        while True:
            try:
                while await self._database.write_in_background(self._end_orphans) == ENDED_AT_ONCE:
                    pass
                while await self._database.write_in_background(delete_old_events) == ENDED_AT_ONCE:
                    pass
            except DatabaseUnavailable as error:
                _log.warning("background.not_ended", extra={"fields": {"reason": str(error)}})
            await asyncio.sleep(every_s)

    # ---- in a transaction

    async def _write_groups(self, writes: list[EventWrite]) -> Sequence[WriteResult]:
        # In the order of their ids, as the ledger locks holds.
        order = sorted(range(len(writes)), key=lambda index: writes[index].response_id)

        def run(connection: sa.Connection) -> list[WriteResult]:
            results: list[WriteResult] = ["written"] * len(writes)
            changed: list[EventWrite] = []
            for index in order:
                write = writes[index]
                if write.repeated and self._is_written(connection, write):
                    continue
                results[index] = self._write(connection, write)
                if results[index] == "written":
                    changed.append(write)
            self._append_turns(connection, changed)
            return results

        return await self._database.write_in_background(run)

    def _append_turns(self, connection: sa.Connection, writes: list[EventWrite]) -> None:
        """Append the items of responses that ended to their conversations, which are locked in the order of their
        ids."""
        ended = [(write.end.added, write) for write in writes if write.end is not None and write.end.added is not None]
        for added, write in sorted(ended, key=lambda pair: pair[0].conversation_id):
            try:
                with connection.begin_nested():
                    append_turn(connection, self._keys, write.tenant_id, added)
            except TextUnreadable as error:
                fields = {"conversation": added.conversation_id, "reason": str(error)}
                _log.error("conversation.not_appended", extra={"fields": fields})

    def _write(self, connection: sa.Connection, write: EventWrite) -> WriteResult:
        with connection.begin_nested() as savepoint:
            try:
                result = self._try_write(connection, write)
            except TextUnreadable as error:  # of this tenant alone
                fields = {"response": write.response_id, "reason": str(error)}
                _log.error("response.key_unreadable", extra={"fields": fields})
                result = "gone"
            if result in ("gone", "lost"):
                savepoint.rollback()
            return result

    def _try_write(self, connection: sa.Connection, write: EventWrite) -> WriteResult:
        if write.checkpoint is not None and not record_checkpoint(connection, write.checkpoint):
            return "lost"
        key = self._key(connection, write.tenant_id)
        if key is None:
            return "gone"
        group = write.group
        sealed = key.seal(zlib.compress(group.events), f"{write.response_id} events {group.first}")
        values: dict[str, Any] = {"status": "in_progress", "bytes": responses.c.bytes + len(sealed)}
        if write.end is not None:
            answer = key.seal(write.end.response, f"{write.response_id} answer")
            size = values["bytes"] + len(answer) - sa.func.length(responses.c.answer)
            values = {"status": write.end.status, "answer": answer, "bytes": size, "events_until": _until(connection)}
        row = sa.update(responses).where(responses.c.id == write.response_id, responses.c.text_key_id == key.id)
        row = row.where(responses.c.status.in_(UNENDED)).values(values).returning(responses.c.cancel_requested)
        cancelled = connection.execute(row).scalar_one_or_none()
        if cancelled is None:
            return "gone"
        values = {"response_id": write.response_id, "first_number": group.first, "last_number": group.last}
        connection.execute(sa.insert(response_events).values(**values, events=sealed))
        return "cancelled" if cancelled and write.end is None else "written"

    def _is_written(self, connection: sa.Connection, write: EventWrite) -> bool:
        events = response_events.c
        where = (events.response_id == write.response_id, events.first_number == write.group.first)
        return bool(connection.execute(sa.select(sa.exists().where(*where))).scalar_one())

    def _read(
        self, connection: sa.Connection, tenant_id: str, response_id: str, after: int | None
    ) -> BackgroundState | None:
        if not RESPONSE_ID.fullmatch(response_id):  # a database refuses some texts
            return None
        row = connection.execute(readable(connection, tenant_id, [response_id])).one_or_none()
        if row is None:
            return None
        try:
            key = self._keys.unwrap(row.text_key_id, tenant_id, row.wrapped)
            answer = b"" if row.answer is None else key.open(row.answer, f"{row.id} answer")
            events: list[bytes] | None = None
            if after is not None and row.background and (row.status in UNENDED or row.events_until is not None):
                events = self._events(connection, key, response_id, after, GROUPS_READ_MAX)
        except TextUnreadable as error:
            _log.error("response.unreadable", extra={"fields": {"response": row.id, "reason": str(error)}})
            return None
        return BackgroundState(row.status, row.background, answer, events)

    def _events(
        self, connection: sa.Connection, key: TextKey, response_id: str, after: int = -1, groups_max: int | None = None
    ) -> list[bytes]:
        """The events with numbers above `after`. Raises TextUnreadable."""
        query = sa.select(response_events).where(response_events.c.response_id == response_id)
        query = query.where(response_events.c.last_number > after).order_by(response_events.c.first_number)
        found: list[bytes] = []
        for row in connection.execute(query.limit(groups_max)):
            opened = zlib.decompress(key.open(row.events, f"{response_id} events {row.first_number}"))
            found += split_events(opened)[max(0, after + 1 - row.first_number) :]
        return found

    def _end_orphans(self, connection: sa.Connection) -> int:
        """End up to ENDED_AT_ONCE responses of dead gateways. Returns their number."""
        query = sa.select(responses.c.id).where(responses.c.background, responses.c.status.in_(UNENDED), is_orphaned())
        ids = list(connection.execute(query.limit(ENDED_AT_ONCE)).scalars())
        self._end_lost(connection, ids)
        return len(ids)

    def _end_lost(self, connection: sa.Connection, ids: Sequence[str]) -> None:
        for response_id in sorted(ids):
            row = sa.update(responses).where(responses.c.id == response_id, responses.c.status.in_(UNENDED))
            row = row.values(status="failed", events_until=_until(connection))
            ended = connection.execute(row.returning(responses.c.tenant_id, responses.c.answer)).one_or_none()
            if ended is None:  # another gateway has ended it
                continue
            try:
                if (key := self._key(connection, ended.tenant_id)) is not None:
                    self._write_lost(connection, key, response_id, ended.answer)
            except TextUnreadable as error:  # `responses.delete_unreadable` deletes the row once its key is deleted
                _log.error("response.unreadable", extra={"fields": {"response": response_id, "reason": str(error)}})

    def _write_lost(self, connection: sa.Connection, key: TextKey, response_id: str, answer: bytes) -> None:
        """Write the response object and the last event of a response whose gateway was lost."""
        events = self._events(connection, key, response_id)
        checkpoint = usage_so_far(connection, REQUEST_PREFIX + response_id.removeprefix(RESPONSE_PREFIX))
        response = rebuild_response(
            key.open(answer, f"{response_id} answer"),
            events,
            status="failed",
            error={"code": "server_error", "message": LOST_MESSAGE},
            usage=None if checkpoint is None else self._usage_data(checkpoint),
        )
        number = len(events)
        data = {"type": "response.failed", "response": msgspec.Raw(response), "sequence_number": number}
        event = b"event: response.failed\ndata: " + encode(data) + b"\n\n"
        sealed = key.seal(zlib.compress(event), f"{response_id} events {number}")
        values = {"response_id": response_id, "first_number": number, "last_number": number, "events": sealed}
        connection.execute(sa.insert(response_events).values(values))
        new = key.seal(response, f"{response_id} answer")
        size = responses.c.bytes + len(sealed) + len(new) - len(answer)
        connection.execute(sa.update(responses).where(responses.c.id == response_id).values(answer=new, bytes=size))

    def _key(self, connection: sa.Connection, tenant_id: str) -> TextKey | None:
        return self._keys.key_of(connection, tenant_id)


def delete_old_events(connection: sa.Connection) -> int:
    """Delete the events of up to ENDED_AT_ONCE responses that ended more than EVENTS_KEPT_S ago. Returns the number of
    responses."""
    query = sa.select(responses.c.id).where(responses.c.events_until < database_now(connection)).limit(ENDED_AT_ONCE)
    ids = list(connection.execute(query).scalars())
    if ids:
        of_response = response_events.c.response_id == responses.c.id
        size = sa.select(sa.func.sum(sa.func.length(response_events.c.events))).where(of_response).scalar_subquery()
        row = sa.update(responses).where(responses.c.id.in_(ids))
        connection.execute(row.values(bytes=responses.c.bytes - sa.func.coalesce(size, 0), events_until=None))
        connection.execute(sa.delete(response_events).where(response_events.c.response_id.in_(ids)))
    return len(ids)


def _until(connection: sa.Connection) -> int:
    """When the events of a response that ends now are deleted."""
    return database_now(connection) + round(EVENTS_KEPT_S * SECOND)
