"""The caller cache and the revision watch, on a real database and clocks of the test's own."""

from __future__ import annotations

import asyncio
import time

import pytest
import sqlalchemy as sa

from billing import revision
from billing.accounts import tenants
from billing.database import Database, DatabaseUnavailable
from gateway.access import callers as module
from gateway.access import keys
from gateway.access.callers import Callers
from gateway.config.allowance import Allowance
from gateway.errors import InvalidApiKey, Overloaded
from gateway.limits import overrides
from gateway.limits.overrides import LimitsChange
from gateway.limits.rates import Scope
from gateway.upkeep.revision_watch import RevisionWatch
from migrations.upgrade import upgrade
from support.waiting import eventually_async

TIERS = ["premium", "standard", "batch"]
LIMITS: dict[Scope, Allowance] = {"key": Allowance(10, 1000, 2), "tenant": Allowance(30, 3000, 6)}


@pytest.fixture
def database(sqlite_database: Database) -> Database:
    return sqlite_database


def make_key(database: Database, tier: str = "premium", **fields: object) -> keys.MadeKey:
    def run(connection: sa.Connection) -> keys.MadeKey:
        slug = f"t{keys.make_secret('live')[8:16].lower()}"
        tenant = tenants.create_tenant(connection, slug=slug, name="T", tier=tier)
        return keys.create_key(connection, tenant_id=tenant.id, name="k", **fields)  # type: ignore[arg-type]

    return database.write_sync(run)


def bearer(made: keys.MadeKey) -> str:
    return f"Bearer {made.secret}"


async def test_what_a_key_says(database: Database) -> None:
    made = make_key(database, default_max_tokens=9)
    caller = await Callers(database, TIERS, LIMITS).identify(bearer(made))
    assert (caller.key_id, caller.tenant_id, caller.tier) == (made.key.id, made.key.tenant_id, "premium")
    assert caller.scopes == {"inference"}
    assert caller.default_max_tokens == 9


async def test_who_is_limited_and_how(database: Database) -> None:
    made = make_key(database)
    tenant_id = made.key.tenant_id
    assert tenant_id is not None
    callers = Callers(database, TIERS, LIMITS)
    key, tenant = (await callers.identify(bearer(made))).subjects
    assert (key.scope, key.id, key.family, key.allowance) == ("key", made.key.id, tenant_id, LIMITS["key"])
    assert (tenant.scope, tenant.id, tenant.family, tenant.allowance) == ("tenant", *[tenant_id] * 2, LIMITS["tenant"])

    def run(connection: sa.Connection) -> None:
        of_key, of_tenant = LimitsChange(concurrency=7), LimitsChange(requests_per_minute=8, tokens_per_minute=9)
        overrides.change_own_limits(connection, scope="key", subject_id=made.key.id, tenant_id=tenant_id, change=of_key)
        overrides.change_own_limits(
            connection, scope="tenant", subject_id=tenant_id, tenant_id=tenant_id, change=of_tenant
        )

    database.write_sync(run)
    callers.clear()
    key, tenant = (await callers.identify(bearer(made))).subjects
    assert (key.allowance, tenant.allowance) == (Allowance(10, 1000, 7), Allowance(8, 9, 6))


@pytest.mark.parametrize(
    ("tenant", "key", "served"),
    [
        ("standard", "premium", "standard"),
        ("standard", "batch", "batch"),
        ("gone", None, "batch"),
        ("premium", "gone", "batch"),
    ],
)
async def test_the_tier_of_a_key(database: Database, tenant: str, key: str | None, served: str) -> None:
    made = make_key(database, tenant)
    database.write_sync(lambda c: c.execute(sa.update(module.keys).values(tier=key)))
    assert (await Callers(database, TIERS, LIMITS).identify(bearer(made))).tier == served


async def test_the_cache_answers_until_it_is_cleared(database: Database) -> None:
    made, callers = make_key(database), Callers(database, TIERS, LIMITS)
    await callers.identify(bearer(made))
    database.write_sync(lambda c: keys.revoke(c, made.key.id))
    await callers.identify(bearer(made))
    callers.clear()
    with pytest.raises(InvalidApiKey):
        await callers.identify(bearer(made))


async def test_who_was_identified_before_a_clear_is_asked_for_again(database: Database) -> None:
    made, callers = make_key(database), Callers(database, TIERS, LIMITS)
    caller = await callers.identify(bearer(made))
    await callers.confirm(caller)
    callers.clear()
    await callers.confirm(caller)
    database.write_sync(lambda c: keys.revoke(c, made.key.id))
    callers.clear()
    with pytest.raises(InvalidApiKey):
        await callers.confirm(caller)


async def test_nobody_is_confirmed_while_a_revocation_would_not_be_seen(database: Database) -> None:
    """Its body took longer to arrive than the revision has been unread."""
    fresh = True

    async def freshen() -> bool:
        return fresh

    made, callers = make_key(database), Callers(database, TIERS, LIMITS, freshen=freshen)
    caller = await callers.identify(bearer(made))
    await callers.confirm(caller)
    fresh = False
    with pytest.raises(DatabaseUnavailable, match="unread"):
        await callers.confirm(caller)


async def test_what_was_read_before_a_clear_is_not_kept_after_it(database: Database) -> None:
    made, callers = make_key(database), Callers(database, TIERS, LIMITS)
    looking = asyncio.create_task(callers.identify(bearer(made)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the look-up is on its way
    callers.clear()
    await looking
    database.write_sync(lambda c: keys.revoke(c, made.key.id))
    with pytest.raises(InvalidApiKey):
        await callers.identify(bearer(made))


async def test_a_flood_of_wrong_keys_pushes_no_right_one_out(database: Database) -> None:
    made, callers = make_key(database), Callers(database, TIERS, LIMITS, cache_max=5)
    await callers.identify(bearer(made))
    for _ in range(20):
        with pytest.raises(InvalidApiKey):
            await callers.identify(f"Bearer {keys.make_secret('live')}")
    database.write_sync(lambda c: c.execute(sa.delete(module.keys)))
    await callers.identify(bearer(made))  # from memory

    wrong = [callers.identify(f"Bearer {keys.make_secret('live')}") for _ in range(module.LOOK_UPS_MAX + 10)]
    refused = await asyncio.gather(*wrong, return_exceptions=True)
    assert sum(isinstance(error, Overloaded) for error in refused) == 10
    assert sum(isinstance(error, InvalidApiKey) for error in refused) == module.LOOK_UPS_MAX


async def test_a_burst_on_one_key_is_one_look_up(database: Database) -> None:
    made, callers = make_key(database), Callers(database, TIERS, LIMITS)
    found = await asyncio.gather(*(callers.identify(bearer(made)) for _ in range(2 * module.LOOK_UPS_MAX)))
    assert len(set(map(id, found))) == 1


async def test_last_use_is_written(database: Database) -> None:
    made = make_key(database)
    callers = Callers(database, TIERS, LIMITS, wall_clock=lambda: 1_900_000_000.9)
    await callers.identify(bearer(made))
    await callers.flush_used()
    key = database.read_sync(lambda c: keys.get_key(c, made.key.id))
    assert key is not None
    assert key.last_used_at == 1_900_000_000


async def test_last_uses_are_written_together(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several hundred keys are one statement of one transaction; what the database did not take is not lost."""
    upgrade(database_url)
    database = Database(database_url)
    made = [make_key(database) for _ in range(9)]
    statements: list[str] = []
    callers = Callers(database, TIERS, LIMITS, wall_clock=lambda: 1_900_000_000.0)
    for one in made:
        await callers.identify(bearer(one))
    sa.event.listen(
        database._write_engine, "before_cursor_execute", lambda _conn, _cursor, text, *rest: statements.append(text)
    )
    monkeypatch.setattr(module, "USED_GROUP_MAX", 5)
    rename = "ALTER TABLE keys RENAME TO away", "ALTER TABLE away RENAME TO keys"
    database.write_sync(lambda c: c.exec_driver_sql(rename[0]))
    with pytest.raises(DatabaseUnavailable):
        await callers.flush_used()
    database.write_sync(lambda c: c.exec_driver_sql(rename[1]))
    statements.clear()
    await callers.flush_used()
    if not database.is_sqlite:  # there a statement goes to the driver itself
        assert len(statements) == 4, "two groups: a lock and an update each"
    used = database.read_sync(lambda c: [key.last_used_at for key in keys.list_keys(c)])
    assert used == [1_900_000_000] * 9
    statements.clear()
    await callers.flush_used()
    assert statements == []
    database.close()


async def test_a_key_expires_to_the_second(database: Database) -> None:
    now = [1_900_000_000.0]
    callers = Callers(database, TIERS, LIMITS, wall_clock=lambda: now[0])
    made = make_key(database, expires_at=1_900_000_010)
    await callers.identify(bearer(made))
    now[0] += 9.9
    await callers.identify(bearer(made))
    now[0] += 0.1
    with pytest.raises(InvalidApiKey):
        await callers.identify(bearer(made))


async def test_the_watch_is_fresh_for_a_second_and_tells_of_changes(database: Database) -> None:
    now, changes = [100.0], []

    async def changed(_: object) -> None:
        changes.append(watch.revision)

    watch = RevisionWatch(database, changed, clock=lambda: now[0])
    assert not watch.fresh
    await watch.poll_revision()
    await watch.poll_revision()
    assert watch.fresh
    assert len(changes) == 1
    now[0] += 1.0
    assert watch.fresh
    now[0] += 0.01
    assert not watch.fresh
    make_key(database)
    await watch.poll_revision()
    assert watch.fresh
    assert len(changes) == 2


async def test_the_log_says_once_an_episode_that_it_was_not_fresh(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]

    async def changed(_: object) -> None:
        pass

    watch = RevisionWatch(database, changed, clock=lambda: now[0])
    for age_s in (1.5, 2.0):
        await watch.poll_revision()
        now[0] += age_s
        assert not watch.fresh
        for _ in range(3):
            watch.note_refused()
    said = [record.fields for record in caplog.records if record.message == "admission.stale"]  # type: ignore[attr-defined]
    assert said == [{"revision_age_s": 1.5}, {"revision_age_s": 2.0}]


async def test_an_older_reading_never_overtakes_a_newer_one(database: Database) -> None:
    """Whoever polls after a write knows it, also while another poll takes its time."""
    seen: list[int] = []
    begun = asyncio.Event()

    async def changed(_: object) -> None:
        number = await database.read(revision.read_revision)
        begun.set()
        await asyncio.sleep(0 if seen else 0.2)
        seen.append(number)

    watch = RevisionWatch(database, changed)
    first = asyncio.create_task(watch.poll_revision())
    await begun.wait()
    make_key(database)
    await watch.poll_revision()
    await first
    assert seen == sorted(seen)
    assert seen[-1] == watch.revision == database.read_sync(revision.read_revision)


async def test_a_revision_that_cannot_be_read_is_not_fresh(database: Database) -> None:
    async def changed(_: object) -> None:
        pass

    watch = RevisionWatch(database, changed)
    database.write_sync(lambda c: c.execute(sa.text("ALTER TABLE revision RENAME TO away")))
    run = asyncio.create_task(watch.run())
    await asyncio.sleep(0.6)
    assert not watch.fresh
    database.write_sync(lambda c: c.execute(sa.text("ALTER TABLE away RENAME TO revision")))
    await eventually_async(lambda: watch.fresh)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)


async def test_who_comes_while_the_loop_stood_still_waits_for_the_next_look(database: Database) -> None:
    """The database is well; only this process had no time to ask it."""

    async def changed(_: object) -> None:
        pass

    watch = RevisionWatch(database, changed, interval_s=30.0)
    run = asyncio.create_task(watch.run())
    assert await watch.freshen()  # the first look
    time.sleep(1.1)  # noqa: ASYNC251 - the loop stands still
    assert not watch.fresh
    assert all(await asyncio.gather(*(watch.freshen() for _ in range(100))))
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)


async def test_who_comes_while_the_database_is_away_is_told_at_once(database: Database) -> None:
    now, changes = [100.0], []

    async def changed(_: object) -> None:
        changes.append(1)

    watch = RevisionWatch(database, changed, clock=lambda: now[0], interval_s=0.05)
    run = asyncio.create_task(watch.run())
    assert await watch.freshen()
    database.write_sync(lambda c: c.execute(sa.text("ALTER TABLE revision RENAME TO away")))
    await asyncio.sleep(0.3)
    now[0] += 1.1
    began = time.monotonic()
    assert not await watch.freshen()
    assert time.monotonic() - began < 10
    database.write_sync(lambda c: c.execute(sa.text("ALTER TABLE away RENAME TO revision")))
    await asyncio.sleep(0.3)
    assert await watch.freshen()
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
