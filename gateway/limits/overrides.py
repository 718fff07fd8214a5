"""The rate limits set for single keys and tenants, and the quotas of tenants' files and batches, as functions over a
database connection.

A key or tenant without such limits has the limits of the configuration. Every change raises the revision, so that
running gateways reload the limits.
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
from gateway.config.batches_settings import ENQUEUED_TOKENS_MAX
from gateway.config.files_settings import TENANT_BYTES_MAX
from gateway.limits.quotas import QuotaName
from gateway.limits.rates import Scope
from gateway.tables import keys, rate_limits

RATES = ("requests_per_minute", "tokens_per_minute", "concurrency")
QUOTAS: tuple[QuotaName, ...] = ("files", "total_file_bytes", "batches", "enqueued_tokens")
NAMES = (*RATES, *QUOTAS)
MAXIMA = dict.fromkeys(NAMES, LIMIT_MAX) | {
    "total_file_bytes": TENANT_BYTES_MAX,
    "enqueued_tokens": ENQUEUED_TOKENS_MAX,
}
LIST_MAX = 1000


class OwnLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of the key or tenant `subject_id`. Null: the configuration's limit applies. A key and the keys rotated
    from it share their limits: `subject_id` is the newest of them. Only a tenant has quotas: `files` and the
    `total_file_bytes` of all its files, `batches` that have not ended, and `enqueued_tokens` of these batches, which
    are estimated from the bytes of their bodies. A quota below the present use refuses further files and batches."""

    id: str
    scope: Scope
    subject_id: str
    tenant_id: str
    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrency: int | None
    files: int | None
    total_file_bytes: int | None
    batches: int | None
    enqueued_tokens: int | None


class LimitsChange(msgspec.Struct, frozen=True, kw_only=True):
    """The limits to change; null: the configuration's limit applies again."""

    requests_per_minute: int | UnsetType | None = UNSET
    tokens_per_minute: int | UnsetType | None = UNSET
    concurrency: int | UnsetType | None = UNSET
    files: int | UnsetType | None = UNSET
    total_file_bytes: int | UnsetType | None = UNSET
    batches: int | UnsetType | None = UNSET
    enqueued_tokens: int | UnsetType | None = UNSET


def get_own_limits(connection: sa.Connection, limits_id: str) -> OwnLimits | None:
    return _one(connection, rate_limits.c.id == limits_id)


def of_subject(connection: sa.Connection, subject_id: str) -> OwnLimits | None:
    """The limits of a tenant or a key. `subject_id`: any of the rotated keys that share the limits."""
    return _one(connection, rate_limits.c.subject_id == _row_subject(connection, subject_id))


def list_own_limits(connection: sa.Connection, tenant_id: str | None = None) -> list[OwnLimits]:
    """The limits of one tenant and its keys, or of all tenants: the first LIST_MAX by id."""
    query = _SELECT.order_by(rate_limits.c.id).limit(LIST_MAX)
    if tenant_id is not None:
        query = query.where(rate_limits.c.tenant_id == tenant_id)
    return [_own(row) for row in connection.execute(query)]


def change_own_limits(
    connection: sa.Connection, *, scope: Scope, subject_id: str, tenant_id: str, change: LimitsChange
) -> OwnLimits:
    """Change the limits of a key or tenant and return them. Raises InvalidValue."""
    given = {name: value for name in NAMES if (value := getattr(change, name)) is not UNSET}
    for name, value in given.items():
        if value is not None and not 1 <= value <= MAXIMA[name]:
            raise InvalidValue(f"is {value}; it must be 1 to {MAXIMA[name]}", name)
        if value is not None and scope == "key" and name in QUOTAS:
            raise InvalidValue("is a quota of a tenant; a key has none", name)
    unset: dict[str, int | None] = dict.fromkeys(NAMES)
    before = of_subject(connection, subject_id) or OwnLimits(
        id=new_id("lim"), scope=scope, subject_id=subject_id, tenant_id=tenant_id, **unset
    )
    after = msgspec.structs.replace(before, **given)
    connection.execute(sa.delete(rate_limits).where(rate_limits.c.id == after.id))
    row = msgspec.structs.asdict(after) | {"subject_id": _row_subject(connection, subject_id)}
    connection.execute(sa.insert(rate_limits).values(row))
    revision.bump(connection, Change("limits", tenant_id))
    return _one(connection, rate_limits.c.id == after.id) or after


def remove_own_limits(connection: sa.Connection, limits_id: str) -> OwnLimits:
    """Remove the limits and return them with every limit null. Raises RowNotFound."""
    before = get_own_limits(connection, limits_id)
    if before is None:
        raise RowNotFound(f"there are no limits {limits_id!r}")
    connection.execute(sa.delete(rate_limits).where(rate_limits.c.id == limits_id))
    revision.bump(connection, Change("limits", before.tenant_id))
    return msgspec.structs.replace(before, **dict.fromkeys(NAMES))


def _row_subject(connection: sa.Connection, subject_id: str) -> str:
    """The `subject_id` of the row: the tenant, or the first key of the rotations that led to this key."""
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
