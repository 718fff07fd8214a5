"""Rows of adapters, of their versions and of the tenants that they are shared with.

A name refers to one of its versions, and a version to a content (digest) in the store. A writer must bump the revision
first, in the same transaction: the revision's row lock serialises writes. Permissions, files and the engine are handled
by `gateway/admin`, `gateway/uploads` and `gateway/engines`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from adapters.files.facts import Facts
from billing import clock
from billing.errors import AlreadyExists, InvalidValue, RowNotFound
from billing.ids import new_id
from billing.lists import ListColumns, ListPage, ListQuery, select_page
from billing.texts import check_text
from gateway.tables import adapter_shares, adapter_versions, adapters

NAME_CHARS_MAX = 200
NOTES_CHARS_MAX = 2000
SHARES_MAX = 1000
VERSIONS_MAX = 1000  # of one adapter, removed versions included
EVERYONE = "*"  # in `shared` and in a model's `tenants`: all tenants


_SORTED = ListColumns(
    sorts={name: adapters.c[name] for name in ("name", "base_model", "version", "created_at")},
    unique=adapters.c.id,
    searched=(adapters.c.id, adapters.c.name, adapters.c.base_model, sa.func.coalesce(adapters.c.tenant_id, "")),
)


class AdapterNameTaken(AlreadyExists):
    """A tenant that could call this adapter already sees another adapter, model or alias of the same name."""


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """A name and the version that is served under it. `tenant_id`: the owning tenant; None: the operator. `shared`: ids
    of the other tenants that may call the adapter, or "*" for all. `created_at` in Unix seconds."""

    id: str
    tenant_id: str | None
    name: str
    base_model: str
    digest: str
    version: int
    active: bool
    shared: tuple[str, ...]
    pinned: bool
    notes: str | None
    created_at: int


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One content that a name has had. `replaced`: the number of the version that this one replaced when it was
    promoted, and the target of a roll back. `bytes`, `rank_max` and `parameters` are None for adapters registered
    before versions existed. Moments in Unix seconds."""

    adapter_id: str
    number: int
    digest: str
    replaced: int | None
    bytes: int | None
    rank_max: int | None
    parameters: int | None
    targets: tuple[str, ...]
    trained_for: str | None
    warnings: tuple[str, ...]
    created_at: int
    removed_at: int | None


class AdapterQuotaUse(msgspec.Struct, frozen=True, kw_only=True):
    """An owning tenant's use of its quotas: active adapters, versions that are not removed, and the bytes of their
    contents (a content of several versions counts once)."""

    adapters: int
    versions: int
    bytes: int


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """The name and settings under which a content is to be registered.

    `shared`, `pinned`, `notes` None: the values of an existing adapter do not change. A new adapter is not pinned, has
    no notes, and may be called by other tenants only if the operator owns it. `promote` None: the first version of a
    new name is served; a further version is not served until it is promoted."""

    name: str
    tenant_id: str | None
    base_model: str
    shared: tuple[str, ...] | None = None
    pinned: bool | None = None
    notes: str | None = None
    promote: bool | None = None


def check_name(name: str) -> None:
    """Raises InvalidValue."""
    check_text(name, "name", "an adapter's name has", NAME_CHARS_MAX)


def check_free(name: str, taken: Mapping[str, str]) -> None:
    """`taken`: names in use, each with the kind of its object ("an alias"). Raises AdapterNameTaken."""
    if name in taken:
        raise AdapterNameTaken(f"{name!r} is the name of {taken[name]}", "name")


def add_version(
    connection: sa.Connection, wanted: Registration, facts: Facts, taken: Mapping[str, str] | None = None
) -> tuple[Adapter, Version]:
    """Register a content as a version; the adapter and the version may exist already. `taken`: names that the adapter
    may not have, as for `check_free`. Raises AdapterNameTaken, InvalidValue."""
    check_name(wanted.name)
    check_free(wanted.name, taken or {})
    found = named(connection, wanted.tenant_id, wanted.name)
    if found is not None and found.active and found.base_model != wanted.base_model:
        raise AdapterNameTaken(f"{wanted.name!r} is an adapter of {found.base_model}; remove it first", "base")
    shared = wanted.shared
    if shared is None and (found is None or not found.active):
        shared = () if wanted.tenant_id else (EVERYONE,)
    adapter_id = _insert_adapter(connection, wanted, facts.digest) if found is None else found.id
    if found is not None and not found.active:
        values = {"active": True, "base_model": wanted.base_model, "pinned": False, "notes": None}
        connection.execute(sa.update(adapters).where(adapters.c.id == adapter_id).values(values))
    version = _of_content(connection, adapter_id, facts.digest) or _insert_version(connection, adapter_id, facts)
    if found is None or not found.active or wanted.promote:
        promote(connection, adapter_id, version.number, after=None if found is None or not found.active else found)
    adapter = change_adapter(connection, adapter_id, shared=shared, pinned=wanted.pinned, notes=wanted.notes)
    return adapter, version_of(connection, adapter_id, version.number)


def promote(connection: sa.Connection, adapter_id: str, number: int, *, after: Adapter | None) -> Adapter:
    """Serve this version. `after`: the adapter before the call; None if no version was served. Raises RowNotFound."""
    version = version_of(connection, adapter_id, number)
    if after is None or after.version != number:
        row = (adapter_versions.c.adapter_id == adapter_id, adapter_versions.c.number == number)
        before = None if after is None else after.version
        connection.execute(sa.update(adapter_versions).where(*row).values(replaced=before))
        _serve(connection, adapter_id, version)
    return adapter_by_id(connection, adapter_id)


def roll_back(connection: sa.Connection, adapter: Adapter) -> Adapter:
    """Serve the version that the served one replaced. Raises InvalidValue if it replaced none, or RowNotFound."""
    replaced = version_of(connection, adapter.id, adapter.version).replaced
    if replaced is None:
        raise InvalidValue(f"version {adapter.version} replaced no other: there is nothing to roll back to", "adapter")
    _serve(connection, adapter.id, version_of(connection, adapter.id, replaced))
    return adapter_by_id(connection, adapter.id)


def change_adapter(
    connection: sa.Connection,
    adapter_id: str,
    *,
    shared: Sequence[str] | None = None,
    pinned: bool | None = None,
    notes: str | None = None,
) -> Adapter:
    """Change the given fields. `shared`: ids of tenants, or "*". Raises AdapterNameTaken, InvalidValue."""
    values: dict[str, Any] = {}
    if pinned is not None:
        values["pinned"] = pinned
    if notes is not None:
        check_text(notes, "notes", "notes have", NOTES_CHARS_MAX, chars_min=0, lines=True)
        values["notes"] = notes or None
    if shared is not None:
        if len(shared) > SHARES_MAX:
            raise InvalidValue(f"an adapter is shared with at most {SHARES_MAX} tenants, or with all ('*')", "shared")
        values["for_all"] = EVERYONE in shared
        _share(connection, adapter_id, sorted({tenant for tenant in shared if tenant != EVERYONE}))
    if values:
        connection.execute(sa.update(adapters).where(adapters.c.id == adapter_id).values(values))
    adapter = adapter_by_id(connection, adapter_id)
    if shared is not None:
        _check_alone(connection, adapter)
    return adapter


def remove_version(connection: sa.Connection, adapter: Adapter, number: int) -> Version:
    """Remove a version: it cannot be promoted any more. Raises RowNotFound, InvalidValue for the served version."""
    version = version_of(connection, adapter.id, number)
    if adapter.version == number:
        raise InvalidValue(f"version {number} is served; promote another first, or remove the adapter", "version")
    _remove(connection, adapter_versions.c.adapter_id == adapter.id, adapter_versions.c.number == number)
    # A roll back skips the removed version, and a version never replaces itself.
    own = adapter_versions.c.adapter_id == adapter.id
    replaced_this = sa.update(adapter_versions).where(own, adapter_versions.c.replaced == number)
    connection.execute(replaced_this.values(replaced=version.replaced))
    to_itself = sa.update(adapter_versions).where(own, adapter_versions.c.replaced == adapter_versions.c.number)
    connection.execute(to_itself.values(replaced=None))
    removed_at = clock.database_now(connection) // clock.SECOND
    return msgspec.structs.replace(version, removed_at=removed_at)


def remove_adapter_and_versions(connection: sa.Connection, adapter_id: str) -> Adapter:
    """Remove the adapter and all its versions: requests for it are refused from now on."""
    _remove(connection, adapter_versions.c.adapter_id == adapter_id)
    connection.execute(sa.delete(adapter_shares).where(adapter_shares.c.adapter_id == adapter_id))
    values = {"active": False, "for_all": False}
    connection.execute(sa.update(adapters).where(adapters.c.id == adapter_id).values(values))
    return adapter_by_id(connection, adapter_id)


# ---- reading


def list_adapters(connection: sa.Connection, *, active: bool | None = None) -> list[Adapter]:
    """All adapters by name and owner, or only the active or the inactive ones."""
    query = sa.select(adapters).order_by(adapters.c.name, adapters.c.id)
    if active is not None:
        query = query.where(adapters.c.active.is_(active))
    shares: dict[str, list[str]] = defaultdict(list)
    for share in connection.execute(sa.select(adapter_shares).order_by(adapter_shares.c.tenant_id)):
        shares[share.adapter_id].append(share.tenant_id)
    return [_adapter(row, shares[row.id]) for row in connection.execute(query)]


def query_adapters(
    connection: sa.Connection, query: ListQuery, *, tenant_id: str | None = None, name: str | None = None
) -> ListPage[Adapter]:
    """One page of active adapters: of all owners or of one tenant; with `name`, only adapters with exactly this name.
    Raises InvalidValue."""
    select = sa.select(adapters).where(adapters.c.active.is_(True))
    if tenant_id is not None:
        select = select.where(adapters.c.tenant_id == tenant_id)
    if name is not None:
        select = select.where(adapters.c.name == name)
    listed = select_page(connection, select, _SORTED, query, lambda row: row, lambda row: str(row.id))
    shares: dict[str, list[str]] = {row.id: [] for row in listed.items}
    of_page = sa.select(adapter_shares).where(adapter_shares.c.adapter_id.in_(shares))
    for share in connection.execute(of_page.order_by(adapter_shares.c.tenant_id)):
        shares[share.adapter_id].append(share.tenant_id)
    return ListPage([_adapter(row, shares[row.id]) for row in listed.items], listed.next)


def adapter_by_id(connection: sa.Connection, adapter_id: str) -> Adapter:
    """Raises RowNotFound."""
    row = connection.execute(sa.select(adapters).where(adapters.c.id == adapter_id)).one_or_none()
    if row is None:
        raise RowNotFound(f"there is no adapter {adapter_id!r}", "adapter")
    shares = sa.select(adapter_shares.c.tenant_id).where(adapter_shares.c.adapter_id == adapter_id)
    return _adapter(row, connection.execute(shares.order_by(adapter_shares.c.tenant_id)).scalars().all())


def adapter_of(
    connection: sa.Connection, adapter: str, tenant_id: str | None = None, *, seen_by: str | None = None
) -> Adapter:
    """The active adapter with this id, or with this name. `tenant_id`: search the name among this owner's adapters.
    `seen_by`: a tenant; only its own adapters are found. Raises RowNotFound; InvalidValue if several have the name."""
    active = [row for row in list_adapters(connection, active=True) if seen_by in (None, row.tenant_id)]
    found = [row for row in active if row.id == adapter]
    found = found or [row for row in active if row.name == adapter and tenant_id in (None, row.tenant_id)]
    if not found:
        raise RowNotFound(f"there is no adapter {adapter!r}", "adapter")
    if len(found) > 1:
        ids = ", ".join(row.id for row in found)
        raise InvalidValue(f"{adapter!r} is the name of several adapters: {ids}; name one of them", "adapter")
    return found[0]


def named(connection: sa.Connection, tenant_id: str | None, name: str) -> Adapter | None:
    """The adapter of this owner (None: the operator) with this name, removed adapters included."""
    owned = adapters.c.tenant_id.is_(None) if tenant_id is None else adapters.c.tenant_id == tenant_id
    row = connection.execute(sa.select(adapters.c.id).where(owned, adapters.c.name == name)).one_or_none()
    return None if row is None else adapter_by_id(connection, row.id)


def versions(connection: sa.Connection, adapter_id: str) -> list[Version]:
    """Versions that are not removed, newest first."""
    query = sa.select(adapter_versions).where(*_live(adapter_id)).order_by(adapter_versions.c.number.desc())
    return [_version(row) for row in connection.execute(query)]


def version_of(connection: sa.Connection, adapter_id: str, number: int) -> Version:
    """Raises RowNotFound for an unknown or removed version."""
    query = sa.select(adapter_versions).where(*_live(adapter_id), adapter_versions.c.number == number)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise RowNotFound(f"the adapter has no version {number}", "version")
    return _version(row)


def operators_names(connection: sa.Connection) -> set[str]:
    """Names of adapters without an owning tenant, or shared beyond it, which only an operator can do. The names of a
    tenant's private adapters stay available to others."""
    active = list_adapters(connection, active=True)
    return {row.name for row in active if row.tenant_id is None or set(row.shared) - {row.tenant_id}}


def live_digests(connection: sa.Connection) -> set[str]:
    """Digests of all versions that are not removed."""
    query = sa.select(adapter_versions.c.digest).where(adapter_versions.c.removed_at.is_(None)).distinct()
    return set(connection.execute(query).scalars())


def live_versions(connection: sa.Connection) -> dict[tuple[str, int], str]:
    """Digests by adapter's id and number, of all versions that are not removed."""
    columns = (adapter_versions.c.adapter_id, adapter_versions.c.number, adapter_versions.c.digest)
    rows = connection.execute(sa.select(*columns).where(adapter_versions.c.removed_at.is_(None)))
    return {(row.adapter_id, row.number): row.digest for row in rows}


def live_contents(connection: sa.Connection) -> dict[str, str]:
    """Digest → base model, of all versions that are not removed."""
    query = sa.select(adapter_versions.c.digest, adapters.c.base_model).join(
        adapters, adapters.c.id == adapter_versions.c.adapter_id
    )
    return {
        row.digest: row.base_model for row in connection.execute(query.where(adapter_versions.c.removed_at.is_(None)))
    }


def quota_use(connection: sa.Connection, tenant_id: str, *, slab_item_bytes: int) -> AdapterQuotaUse:
    """A tenant's use of its quotas. `slab_item_bytes`: bytes per parameter in a slab file; 0 without slab files."""
    columns = (adapter_versions.c[name] for name in ("adapter_id", "digest", "bytes", "parameters"))
    live = adapter_versions.c.removed_at.is_(None)
    query = sa.select(*columns).join(adapters, adapters.c.id == adapter_versions.c.adapter_id)
    rows = connection.execute(query.where(live, adapters.c.tenant_id == tenant_id)).all()
    contents = {row.digest: (row.bytes or 0) + (row.parameters or 0) * slab_item_bytes for row in rows}
    return AdapterQuotaUse(
        adapters=len({row.adapter_id for row in rows}), versions=len(rows), bytes=sum(contents.values())
    )


# ---- parts of the writes


def _live(adapter_id: str) -> tuple[sa.ColumnElement[bool], ...]:
    return adapter_versions.c.adapter_id == adapter_id, adapter_versions.c.removed_at.is_(None)


def _insert_adapter(connection: sa.Connection, wanted: Registration, digest: str) -> str:
    values = {
        "id": new_id("ada"),
        "tenant_id": wanted.tenant_id,
        "name": wanted.name,
        "base_model": wanted.base_model,
        "digest": digest,
        "active": True,
        "created_at": clock.database_now(connection),
    }
    connection.execute(sa.insert(adapters).values(values))
    return str(values["id"])


def _of_content(connection: sa.Connection, adapter_id: str, digest: str) -> Version | None:
    return next((version for version in versions(connection, adapter_id) if version.digest == digest), None)


def _insert_version(connection: sa.Connection, adapter_id: str, facts: Facts) -> Version:
    newest = sa.select(sa.func.max(adapter_versions.c.number)).where(adapter_versions.c.adapter_id == adapter_id)
    number = int(connection.execute(newest).scalar_one() or 0) + 1
    if number > VERSIONS_MAX:
        raise InvalidValue(f"an adapter has at most {VERSIONS_MAX} versions; give this one a name of its own", "name")
    connection.execute(
        sa.insert(adapter_versions).values(
            adapter_id=adapter_id,
            number=number,
            digest=facts.digest,
            bytes=facts.bytes,
            rank_max=facts.rank_max,
            parameters=facts.parameters,
            targets=list(facts.targets),
            trained_for=facts.trained_for,
            warnings=list(facts.warnings),
            created_at=clock.database_now(connection),
        )
    )
    return version_of(connection, adapter_id, number)


def _serve(connection: sa.Connection, adapter_id: str, version: Version) -> None:
    values = {"version": version.number, "digest": version.digest}
    connection.execute(sa.update(adapters).where(adapters.c.id == adapter_id).values(values))


def _share(connection: sa.Connection, adapter_id: str, tenant_ids: Iterable[str]) -> None:
    connection.execute(sa.delete(adapter_shares).where(adapter_shares.c.adapter_id == adapter_id))
    for tenant_id in tenant_ids:
        connection.execute(sa.insert(adapter_shares).values(adapter_id=adapter_id, tenant_id=tenant_id))


def _check_alone(connection: sa.Connection, adapter: Adapter) -> None:
    """Check that no tenant would see two adapters of this name. Raises AdapterNameTaken."""
    same = sa.select(adapters.c.id).where(adapters.c.name == adapter.name, adapters.c.active.is_(True))
    for adapter_id in connection.execute(same.where(adapters.c.id != adapter.id)).scalars().all():
        other = adapter_by_id(connection, adapter_id)
        if both := set(other.shared) & set(adapter.shared):
            sharers = "all tenants" if EVERYONE in both else ", ".join(sorted(both))
            raise AdapterNameTaken(f"{adapter.name!r} is shared with {sharers} already: {other.id}", "shared")


def _remove(connection: sa.Connection, *conditions: sa.ColumnElement[bool]) -> None:
    live = adapter_versions.c.removed_at.is_(None)
    now = clock.database_now(connection)
    connection.execute(sa.update(adapter_versions).where(live, *conditions).values(removed_at=now))


def _adapter(row: sa.Row[Any], shares: Sequence[str]) -> Adapter:
    values = dict(row._mapping)
    everyone = [EVERYONE] if values.pop("for_all") else []
    values["created_at"] //= clock.SECOND
    return Adapter(**values, shared=(*everyone, *shares))


def _version(row: sa.Row[Any]) -> Version:
    values = dict(row._mapping)
    for name in ("created_at", "removed_at"):
        values[name] = None if values[name] is None else values[name] // clock.SECOND
    return Version(**values | {name: tuple(values[name]) for name in ("targets", "warnings")})
