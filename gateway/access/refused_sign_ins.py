"""Refused sign-ins in the audit log: the client's address, and the key or the person if one was found.

Anyone can send a wrong key, so the number of lines is bounded. Lines without a key: one in NOTED_S for each address;
LINES_MAX in NOTED_S and HOUR_LINES_MAX in an hour for each gateway process. Lines with a key have bounds of their own,
which no other key and no address can use up: one in NOTED_S and KEY_HOUR_LINES_MAX in an hour for each key. People who
sign in at a provider have bounds of their own, as keys and addresses do; only refusals after an ID token that the
provider has signed have a line.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import sqlalchemy as sa

from billing import revision
from billing.database import Database, DatabaseUnavailable
from gateway.access import audit_log
from gateway.access.callers import Caller
from gateway.access.people import Person
from gateway.access.provider_answers import SignedSignInRefused
from gateway.limits.connection_limits import client_of
from gateway.log import ThrottledWarning

ACTION = "session.refuse"
PERSON_ACTION = "person.refuse_sign_in"
UNKNOWN_ACTOR = "unknown"  # the actor of a line without a key
NO_ADDRESS = "no address"  # of a client behind a Unix socket
NOTED_S = 60.0
LINES_MAX = 10
HOUR_S = 3600.0
HOUR_LINES_MAX = 60
KEY_HOUR_LINES_MAX = 10  # also of a person
DETAIL_CHARS_MAX = 200

_log = logging.getLogger(__name__)


class RefusedSignIns:
    """One per gateway process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._unknown: list[tuple[float, str]] = []  # moments and addresses of the last hour's lines without a key
        self._by_key: dict[str, list[float]] = {}  # id of a key or a person → moments of its lines in the last hour
        self._suppressed = ThrottledWarning(_log, "session.refusals_suppressed", every_s=NOTED_S, clock=clock)

    async def note(
        self, database: Database, address: str, reason: str, request_id: str, caller: Caller | None = None
    ) -> None:
        """Write the line of a refused sign-in, within the bounds. `reason`: the error's code. `caller`: the bearer of
        the key, if a key was found. A failure to write the audit log is logged and not raised."""
        client = client_of(address) or NO_ADDRESS
        actor, tenant_id = (None, None) if caller is None else (caller.key_id, caller.tenant_id)
        await self._note(database, ACTION, client, actor, tenant_id, {"reason": reason}, request_id)

    async def note_person(
        self, database: Database, address: str, refused: SignedSignInRefused, request_id: str, person: Person | None
    ) -> None:
        """`note` for a person at a provider. The line has no content of a token. `person` None: the person never signed
        in here, or the token does not identify the person reliably."""
        client = client_of(address) or NO_ADDRESS
        actor, tenant_id = (None, None) if person is None else (person.id, person.tenant_id)
        after = {"reason": refused.reason, "detail": str(refused)[:DETAIL_CHARS_MAX]}
        await self._note(database, PERSON_ACTION, client, actor, tenant_id, after, request_id)

    async def _note(
        self,
        database: Database,
        action: str,
        client: str,
        actor: str | None,
        tenant_id: str | None,
        after: dict[str, str],
        request_id: str,
    ) -> None:
        if not (self._count_unknown(client) if actor is None else self._count_known(actor)):
            self._suppressed.warn(address=client, actor=actor, reason=after["reason"])
            return

        def record(connection: sa.Connection) -> None:
            revision.lock(connection)
            audit_log.add_audit_line(
                connection,
                actor=actor or UNKNOWN_ACTOR,
                action=action,
                object_id=client,
                tenant_id=tenant_id,
                after=after,
                request_id=request_id,
            )

        try:
            await database.write_in_background(record)
        except DatabaseUnavailable as error:
            fields = {"address": client, "request_id": request_id, "reason": str(error)}
            _log.error("session.refusal_not_written", extra={"fields": fields})

    def _count_unknown(self, client: str) -> bool:
        """Count a line without a key. False: a bound is reached."""
        now = self._clock()
        self._unknown = [line for line in self._unknown if now - line[0] < HOUR_S]
        recent = [one for at, one in self._unknown if now - at < NOTED_S]
        if len(self._unknown) >= HOUR_LINES_MAX or len(recent) >= LINES_MAX or client in recent:
            return False
        self._unknown.append((now, client))
        return True

    def _count_known(self, key_id: str) -> bool:
        """Count a line with a key. False: a bound is reached."""
        now = self._clock()
        of_last_hour = {one: [at for at in moments if now - at < HOUR_S] for one, moments in self._by_key.items()}
        self._by_key = {one: moments for one, moments in of_last_hour.items() if moments}
        moments = self._by_key.setdefault(key_id, [])
        if len(moments) >= KEY_HOUR_LINES_MAX or (moments and now - moments[-1] < NOTED_S):
            return False
        moments.append(now)
        return True
