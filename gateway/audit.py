"""The audit log: who changed what, from what to what, written in the transaction of the change itself.

It never holds a secret; what is given as `before` and `after` is what may be shown.
"""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from billing import clock
from gateway.tables import audit_log

CLI = "cli"  # the actor of a command on the host


def record(
    connection: sa.Connection,
    *,
    actor: str,
    action: str,
    object_id: str,
    before: Any = None,
    after: Any = None,
    request_id: str | None = None,
) -> None:
    """Add one line. `actor` is a key id or CLI; `before` and `after` are structs or plain JSON data."""
    connection.execute(
        sa.insert(audit_log).values(
            at=clock.database_now(connection),
            actor=actor,
            action=action,
            object_id=object_id,
            request_id=request_id,
            before=msgspec.to_builtins(before),
            after=msgspec.to_builtins(after),
        )
    )
