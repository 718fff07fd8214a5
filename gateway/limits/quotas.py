"""The quotas of one tenant's files and batches: its own limits, or else those of laneway.toml."""

from __future__ import annotations

from typing import Literal

import msgspec
import sqlalchemy as sa

from gateway.tables import rate_limits

QuotaName = Literal["files", "total_file_bytes", "batches", "enqueued_tokens"]


class Quota(msgspec.Struct, frozen=True):
    """A quota of a tenant. `source`: the place where it is set, for messages."""

    value: int
    source: str


def quota_of(connection: sa.Connection, tenant_id: str, name: QuotaName, configured: int, setting: str) -> Quota:
    """The tenant's own quota. Without one it is `configured`, the value of `setting` in laneway.toml."""
    query = sa.select(rate_limits.c[name]).where(rate_limits.c.subject_id == tenant_id)
    own = connection.execute(query).scalar_one_or_none()
    return Quota(configured, setting) if own is None else Quota(int(own), f"the tenant's quota {name!r}")
