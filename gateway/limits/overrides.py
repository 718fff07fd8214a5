"""Rate limits set for a key or a tenant, as functions over a connection. Others have the configuration's limits.

Every change bumps the revision, so that running gateways drop what they cached. Nothing here limits anything.
"""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import UNSET, UnsetType

from billing import revision
from billing.errors import InvalidValue, RowNotFound
from billing.ids import new_id
from billing.revision import Change
from gateway.config.allowance import LIMIT_MAX
from gateway.limits.rates import Scope
from gateway.tables import keys, rate_limits

NAMES = ("requests_per_minute", "tokens_per_minute", "concurrency")
LIST_MAX = 1000


class OwnLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Of one key or tenant, `subject_id`. Null: the configuration's. Keys that were rotated share theirs: `subject_id`
    is the newest of them."""

    id: str
    scope: Scope
    subject_id: str
    tenant_id: str
    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrency: int | None


class LimitsChange(msgspec.Struct, frozen=True, kw_only=True):
    """What is given changes; null is the configuration's again."""

    requests_per_minute: int | UnsetType | None = UNSET
    tokens_per_minute: int | UnsetType | None = UNSET
    concurrency: int | UnsetType | None = UNSET


def get(connection: sa.Connection, limits_id: str) -> OwnLimits | None:
    return _one(connection, rate_limits.c.id == limits_id)


def of_subject(connection: sa.Connection, subject_id: str) -> OwnLimits | None:
    """`subject_id`: a tenant's id, or that of any key of the rotations that share the limits."""
    return _one(connection, rate_limits.c.subject_id == _kept_under(connection, subject_id))


def listing(connection: sa.Connection, tenant_id: str | None = None) -> list[OwnLimits]:
    """Of all, or of one tenant and its keys; the first LIST_MAX by id."""
    query = _SELECT.order_by(rate_limits.c.id).limit(LIST_MAX)
    if tenant_id is not None:
        query = query.where(rate_limits.c.tenant_id == tenant_id)
    return [_own(row) for row in connection.execute(query)]


def change(
    connection: sa.Connection, *, scope: Scope, subject_id: str, tenant_id: str, change: LimitsChange
) -> OwnLimits:
    """Raises InvalidValue."""
    given = {name: value for name in NAMES if (value := getattr(change, name)) is not UNSET}
    for name, value in given.items():
        if value is not None and not 1 <= value <= LIMIT_MAX:
            raise InvalidValue(f"is {value}; it must be 1 to {LIMIT_MAX}", name)
    nothing: dict[str, int | None] = dict.fromkeys(NAMES)
    before = of_subject(connection, subject_id) or OwnLimits(
        id=new_id("lim"), scope=scope, subject_id=subject_id, tenant_id=tenant_id, **nothing
    )
    after = msgspec.structs.replace(before, **given)
    connection.execute(sa.delete(rate_limits).where(rate_limits.c.id == after.id))
    kept = msgspec.structs.asdict(after) | {"subject_id": _kept_under(connection, subject_id)}
    connection.execute(sa.insert(rate_limits).values(kept))
    revision.bump(connection, Change("limits", tenant_id))
    return _one(connection, rate_limits.c.id == after.id) or after


def remove(connection: sa.Connection, limits_id: str) -> OwnLimits:
    """What holds then. Raises RowNotFound."""
    before = get(connection, limits_id)
    if before is None:
        raise RowNotFound(f"there are no limits {limits_id!r}")
    connection.execute(sa.delete(rate_limits).where(rate_limits.c.id == limits_id))
    revision.bump(connection, Change("limits", before.tenant_id))
    return msgspec.structs.replace(before, **dict.fromkeys(NAMES))


def _kept_under(connection: sa.Connection, subject_id: str) -> str:
    """What the rows name: a tenant, or the first key of the rotations that made the key."""
    first = connection.execute(sa.select(keys.c.first_key_id).where(keys.c.id == subject_id)).scalar_one_or_none()
    return str(first or subject_id)


_NEWEST = sa.and_(
    sa.or_(keys.c.id == rate_limits.c.subject_id, keys.c.first_key_id == rate_limits.c.subject_id),
    keys.c.rotated_to.is_(None),
)
_SELECT = sa.select(rate_limits, keys.c.id.label("newest")).outerjoin(keys, _NEWEST)


def _one(connection: sa.Connection, which: sa.ColumnElement[bool]) -> OwnLimits | None:
    row = connection.execute(_SELECT.where(which)).one_or_none()
    return None if row is None else _own(row)


def _own(row: sa.Row[Any]) -> OwnLimits:
    fields = dict(row._mapping)
    newest = fields.pop("newest")
    return OwnLimits(**fields | {"subject_id": newest or fields["subject_id"]})
