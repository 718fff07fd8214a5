"""Signs people in at the provider of [oidc], checks their sessions there again, and ends them at the provider's word.

Between the start and the end of a sign-in, its state is encrypted in a cookie of the browser: an unfinished sign-in
writes nothing to the database. A finished one spends its state, so it is not accepted twice.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
import sqlalchemy as sa

from billing import revision
from billing.clock import SECOND
from billing.database import Database
from gateway.access import people, person_sessions
from gateway.access.people import Identity, Person
from gateway.access.person_sessions import PersonSession, Spent
from gateway.access.provider_answers import (
    CHECK_REQUESTS_MAX,
    LOGOUT_TOKEN_S,
    SKEW_S,
    ProviderTokens,
    ProviderUnreachable,
    SignedSignInRefused,
    SignInRefused,
    SignInStateUsed,
)
from gateway.access.sealed_values import SealedValues, ValueUnreadable
from gateway.config.server_secrets import ServerSecrets
from gateway.config.sign_in import OidcSection

if TYPE_CHECKING:
    from gateway.access.oidc_provider import OidcProvider

START_S_MAX = 600  # between the start and the end of a sign-in
RANDOM_BYTES = 32
RETURN_CHARS_MAX = 1000
COOKIE_CHARS_MAX = 4000
CODE_CHARS_MAX = 8192
HOME = "/admin/"

_log = logging.getLogger(__name__)


class NoGroupHasARole(SignedSignInRefused):
    """The person is authenticated, but has no role here."""

    reason = "no_role"


class StartedSignIn(msgspec.Struct, frozen=True):
    """The contents of the cookie of a sign-in that was started. `started_at` in Unix seconds."""

    state: str
    nonce: str
    verifier: str
    return_to: str
    started_at: float


class FinishedSignIn(msgspec.Struct, frozen=True):
    """The identity that signed in, the tokens of the session, and the console's page to which the browser is sent."""

    identity: Identity
    tokens: ProviderTokens
    state: str
    return_to: str


class PersonSignIns:
    """Raises ProviderUnreachable and SignInRefused, whose messages are for the person who signs in."""

    def __init__(self, database: Database, section: OidcSection, server_secrets: ServerSecrets) -> None:
        self._database = database
        self._section = section
        self._states = SealedValues(server_secrets, "sign-ins at a provider, format 1")
        self._tokens = SealedValues(server_secrets, person_sessions.TOKENS_PURPOSE)
        self.provider: OidcProvider | None = None
        if section.issuer:
            from gateway.access.oidc_provider import OidcProvider  # importing it takes 0.3 s

            self.provider = OidcProvider(section)

    # ---- the sign-in

    async def start(self, return_to: str) -> tuple[str, str]:
        """The provider's page, and the value of the sign-in's cookie. `return_to`: the page of the console that is
        shown afterwards."""
        started = StartedSignIn(
            state=secrets.token_urlsafe(RANDOM_BYTES),
            nonce=secrets.token_urlsafe(RANDOM_BYTES),
            verifier=secrets.token_urlsafe(RANDOM_BYTES),
            return_to=safe_return(return_to),
            started_at=time.time(),
        )
        url = await self._provider.authorization_url(started.state, started.nonce, started.verifier)
        return url, urlsafe_b64encode(self._states.seal(msgspec.json.encode(started), "cookie")).decode()

    async def finish(self, answer: Mapping[str, str], cookie: str | None) -> FinishedSignIn:
        """Check the provider's answer against the cookie, and exchange its code. `answer`: the query of the
        callback."""
        provider = self._provider
        started = self._read_cookie(cookie)
        state = answer.get("state", "")
        if not hmac.compare_digest(state.encode(), started.state.encode()):
            raise SignInRefused("The answer belongs to another sign-in (state). Begin again in one window.")
        if await self._database.read(lambda c: person_sessions.is_spent(c, "state", state)):
            raise SignInRefused("This sign-in was used already (state).")
        if "error" in answer:
            raise SignInRefused(f"The provider did not sign you in: {_error_code(answer['error'])}.")
        code = answer.get("code", "")
        if not 1 <= len(code) <= CODE_CHARS_MAX:
            raise SignInRefused(f"The answer has no code of 1 to {CODE_CHARS_MAX} characters.")
        identity, tokens = await provider.exchange_code(
            code, verifier=started.verifier, nonce=started.nonce, issuer=answer.get("iss")
        )
        return FinishedSignIn(identity, tokens, state, started.return_to)

    def begin_session(
        self, connection: sa.Connection, finished: FinishedSignIn, cookie_hash: str, request_id: str
    ) -> tuple[Person, PersonSession]:
        """The person's row and session. Raises NoGroupHasARole, SignInRefused when the state was used meanwhile."""
        identity = finished.identity
        revision.lock(connection)  # before any row, as every write that the audit log records
        try:
            person_sessions.spend_token(connection, "state", finished.state, START_S_MAX + SKEW_S)
        except Spent:
            raise SignInStateUsed("This sign-in was used already (state).") from None
        grant = people.grant_of(connection, self._section.groups, identity.groups)
        if grant is None:
            raise NoGroupHasARole(
                f"You are signed in at {self._provider.shown_name}, but none of your groups has a role in Laneway. "
                "Ask an operator of Laneway for a group that has one."
            )
        person = people.sign_in(connection, identity, grant, request_id)
        session = person_sessions.insert_session(
            connection,
            person,
            finished.tokens,
            self._tokens,
            cookie_hash=cookie_hash,
            provider_sid=identity.provider_sid,
            lasts_s=self._section.session_s,
            request_id=request_id,
        )
        return person, session

    def end_sessions_without_role(
        self, connection: sa.Connection, identity: Identity, request_id: str
    ) -> Person | None:
        """End all sessions of a person whose groups have no role any more. None: the person never signed in."""
        revision.lock(connection)
        known = people.by_subject(connection, identity.issuer, identity.subject)
        if known is not None:
            people.update_person(connection, known, identity, None, request_id)
            person_sessions.end_all(connection, known, request_id)
        return known

    # ---- sessions

    def is_due(self, session: PersonSession, now: int) -> bool:
        """Whether a session must be checked at the provider before it is used. `now` in microseconds UTC."""
        return self.provider is None or now >= session.checked_at + round(self._section.recheck_s * SECOND)

    async def check_again(self, session: PersonSession, now: int, request_id: str) -> bool:
        """Check a session that is due. False: it has ended. While another gateway checks it, and while the provider is
        unreachable for at most `unreachable_s`, it remains as it was."""
        sealed = await self._database.write_in_background(
            lambda c: person_sessions.claim_check(c, session, self._claim_s)
        )
        if sealed is None:
            return not self._is_overdue(session, now)
        try:
            person = await self._person_of(session)
            tokens = msgspec.json.decode(self._tokens.unseal(sealed, session.id), type=ProviderTokens)
            identity, tokens = await self._provider.check_again(
                tokens, person.subject, lambda renewed: self._store_tokens(session, renewed)
            )
        except ProviderUnreachable as error:
            overdue = self._is_overdue(session, now)
            fields = {"reason": str(error), "session": session.id, "ends": overdue}
            _log.warning("oidc.unreachable", extra={"fields": fields})
            if overdue:
                await self.end(session, request_id)
            return not overdue
        except (SignInRefused, ValueUnreadable, msgspec.DecodeError) as error:
            _log.info("oidc.session_ended", extra={"fields": {"reason": str(error), "session": session.id}})
            await self.end(session, request_id)
            return False
        sealed = self._sealed(tokens, session)
        return await self._database.write_in_background(
            lambda c: self._note_checked(c, session, identity, sealed, request_id)
        )

    def _note_checked(
        self,
        connection: sa.Connection,
        session: PersonSession,
        identity: Identity,
        sealed: bytes,
        request_id: str,
    ) -> bool:
        revision.lock(connection)
        # Read again: an erasure may have removed the claims meanwhile, and a logout the session.
        person = people.by_subject(connection, identity.issuer, identity.subject)
        if person is None or person.id != session.person_id:
            return False
        grant = people.grant_of(connection, self._section.groups, identity.groups)
        people.update_person(connection, person, identity, grant, request_id)
        if grant is None:
            person_sessions.end_all(connection, person, request_id)
            return False
        return person_sessions.note_checked(connection, session, sealed)

    async def _store_tokens(self, session: PersonSession, renewed: ProviderTokens) -> None:
        sealed = self._sealed(renewed, session)
        await self._database.write_in_background(lambda c: person_sessions.store_tokens(c, session, sealed))

    def _sealed(self, tokens: ProviderTokens, session: PersonSession) -> bytes:
        return self._tokens.seal(msgspec.json.encode(tokens), session.id)

    async def end(self, session: PersonSession, request_id: str) -> None:
        def end(connection: sa.Connection) -> None:
            revision.lock(connection)
            if (person := people.get_person(connection, session.person_id)) is not None:
                person_sessions.end_session(connection, session.id, person, request_id)

        await self._database.write_in_background(end)

    async def log_out(self, token: str, request_id: str) -> int:
        """End the sessions that a logout token of the provider's names. Returns their number. Raises SignInRefused,
        also for a token that was used before."""
        provider = self._provider
        logout = await provider.read_logout_token(token)
        issuer = self._section.issuer

        def end(connection: sa.Connection) -> int:
            revision.lock(connection)
            person_sessions.spend_token(connection, "logout", logout.token_id, LOGOUT_TOKEN_S + 2 * SKEW_S)
            if logout.subject is not None:
                named = people.by_subject(connection, issuer, logout.subject)
                ended = [] if named is None else [named]
            else:
                assert logout.provider_sid is not None
                ids = person_sessions.people_of_sid(connection, issuer, logout.provider_sid)
                ended = [person for id_ in ids if (person := people.get_person(connection, id_)) is not None]
            sid = logout.provider_sid
            return sum(person_sessions.end_all(connection, person, request_id, provider_sid=sid) for person in ended)

        try:
            return await self._database.write_in_background(end)
        except Spent:
            raise SignInRefused("The logout token was used already (jti).") from None

    # ---- parts

    @property
    def _claim_s(self) -> float:
        """Longer than any check: two at once would spend one refresh token twice, and the provider would revoke it."""
        return max(person_sessions.CLAIM_S, (CHECK_REQUESTS_MAX + 1) * self._section.timeout_s)

    @property
    def _provider(self) -> OidcProvider:
        if self.provider is None:
            raise SignInRefused("No provider is configured ([oidc] in laneway.toml): sign in with an admin key.")
        return self.provider

    async def _person_of(self, session: PersonSession) -> Person:
        """Raises SignInRefused for a person of another provider than the configured one."""
        person = await self._database.read(lambda c: people.get_person(c, session.person_id))
        if person is None or person.issuer != self._section.issuer:
            raise SignInRefused("The session is of another provider than the configured one.")
        return person

    def _is_overdue(self, session: PersonSession, now: int) -> bool:
        """Whether the last check is too old for a session to continue while the provider is unreachable."""
        lasts_s = self._section.recheck_s + max(self._section.unreachable_s, self._claim_s)
        return now >= session.checked_at + round(lasts_s * SECOND)

    def _read_cookie(self, cookie: str | None) -> StartedSignIn:
        """Raises SignInRefused."""
        if not cookie or len(cookie) > COOKIE_CHARS_MAX:
            raise SignInRefused("This browser has not started a sign-in, or did so too long ago.")
        try:
            sealed = urlsafe_b64decode(cookie.encode())
            started = msgspec.json.decode(self._states.unseal(sealed, "cookie"), type=StartedSignIn)
        except (ValueError, ValueUnreadable, msgspec.DecodeError):
            raise SignInRefused("The sign-in's cookie is not valid. Begin again.") from None
        if abs(time.time() - started.started_at) > START_S_MAX:
            raise SignInRefused(f"The sign-in took longer than {START_S_MAX} s. Begin again.")
        return started


def safe_return(path: str) -> str:
    """`path` if it is a page of the console, else HOME: a link to a sign-in must not lead to another site."""
    plain = path.isascii() and path.isprintable() and "\\" not in path and len(path) <= RETURN_CHARS_MAX
    return path if plain and path.startswith(HOME) and "//" not in path and ".." not in path else HOME


def _error_code(code: str) -> str:
    """A provider's error code in the form that is shown: RFC 6749 allows no other characters that matter here."""
    return "".join(char for char in code[:60] if char.isascii() and (char.isalnum() or char in "_-.")) or "no reason"
