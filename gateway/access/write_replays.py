"""Idempotency-Key on administrative writes: a repeated write gets the stored answer of the first write.

The row is made in the transaction of the write itself, so a write that was rolled back has no row and may run again,
and a write that was committed never runs a second time, even if its answer could not be stored. Answers are encrypted
with the server secret: the answer of a new key contains the key's secret. Rows are deleted after KEEP_S.
"""

from __future__ import annotations

import hashlib
import logging
import re

import msgspec
import sqlalchemy as sa

from billing.clock import SECOND, database_now
from billing.database import Database, DatabaseUnavailable
from gateway import errors
from gateway.access.sealed_values import SealedValues, ValueUnreadable
from gateway.config.server_secrets import ServerSecrets
from gateway.tables import write_replays

HEADER = "Idempotency-Key"
NAME = re.compile(r"[\x21-\x7e]{1,255}")
KEEP_S = 24 * 3600
IN_FLIGHT_S = 60  # how long a write without an answer counts as in flight
ROWS_MAX = 10_000  # of one key or person
ANSWER_BYTES_MAX = 256 * 1024
_PURPOSE = "answers of administrative writes, format 1"

_log = logging.getLogger(__name__)
_rows = write_replays.c


class WrittenAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The answer of a write. `content_type` None: there is no body."""

    status: int
    content_type: str | None
    body: bytes


class WriteReplayed(Exception):
    """Ends a write that ran before, with the answer of the first."""

    def __init__(self, answer: WrittenAnswer) -> None:
        super().__init__("the write ran before")
        self.answer = answer


class _Row(msgspec.Struct, frozen=True):
    fingerprint: str
    request_id: str
    written_at: int
    answer: bytes | None


_SELECT = sa.select(*(_rows[name] for name in _Row.__struct_fields__))


class IdempotentWrite:
    """One write with an Idempotency-Key. `look_up` before it runs; in its transaction `check_first`, once the revision
    is locked, and `begin_write`; `keep_write` with its answer."""

    __slots__ = ("_actor_id", "_fingerprint", "_name", "_request_id", "_sealing", "begun")

    def __init__(self, secrets: ServerSecrets, *, actor_id: str, name: str, request: bytes, request_id: str) -> None:
        """`request`: method, path, query and body. Raises InvalidRequest."""
        if not NAME.fullmatch(name):
            raise errors.InvalidRequest(f"{HEADER!r} is 1 to 255 printable ASCII characters.", param=HEADER)
        self._sealing = SealedValues(secrets, _PURPOSE)
        self._actor_id = actor_id
        self._name = name
        self._fingerprint = hashlib.sha256(request).hexdigest()
        self._request_id = request_id
        self.begun = False  # whether a transaction of this write has made its row, perhaps to be rolled back

    async def look_up(self, database: Database) -> None:
        """Raises WriteReplayed, IdempotencyMismatch, IdempotencyInFlight, AnswerNotKept, AnswerUnreadable and
        DatabaseUnavailable; otherwise this is the first write."""
        await database.read(self.check_first)

    def check_first(self, connection: sa.Connection) -> None:
        """As `look_up`. Two writes with one Idempotency-Key lock the revision's row one after the other, so this check
        of the second write finds the first write's row."""
        row, now = self._row(connection), database_now(connection)
        if row is None or row.request_id == self._request_id or _is_over(row, now):
            return
        if row.fingerprint != self._fingerprint:
            raise errors.IdempotencyMismatch()
        if row.answer is None:
            in_flight = now < row.written_at + IN_FLIGHT_S * SECOND
            raise errors.IdempotencyInFlight() if in_flight else errors.AnswerNotKept()
        try:
            answer = msgspec.msgpack.decode(self._sealing.unseal(row.answer, self._place), type=WrittenAnswer)
        except ValueUnreadable:
            raise errors.AnswerUnreadable("answered") from None
        raise WriteReplayed(answer)

    def begin_write(self, connection: sa.Connection, tenant_id: str | None) -> None:
        """Insert the row; later calls of the same write have no effect. Raises as `check_first`; RateLimited for an
        actor with ROWS_MAX rows."""
        self.check_first(connection)
        now, row = database_now(connection), self._row(connection)
        if row is not None and row.request_id == self._request_id:
            return
        self._check_room(connection, now)
        connection.execute(sa.delete(write_replays).where(*self._which))
        values: dict[str, object] = {"actor_id": self._actor_id, "name": self._name, "fingerprint": self._fingerprint}
        values |= {"request_id": self._request_id, "tenant_id": tenant_id, "written_at": now}
        connection.execute(sa.insert(write_replays).values(values))
        self.begun = True

    async def keep_write(self, database: Database, answer: WrittenAnswer) -> None:
        """Store the answer, before the client has it. A failure is logged: a repeated write then gets
        AnswerNotKept."""
        if len(answer.body) > ANSWER_BYTES_MAX:
            return
        sealed = self._sealing.seal(msgspec.msgpack.encode(answer), self._place)
        ours = sa.update(write_replays).where(*self._which, _rows.request_id == self._request_id)
        try:
            await database.write(lambda connection: connection.execute(ours.values(answer=sealed)))
        except DatabaseUnavailable as error:
            fields = {"request_id": self._request_id, "reason": str(error)}
            _log.error("replay.not_kept", extra={"fields": fields})

    @property
    def _which(self) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
        return _rows.actor_id == self._actor_id, _rows.name == self._name

    @property
    def _place(self) -> str:
        """The row that the sealed answer is bound to: an answer moved to another row cannot be decrypted."""
        return msgspec.json.encode((self._actor_id, self._name, self._fingerprint)).decode()

    def _row(self, connection: sa.Connection) -> _Row | None:
        found = connection.execute(_SELECT.where(*self._which)).one_or_none()
        return None if found is None else _Row(*found)

    def _check_room(self, connection: sa.Connection, now: int) -> None:
        own = sa.select(sa.func.count(), sa.func.min(_rows.written_at)).where(_rows.actor_id == self._actor_id)
        count, oldest = connection.execute(own).one()
        if count >= ROWS_MAX:
            raise errors.RateLimited(
                f"{HEADER}: this key reached the limit of {ROWS_MAX} writes with this header in 24 hours.",
                retry_after_s=max(1.0, (oldest - now) / SECOND + KEEP_S),
            )


def _is_over(row: _Row, now: int) -> bool:
    return row.written_at + KEEP_S * SECOND <= now


def delete_old_writes(connection: sa.Connection, before: int, limit: int) -> int:
    """Delete at most `limit` rows of writes before a moment, in microseconds UTC. Returns their number."""
    old = sa.select(_rows.actor_id, _rows.name).where(_rows.written_at < before).order_by(_rows.written_at)
    found = connection.execute(old.limit(limit).with_for_update(skip_locked=True)).all()
    for row in found:
        connection.execute(sa.delete(write_replays).where(_rows.actor_id == row.actor_id, _rows.name == row.name))
    return len(found)
