"""Rows of people's sessions: begun at a sign-in, checked at the provider from time to time, and ended.

The provider's tokens are encrypted in the row. Functions over a connection; nothing here speaks to the provider.
"""

from __future__ import annotations

import hashlib

import msgspec
import sqlalchemy as sa

from billing.clock import SECOND, database_now
from billing.ids import new_id
from gateway.access import audit_log
from gateway.access.people import Person
from gateway.access.provider_answers import ProviderTokens
from gateway.access.sealed_values import SealedValues
from gateway.tables import people, person_sessions, spent_tokens

SESSIONS_MAX = 100  # of one person; a further sign-in ends the oldest session
# The minimum seconds for which one gateway claims the check of a session; after a failed check no gateway repeats it
# earlier.
CLAIM_S = 30
TOKENS_PURPOSE = "tokens of people's sessions, format 1"


class PersonSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session of the person `person_id`. Moments are microseconds UTC. `checked_at`: when the provider last confirmed
    the groups."""

    id: str
    person_id: str
    created_at: int
    seen_at: int
    expires_at: int
    checked_at: int
    claimed_until: int


class Spent(Exception):
    """The state or the token was used before."""


_SELECT = sa.select(*(person_sessions.c[name] for name in PersonSession.__struct_fields__))


def insert_session(
    connection: sa.Connection,
    person: Person,
    tokens: ProviderTokens,
    seal: SealedValues,
    *,
    cookie_hash: str,
    provider_sid: str | None,
    lasts_s: float,
    request_id: str,
) -> PersonSession:
    """Begin a session of `lasts_s` seconds. Ends the person's oldest sessions above SESSIONS_MAX."""
    now = database_now(connection)
    session = PersonSession(
        id=new_id("ses"),
        person_id=person.id,
        created_at=now,
        seen_at=now,
        expires_at=now + round(lasts_s * SECOND),
        checked_at=now,
        claimed_until=0,
    )
    connection.execute(sa.delete(person_sessions).where(person_sessions.c.expires_at <= now))
    mine = sa.select(person_sessions.c.id).where(person_sessions.c.person_id == person.id)
    surplus = connection.execute(mine.order_by(person_sessions.c.created_at.desc()).offset(SESSIONS_MAX - 1))
    if ids := surplus.scalars().all():
        connection.execute(sa.delete(person_sessions).where(person_sessions.c.id.in_(ids)))
    more = {
        "hash": cookie_hash,
        "provider_sid": provider_sid,
        "tokens": seal.seal(msgspec.json.encode(tokens), session.id),
    }
    connection.execute(sa.insert(person_sessions).values(msgspec.structs.asdict(session) | more))
    _record(connection, "session.begin", session.id, person, request_id)
    return session


def by_cookie(connection: sa.Connection, cookie_hash: str) -> PersonSession | None:
    row = connection.execute(_SELECT.where(person_sessions.c.hash == cookie_hash)).one_or_none()
    return None if row is None else PersonSession(**row._mapping)


def note_seen(connection: sa.Connection, session: PersonSession, now: int) -> None:
    where = (person_sessions.c.id == session.id, person_sessions.c.seen_at < now)
    connection.execute(sa.update(person_sessions).where(*where).values(seen_at=now))


def claim_check(connection: sa.Connection, session: PersonSession, claim_s: float) -> bytes | None:
    """Claim the check of a session for `claim_s`, and return its encrypted tokens. Returns None if another gateway has
    claimed or completed the check, or the session has ended."""
    now = database_now(connection)
    claimed = connection.execute(
        sa.update(person_sessions)
        .where(
            person_sessions.c.id == session.id,
            person_sessions.c.checked_at == session.checked_at,
            person_sessions.c.claimed_until <= now,
        )
        .values(claimed_until=now + round(claim_s * SECOND))
    )
    if not claimed.rowcount:
        return None
    tokens = sa.select(person_sessions.c.tokens).where(person_sessions.c.id == session.id)
    return bytes(connection.execute(tokens).scalar_one())


def store_tokens(connection: sa.Connection, session: PersonSession, sealed_tokens: bytes) -> None:
    """Replace the tokens before the check is complete: the provider may accept the ones before only once."""
    update = sa.update(person_sessions).where(person_sessions.c.id == session.id)
    connection.execute(update.values(tokens=sealed_tokens))


def note_checked(connection: sa.Connection, session: PersonSession, sealed_tokens: bytes) -> bool:
    """False: the session has ended meanwhile."""
    values = {"tokens": sealed_tokens, "checked_at": database_now(connection), "claimed_until": 0}
    update = sa.update(person_sessions).where(person_sessions.c.id == session.id)
    return bool(connection.execute(update.values(values)).rowcount)


def end_session(connection: sa.Connection, session_id: str, person: Person, request_id: str) -> None:
    ended = connection.execute(sa.delete(person_sessions).where(person_sessions.c.id == session_id))
    if ended.rowcount:
        _record(connection, "session.end", session_id, person, request_id)


def end_all(connection: sa.Connection, person: Person, request_id: str, *, provider_sid: str | None = None) -> int:
    """End the sessions of a person; with `provider_sid`, only the sessions that belong to this session of the provider.
    Returns their number."""
    query = sa.select(person_sessions.c.id).where(person_sessions.c.person_id == person.id)
    if provider_sid is not None:
        query = query.where(person_sessions.c.provider_sid == provider_sid)
    ids = connection.execute(query).scalars().all()
    for session_id in ids:
        end_session(connection, session_id, person, request_id)
    return len(ids)


def people_of_sid(connection: sa.Connection, issuer: str, provider_sid: str) -> list[str]:
    """The ids of the people who have a session of this session of the provider's."""
    query = (
        sa.select(people.c.id)
        .join(person_sessions, person_sessions.c.person_id == people.c.id)
        .where(people.c.issuer == issuer, person_sessions.c.provider_sid == provider_sid)
        .distinct()
    )
    return list(connection.execute(query).scalars())


def spend_token(connection: sa.Connection, kind: str, token: str, lasts_s: float) -> None:
    """Note that a token was used. It is remembered for `lasts_s`, after which it must be refused for its age. Raises
    Spent."""
    now = database_now(connection)
    connection.execute(sa.delete(spent_tokens).where(spent_tokens.c.expires_at <= now))
    row = {"hash": _spent_hash(kind, token), "expires_at": now + round(lasts_s * SECOND)}
    try:
        with connection.begin_nested():
            connection.execute(sa.insert(spent_tokens).values(row))
    except sa.exc.IntegrityError:
        raise Spent(kind) from None


def is_spent(connection: sa.Connection, kind: str, token: str) -> bool:
    query = sa.select(spent_tokens.c.hash).where(spent_tokens.c.hash == _spent_hash(kind, token))
    return connection.execute(query).one_or_none() is not None


def _spent_hash(kind: str, token: str) -> str:
    return hashlib.sha256(f"{kind} {token}".encode()).hexdigest()


def _record(connection: sa.Connection, action: str, session_id: str, person: Person, request_id: str) -> None:
    audit_log.add_audit_line(
        connection,
        actor=person.id,
        action=action,
        object_id=session_id,
        tenant_id=person.tenant_id,
        request_id=request_id,
    )
