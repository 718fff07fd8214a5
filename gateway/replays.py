"""Idempotency-Key: a call that came before is answered again with what it was answered then, and runs once.

The database has it, since a replay must not be lost with a cache: a row names the request that ran, and whether that
was paid for is what its hold says. The answer is kept before it is settled, so whoever is billed can have it. It must
never know what an answer says.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from billing import tables
from billing.clock import SECOND, database_now
from billing.database import Database, DatabaseUnavailable
from gateway import errors
from gateway.tables import replays

HEADER = "Idempotency-Key"
KEEP_S = 600.0  # an answer, from when it was made
BEGIN_S_MAX = 5.0  # a database that hangs keeps nobody waiting for longer
WRITE_S_MAX = 2.0  # an answer waits no longer for being kept
ANSWER_BYTES_MAX = 4 * 1024 * 1024  # a longer one is not kept; who asks again is told so

_NAME = re.compile(r"[\x21-\x7e]{1,255}")
_log = logging.getLogger(__name__)

_WHOSE = (replays.c.key_id == sa.bindparam("whose"), replays.c.name == sa.bindparam("called"))
_INSERT = {
    "sqlite": sqlite.insert(replays).on_conflict_do_nothing().returning(replays.c.request_id),
    "postgresql": postgresql.insert(replays).on_conflict_do_nothing().returning(replays.c.request_id),
}
_FIND = (
    sa.select(replays, tables.holds.c.state, tables.leases.c.expires_at.label("gateway_until"))
    .select_from(
        replays.outerjoin(tables.holds, tables.holds.c.request_id == replays.c.request_id).outerjoin(
            tables.leases, tables.leases.c.gateway_id == replays.c.gateway_id
        )
    )
    .where(*_WHOSE)
)
_LOCK = sa.select(replays.c.request_id).where(*_WHOSE).with_for_update()


class Replayed(msgspec.Struct, frozen=True):
    """What the call was answered before, and the request that it was."""

    request_id: str
    body: bytes


class First:
    """A call that has not come before. End it once: `keep` its answer before it is settled, or `forget` it when it made
    nothing that anybody pays for."""

    __slots__ = ("_database", "_kept", "_request_id")

    def __init__(self, database: Database, request_id: str) -> None:
        self._database = database
        self._request_id = request_id
        self._kept = False

    async def keep(self, body: bytes) -> None:
        """Whether it is replayed is now its hold's matter: when that is not settled, the call may run again."""
        self._kept = True

        def run(connection: sa.Connection) -> None:
            values: dict[str, Any] = {"expires_at": database_now(connection) + round(KEEP_S * SECOND)}
            if len(body) <= ANSWER_BYTES_MAX:
                values["answer"] = body
            connection.execute(sa.update(replays).where(replays.c.request_id == self._request_id).values(values))

        await self._write("replay.not_kept", run)

    async def forget(self) -> None:
        """After `keep` nothing happens."""
        if not self._kept:
            self._kept = True
            delete = sa.delete(replays).where(replays.c.request_id == self._request_id)
            await self._write("replay.not_forgotten", lambda connection: connection.execute(delete))

    async def _write(self, event: str, change: Any) -> None:
        try:
            async with asyncio.timeout(WRITE_S_MAX):
                await self._database.write(change)
        except (DatabaseUnavailable, TimeoutError) as error:
            # The row stays as it was, or is written later: the call is in flight until its hold has ended.
            _log.error(event, extra={"fields": {"request_id": self._request_id, "reason": repr(error)}})


class Replays:
    """The calls that came with an Idempotency-Key, of all gateways."""

    def __init__(self, database: Database, gateway_id: str) -> None:
        self._database = database
        self._gateway_id = gateway_id
        self._forgetting: set[asyncio.Future[None]] = set()

    async def begin(self, *, key_id: str, name: str, route: str, body: bytes, request_id: str) -> First | Replayed:
        """Raises InvalidRequest, IdempotencyInFlight, IdempotencyMismatch, AnswerNotKept, and DatabaseUnavailable."""
        if not _NAME.fullmatch(name):
            raise errors.InvalidRequest(f"{HEADER!r} is 1 to 255 printable ASCII characters.", param=HEADER)
        fingerprint = hashlib.sha256(route.encode() + b"\n" + body).hexdigest()

        def run(connection: sa.Connection) -> Replayed | None:
            now = database_now(connection)
            row = {
                "key_id": key_id,
                "name": name,
                "fingerprint": fingerprint,
                "request_id": request_id,
                "gateway_id": self._gateway_id,
                "answer": None,
                "begun_at": now,
                "expires_at": None,
            }
            return _begin(connection, row, now)

        first = First(self._database, request_id)
        return await self._within(BEGIN_S_MAX, asyncio.ensure_future(self._database.write(run)), first) or first

    async def _within(self, wait_s: float, begun: asyncio.Future[Replayed | None], first: First) -> Replayed | None:
        """Its result; a row that is made too late for its call is forgotten. Raises DatabaseUnavailable."""
        await asyncio.wait([begun], timeout=wait_s)
        if begun.done():
            return begun.result()

        def forget(late: asyncio.Future[Replayed | None]) -> None:
            if not late.cancelled() and late.exception() is None and late.result() is None:
                forgetting = asyncio.ensure_future(first.forget())
                self._forgetting.add(forgetting)
                forgetting.add_done_callback(self._forgetting.discard)

        begun.add_done_callback(forget)
        raise DatabaseUnavailable(f"an {HEADER} could not be looked up within {wait_s:g} s")

    async def run(self, every_s: float) -> None:
        """Remove what is over, until cancelled."""
        while True:
            try:
                await self._database.write(remove_expired)
            except DatabaseUnavailable as error:
                _log.warning("replays.not_removed", extra={"fields": {"reason": str(error)}})
            await asyncio.sleep(every_s)


def _begin(connection: sa.Connection, row: dict[str, Any], now: int) -> Replayed | None:
    """None: the row is this call's."""
    whose = {"whose": row["key_id"], "called": row["name"]}
    while True:
        if connection.execute(_INSERT[connection.dialect.name], row).one_or_none() is not None:
            return None
        connection.execute(_LOCK, whose)  # of two who come for one that is over, the second finds the first's
        found = connection.execute(_FIND, whose).one_or_none()
        if found is not None and not _is_over(found, now):
            break
        connection.execute(sa.delete(replays).where(*_WHOSE), whose)
    if found.fingerprint != row["fingerprint"]:
        raise errors.IdempotencyMismatch
    if found.state != "settled":
        raise errors.IdempotencyInFlight
    if found.answer is None:
        raise errors.AnswerNotKept
    return Replayed(found.request_id, found.answer)


def _is_over(found: sa.Row[Any], now: int) -> bool:
    """Expired, or nobody pays for it: its hold has ended unsettled, or its gateway died before there was one."""
    if found.state == "held":
        return False
    if found.state in ("voided", "expired"):
        return True
    if found.state is None and (found.gateway_until is None or found.gateway_until <= now):
        return True
    expires_at: int = found.expires_at or found.begun_at + round(KEEP_S * SECOND)
    return expires_at <= now


def remove_expired(connection: sa.Connection) -> int:
    """Rows that no call is answered from any more; how many there were."""
    now = database_now(connection)
    held = sa.exists().where(tables.holds.c.request_id == replays.c.request_id, tables.holds.c.state == "held")
    expired = sa.func.coalesce(replays.c.expires_at, replays.c.begun_at + round(KEEP_S * SECOND)) <= now
    return connection.execute(sa.delete(replays).where(expired, ~held)).rowcount
