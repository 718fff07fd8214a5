"""Tenants and their projects. Every write bumps the revision in its own transaction. Knows nothing of keys."""

from __future__ import annotations

import re
from typing import Literal

import msgspec
import sqlalchemy as sa

from billing import revision, tables
from billing.clock import database_now
from billing.errors import AlreadyExists, InvalidValue, NotFound
from billing.ids import new_id
from billing.requests import REQUEST_TOKENS_MAX

LIST_MAX = 1000
DEFAULT_PROJECT = "default"

Status = Literal["active", "suspended"]

_SLUG = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_CURRENCY = re.compile(r"[A-Z]{3}")
_tenants = tables.tenants
_projects = tables.projects


class Tenant(msgspec.Struct, frozen=True):
    """`slug` is the name in /t/<slug>; `tier` the highest a key of this tenant may have."""

    id: str
    slug: str
    name: str
    tier: str
    currency: str
    status: Status
    default_max_tokens: int | None
    created_at: int


class Project(msgspec.Struct, frozen=True):
    id: str
    tenant_id: str
    name: str
    created_at: int


def create(
    connection: sa.Connection,
    *,
    slug: str,
    name: str,
    tier: str,
    currency: str = "USD",
    default_max_tokens: int | None = None,
) -> Tenant:
    """A tenant with its default project. The currency is for ever. Raises InvalidValue, AlreadyExists."""
    if not _SLUG.fullmatch(slug):
        raise InvalidValue("a slug is 1 to 63 of a-z, 0-9 and inner hyphens", "slug")
    if not _CURRENCY.fullmatch(currency):
        raise InvalidValue("a currency is three capital letters (ISO 4217)", "currency")
    _check(name, tier, default_max_tokens)
    if by_slug(connection, slug) is not None:
        raise AlreadyExists(f"there is a tenant {slug!r} already", "slug")
    now = database_now(connection)
    tenant = Tenant(new_id("ten"), slug, name, tier, currency, "active", default_max_tokens, now)
    try:
        connection.execute(sa.insert(_tenants).values(msgspec.structs.asdict(tenant)))
    except sa.exc.IntegrityError as error:  # made by another process a moment ago
        raise AlreadyExists(f"there is a tenant {slug!r} already", "slug") from error
    project = Project(new_id("prj"), tenant.id, DEFAULT_PROJECT, now)
    connection.execute(sa.insert(_projects).values(msgspec.structs.asdict(project)))
    revision.bump(connection)
    return tenant


def get(connection: sa.Connection, tenant_id: str) -> Tenant | None:
    row = connection.execute(sa.select(_tenants).where(_tenants.c.id == tenant_id)).one_or_none()
    return None if row is None else Tenant(*row)


def by_slug(connection: sa.Connection, slug: str) -> Tenant | None:
    row = connection.execute(sa.select(_tenants).where(_tenants.c.slug == slug)).one_or_none()
    return None if row is None else Tenant(*row)


def listing(connection: sa.Connection, *, after: str = "", limit: int = 100) -> list[Tenant]:
    """A page in the order of slugs, beginning after slug `after`."""
    query = sa.select(_tenants).where(_tenants.c.slug > after).order_by(_tenants.c.slug).limit(min(limit, LIST_MAX))
    return [Tenant(*row) for row in connection.execute(query)]


def update(
    connection: sa.Connection,
    tenant_id: str,
    *,
    name: str | None = None,
    tier: str | None = None,
    default_max_tokens: int | msgspec.UnsetType | None = msgspec.UNSET,
) -> Tenant:
    """Change what is given. Raises InvalidValue, NotFound."""
    limit = None if default_max_tokens is msgspec.UNSET else default_max_tokens
    _check("-" if name is None else name, "-" if tier is None else tier, limit)
    values: dict[str, object] = {}
    if name is not None:
        values["name"] = name
    if tier is not None:
        values["tier"] = tier
    if default_max_tokens is not msgspec.UNSET:
        values["default_max_tokens"] = default_max_tokens
    return _change(connection, tenant_id, values)


def suspend(connection: sa.Connection, tenant_id: str) -> Tenant:
    return _change(connection, tenant_id, {"status": "suspended"})


def resume(connection: sa.Connection, tenant_id: str) -> Tenant:
    return _change(connection, tenant_id, {"status": "active"})


def default_project(connection: sa.Connection, tenant_id: str) -> Project:
    query = sa.select(_projects).where(_projects.c.tenant_id == tenant_id, _projects.c.name == DEFAULT_PROJECT)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFound(f"there is no tenant {tenant_id!r}")
    return Project(*row)


def _check(name: str, tier: str, default_max_tokens: int | None) -> None:
    if not 1 <= len(name) <= 200 or not name.isprintable():
        raise InvalidValue("a name is 1 to 200 printable characters", "name")
    if not 1 <= len(tier) <= 32 or not tier.isprintable():
        raise InvalidValue("a tier is 1 to 32 printable characters", "tier")
    if default_max_tokens is not None and not 1 <= default_max_tokens <= REQUEST_TOKENS_MAX:
        raise InvalidValue(f"must be 1 to {REQUEST_TOKENS_MAX}", "default_max_tokens")


def _change(connection: sa.Connection, tenant_id: str, values: dict[str, object]) -> Tenant:
    if values:
        connection.execute(sa.update(_tenants).where(_tenants.c.id == tenant_id).values(values))
    tenant = get(connection, tenant_id)
    if tenant is None:
        raise NotFound(f"there is no tenant {tenant_id!r}")
    revision.bump(connection)
    return tenant
