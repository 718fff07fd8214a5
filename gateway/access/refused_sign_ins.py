"""Refused sign-ins in the audit log: the client's address, and the key if a key was found.

Anyone can send a wrong key, so the number of lines is bounded: in NOTED_S, one for each address and LINES_MAX for each
gateway process.
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
from gateway.limits.connection_limits import client_of

ACTION = "session.refuse"
UNKNOWN_ACTOR = "unknown"  # the actor of a line without a key
NO_ADDRESS = "no address"  # of a client behind a Unix socket
NOTED_S = 60.0
LINES_MAX = 10

_log = logging.getLogger(__name__)


class RefusedSignIns:
    """One per gateway process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._noted: dict[str, float] = {}  # address → when its newest line was written; at most LINES_MAX

    async def note(
        self, database: Database, address: str, reason: str, request_id: str, caller: Caller | None = None
    ) -> None:
        """Write the line of a refused sign-in, within the bounds. `reason`: the error's code. `caller`: the bearer of
        the key, if a key was found. An audit log that cannot be written is logged and refuses nothing."""
        client = client_of(address) or NO_ADDRESS
        now = self._clock()
        self._noted = {one: at for one, at in self._noted.items() if now - at < NOTED_S}
        if client in self._noted or len(self._noted) >= LINES_MAX:
            return
        self._noted[client] = now

        def record(connection: sa.Connection) -> None:
            revision.lock(connection)
            audit_log.record(
                connection,
                actor=UNKNOWN_ACTOR if caller is None else caller.key_id,
                action=ACTION,
                object_id=client,
                tenant_id=None if caller is None else caller.tenant_id,
                after={"reason": reason},
                request_id=request_id,
            )

        try:
            await database.write_in_background(record)
        except DatabaseUnavailable as error:
            fields = {"address": client, "request_id": request_id, "reason": str(error)}
            _log.error("session.refusal_not_written", extra={"fields": fields})
