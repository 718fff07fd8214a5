"""API keys: the form of a secret, and functions over a connection that make, list, rotate and revoke keys.

A secret is shown once, when the key is made; the database holds its SHA-256. Every change bumps the revision, so that
running gateways drop cached callers.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec
import sqlalchemy as sa

from billing import clock, revision
from billing.accounts.tags import check_tags, store_tag_set
from billing.bulk import BulkUpdate, Query, among
from billing.errors import ArgumentChecks, InvalidValue
from billing.ids import new_id
from billing.lists import ListColumns, ListPage, ListQuery, select_page
from billing.revision import Change
from billing.texts import check_text, visible
from gateway.access.roles import ROLES, TENANT_ADMIN, Role
from gateway.config.networks import checked_networks
from gateway.config.settings import NAME
from gateway.tables import keys

Kind = Literal["live", "test", "admin"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Status = Literal["active", "expiring", "expired", "revoked"]  # an expiring key is active too
EXPIRING_S = 14 * 86_400

INFERENCE = "inference"  # chat completions and the model list
ADMIN = "admin"  # /v1/admin/*
SCOPES = (INFERENCE, ADMIN)

ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
RANDOM_CHARS = 32
CHECK_CHARS = 6  # 62**6 > 2**32
PREFIX_CHARS = 4  # characters of the random part that are stored, so that a person can recognise the key
NAME_CHARS_MAX = 200
OVERLAP_S_MAX = 30 * 24 * 3600
MODELS_MAX = 100  # of a key's list of models

_MARK_USED = BulkUpdate(keys, ("last_used_at",), key="id")
_LOCK_USED = Query(
    sa.select(keys.c.id)
    .where(among(keys.c.id, "key_ids"))
    .order_by(keys.c.id)
    .with_for_update(key_share=True)  # does not block inserts of rows whose foreign key is one of these keys
)
_FORM = re.compile(rf"lw_(?:{'|'.join(KINDS)})_([0-9A-Za-z]{{{RANDOM_CHARS}}})([0-9A-Za-z]{{{CHECK_CHARS}}})\Z")
SECRET_CHARS_MAX = len("lw_admin_") + RANDOM_CHARS + CHECK_CHARS


NEVER = 0  # sorts in place of a NULL moment
_SORTED = ListColumns(
    sorts={
        "created_at": keys.c.created_at,
        "name": keys.c.name,
        "kind": keys.c.kind,
        "role": sa.func.coalesce(keys.c.role, ""),
        "tier": sa.func.coalesce(keys.c.tier, ""),
        "last_used_at": sa.func.coalesce(keys.c.last_used_at, NEVER),
        "expires_at": sa.func.coalesce(keys.c.expires_at, NEVER),
        "revoked_at": sa.func.coalesce(keys.c.revoked_at, NEVER),
    },
    unique=keys.c.id,
    searched=(keys.c.id, keys.c.name, keys.c.prefix, keys.c.last4, sa.func.coalesce(keys.c.tenant_id, "")),
)


class KeyRefused(ValueError):
    """The key cannot be made or changed as requested; the message says why."""


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret. Moments are whole Unix seconds, as everywhere in the HTTP API."""

    id: str
    tenant_id: str | None
    project_id: str | None
    name: str
    kind: str
    prefix: str
    last4: str
    tier: str | None
    scopes: list[str]
    default_max_tokens: int | None
    created_at: int
    last_used_at: int | None
    expires_at: int | None
    revoked_at: int | None
    rotated_to: str | None
    role: Role | None  # of an admin key
    first_key_id: str | None  # the first key of this key's rotations; None: the key replaced no other key
    break_glass: bool  # an admin key for emergencies: its use raises an alert
    # The models, adapters and aliases that it may call; None: all names of its tenant.
    models: list[str] | None = None
    allowed_ips: list[str] | None = None  # the networks from which it may be used; None: every address
    tags: dict[str, str] = {}  # of its usage from now on

    @property
    def shares_as(self) -> str:
        """The id under which the budgets and rate limits of all keys of these rotations are stored."""
        return self.first_key_id or self.id


class MadeKey(msgspec.Struct, frozen=True, kw_only=True):
    """A new key and its secret, which is not available again."""

    key: Key
    secret: str


def make_secret(kind: Kind) -> str:
    """A new secret: lw_<kind>_ + 32 random base62 characters + the CRC32 of both in base62."""
    return with_checksum(f"lw_{kind}_" + "".join(secrets.choice(ALPHABET) for _ in range(RANDOM_CHARS)))


def with_checksum(text: str) -> str:
    return text + _base62(zlib.crc32(text.encode()))


def is_well_formed(secret: str) -> bool:
    """Whether form and checksum are right, so that a typing mistake is refused without a query of the database."""
    if len(secret) > SECRET_CHARS_MAX or not _FORM.match(secret):
        return False
    return secret == with_checksum(secret[:-CHECK_CHARS])


def hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _base62(value: int) -> str:
    digits = []
    for _ in range(CHECK_CHARS):
        value, digit = divmod(value, len(ALPHABET))
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))


def create_key(
    connection: sa.Connection,
    *,
    tenant_id: str | None,
    name: str,
    kind: Kind = "live",
    project_id: str | None = None,
    tier: str | None = None,
    scopes: list[str] | None = None,
    expires_at: int | None = None,
    default_max_tokens: int | None = None,
    secret: str | None = None,
    role: Role | None = None,
    first_key_id: str | None = None,
    break_glass: bool = False,
    models: Sequence[str] | None = None,
    allowed_ips: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
) -> MadeKey:
    """Make a key. `scopes` None: the admin scope for an admin key, else the inference scope. `role` None: "owner" for
    an admin key. An admin key of the role tenant_admin needs a tenant; every other admin key is the operator's and has
    none. `secret`: from `make_secret`, for a caller that must store the secret before the key exists. Raises
    KeyRefused, InvalidValue."""
    if kind not in KINDS:
        raise KeyRefused(f"kind is {kind!r}; one of {', '.join(KINDS)} is needed")
    check_text(name, "name", "a key's name has", NAME_CHARS_MAX)
    if tenant_id is None and kind != "admin":
        raise KeyRefused("only an admin key may be without a tenant")
    chosen = scopes if scopes is not None else [ADMIN] if kind == "admin" else [INFERENCE]
    for scope in chosen:
        if scope not in SCOPES:
            raise KeyRefused(f"scope {scope!r} is not known; there are {', '.join(SCOPES)}")
    if ADMIN in chosen and kind != "admin":
        raise KeyRefused("the admin scope needs a key of kind admin")
    _check_break_glass(break_glass, kind)
    role = _checked_role(role, kind, tenant_id)
    limits = _checked_limits(connection, tenant_id, {"models": models, "allowed_ips": allowed_ips, "tags": tags})
    secret = secret or make_secret(kind)
    assert is_well_formed(secret)
    assert secret.startswith(f"lw_{kind}_")
    key_id = new_id("key")
    row = {
        "id": key_id,
        "tenant_id": tenant_id,
        "project_id": project_id,
        "name": name,
        "kind": kind,
        "hash": hash_secret(secret),
        "prefix": secret[: secret.rindex("_") + 1 + PREFIX_CHARS],
        "last4": secret[-4:],
        "tier": tier,
        "scopes": chosen,
        "default_max_tokens": default_max_tokens,
        "created_at": clock.database_now(connection),
        "expires_at": None if expires_at is None else expires_at * clock.SECOND,
        "role": role,
        "first_key_id": first_key_id,
        "break_glass": break_glass,
        **limits,
    }
    connection.execute(sa.insert(keys).values(row))
    revision.bump(connection, Change("keys", tenant_id))
    return MadeKey(key=_required(connection, key_id), secret=secret)


def _checked_role(role: Role | None, kind: Kind, tenant_id: str | None) -> Role | None:
    if kind != "admin":
        if role is not None:
            raise KeyRefused(f"a key of kind {kind} has no role: an admin key has one")
        return None
    role = role or "owner"
    if role not in ROLES:
        raise KeyRefused(f"role is {role!r}; one of {', '.join(ROLES)} is needed")
    if (role == TENANT_ADMIN) != (tenant_id is not None):
        needs = "needs a tenant" if tenant_id is None else "is the operator's: it belongs to no tenant"
        raise KeyRefused(f"an admin key of the role {role} {needs}")
    return role


def _check_break_glass(break_glass: bool, kind: str) -> None:
    if break_glass and kind != "admin":
        raise KeyRefused(f"break_glass is for admin keys: this key is of kind {kind}")


def _checked_limits(
    connection: sa.Connection, tenant_id: str | None, given: Mapping[str, Any]
) -> dict[str, list[str] | dict[str, str] | str | None]:
    """The values of the columns of `models`, `allowed_ips` and `tags`, of which `given` has some. Stores a new tag set.
    Raises InvalidValue."""
    values: dict[str, list[str] | dict[str, str] | str | None] = {}
    if "models" in given:
        values["models"] = None if given["models"] is None else _checked_models(tenant_id, given["models"])
    if "allowed_ips" in given:
        values["allowed_ips"] = None if given["allowed_ips"] is None else _checked_ips(given["allowed_ips"])
    if "tags" in given:
        tags = check_tags(given["tags"] or {})
        if tags and tenant_id is None:
            raise InvalidValue("an operator's key makes no usage that tags could mark", "tags")
        values["tags"] = tags or None
        values["tag_set_id"] = None if tenant_id is None else store_tag_set(connection, tenant_id, tags)
    return values


def check_limits(
    tenant_id: str | None,
    models: Sequence[str] | None,
    allowed_ips: Sequence[str] | None,
    tags: Mapping[str, str] | None,
) -> None:
    """Check the limits and tags of a new key. Raises InvalidValue, with all arguments at fault."""
    faults = ArgumentChecks()
    if models is not None:
        faults.note(_checked_models, tenant_id, models)
    if allowed_ips is not None:
        faults.note(_checked_ips, allowed_ips)
    faults.note(check_tags, tags or {})
    faults.raise_all()


def _checked_ips(texts: Sequence[str]) -> list[str]:
    try:
        return checked_networks(texts)
    except ValueError as error:
        raise InvalidValue(str(error), "allowed_ips") from None


def _checked_models(tenant_id: str | None, names: Sequence[str]) -> list[str]:
    """Names need not exist yet: a list may be written before a model is added. Raises InvalidValue."""
    if tenant_id is None:
        raise InvalidValue("an operator's key calls no models", "models")
    if not 1 <= len(names) <= MODELS_MAX:
        raise InvalidValue(f"a list of models has 1 to {MODELS_MAX} names, not {len(names)}; null: all", "models")
    for name in names:
        if not re.fullmatch(NAME, name):
            raise InvalidValue(f"{name[:128]!r} is no name of a model, adapter or alias: {NAME}", "models")
    return list(dict.fromkeys(names))


def get_key(connection: sa.Connection, key_id: str) -> Key | None:
    row = connection.execute(_SELECT.where(keys.c.id == key_id)).one_or_none()
    return None if row is None else _key(row)


def newest(connection: sa.Connection, key: Key) -> str:
    """The id of the newest key among this key's rotations: its own id if it was not rotated."""
    same = sa.or_(keys.c.id == key.shares_as, keys.c.first_key_id == key.shares_as)
    found = connection.execute(sa.select(keys.c.id).where(same, keys.c.rotated_to.is_(None))).scalar_one_or_none()
    return key.id if found is None else str(found)


def first_keys(connection: sa.Connection, tenant_ids: Collection[str]) -> dict[str, str]:
    """Key id → id of the first key of its rotations, for each key of these tenants that replaced another key."""
    query = sa.select(keys.c.id, keys.c.first_key_id).where(
        keys.c.first_key_id.is_not(None), keys.c.tenant_id.in_(tenant_ids)
    )
    return {row.id: row.first_key_id for row in connection.execute(query)}


def exists(connection: sa.Connection, secret: str) -> bool:
    """Whether a key with this secret was ever made."""
    return connection.execute(sa.select(keys.c.id).where(keys.c.hash == hash_secret(secret))).scalar() is not None


def list_keys(connection: sa.Connection, tenant_id: str | None = None) -> list[Key]:
    """All keys, or one tenant's, oldest first; revoked keys too."""
    query = _SELECT.order_by(keys.c.created_at, keys.c.id)
    if tenant_id is not None:
        query = query.where(keys.c.tenant_id == tenant_id)
    return [_key(row) for row in connection.execute(query)]


def query_keys(
    connection: sa.Connection,
    query: ListQuery,
    *,
    tenant_id: str | None = None,
    project_id: str | None = None,
    kind: Kind | None = None,
    role: Role | None = None,
    status: Status | None = None,
) -> ListPage[Key]:
    """One page of the keys that match every given value; revoked keys too. Raises InvalidValue."""
    equal = {"tenant_id": tenant_id, "project_id": project_id, "kind": kind, "role": role}
    select = _SELECT.where(*(keys.c[name] == value for name, value in equal.items() if value is not None))
    if status is not None:
        select = select.where(*_has_status(status, clock.database_now(connection)))
    return select_page(connection, select, _SORTED, query, _key, lambda key: key.id)


def _has_status(status: Status, now: int) -> list[sa.ColumnElement[bool]]:
    """The conditions that select the keys of this status, at `now` in microseconds UTC."""
    if status == "revoked":
        return [keys.c.revoked_at.is_not(None)]
    unrevoked, ends = keys.c.revoked_at.is_(None), keys.c.expires_at
    if status == "active":
        return [unrevoked, sa.or_(ends.is_(None), ends > now)]
    if status == "expiring":
        return [unrevoked, ends > now, ends <= now + EXPIRING_S * clock.SECOND]
    return [unrevoked, ends <= now]


def count_usable(connection: sa.Connection, tenant_id: str, project_id: str | None = None) -> int:
    """The number of a tenant's keys, admin keys included, or of one project's, that are neither revoked nor
    expired."""
    expires_at = keys.c.expires_at
    query = sa.select(sa.func.count()).where(
        keys.c.tenant_id == tenant_id,
        keys.c.revoked_at.is_(None),
        sa.or_(expires_at.is_(None), expires_at > clock.database_now(connection)),
    )
    if project_id is not None:
        query = query.where(keys.c.project_id == project_id)
    return int(connection.execute(query).scalar_one())


def is_usable(connection: sa.Connection, key_id: str) -> bool:
    """Whether the key exists and is neither revoked nor expired by the database's clock."""
    expires_at = keys.c.expires_at
    query = sa.select(keys.c.id).where(
        keys.c.id == key_id,
        keys.c.revoked_at.is_(None),
        sa.or_(expires_at.is_(None), expires_at > clock.database_now(connection)),
    )
    return connection.execute(query).one_or_none() is not None


def update_key(
    connection: sa.Connection,
    key_id: str,
    *,
    project_id: str | None = None,
    default_max_tokens: int | msgspec.UnsetType | None = msgspec.UNSET,
    break_glass: bool | None = None,
    models: Sequence[str] | msgspec.UnsetType | None = msgspec.UNSET,
    allowed_ips: Sequence[str] | msgspec.UnsetType | None = msgspec.UNSET,
    tags: Mapping[str, str] | msgspec.UnsetType = msgspec.UNSET,
) -> Key:
    """Change the given fields; `tags` replaces all tags. Raises KeyRefused for a revoked or expired key,
    InvalidValue."""
    before = _required(connection, key_id, for_update=True)
    if _has_ended(connection, before):
        raise KeyRefused(f"{key_id} is revoked or expired")
    values: dict[str, object] = {} if project_id is None else {"project_id": project_id}
    if default_max_tokens is not msgspec.UNSET:
        values["default_max_tokens"] = default_max_tokens
    if break_glass is not None:
        _check_break_glass(break_glass, before.kind)
        values["break_glass"] = break_glass
    limits = {"models": models, "allowed_ips": allowed_ips, "tags": tags}
    given = {name: value for name, value in limits.items() if value is not msgspec.UNSET}
    values |= _checked_limits(connection, before.tenant_id, given)
    if values:
        connection.execute(sa.update(keys).where(keys.c.id == key_id).values(values))
    revision.bump(connection, Change("keys", before.tenant_id))
    return _required(connection, key_id)


def rotate(connection: sa.Connection, key_id: str, *, overlap_s: int) -> MadeKey:
    """Replace a key by a new key with the same settings. The old key expires after `overlap_s` seconds; meanwhile both
    share the same budgets and rate limits. Raises KeyRefused."""
    if not 0 <= overlap_s <= OVERLAP_S_MAX:
        raise KeyRefused(f"overlap is {overlap_s} s; its limit is {OVERLAP_S_MAX} s")
    old = _required(connection, key_id, for_update=True)
    if _has_ended(connection, old):
        raise KeyRefused(f"{key_id} is revoked or expired")
    if old.rotated_to is not None:
        raise KeyRefused(f"{key_id} was rotated to {old.rotated_to} already")
    made = create_key(
        connection,
        tenant_id=old.tenant_id,
        name=visible(old.name)[:NAME_CHARS_MAX],  # an old key's name may break the rules of `check_text`
        kind=old.kind,  # type: ignore[arg-type]  # the table's check allows no other
        project_id=old.project_id,
        tier=old.tier,
        scopes=old.scopes,
        expires_at=old.expires_at,
        default_max_tokens=old.default_max_tokens,
        role=old.role,
        first_key_id=old.shares_as,
        break_glass=old.break_glass,
        models=old.models,
        allowed_ips=old.allowed_ips,
        tags=old.tags,
    )
    ends = _now(connection) + overlap_s
    connection.execute(
        sa.update(keys)
        .where(keys.c.id == key_id)
        .values(expires_at=min(ends, old.expires_at or ends) * clock.SECOND, rotated_to=made.key.id)
    )
    return made


def revoke(connection: sa.Connection, key_id: str) -> Key:
    """Revoke a key now. Revoking it again has no effect. Raises KeyRefused for an unknown key."""
    key = _required(connection, key_id, for_update=True)
    if key.revoked_at is not None:
        return key
    connection.execute(sa.update(keys).where(keys.c.id == key_id).values(revoked_at=clock.database_now(connection)))
    revision.bump(connection, Change("keys", key.tenant_id))
    return _required(connection, key_id)


def mark_used(connection: sa.Connection, used: Mapping[str, int]) -> None:
    """Write the last use of keys: `used` maps key id → Unix seconds. The revision does not change, since no gateway
    needs to reload."""
    _LOCK_USED.rows(connection, {"key_ids": list(used)})  # all gateways lock in one order: no deadlock
    _MARK_USED.run(connection, [(at * clock.SECOND, key_id) for key_id, at in used.items()])


def _required(connection: sa.Connection, key_id: str, *, for_update: bool = False) -> Key:
    query = _SELECT.where(keys.c.id == key_id)
    row = connection.execute(query.with_for_update() if for_update else query).one_or_none()
    if row is None:
        raise KeyRefused(f"there is no key {key_id}")
    return _key(row)


def _has_ended(connection: sa.Connection, key: Key) -> bool:
    return key.revoked_at is not None or (key.expires_at is not None and key.expires_at <= _now(connection))


def _now(connection: sa.Connection) -> int:
    return clock.database_now(connection) // clock.SECOND


_SELECT = sa.select(*(column for column in keys.c if column.name not in ("hash", "tag_set_id")))


def _key(row: sa.Row[Any]) -> Key:
    values = dict(row._mapping)
    for name, value in values.items():
        if name.endswith("_at") and value is not None:
            values[name] = value // clock.SECOND
    values["tags"] = values["tags"] or {}
    return Key(**values)
