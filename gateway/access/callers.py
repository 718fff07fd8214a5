"""Maps bearer tokens to callers, through a cache; an administrative write of a tenant drops the tenant's callers.

It knows keys and tenants, and must never know what they ask for or what it costs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa

from billing import clock
from billing.bulk import Query, among
from billing.database import Database, DatabaseUnavailable
from billing.tables import projects, tenants
from billing.timeouts import StallTolerantTimeout
from gateway.access import keys as key_rules
from gateway.access.roles import Role
from gateway.config.allowance import Allowance
from gateway.errors import InvalidApiKey, Overloaded
from gateway.limits.overrides import NAMES
from gateway.limits.rates import Scope, Subject
from gateway.tables import keys, rate_limits

# Cached keys: this many usable ones and, apart from them, as many unusable ones. A flood of wrong keys evicts no valid
# key.
CACHE_MAX = 10_000
# Look-ups of keys: LOOK_UPS_AT_ONCE in the database, so that other reads proceed, and LOOK_UPS_MAX with the waiting
# ones. Above that an uncached key is refused (503).
LOOK_UPS_AT_ONCE = 8
LOOK_UPS_MAX = 1000
LOOK_UP_WAIT_S = 5.0  # timeout of a look-up
# A key's last use is written at most once in USED_FLUSH_S, for USED_GROUP_MAX keys in one transaction.
USED_FLUSH_S = 60.0
USED_GROUP_MAX = 500
# Tenants whose last drop is remembered; beyond it all callers count as changed.
CHANGED_MAX = 10_000

T = TypeVar("T")

_USABLE = Query(
    sa.select(keys.c.id)
    .select_from(keys.outerjoin(tenants, keys.c.tenant_id == tenants.c.id))
    .where(
        among(keys.c.id, "key_ids"),
        keys.c.revoked_at.is_(None),
        sa.or_(keys.c.tenant_id.is_(None), tenants.c.status == "active"),
    )
)


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """What a key says about its bearer. `tier` is the highest that it may be served at."""

    key_id: str
    tenant_id: str | None  # None: an operator
    tenant_slug: str | None
    project_id: str | None
    first_key_id: str  # of the rotations that made the key: what its budgets and rate limits are kept under
    tier: str
    scopes: frozenset[str]
    default_max_tokens: int | None  # the key's, else its project's, else the tenant's
    share_weight: float  # the tenant's, inside a tier
    subjects: tuple[Subject, ...]  # of rate limits: the key, and its tenant
    expires_at: int | None
    age: int  # of the cache when it was read; a change since may concern it
    role: Role | None = None  # of an admin key
    currency: str = "USD"  # the tenant's
    cheapest: bool = False  # the tenant's: of an alias that allows it, the cheapest model


async def _always() -> bool:
    return True


class TenantName(msgspec.Struct, frozen=True):
    id: str
    slug: str


class Callers:
    """The cache. When the revision moved, `drop` the callers of the tenants concerned, or `clear` all."""

    def __init__(
        self,
        database: Database,
        tiers: Sequence[str],
        defaults: Mapping[Scope, Allowance],
        *,
        wall_clock: Callable[[], float] = time.time,
        freshen: Callable[[], Awaitable[bool]] = _always,
        cache_max: int = CACHE_MAX,
    ) -> None:
        """`tiers`: names from high to low. `defaults`: limits of keys and tenants without their own. `freshen`: returns
        whether the cache is current, after reading the revision if necessary."""
        self._database = database
        self._defaults = defaults
        self._ranks = {name: rank for rank, name in enumerate(tiers)}
        self._wall_clock = wall_clock
        self._freshen = freshen
        self._cache_max = cache_max
        self._known: dict[str, Caller] = {}  # by hash
        self._unusable: dict[str, None] = {}
        self._looking_up: dict[str, asyncio.Task[Caller | None]] = {}
        self._places = asyncio.Semaphore(LOOK_UPS_AT_ONCE)
        self._age = 0  # counts clears and drops: a caller read before one must not be cached after it
        self._all_changed_at = 0  # the age at the last clear
        self._changed_at: dict[str | None, int] = {}  # by tenant, the age at its last drop; None: the operator's keys
        self._used: dict[str, int] = {}

    async def identify(self, authorization: str | None) -> Caller:
        """The caller behind an Authorization header. Raises InvalidApiKey, one and the same for every cause;
        Overloaded and DatabaseUnavailable when it had to be looked up and could not."""
        scheme, _, secret = (authorization or "").partition(" ")
        secret = secret.strip()
        if scheme.lower() != "bearer" or not key_rules.is_well_formed(secret):
            raise InvalidApiKey
        digest = key_rules.hash_secret(secret)
        caller = self._known.get(digest)
        if caller is None and digest not in self._unusable:
            caller = await self._look_up(digest)
        now = int(self._wall_clock())
        if caller is None or (caller.expires_at is not None and caller.expires_at <= now):
            raise InvalidApiKey
        self._used[caller.key_id] = now
        return caller

    def of_key(self, connection: sa.Connection, key_id: str) -> Caller | None:
        """The bearer of a key, as it is at this moment and not as it is remembered. None: it is not usable."""
        caller = _load(connection, keys.c.id == key_id, self._ranks, self._defaults, self._age)
        now = clock.database_now(connection) // clock.SECOND
        return None if caller is None or (caller.expires_at is not None and caller.expires_at <= now) else caller

    def note_used(self, caller: Caller) -> None:
        self._used[caller.key_id] = int(self._wall_clock())

    async def confirm(self, caller: Caller) -> None:
        """Check that a caller identified earlier is still valid. Raises InvalidApiKey, and DatabaseUnavailable when
        that is unknown."""
        if not await self._freshen():
            raise DatabaseUnavailable("the revision is unread")
        age = caller.age
        while self._age_of(caller.tenant_id) > age:  # a drop may happen during the read
            age = self._age
            if await self._database.read(lambda connection: unusable(connection, [caller.key_id])):
                raise InvalidApiKey

    def clear(self) -> None:
        self._known.clear()
        self._unusable.clear()
        self._looking_up = {}  # requests from now on start a new look-up
        self._age += 1
        self._all_changed_at = self._age
        self._changed_at.clear()

    def drop_tenants(self, tenant_ids: Collection[str | None]) -> None:
        """Forget the callers of these tenants (None: the operator's keys), and all keys known as unusable, because one
        of them may be usable now."""
        self._known = {digest: one for digest, one in self._known.items() if one.tenant_id not in tenant_ids}
        self._unusable.clear()
        self._looking_up = {}
        self._age += 1
        self._changed_at.update(dict.fromkeys(tenant_ids, self._age))
        if len(self._changed_at) > CHANGED_MAX:
            self._all_changed_at = self._age
            self._changed_at.clear()

    def _age_of(self, tenant_id: str | None) -> int:
        """The age at the last change of this tenant's keys: what was read at an earlier age is outdated."""
        return max(self._all_changed_at, self._changed_at.get(tenant_id, 0))

    async def flush_used(self) -> None:
        """Write when keys were last used. Raises DatabaseUnavailable: what was not written is written next time."""
        left, self._used = list(self._used.items()), {}
        try:
            while left:
                used = dict(left[:USED_GROUP_MAX])
                await self._database.write(lambda c, used=used: key_rules.mark_used(c, used))  # type: ignore[misc]
                del left[:USED_GROUP_MAX]
        finally:
            self._used = dict(left) | self._used

    async def _look_up(self, digest: str) -> Caller | None:
        """Shared by all who ask for the same key meanwhile."""
        looking_up = self._looking_up
        look_up = looking_up.get(digest)
        if look_up is None:
            if len(looking_up) >= LOOK_UPS_MAX:
                raise Overloaded("Too many keys are being looked up. Try again in a moment.")
            look_up = looking_up[digest] = asyncio.create_task(self._read(digest))
            look_up.add_done_callback(lambda _: looking_up.pop(digest))
        try:
            async with StallTolerantTimeout(LOOK_UP_WAIT_S):
                return await asyncio.shield(look_up)
        except TimeoutError:
            raise DatabaseUnavailable(f"a key could not be looked up within {LOOK_UP_WAIT_S:g} s") from None

    async def _read(self, digest: str) -> Caller | None:
        async with self._places:
            age = self._age
            found = keys.c.hash == digest
            caller = await self._database.read(lambda c: _load(c, found, self._ranks, self._defaults, age))
        if caller is not None and self._age_of(caller.tenant_id) <= age:
            self._remember(self._known, digest, caller)
        elif caller is None and age == self._age:
            self._remember(self._unusable, digest, None)
        return caller

    def _remember(self, cache: dict[str, T], digest: str, value: T) -> None:
        if len(cache) >= self._cache_max:
            del cache[next(iter(cache))]
        cache[digest] = value


def unusable(connection: sa.Connection, key_ids: Collection[str]) -> set[str]:
    """The keys among these that are revoked or whose tenant is suspended."""
    usable = _USABLE.rows(connection, {"key_ids": list(key_ids)})
    return set(key_ids) - {key_id for (key_id,) in usable}


_OF_KEY, _OF_TENANT = rate_limits.alias("of_key"), rate_limits.alias("of_tenant")


def _load(
    connection: sa.Connection,
    which: sa.ColumnElement[bool],
    ranks: Mapping[str, int],
    defaults: Mapping[Scope, Allowance],
    age: int,
) -> Caller | None:
    row = connection.execute(
        sa.select(
            keys,
            tenants.c.slug.label("tenant_slug"),
            tenants.c.tier.label("tenant_tier"),
            tenants.c.status.label("tenant_status"),
            tenants.c.default_max_tokens.label("tenant_default"),
            tenants.c.share_weight,
            tenants.c.currency,
            tenants.c.cheapest,
            projects.c.default_max_tokens.label("project_default"),
            *(_OF_KEY.c[name].label(f"key_{name}") for name in NAMES),
            *(_OF_TENANT.c[name].label(f"tenant_{name}") for name in NAMES),
        )
        .select_from(
            keys.outerjoin(tenants, keys.c.tenant_id == tenants.c.id)
            .outerjoin(projects, keys.c.project_id == projects.c.id)
            .outerjoin(_OF_KEY, _OF_KEY.c.subject_id == sa.func.coalesce(keys.c.first_key_id, keys.c.id))
            .outerjoin(_OF_TENANT, _OF_TENANT.c.subject_id == keys.c.tenant_id)
        )
        .where(which)
    ).one_or_none()
    if row is None or row.revoked_at is not None or row.tenant_status not in (None, "active"):
        return None
    lowest = max(ranks, key=ranks.__getitem__)
    # A tier that the configuration no longer has is served at the lowest; a key's own may only lower the tenant's.
    candidates = [tier if tier in ranks else lowest for tier in (row.tenant_tier, row.tier) if tier is not None]
    return Caller(
        key_id=row.id,
        tenant_id=row.tenant_id,
        tenant_slug=row.tenant_slug,
        project_id=row.project_id,
        first_key_id=row.first_key_id or row.id,
        tier=max(candidates, key=ranks.__getitem__, default=lowest),
        scopes=frozenset(row.scopes),
        default_max_tokens=row.default_max_tokens or row.project_default or row.tenant_default,
        share_weight=1.0 if row.share_weight is None else row.share_weight,
        subjects=_subjects(row, defaults),
        expires_at=None if row.expires_at is None else row.expires_at // clock.SECOND,
        age=age,
        role=row.role,
        currency=row.currency or "USD",
        cheapest=bool(row.cheapest),
    )


def _subjects(row: sa.Row[Any], defaults: Mapping[Scope, Allowance]) -> tuple[Subject, ...]:
    def subject(scope: Scope, id_: str) -> Subject:
        own = [getattr(row, f"{scope}_{name}") for name in NAMES]
        default = msgspec.structs.astuple(defaults[scope])
        limits = [fallback if one is None else one for one, fallback in zip(own, default, strict=True)]
        return Subject(scope, id_, row.tenant_id or row.first_key_id or row.id, Allowance(*limits))

    key = subject("key", row.first_key_id or row.id)
    return (key,) if row.tenant_id is None else (key, subject("tenant", row.tenant_id))
