"""Sessions of the console: an admin key or the provider of [oidc] authenticates the sign-in, and a cookie
authenticates the browser afterwards.

A session is a row of the database, so every gateway accepts it. The row holds only the hash of the cookie's value.
Sessions are not cached, so a sign-out, a revoked key or a suspended tenant takes effect at the next request.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Iterator

import msgspec
import sqlalchemy as sa

from billing import revision
from billing.clock import SECOND, database_now
from billing.database import Database
from billing.ids import new_id
from gateway.access import audit_log, keys, people, person_sessions
from gateway.access.callers import Caller, Callers
from gateway.access.keys import ADMIN
from gateway.access.person_sessions import PersonSession
from gateway.access.person_sign_ins import FinishedSignIn, PersonSignIns
from gateway.access.refused_sign_ins import RefusedSignIns
from gateway.errors import InvalidApiKey, Overloaded, RateLimited, SessionExpired
from gateway.limits.connection_limits import client_of
from gateway.tables import sessions

SESSION_S_MAX = 12 * 3600  # lifetime, whether used or not
SESSION_IDLE_S = 3600  # a session without a request for this time expires
SEEN_S = 60  # `seen_at` is written at most once in this time
SESSIONS_MAX = 100  # of one key; a further sign-in ends the oldest session
SECRET_BYTES = 32
COOKIE_CHARS = 43  # SECRET_BYTES in base64
# A forged cookie costs a look-up too. At most LOOK_UPS_AT_ONCE look-ups run in the database, so that other reads
# proceed. At most LOOK_UPS_MAX run or wait; above that a request with a cookie is refused (503).
LOOK_UPS_AT_ONCE = 2
LOOK_UPS_MAX = 256

# Limit of sign-ins with a wrong key: WRONG_SIGN_INS_MAX in WRONG_SIGN_INS_S seconds, of each address and gateway
# process.
WRONG_SIGN_INS_MAX = 10
WRONG_SIGN_INS_S = 60.0
ADDRESSES_MAX = 10_000  # addresses that are counted; a further address replaces the oldest
REFUSED_S = 0.25  # every refused sign-in takes this time, so that its duration does not reveal the cause
BEYOND_LIMIT_MAX = 32  # concurrent sign-ins, of all addresses together, from addresses that have reached their limit


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A session of the admin key `key_id`. Moments are microseconds UTC."""

    id: str
    key_id: str
    created_at: int
    seen_at: int
    expires_at: int


AnySession = Session | PersonSession


class Sessions:
    """Signs in and out, and finds the caller of a cookie. All gateways of a database share the sessions."""

    def __init__(self, database: Database, callers: Callers, person_sign_ins: PersonSignIns) -> None:
        self._database = database
        self._callers = callers
        self._person_sign_ins = person_sign_ins
        self._look_up_slots = asyncio.Semaphore(LOOK_UPS_AT_ONCE)
        self._looking_up = 0

    async def sign_in(self, caller: Caller, request_id: str, *, replaced: str | None = None) -> tuple[str, Session]:
        """Begin a session, and end the session of the cookie `replaced`. Returns the new cookie's value, which is not
        stored, and the session. Raises InvalidApiKey when the key is no admin key or has been revoked or expired since
        `caller` was identified."""
        if ADMIN not in caller.scopes or caller.role is None:
            raise InvalidApiKey()
        cookie = secrets.token_urlsafe(SECRET_BYTES)

        def begin_session(connection: sa.Connection) -> Session:
            # Before the audit log's lock, as administrative writes, which lock sessions too.
            revision.lock(connection)
            session = _begin(connection, caller, cookie, request_id)
            if replaced is not None:
                _end_replaced(connection, replaced, request_id)
            return session

        return cookie, await self._database.write_in_background(begin_session)

    async def sign_in_person(
        self, finished: FinishedSignIn, request_id: str, *, replaced: str | None = None
    ) -> tuple[str, PersonSession]:
        """`sign_in` for a person, whom the provider has signed in. Raises SignInRefused."""
        cookie = secrets.token_urlsafe(SECRET_BYTES)

        def begin_session(connection: sa.Connection) -> PersonSession:
            _, session = self._person_sign_ins.begin_session(connection, finished, _hash(cookie), request_id)
            if replaced is not None:
                _end_replaced(connection, replaced, request_id)
            return session

        return cookie, await self._database.write_in_background(begin_session)

    async def identify(self, cookie: str, request_id: str) -> tuple[Caller, AnySession]:
        """The caller and the session of a cookie's value. A person's session that is due is checked at the provider
        first. Raises SessionExpired, Overloaded, DatabaseUnavailable."""
        if len(cookie) != COOKIE_CHARS:
            raise SessionExpired()
        now, session, caller = await self._look_up(cookie)
        if isinstance(session, PersonSession) and self._person_sign_ins.is_due(session, now):
            if not await self._person_sign_ins.check_again(session, now, request_id):
                raise SessionExpired()
            now, session, caller = await self._look_up(cookie)  # the role may have changed
        if session is None or caller is None:
            raise SessionExpired()
        if isinstance(session, Session):
            self._callers.note_used(caller)
        if session.seen_at + SEEN_S * SECOND <= now:
            await self._note_seen(session, now)
        return caller, session

    async def sign_out(self, caller: Caller, session: AnySession, request_id: str) -> None:
        if isinstance(session, PersonSession):
            await self._person_sign_ins.end(session, request_id)
            return

        def end_session(connection: sa.Connection) -> None:
            revision.lock(connection)
            _end(connection, caller.key_id, caller.tenant_id, session.id, request_id)

        await self._database.write_in_background(end_session)

    async def _note_seen(self, session: AnySession, now: int) -> None:
        if isinstance(session, PersonSession):
            await self._database.write_in_background(lambda c: person_sessions.note_seen(c, session, now))
            return
        seen = sa.update(sessions).where(sessions.c.id == session.id, sessions.c.seen_at < now)
        await self._database.write_in_background(lambda c: c.execute(seen.values(seen_at=now)))

    async def _look_up(self, cookie: str) -> tuple[int, AnySession | None, Caller | None]:
        if self._looking_up >= LOOK_UPS_MAX:
            raise Overloaded("Too many sessions are being looked up. Try again in a moment.")
        self._looking_up += 1
        try:
            async with self._look_up_slots:
                return await self._database.read(lambda c: self._find(c, cookie))
        finally:
            self._looking_up -= 1

    def _find(self, connection: sa.Connection, cookie: str) -> tuple[int, AnySession | None, Caller | None]:
        now = database_now(connection)
        columns = (sessions.c[name] for name in Session.__struct_fields__)
        row = connection.execute(sa.select(*columns).where(sessions.c.hash == _hash(cookie))).one_or_none()
        found = person_sessions.by_cookie(connection, _hash(cookie)) if row is None else Session(**row._mapping)
        if found is None or found.expires_at <= now or found.seen_at + SESSION_IDLE_S * SECOND <= now:
            return now, None, None
        if isinstance(found, PersonSession):
            return now, found, self._callers.of_person(connection, found.person_id)
        return now, found, self._callers.of_key(connection, found.key_id)


def csrf_token(cookie: str) -> str:
    """The token that every write must send beside the cookie. It is an HMAC keyed with the cookie's value, so the
    database stores neither."""
    return hmac.new(cookie.encode(), b"laneway csrf token", hashlib.sha256).hexdigest()


def is_csrf_token(cookie: str, token: str) -> bool:
    return hmac.compare_digest(csrf_token(cookie).encode(), token.encode())


class Attempt:
    """One sign-in. It counts as wrong until `succeeded` is called. `refusal`: the error to raise if the key is wrong
    and the address has reached its limit."""

    def __init__(self, succeeded: Callable[[], None], refusal: RateLimited | None) -> None:
        self.succeeded = succeeded
        self.refusal = refusal


class SignIns:
    """Counts sign-ins with a wrong key per address. An address that has reached the limit can still sign in with a
    valid key, since all clients behind a proxy share one address. Of such addresses, at most BEYOND_LIMIT_MAX keys are
    looked up at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.refused = RefusedSignIns(clock)
        self.refused_people = RefusedSignIns(clock)
        self._wrong: dict[str, tuple[float, int]] = {}  # address → beginning of its interval, wrong sign-ins in it
        self._beyond = 0  # running attempts of all addresses that have reached the limit

    @contextlib.contextmanager
    def attempt(self, address: str) -> Iterator[Attempt]:
        """Count an attempt at its start, so that simultaneous attempts count too. Raises RateLimited when
        BEYOND_LIMIT_MAX attempts of addresses over their limit run already."""
        client = client_of(address)
        refusal = self._count_attempt(client)
        if refusal is None:
            yield Attempt(lambda: self._uncount(client), None)
            return
        if self._beyond >= BEYOND_LIMIT_MAX:
            raise refusal
        self._beyond += 1
        try:
            yield Attempt(lambda: None, refusal)
        finally:
            self._beyond -= 1

    def _count_attempt(self, client: str) -> RateLimited | None:
        now = self._clock()
        since, wrong = self._wrong.get(client, (now, 0))
        if now - since >= WRONG_SIGN_INS_S:
            since, wrong = now, 0
        if wrong >= WRONG_SIGN_INS_MAX:
            return RateLimited(
                f"{wrong} sign-ins with a wrong key came from this address within {WRONG_SIGN_INS_S:g} s, which is "
                "the limit.",
                retry_after_s=since + WRONG_SIGN_INS_S - now,
            )
        if client not in self._wrong and len(self._wrong) >= ADDRESSES_MAX:
            del self._wrong[next(iter(self._wrong))]
        self._wrong[client] = (since, wrong + 1)
        return None

    def _uncount(self, client: str) -> None:
        if client in self._wrong:
            since, wrong = self._wrong[client]
            self._wrong[client] = (since, max(0, wrong - 1))


def _begin(connection: sa.Connection, caller: Caller, cookie: str, request_id: str) -> Session:
    now = database_now(connection)
    if not keys.is_usable(connection, caller.key_id):
        raise InvalidApiKey()
    ends = now + SESSION_S_MAX * SECOND
    if caller.expires_at is not None:
        ends = min(ends, caller.expires_at * SECOND)
    session = Session(id=new_id("ses"), key_id=caller.key_id, created_at=now, seen_at=now, expires_at=ends)
    _forget_old(connection, caller.key_id, now)
    connection.execute(sa.insert(sessions).values(msgspec.structs.asdict(session) | {"hash": _hash(cookie)}))
    _record(connection, "session.begin", caller.key_id, caller.tenant_id, session.id, request_id)
    return session


def _forget_old(connection: sa.Connection, key_id: str, now: int) -> None:
    """Delete the expired sessions of all keys, and this key's oldest sessions so that a new one fits SESSIONS_MAX."""
    connection.execute(sa.delete(sessions).where(sessions.c.expires_at <= now))
    newest = sa.select(sessions.c.id).where(sessions.c.key_id == key_id).order_by(sessions.c.created_at.desc())
    surplus = connection.execute(newest.offset(SESSIONS_MAX - 1)).scalars().all()
    if surplus:
        connection.execute(sa.delete(sessions).where(sessions.c.id.in_(surplus)))


def _end_replaced(connection: sa.Connection, cookie: str, request_id: str) -> None:
    """End the session of this cookie; it may belong to another key or person."""
    query = sa.select(sessions.c.id, sessions.c.key_id).where(sessions.c.hash == _hash(cookie))
    if (row := connection.execute(query).one_or_none()) is not None:
        key = keys.get_key(connection, row.key_id)
        _end(connection, row.key_id, None if key is None else key.tenant_id, row.id, request_id)
        return
    session = person_sessions.by_cookie(connection, _hash(cookie))
    if session is not None and (person := people.get_person(connection, session.person_id)) is not None:
        person_sessions.end_session(connection, session.id, person, request_id)


def _end(connection: sa.Connection, key_id: str, tenant_id: str | None, session_id: str, request_id: str) -> None:
    ended = connection.execute(sa.delete(sessions).where(sessions.c.id == session_id))
    if ended.rowcount:
        _record(connection, "session.end", key_id, tenant_id, session_id, request_id)


def _record(
    connection: sa.Connection, action: str, key_id: str, tenant_id: str | None, session_id: str, request_id: str
) -> None:
    audit_log.add_audit_line(
        connection, actor=key_id, action=action, object_id=session_id, tenant_id=tenant_id, request_id=request_id
    )


def _hash(cookie: str) -> str:
    return hashlib.sha256(cookie.encode()).hexdigest()
