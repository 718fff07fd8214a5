"""After an administrative write a gateway drops and reloads what the write concerns, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from billing import revision, tables
from billing.accounts import prices, tenants
from billing.accounts.prices import PriceBook
from billing.database import Database
from billing.revision import EVERYTHING, LOG_ROWS_MAX, Change
from gateway.access import keys
from gateway.access.callers import Callers
from gateway.admin.administration import Administration
from gateway.admin.writes import Actor
from gateway.config.allowance import Allowance
from gateway.config.file import Config, parse_gateway_config
from gateway.config.server_secrets import ServerSecrets
from gateway.config.settings import TargetSection
from gateway.errors import InvalidApiKey
from gateway.limits import overrides
from gateway.limits.overrides import LimitsChange
from gateway.limits.rates import Scope
from gateway.services import Services
from gateway.upkeep.revision_watch import RevisionWatch
from migrations.upgrade import upgrade
from support.stack import MODEL, register

LIMITS: dict[Scope, Allowance] = {"key": Allowance(10, 1000, 2), "tenant": Allowance(30, 3000, 6)}
OLD_BUMP = "UPDATE revision SET number = number + 1 WHERE id = 1"  # by a process without the log


def make_tenant(database: Database, slug: str) -> tuple[str, keys.MadeKey]:
    def run(connection: sa.Connection) -> tuple[str, keys.MadeKey]:
        tenant = tenants.create_tenant(connection, slug=slug, name=slug, tier="premium")
        return tenant.id, keys.create_key(connection, tenant_id=tenant.id, name="k")

    return database.write_sync(run)


async def looked(database: Database, seen: int | None) -> Sequence[Change] | None:
    """The changes that a watch gets if it read `seen` last."""
    told: list[Sequence[Change] | None] = []

    async def changed(changes: Sequence[Change] | None) -> None:
        told.append(changes)

    watch = RevisionWatch(database, changed)
    watch.revision = seen
    await watch.poll_revision()
    return told[0] if told else ()


async def test_a_write_says_what_it_concerns(database: Database) -> None:
    acme, made = make_tenant(database, "acme")
    seen = database.read_sync(revision.read_revision)

    def run(connection: sa.Connection) -> None:
        keys.create_key(connection, tenant_id=acme, name="more")
        keys.revoke(connection, made.key.id)
        tenants.create_project(connection, tenant_id=acme, name="p")
        overrides.change_own_limits(
            connection, scope="tenant", subject_id=acme, tenant_id=acme, change=LimitsChange(concurrency=1)
        )
        keys.create_key(connection, tenant_id=None, name="ours", kind="admin")

    database.write_sync(run)
    of_acme = [Change(kind, acme) for kind in ("keys", "projects", "limits")]
    assert await looked(database, seen) == [*of_acme, Change("keys", None)]
    assert await looked(database, database.read_sync(revision.read_revision)) == ()


async def test_what_the_log_lacks_concerns_everything(database: Database) -> None:
    """A first look, a write of an older process, pruned rows, a restored database."""
    acme, _ = make_tenant(database, "acme")
    seen = database.read_sync(revision.read_revision)
    assert await looked(database, None) is None
    database.write_sync(lambda c: c.exec_driver_sql(OLD_BUMP))
    database.write_sync(lambda c: keys.create_key(c, tenant_id=acme, name="more"))
    assert await looked(database, seen) is None
    assert await looked(database, seen + 1) == [Change("keys", acme)]
    assert await looked(database, seen + 100) is None
    database.write_sync(lambda c: revision.bump(c))
    assert await looked(database, seen + 2) == [EVERYTHING]


async def test_the_log_keeps_the_last_writes(database: Database) -> None:
    def run(connection: sa.Connection) -> None:
        for _ in range(LOG_ROWS_MAX + 250):
            revision.bump(connection, Change("keys", "ten_1"))

    seen = database.read_sync(revision.read_revision)
    database.write_sync(run)
    count = database.read_sync(
        lambda c: c.execute(sa.select(sa.func.count()).select_from(tables.revision_log)).scalar_one()
    )
    assert LOG_ROWS_MAX <= count < LOG_ROWS_MAX + revision.PRUNE_EVERY
    assert await looked(database, seen) is None
    assert await looked(database, seen + 251) == [Change("keys", "ten_1")]


async def test_a_drop_forgets_one_tenants_callers(database: Database) -> None:
    (acme, of_acme), (_, of_globex) = make_tenant(database, "acme"), make_tenant(database, "globex")
    callers = Callers(database, ["premium"], LIMITS)
    before = {made.secret: await callers.identify(f"Bearer {made.secret}") for made in (of_acme, of_globex)}

    def revoke(connection: sa.Connection) -> None:
        keys.revoke(connection, of_acme.key.id)
        keys.revoke(connection, of_globex.key.id)

    database.write_sync(revoke)
    callers.drop_tenants([acme])
    with pytest.raises(InvalidApiKey):
        await callers.identify(f"Bearer {of_acme.secret}")
    with pytest.raises(InvalidApiKey):
        await callers.confirm(before[of_acme.secret])
    assert await callers.identify(f"Bearer {of_globex.secret}") is before[of_globex.secret]
    await callers.confirm(before[of_globex.secret])


async def test_a_key_that_was_unknown_is_known_once_it_is_made(database: Database) -> None:
    acme, _ = make_tenant(database, "acme")
    callers, secret = Callers(database, ["premium"], LIMITS), keys.make_secret("live")
    with pytest.raises(InvalidApiKey):
        await callers.identify(f"Bearer {secret}")
    database.write_sync(lambda c: keys.create_key(c, tenant_id=acme, name="late", secret=secret))
    callers.drop_tenants([acme])
    assert (await callers.identify(f"Bearer {secret}")).tenant_id == acme


async def test_what_was_read_before_a_drop_is_not_cached_after_it(database: Database) -> None:
    """The look-up read the key before it was revoked, and ends after the drop."""
    acme, made = make_tenant(database, "acme")
    callers = Callers(database, ["premium"], LIMITS)
    read = database.read

    async def late(function: Any) -> Any:
        found = await read(function)
        database.write_sync(lambda c: keys.revoke(c, made.key.id))
        callers.drop_tenants([acme])
        return found

    database.read = late  # type: ignore[method-assign]
    await callers.identify(f"Bearer {made.secret}")
    database.read = read  # type: ignore[method-assign]
    with pytest.raises(InvalidApiKey):
        await callers.identify(f"Bearer {made.secret}")


async def test_many_tenants_that_changed_are_not_remembered_for_ever(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.access.callers.CHANGED_MAX", 2)
    _, made = make_tenant(database, "acme")
    callers = Callers(database, ["premium"], LIMITS)
    caller = await callers.identify(f"Bearer {made.secret}")
    database.write_sync(lambda c: keys.revoke(c, made.key.id))
    callers.drop_tenants(["ten_1", "ten_2"])
    await callers.confirm(caller)  # nothing indicated a change
    callers.drop_tenants(["ten_3"])
    with pytest.raises(InvalidApiKey):
        await callers.confirm(caller)


def test_prices_are_read_anew_after_writes_that_concern_them(database: Database) -> None:
    acme, _ = make_tenant(database, "acme")

    def moves(write: Any) -> bool:
        token = sa.select(revision.price_token)
        before = database.read_sync(lambda c: c.execute(token).scalar_one())
        database.write_sync(write)
        return bool(before != database.read_sync(lambda c: c.execute(token).scalar_one()))

    price: dict[str, Any] = {"input": 2, "cached_input": 1, "output": 3, "multipliers": {"premium": 1}}
    assert moves(lambda c: prices.publish(c, subject=MODEL, **price))
    assert moves(lambda c: tenants.update_tenant(c, acme, time_zone="Asia/Tokyo"))
    assert moves(lambda c: c.exec_driver_sql(OLD_BUMP))
    assert moves(revision.bump)
    assert not moves(lambda c: keys.create_key(c, tenant_id=acme, name="more"))
    assert not moves(lambda c: tenants.create_project(c, tenant_id=acme, name="p"))
    book = PriceBook()
    book.refresh(7)
    assert database.read_sync(lambda c: book.terms(c, acme)) is not None


# ---- a gateway's whole memory


@pytest.fixture
def config(tmp_path: Path, model_dir: Path, database_url: str) -> Config:
    upgrade(database_url)
    text = f'[gateway]\ndatabase_url = "{database_url}"\n[[models]]\nname = "{MODEL}"\npath = "{model_dir}"\n'
    return parse_gateway_config(text.encode(), tmp_path, "test", {})


class Memory:
    """A gateway's services without background tasks; records which parts were reloaded since the last look."""

    def __init__(self, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
        config.data_dir.mkdir(parents=True, exist_ok=True)
        self.services = Services(config, ServerSecrets(b"secret"))
        self.read: set[str] = set()
        for part, method in (("models", "follow"), ("registry", "reload"), ("router", "reload")):
            self._count(getattr(self.services, part), part, method, monkeypatch)
        monkeypatch.setattr(self.services, "_update_engine", lambda: self.read.add("engine"))
        self.administration = Administration(config, Actor("test"))

    def _count(self, part: Any, name: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
        real = getattr(part, method)

        async def counted() -> None:
            self.read.add(name)
            await real()

        monkeypatch.setattr(part, method, counted)

    async def after(self, *writes: Any) -> set[str]:
        """The parts that the next look reloads."""
        for write in writes:
            self.services.database.write_sync(write)
        self.read.clear()
        await self.services.watch.poll_revision()
        return set(self.read)

    async def knows(self, made: keys.MadeKey) -> bool:
        """Whether its caller is in the cache."""
        return keys.hash_secret(made.secret) in self.services.callers._known


@pytest.fixture
def memory(config: Config, monkeypatch: pytest.MonkeyPatch) -> Iterator[Memory]:
    made = Memory(config, monkeypatch)
    yield made
    made.services.database.close()


async def test_a_look_reads_what_the_writes_concern(memory: Memory) -> None:
    services, admin = memory.services, memory.administration
    assert await memory.after() == {"models", "registry", "router", "engine"}
    (acme, of_acme), (_, of_globex) = make_tenant(services.database, "acme"), make_tenant(services.database, "globex")
    assert await memory.after() == {"models", "engine"}, "laneway.toml may name a tenant's slug"
    for made in (of_acme, of_globex):
        await services.callers.identify(f"Bearer {made.secret}")

    for write in (
        lambda c: admin.keys.create(c, tenant_id=acme, name="more"),
        lambda c: admin.projects.create(c, tenant_id=acme, name="more"),
        lambda c: admin.limits.set(c, tenant_id=acme, key_id=None, change=LimitsChange(concurrency=5)),
        lambda c: admin.keys.update(c, of_acme.key.id, default_max_tokens=5),
    ):
        await services.callers.identify(f"Bearer {of_acme.secret}")
        assert await memory.after(write) == set()
        assert not await memory.knows(of_acme)
        assert await memory.knows(of_globex)

    await services.callers.identify(f"Bearer {of_acme.secret}")
    assert (
        await memory.after(lambda c: admin.budgets.set(c, tenant_id=acme, unit="tokens", period="day", limit_amount=1))
        == set()
    )
    assert await memory.after(lambda c: admin.webhooks.create(c, url="https://example.com/", tenant_id=acme)) == set()
    price: dict[str, Any] = {"input": 2, "cached_input": 1, "output": 3, "multipliers": {}}
    assert await memory.after(lambda c: admin.prices.publish(c, subject=MODEL, **price)) == {"router"}
    chat = (TargetSection(model=MODEL),)
    assert await memory.after(lambda c: admin.aliases.set(c, "chat", models=chat)) == {"router"}
    assert await memory.knows(of_acme), "none of these concerns a caller"
    everything = {"models", "registry", "router", "engine"}
    assert await memory.after(lambda c: register(c, name="a", tenant_id=acme, digest="0" * 64)) == everything
    assert not await memory.knows(of_globex), "a bare bump concerns everything"


async def test_the_writes_of_one_interval_are_one_reload(memory: Memory) -> None:
    admin = memory.administration
    await memory.after()
    chat = (TargetSection(model=MODEL),)
    writes = [lambda c, n=number: admin.aliases.set(c, f"alias-{n}", models=chat) for number in range(20)]
    reads: list[str] = []
    real = memory.services.router.reload

    async def counted() -> None:
        reads.append("router")
        await real()

    memory.services.router.reload = counted  # type: ignore[method-assign]
    assert await memory.after(*writes) == {"router"}
    assert reads == ["router"]
    assert await memory.after() == set()
