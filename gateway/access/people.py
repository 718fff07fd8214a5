"""People who sign in at the provider of [oidc]: their rows, and the role that their groups give them.

A row is the person of one issuer and subject. Name and email are only shown; nothing is decided by them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from billing.accounts import tenants
from billing.clock import database_now
from billing.ids import new_id
from billing.lists import ListColumns, ListPage, ListQuery, select_page
from billing.texts import visible
from gateway.access import audit_log
from gateway.access.roles import ROLES, Role
from gateway.config.sign_in import GroupSection
from gateway.tables import people, person_sessions

ID_PREFIX = "psn"
NAME_CHARS_MAX = 200
EMAIL_CHARS_MAX = 320
SUBJECT_CHARS_MAX = 255  # OpenID Connect Core 1.0, section 2
PROVIDER_SID_CHARS_MAX = 255


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """Moments are microseconds UTC. `role` None: at the last check no group had a role. `tenant_id`: of a
    tenant_admin."""

    id: str
    issuer: str
    subject: str
    name: str | None
    email: str | None
    role: Role | None
    tenant_id: str | None
    created_at: int
    signed_in_at: int

    @property
    def shown_name(self) -> str:
        return self.name or self.email or self.subject


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's claims about a person. `groups` in the provider's order."""

    issuer: str
    subject: str
    name: str | None
    email: str | None
    groups: tuple[str, ...]
    provider_sid: str | None = None


class Grant(msgspec.Struct, frozen=True):
    """The role of a person by its groups."""

    role: Role
    tenant_id: str | None


_SORTED = ListColumns(
    sorts={
        "signed_in_at": people.c.signed_in_at,
        "created_at": people.c.created_at,
        "name": sa.func.coalesce(people.c.name, ""),
        "email": sa.func.coalesce(people.c.email, ""),
        "role": sa.func.coalesce(people.c.role, ""),
    },
    unique=people.c.id,
    searched=(
        people.c.id,
        people.c.subject,
        sa.func.coalesce(people.c.name, ""),
        sa.func.coalesce(people.c.email, ""),
        sa.func.coalesce(people.c.role, ""),
    ),
)
_SELECT = sa.select(*(people.c[name] for name in Person.__struct_fields__))


def is_person(id_: str) -> bool:
    return id_.startswith(f"{ID_PREFIX}_")


def grant_of(connection: sa.Connection, mappings: Sequence[GroupSection], groups: Collection[str]) -> Grant | None:
    """The strongest role (the first of ROLES) that these groups have, the first in the file among equals. None: none
    of the groups has a role, or the tenant of a tenant_admin does not exist."""
    mine = [mapping for mapping in mappings if mapping.group in groups]
    for mapping in sorted(mine, key=lambda mapping: ROLES.index(mapping.role)):
        if mapping.tenant is None:
            return Grant(mapping.role, None)
        if (tenant := tenants.by_slug(connection, mapping.tenant)) is not None:
            return Grant(mapping.role, tenant.id)
    return None


def get_person(connection: sa.Connection, person_id: str) -> Person | None:
    row = connection.execute(_SELECT.where(people.c.id == person_id)).one_or_none()
    return None if row is None else _person(row)


def by_subject(connection: sa.Connection, issuer: str, subject: str) -> Person | None:
    query = _SELECT.where(people.c.issuer == issuer, people.c.subject == subject)
    row = connection.execute(query).one_or_none()
    return None if row is None else _person(row)


def query_people(connection: sa.Connection, query: ListQuery) -> ListPage[Person]:
    """One page of all people. Raises InvalidValue."""
    return select_page(connection, _SELECT, _SORTED, query, _person, lambda person: person.id)


def usable(connection: sa.Connection, person_ids: Collection[str]) -> set[str]:
    """The subset of `person_ids` that has a role and a session."""
    sessions_of = sa.select(person_sessions.c.id).where(person_sessions.c.person_id == people.c.id)
    query = sa.select(people.c.id).where(people.c.id.in_(person_ids), people.c.role.is_not(None), sessions_of.exists())
    return set(connection.execute(query).scalars())


def sign_in(connection: sa.Connection, identity: Identity, grant: Grant, request_id: str) -> Person:
    """The person's row, made at the first sign-in, with the provider's current claims."""
    now = database_now(connection)
    known = by_subject(connection, identity.issuer, identity.subject)
    if known is None:
        person = Person(
            id=new_id(ID_PREFIX),
            issuer=identity.issuer,
            subject=identity.subject,
            name=_shown(identity.name, NAME_CHARS_MAX),
            email=_shown(identity.email, EMAIL_CHARS_MAX),
            role=grant.role,
            tenant_id=grant.tenant_id,
            created_at=now,
            signed_in_at=now,
        )
        try:
            with connection.begin_nested():
                connection.execute(sa.insert(people).values(msgspec.structs.asdict(person)))
        except sa.exc.IntegrityError:  # another gateway made it meanwhile
            known = by_subject(connection, identity.issuer, identity.subject)
            assert known is not None
        else:
            _record(connection, "person.create", None, person, request_id)
            return person
    return update_person(connection, known, identity, grant, request_id, signed_in_at=now)


def update_person(
    connection: sa.Connection,
    before: Person,
    identity: Identity,
    grant: Grant | None,
    request_id: str,
    *,
    signed_in_at: int | None = None,
) -> Person:
    """Store the provider's current claims. A changed role has an audit line."""
    after = msgspec.structs.replace(
        before,
        name=_shown(identity.name, NAME_CHARS_MAX),
        email=_shown(identity.email, EMAIL_CHARS_MAX),
        role=None if grant is None else grant.role,
        tenant_id=None if grant is None else grant.tenant_id,
    )
    after = msgspec.structs.replace(after, signed_in_at=signed_in_at or before.signed_in_at)
    if after != before:
        values = {name: getattr(after, name) for name in ("name", "email", "role", "tenant_id", "signed_in_at")}
        connection.execute(sa.update(people).where(people.c.id == before.id).values(values))
    if (after.role, after.tenant_id) != (before.role, before.tenant_id):
        _record(connection, "person.update", before, after, request_id)
    return after


def _record(connection: sa.Connection, action: str, before: Person | None, after: Person, request_id: str) -> None:
    """The line is of the tenant of a tenant_admin. Name and email are left out: the log cannot be erased."""
    audit_log.add_audit_line(
        connection,
        actor=after.id,
        action=action,
        object_id=after.id,
        tenant_id=after.tenant_id,
        before=None if before is None else _pseudonymous(before),
        after=_pseudonymous(after),
        request_id=request_id,
    )


def _pseudonymous(person: Person) -> dict[str, Any]:
    return {"id": person.id, "role": person.role, "tenant_id": person.tenant_id}


def _shown(text: str | None, chars_max: int) -> str | None:
    """A name as it is stored: a provider may let people choose it, so characters that do not print are escaped."""
    return visible(text)[:chars_max] if text else None


def _person(row: sa.Row[Any]) -> Person:
    return Person(**row._mapping)
