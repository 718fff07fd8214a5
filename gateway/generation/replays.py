"""Idempotency-Key: a repeated call gets the stored answer of the first call, which ran once.

The rows are in the database, since a cache may lose them: a row names the request that ran; the state of its hold says
whether it was billed. The answer is stored, encrypted, for KEEP_S. It is stored before the settlement, so that a billed
answer can be replayed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.bulk import BulkInsert, BulkUpdate, Query, among, among_pairs
from billing.clock import SECOND, database_now
from billing.coalescer import Coalescer, TooManyWaiting
from billing.database import Database, DatabaseUnavailable
from gateway import errors
from gateway.access.write_replays import HEADER as HEADER
from gateway.access.write_replays import NAME
from gateway.config.server_secrets import ServerSecrets
from gateway.generation.sealing import AnswerEncryption, AnswerOwner, DecryptionFailed
from gateway.tables import replays

KEEP_S = 600.0  # how long an answer is stored
BEGIN_S_MAX = 5.0  # the longest wait of a call for the database
WRITE_S_MAX = 2.0  # the longest wait of an answer for its storage
ANSWER_BYTES_MAX = 4 * 1024 * 1024  # a longer answer is not stored; a repeated call gets an error
SEALED_HERE_BYTES_MAX = 64 * 1024  # a longer answer is encrypted in a thread, not in the event loop
# The most rows of one transaction; few, since holds and settlements use the same writer thread.
CALLS_MAX, ENDINGS_MAX, ANSWERS_MAX, REMOVE_MAX = 128, 16, 4, 500
WAITING_MAX = 1000  # calls that wait to be looked up, and calls that wait to begin; beyond it a call is refused
ENDINGS_WAITING_MAX = 10_000
KEEPING_BYTES_MAX = 64 * 1024 * 1024  # of answers that wait for storage; beyond it an answer is not stored
FORGET_LATER_MAX = 10_000  # calls whose removal failed, which is tried again

_log = logging.getLogger(__name__)
A = TypeVar("A")
T = TypeVar("T")

_INSERT = BulkInsert(replays, [column.name for column in replays.columns if column.name != "answer"], keep=True)
_KEEP = BulkUpdate(replays, ("answer", "expires_at"), key="request_id")
_OURS = Query(sa.select(replays.c.request_id).where(among(replays.c.request_id, "request_ids")))
_ANSWERS = Query(sa.select(replays.c.request_id, replays.c.answer).where(among(replays.c.request_id, "request_ids")))
_WHICH = among_pairs(replays.c.key_id, replays.c.name, "calls")
_FIND = Query(
    sa.select(
        replays.c.key_id,
        replays.c.name,
        replays.c.fingerprint,
        replays.c.request_id,
        replays.c.answer.is_not(None),
        replays.c.expires_at,
        tables.holds.c.state,
        tables.leases.c.expires_at,
    )
    .select_from(
        replays.outerjoin(tables.holds, tables.holds.c.request_id == replays.c.request_id).outerjoin(
            tables.leases, tables.leases.c.gateway_id == replays.c.gateway_id
        )
    )
    .where(_WHICH)
)
# Rows are locked in one order everywhere: by key and name.
_LOCK_CALL = Query(sa.select(replays.c.request_id).where(_WHICH).with_for_update())
_LOCK_ENDED = Query(
    sa.select(replays.c.request_id)
    .where(among(replays.c.request_id, "request_ids"))
    .order_by(replays.c.key_id, replays.c.name)
    .with_for_update()
)


class Replayed(msgspec.Struct, frozen=True):
    """The stored answer of a call, and the id of the request that made it."""

    request_id: str
    body: bytes


class IdempotencyKey(msgspec.Struct, frozen=True):
    """A call with the Idempotency-Key `name`. `fingerprint`: of its route and body. `tenant_id` "": the
    operator's."""

    tenant_id: str
    key_id: str
    name: str
    fingerprint: str
    request_id: str

    @property
    def pair(self) -> tuple[str, str]:
        return self.key_id, self.name

    @property
    def owner(self) -> AnswerOwner:
        name_hash = hashlib.sha256(self.name.encode()).hexdigest()
        return AnswerOwner(self.tenant_id, self.key_id, name_hash, self.fingerprint)


class _Found(msgspec.Struct, frozen=True):
    """The row of an earlier call, with the state of its hold and the lease of its gateway."""

    key_id: str
    name: str
    fingerprint: str
    request_id: str
    answered: bool
    expires_at: int | None  # None: of a gateway of an earlier version
    state: str | None
    gateway_until: int | None

    def is_over(self, now: int) -> bool:
        """Expired, or not billed: its hold ended without a settlement, or its gateway died before the hold."""
        if self.state == "held":
            return False
        if self.state in ("voided", "expired"):
            return True
        if self.state is None and (self.gateway_until is None or self.gateway_until <= now):
            return True
        return self.expires_at is not None and self.expires_at <= now

    def verdict(self, fingerprint: str) -> ReplayVerdict:
        if self.fingerprint != fingerprint:
            return errors.IdempotencyMismatch()
        if self.state != "settled":
            return errors.IdempotencyInFlight()
        return self.request_id if self.answered else errors.AnswerNotKept()


# The verdict on a call. None: run it; an id: replay the answer of that request; an error: refuse it.
ReplayVerdict = str | errors.ApiError | None


class _Ending(msgspec.Struct, frozen=True):
    """The ending of a row. Without `answer` nothing is replayed; `forget`: the call may run again."""

    request_id: str
    answer: bytes | None = None
    forget: bool = False


class IdempotentCall:
    """A call with an Idempotency-Key: `look_up` the stored answer; without one, `begin_call` after the admission."""

    __slots__ = ("_asked", "_replays")

    def __init__(self, replays: Replays, asked: IdempotencyKey) -> None:
        self._replays = replays
        self._asked = asked

    async def look_up(self) -> Replayed | None:
        """The stored answer of an earlier call; None if this is the first call. Writes nothing. Raises
        IdempotencyInFlight, IdempotencyMismatch, AnswerNotKept, AnswerUnreadable, Overloaded, and
        DatabaseUnavailable."""
        return await self._replays.look_up(self._asked)

    async def begin_call(self) -> FirstCall | Replayed:
        """Raises as `look_up`."""
        return await self._replays.begin_call(self._asked)


class FirstCall:
    """The first call with its Idempotency-Key. It ends once: by `keep_answer` before its settlement, or by
    `forget_call` if nothing is billed."""

    __slots__ = ("_asked", "_kept", "_replays")

    def __init__(self, replays: Replays, asked: IdempotencyKey) -> None:
        self._replays = replays
        self._asked = asked
        self._kept = False

    async def keep_answer(self, answer: bytes) -> None:
        """Whether it is replayed is now its hold's matter: when that is not settled, the call may run again."""
        self._kept = True
        await self._replays.keep_answer(self._asked, answer)

    async def forget_call(self) -> None:
        """Without effect after `keep_answer`."""
        if not self._kept:
            self._kept = True
            await self._replays.forget_call(self._asked.request_id)


class Replays:
    """The calls with an Idempotency-Key, of all gateways."""

    def __init__(self, database: Database, gateway_id: str, secrets: ServerSecrets) -> None:
        """A gateway with other secrets cannot read the stored answers."""
        self._sealing = AnswerEncryption(secrets)
        self._database = database
        self._gateway_id = gateway_id
        self._looks = Coalescer(self._look_up, name="replays", batch_max=CALLS_MAX, backlog_max=WAITING_MAX)
        self._begins = Coalescer(self._write_begins, name="replays", batch_max=CALLS_MAX, backlog_max=WAITING_MAX)
        self._answers = Coalescer(self._read_answers, name="replays", batch_max=ANSWERS_MAX, backlog_max=WAITING_MAX)
        self._endings = Coalescer(
            self._write_endings, name="replays", batch_max=ENDINGS_MAX, backlog_max=ENDINGS_WAITING_MAX
        )
        self._keeping_bytes = 0
        self._forgetting: set[asyncio.Task[None]] = set()
        self._forget_later: set[str] = set()

    def call(
        self, *, tenant_id: str | None, key_id: str, name: str, route: str, body: bytes, request_id: str
    ) -> IdempotentCall:
        """Raises InvalidRequest."""
        if not NAME.fullmatch(name):
            raise errors.InvalidRequest(f"{HEADER!r} is 1 to 255 printable ASCII characters.", param=HEADER)
        hashed = hashlib.sha256(route.encode() + b"\n")
        hashed.update(body)  # without the interpreter's lock
        fingerprint = hashed.hexdigest()
        return IdempotentCall(self, IdempotencyKey(tenant_id or "", key_id, name, fingerprint, request_id))

    async def look_up(self, asked: IdempotencyKey) -> Replayed | None:
        """See `IdempotentCall.look_up`."""
        answered = await _within(BEGIN_S_MAX, _ask(self._looks, asked))
        return None if answered is None else await self._answer(asked, answered)

    async def came_before(self, key_id: str, name: str) -> bool:
        """Whether this key has used this Idempotency-Key, with any body. Raises Overloaded, DatabaseUnavailable."""
        if not NAME.fullmatch(name):
            return False
        try:  # an empty fingerprint matches no body
            await _within(BEGIN_S_MAX, _ask(self._looks, IdempotencyKey("", key_id, name, "", "")))
        except errors.IdempotencyMismatch:
            return True
        return False

    async def begin_call(self, asked: IdempotencyKey) -> FirstCall | Replayed:
        """See `IdempotentCall.begin_call`."""
        while True:
            answered = await self._begun(asked)
            if answered is None:
                return FirstCall(self, asked)
            if (replayed := await self._answer(asked, answered)) is not None:
                return replayed  # else it has just expired

    async def _begun(self, asked: IdempotencyKey) -> str | None:
        """Whose row is made perhaps, or too late, is forgotten: all writes of this process are one after another."""
        begun = _ask(self._begins, asked)
        try:
            return await _within(BEGIN_S_MAX, begun)
        except (DatabaseUnavailable, asyncio.CancelledError):
            begun.cancel()
            forgetting = asyncio.create_task(self.forget_call(asked.request_id))
            self._forgetting.add(forgetting)
            forgetting.add_done_callback(self._forgetting.discard)
            raise

    async def _answer(self, asked: IdempotencyKey, request_id: str) -> Replayed | None:
        """Raises AnswerUnreadable: the call ran, and must not run again."""
        sealed = await _within(BEGIN_S_MAX, _ask(self._answers, request_id))
        if sealed is None:
            return None
        try:
            return Replayed(request_id, await _beside_the_loop(self._sealing.unseal, sealed, asked.owner))
        except DecryptionFailed as error:
            _log.error("replay.unreadable", extra={"fields": {"request_id": request_id, "reason": str(error)}})
            raise errors.AnswerUnreadable() from None

    async def keep_answer(self, asked: IdempotencyKey, answer: bytes) -> None:
        """See `FirstCall.keep_answer`. If it fails, the call counts as in flight until its hold has ended."""
        fits = len(answer) <= ANSWER_BYTES_MAX and self._keeping_bytes + len(answer) <= KEEPING_BYTES_MAX
        sealed = None
        if fits:
            self._keeping_bytes += len(answer)  # until `_end` counts the sealed bytes
            try:
                sealed = await _beside_the_loop(self._sealing.seal, answer, asked.owner)
            finally:
                self._keeping_bytes -= len(answer)
        await self._end_call(_Ending(asked.request_id, sealed))

    async def forget_call(self, request_id: str) -> None:
        """See `FirstCall.forget_call`. If it fails, it is tried again later."""
        if not await self._end_call(_Ending(request_id, forget=True)) and len(self._forget_later) < FORGET_LATER_MAX:
            self._forget_later.add(request_id)

    async def _end_call(self, ending: _Ending) -> bool:
        """Write an ending. Returns False if the database is unavailable or too many endings wait; an ending that waits
        is still written once the database answers."""
        size = len(ending.answer or b"")

        def over(_: asyncio.Future[None]) -> None:
            self._keeping_bytes -= size

        try:
            ended = _ask(self._endings, ending)
            self._keeping_bytes += size
            ended.add_done_callback(over)
            await _within(WRITE_S_MAX, ended)
        except (DatabaseUnavailable, errors.Overloaded) as error:
            event = "replay.not_forgotten" if ending.forget else "replay.not_kept"
            _log.error(event, extra={"fields": {"request_id": ending.request_id, "reason": str(error)}})
            return False
        return True

    async def run(self, every_s: float) -> None:
        """Run until cancelled: remove expired rows."""
        while True:
            try:
                while self._forget_later:
                    request_ids = list(self._forget_later)[:REMOVE_MAX]
                    await self._database.write(lambda c, ids=request_ids: _remove(c, ids))  # type: ignore[misc]
                    self._forget_later.difference_update(request_ids)
                while await self._database.write_in_background(remove_expired) == REMOVE_MAX:
                    pass
            except DatabaseUnavailable as error:
                _log.warning("replays.not_removed", extra={"fields": {"reason": str(error)}})
            await asyncio.sleep(every_s)

    # ---- groups, each a transaction

    async def _look_up(self, asked: list[IdempotencyKey]) -> Sequence[ReplayVerdict]:
        def run(connection: sa.Connection) -> list[ReplayVerdict]:
            now = database_now(connection)
            found = _find(connection, asked)
            verdicts: list[ReplayVerdict] = []
            for one in asked:
                row = found.get(one.pair)
                verdicts.append(None if row is None or row.is_over(now) else row.verdict(one.fingerprint))
            return verdicts

        return await self._database.read(run)

    async def _read_answers(self, request_ids: list[str]) -> Sequence[bytes | None]:
        rows = await self._database.read(lambda c: _ANSWERS.rows(c, {"request_ids": request_ids}))
        answers = {row[0]: row[1] for row in rows}
        return [answers.get(request_id) for request_id in request_ids]

    async def _write_begins(self, asked: list[IdempotencyKey]) -> Sequence[ReplayVerdict]:
        return await self._database.write(lambda connection: _begin(connection, asked, self._gateway_id))

    async def _write_endings(self, endings: list[_Ending]) -> Sequence[None]:
        def run(connection: sa.Connection) -> None:
            expires_at = database_now(connection) + round(KEEP_S * SECOND)
            _LOCK_ENDED.rows(connection, {"request_ids": [ending.request_id for ending in endings]})
            kept = [ending for ending in endings if not ending.forget]
            _KEEP.run(connection, [(ending.answer, expires_at, ending.request_id) for ending in kept])
            _remove(connection, [ending.request_id for ending in endings if ending.forget])

        await self._database.write(run)
        return [None] * len(endings)


def _begin(connection: sa.Connection, asked: Sequence[IdempotencyKey], gateway_id: str) -> list[ReplayVerdict]:
    """None: the row was inserted for this call."""
    now = database_now(connection)
    ordered = sorted(asked, key=lambda one: one.pair)
    ours = _insert(connection, ordered, gateway_id, now)
    verdicts = {
        one.request_id: None if one.request_id in ours else _contend(connection, one, gateway_id, now)
        for one in ordered
    }
    return [verdicts[one.request_id] for one in asked]


def _contend(connection: sa.Connection, asked: IdempotencyKey, gateway_id: str, now: int) -> ReplayVerdict:
    """The verdict on a call for which an earlier call has a row."""
    while True:
        # Of two calls that find the same expired row, the second finds the row of the first.
        _LOCK_CALL.rows(connection, {"calls": json.dumps([asked.pair])})
        found = _find(connection, [asked]).get(asked.pair)
        if found is not None:
            if not found.is_over(now):
                return found.verdict(asked.fingerprint)
            _remove(connection, [found.request_id])
        if _insert(connection, [asked], gateway_id, now):
            return None


def _insert(connection: sa.Connection, asked: Sequence[IdempotencyKey], gateway_id: str, now: int) -> set[str]:
    """The calls whose rows were inserted, by request id."""
    expires_at = now + round(KEEP_S * SECOND)
    rows = [(*one.pair, one.fingerprint, one.request_id, gateway_id, now, expires_at) for one in asked]
    _INSERT.run(connection, rows)
    return {row[0] for row in _OURS.rows(connection, {"request_ids": [one.request_id for one in asked]})}


def _find(connection: sa.Connection, asked: Sequence[IdempotencyKey]) -> dict[tuple[str, str], _Found]:
    rows = _FIND.rows(connection, {"calls": json.dumps([one.pair for one in asked])})
    return {(row[0], row[1]): _Found(*row) for row in rows}


def _remove(connection: sa.Connection, request_ids: Sequence[str]) -> None:
    if request_ids:
        connection.execute(sa.delete(replays).where(replays.c.request_id.in_(request_ids)))


def remove_expired(connection: sa.Connection) -> int:
    """Rows that no call is answered from any more, REMOVE_MAX at most; how many there were."""
    held = sa.exists().where(tables.holds.c.request_id == replays.c.request_id, tables.holds.c.state == "held")
    query = (
        sa.select(replays.c.request_id)
        .where(replays.c.expires_at <= database_now(connection), ~held)
        .order_by(replays.c.expires_at)
        .limit(REMOVE_MAX)
        .with_for_update(skip_locked=True)
    )
    request_ids = connection.execute(query).scalars().all()
    _remove(connection, request_ids)
    return len(request_ids)


def _ask(grouping: Coalescer[A, T], asked: A) -> asyncio.Future[T]:
    """Raises Overloaded."""
    try:
        return grouping.submit(asked)
    except TooManyWaiting:
        raise errors.Overloaded(f"Too many calls with an {HEADER} wait. Try again in a moment.") from None


async def _beside_the_loop(convert: Callable[[bytes, AnswerOwner], bytes], data: bytes, owner: AnswerOwner) -> bytes:
    if len(data) <= SEALED_HERE_BYTES_MAX:
        return convert(data, owner)
    return await asyncio.to_thread(convert, data, owner)


async def _within(wait_s: float, answer: asyncio.Future[T]) -> T:
    """Raises DatabaseUnavailable, and the exceptions of the answer."""
    await asyncio.wait([answer], timeout=wait_s)
    if not answer.done():
        raise DatabaseUnavailable(f"the calls with an {HEADER} could not be reached within {wait_s:g} s")
    return answer.result()
