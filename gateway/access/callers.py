"""Maps bearer tokens to callers, through a cache. An administrative write that concerns a tenant drops the tenant's
callers from the cache.
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
from gateway.access import people as people_rules
from gateway.access.roles import Role
from gateway.config.allowance import Allowance
from gateway.config.networks import Network, parse_networks
from gateway.config.settings import split_version
from gateway.errors import InvalidApiKey, Overloaded
from gateway.limits.overrides import RATES
from gateway.limits.rates import Scope, Subject
from gateway.tables import keys, people, rate_limits

# Entries of the cache of usable keys, and of the separate cache of unusable keys: a flood of wrong keys evicts no valid
# key.
CACHE_MAX = 10_000
# At most LOOK_UPS_AT_ONCE look-ups of keys run in the database, so that other reads proceed. At most LOOK_UPS_MAX run
# or wait; above that a request with an uncached key is refused (503).
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
    """The bearer of a key, with the settings of key, project and tenant that a request needs. `tier`: the highest tier
    at which the caller may be served."""

    key_id: str  # in a person's session: the person's id
    tenant_id: str | None  # None: an operator
    tenant_slug: str | None
    project_id: str | None
    first_key_id: str  # the first key of the key's rotations: its budgets and rate limits are stored under this id
    tier: str
    scopes: frozenset[str]
    default_max_tokens: int | None  # the key's, else its project's, else the tenant's
    share_weight: float  # weight of the tenant's share inside a tier
    subjects: tuple[Subject, ...]  # rate limits of the key and of its tenant
    expires_at: int | None  # Unix seconds
    age: int  # `Callers._age` when the caller was read: a later change may have outdated it
    role: Role | None = None  # of an admin key
    currency: str = "USD"  # the tenant's
    cheapest: bool = False  # the tenant's setting: an alias that allows it is served by its cheapest model
    stores_responses: bool = False  # the tenant's setting
    break_glass: bool = False  # an admin key for emergencies
    models: frozenset[str] | None = None  # the names that the key may call; None: all of its tenant
    networks: tuple[tuple[Network, ...], ...] = ()  # the caller's address must be in one network of each list
    tag_set_id: str | None = None  # of the key's tags

    def may_call(self, name: str) -> bool:
        """Whether the key's own list has the name, or that of a version's adapter. The tenant may still not see it."""
        return self.models is None or name in self.models or split_version(name)[0] in self.models


async def _always() -> bool:
    return True


class TenantName(msgspec.Struct, frozen=True):
    id: str
    slug: str


class Callers:
    """The cache. When the revision has changed, call `drop_tenants` for the tenants concerned, or `clear`."""

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
        """`tiers`: names from the highest to the lowest. `defaults`: rate limits of keys and tenants without limits of
        their own. `freshen`: reads the revision if necessary, and returns whether the cache is current."""
        self._database = database
        self._defaults = defaults
        self._ranks = {name: rank for rank, name in enumerate(tiers)}
        self._wall_clock = wall_clock
        self._freshen = freshen
        self._cache_max = cache_max
        self._known: dict[str, Caller] = {}  # by hash
        self._unusable: dict[str, None] = {}
        self._looking_up: dict[str, asyncio.Task[Caller | None]] = {}
        self._look_up_slots = asyncio.Semaphore(LOOK_UPS_AT_ONCE)
        self._age = 0  # counts calls of `clear` and `drop_tenants`: a caller read before a call is not cached after it
        self._all_changed_at = 0  # the age at the last `clear`
        # The age at the last `drop_tenants` of each tenant; None: the operator's keys.
        self._changed_at: dict[str | None, int] = {}
        self._used: dict[str, int] = {}  # key id → Unix seconds of its last use, not yet written

    async def identify(self, authorization: str | None, *, is_use: bool = True) -> Caller:
        """The caller behind an Authorization header. `is_use`: note this moment as the key's last use. Raises
        InvalidApiKey, the same for every cause; Overloaded or DatabaseUnavailable when an uncached key could not be
        looked up."""
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
        if is_use:
            self._used[caller.key_id] = now
        return caller

    def of_key(self, connection: sa.Connection, key_id: str) -> Caller | None:
        """The bearer of a key, read from the database and not from the cache. None: the key is not usable."""
        caller = _load(connection, keys.c.id == key_id, self._ranks, self._defaults, self._age)
        now = clock.database_now(connection) // clock.SECOND
        return None if caller is None or (caller.expires_at is not None and caller.expires_at <= now) else caller

    def of_person(self, connection: sa.Connection, person_id: str) -> Caller | None:
        """A person in a session, with the role of the last check. None: the person has no role."""
        query = sa.select(people.c.role, people.c.tenant_id, tenants.c.slug, tenants.c.status)
        joined = query.select_from(people.outerjoin(tenants, people.c.tenant_id == tenants.c.id))
        row = connection.execute(joined.where(people.c.id == person_id)).one_or_none()
        if row is None or row.role is None or row.status not in (None, "active"):
            return None
        return Caller(
            key_id=person_id,
            tenant_id=row.tenant_id,
            tenant_slug=row.slug,
            project_id=None,
            first_key_id=person_id,
            tier=max(self._ranks, key=self._ranks.__getitem__),
            scopes=frozenset((key_rules.ADMIN,)),
            default_max_tokens=None,
            share_weight=1.0,
            subjects=(),
            expires_at=None,
            age=self._age,
            role=row.role,
        )

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
        """Drop the cached callers of these tenants (None: the operator's keys), and all keys cached as unusable: one of
        them may be usable now."""
        self._known = {digest: caller for digest, caller in self._known.items() if caller.tenant_id not in tenant_ids}
        self._unusable.clear()
        self._looking_up = {}
        self._age += 1
        self._changed_at.update(dict.fromkeys(tenant_ids, self._age))
        if len(self._changed_at) > CHANGED_MAX:
            self._all_changed_at = self._age
            self._changed_at.clear()

    def _age_of(self, tenant_id: str | None) -> int:
        """The age at the last change of this tenant's keys: a caller read at an earlier age is outdated."""
        return max(self._all_changed_at, self._changed_at.get(tenant_id, 0))

    async def flush_used(self) -> None:
        """Write the keys' last uses. Raises DatabaseUnavailable: the next call writes the rest."""
        left, self._used = list(self._used.items()), {}
        try:
            while left:
                used = dict(left[:USED_GROUP_MAX])
                await self._database.write(lambda c, used=used: key_rules.mark_used(c, used))  # type: ignore[misc]
                del left[:USED_GROUP_MAX]
        finally:
            self._used = dict(left) | self._used

    async def _look_up(self, digest: str) -> Caller | None:
        """Read a key's caller. Simultaneous requests with the same key share one read."""
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
        async with self._look_up_slots:
            age = self._age
            by_hash = keys.c.hash == digest
            caller = await self._database.read(lambda c: _load(c, by_hash, self._ranks, self._defaults, age))
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
    """The subset of `key_ids` that is revoked, deleted or of a tenant that is not active; for people in sessions, the
    people without a role or a session."""
    usable = {key_id for (key_id,) in _USABLE.rows(connection, {"key_ids": list(key_ids)})}
    if persons := [id_ for id_ in key_ids if people_rules.is_person(id_)]:
        usable |= people_rules.usable(connection, persons)
    return set(key_ids) - usable


_OF_KEY, _OF_TENANT = rate_limits.alias("of_key"), rate_limits.alias("of_tenant")


def _load(
    connection: sa.Connection,
    condition: sa.ColumnElement[bool],
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
            tenants.c.store_responses_s,
            tenants.c.allowed_ips.label("tenant_ips"),
            projects.c.default_max_tokens.label("project_default"),
            *(_OF_KEY.c[name].label(f"key_{name}") for name in RATES),
            *(_OF_TENANT.c[name].label(f"tenant_{name}") for name in RATES),
        )
        .select_from(
            keys.outerjoin(tenants, keys.c.tenant_id == tenants.c.id)
            .outerjoin(projects, keys.c.project_id == projects.c.id)
            .outerjoin(_OF_KEY, _OF_KEY.c.subject_id == sa.func.coalesce(keys.c.first_key_id, keys.c.id))
            .outerjoin(_OF_TENANT, _OF_TENANT.c.subject_id == keys.c.tenant_id)
        )
        .where(condition)
    ).one_or_none()
    if row is None or row.revoked_at is not None or row.tenant_status not in (None, "active"):
        return None
    lowest = max(ranks, key=ranks.__getitem__)
    # A tier that the configuration no longer has counts as the lowest. A key's tier may only lower the tenant's.
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
        stores_responses=row.store_responses_s is not None,
        break_glass=bool(row.break_glass),
        models=None if row.models is None else frozenset(row.models),
        networks=tuple(
            parse_networks(tuple(texts)) for texts in (row.allowed_ips, row.tenant_ips) if texts is not None
        ),
        tag_set_id=row.tag_set_id,
    )


def _subjects(row: sa.Row[Any], defaults: Mapping[Scope, Allowance]) -> tuple[Subject, ...]:
    def subject(scope: Scope, id_: str) -> Subject:
        own = [getattr(row, f"{scope}_{name}") for name in RATES]
        default = msgspec.structs.astuple(defaults[scope])
        limits = [fallback if limit is None else limit for limit, fallback in zip(own, default, strict=True)]
        return Subject(scope, id_, row.tenant_id or row.first_key_id or row.id, Allowance(*limits))

    key = subject("key", row.first_key_id or row.id)
    return (key,) if row.tenant_id is None else (key, subject("tenant", row.tenant_id))
