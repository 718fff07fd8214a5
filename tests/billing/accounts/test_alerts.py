"""Soft budgets, thresholds and their outbox: each is told once, in the transaction that reached it, and again until
somebody took it or the attempts are over."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from billing import clock, tables
from billing.accounts import alerts, budgets, tenants, webhooks
from billing.accounts.outbox import ATTEMPTS_MAX, RETRY_S_MAX, ClaimedDelivery
from billing.accounts.prices import PICOS_MAX
from billing.clock import database_now, from_datetime
from billing.database import Database
from billing.errors import AlreadyExists, InvalidValue, RowNotFound
from billing.ledger.ledger import Held, HoldRefused, Ledger
from support.billing.books import OUTPUT, Books, default_project, settlement

RETRY_S = 100.0


@pytest.fixture
def ledger(books: Books) -> Ledger:
    return Ledger(books.database, "gw_1")


def soft(books: Books, limit: int, *thresholds: int, **changes: Any) -> budgets.Budget:
    budget = books.budget(limit, **changes)
    return books.database.write_sync(
        lambda connection: budgets.change_budget(connection, budget.id, kind="soft", thresholds=thresholds or None)
    )


def webhook(books: Books, url: str = "https://example.org/hook", tenant_id: str | None = None) -> webhooks.Webhook:
    return books.database.write_sync(lambda c: webhooks.create_webhook(c, url=url, tenant_id=tenant_id)).webhook


async def use(books: Books, ledger: Ledger, tokens: int) -> None:
    """A request that ends with so many tokens of usage."""
    request = books.request(prompt=1, most=tokens - 1)
    assert isinstance(await ledger.hold(request), Held)
    await ledger.settle(settlement(request, tokens - 1, prompt=1))


def told(books: Books) -> list[tuple[int, int]]:
    """Threshold and use of each alert, oldest first."""
    return [(alert.threshold, alert.used) for alert in reversed(books.database.read_sync(alerts.list_alerts))]


async def test_a_soft_budget_refuses_nothing_and_warns_once(books: Books, ledger: Ledger) -> None:
    budget = soft(books, 100, 50, 100, 150)
    for tokens in (48, 2, 30, 18):
        await use(books, ledger, tokens)
    assert told(books) == [(50, 50)], "at exactly half, and not again"
    await use(books, ledger, 2)
    assert told(books) == [(50, 50), (100, 100)]
    await use(books, ledger, 200)
    assert told(books) == [(50, 50), (100, 100), (150, 300)]
    assert books.state(budget) == (300, 0)
    [state] = books.database.read_sync(budgets.list_budget_states)
    assert state.left == -200
    books.assert_sound()


async def test_a_hard_budget_may_warn_too(books: Books, ledger: Ledger) -> None:
    budget = books.budget(100)
    books.database.write_sync(lambda c: budgets.change_budget(c, budget.id, thresholds=[90, 40]))
    await use(books, ledger, 95)
    assert told(books) == [(40, 95), (90, 95)], "both, in one settlement"
    assert isinstance(await ledger.hold(books.request()), HoldRefused)


async def test_what_is_held_is_not_used(books: Books, ledger: Ledger) -> None:
    soft(books, 100, 50)
    request = books.request()
    await ledger.hold(request)
    assert told(books) == []
    await ledger.void(request.request_id, "refused")
    assert told(books) == []


async def test_each_window_has_its_own(books: Books) -> None:
    soft(books, 100, 50, period="day")
    time = from_datetime(datetime(2031, 1, 30, 12, tzinfo=UTC))
    ledger = Ledger(books.database, "gw_1", clock=lambda _connection: time)
    for _ in range(2):
        await use(books, ledger, 60)
        await use(books, ledger, 60)
        time += clock.DAY
    assert told(books) == [(50, 60), (50, 60)]


async def test_a_limit_that_is_lowered_below_its_use_warns_with_the_next_request(books: Books, ledger: Ledger) -> None:
    budget = soft(books, 1000, 50)
    await use(books, ledger, 60)
    books.database.write_sync(lambda c: budgets.change_budget(c, budget.id, limit_amount=100))
    assert told(books) == []
    await use(books, ledger, 5)
    assert told(books) == [(50, 60)]
    books.database.write_sync(lambda c: budgets.change_budget(c, budget.id, limit_amount=1000))
    await use(books, ledger, 600)
    assert told(books) == [(50, 60)], "told in this window already"


async def test_a_soft_budget_ends_where_its_counter_does(books: Books, ledger: Ledger) -> None:
    """Money is never blocked by a number that does not fit: the counter's own end is a hard one."""
    budget = soft(books, 1, unit="money")
    start = tables.budget_windows.c
    await use(books, ledger, 5)
    books.database.write_sync(
        lambda c: c.execute(
            sa.update(tables.budget_windows).where(start.budget_id == budget.id).values(posted=PICOS_MAX - 10 * OUTPUT)
        )
    )
    held = await ledger.hold(books.request(prompt=0, most=90))
    assert isinstance(held, Held)
    assert held.max_tokens == 10
    refused = await ledger.hold(books.request(prompt=0, most=90))
    assert isinstance(refused, HoldRefused)
    assert "limit 9223372.036854775807 USD" in refused.message


async def test_a_projects_budget_binds_its_keys_alone(books: Books, ledger: Ledger) -> None:
    project = books.database.write_sync(lambda c: tenants.create_project(c, tenant_id=books.tenant.id, name="search"))
    budget = books.database.write_sync(
        lambda c: budgets.create_budget(
            c,
            tenant_id=books.tenant.id,
            scope="project",
            scope_id=project.id,
            unit="tokens",
            period="total",
            limit_amount=150,
        )
    )
    inside = [msgspec.structs.replace(books.request(key=key), project_id=project.id) for key in ("key_a", "key_b")]
    grants = [await ledger.hold(request) for request in inside]
    assert [held.max_tokens for held in grants if isinstance(held, Held)] == [90, 40]
    refused = await ledger.hold(msgspec.structs.replace(books.request(), project_id=project.id))
    assert isinstance(refused, HoldRefused)
    assert refused.code == "project_budget_exceeded"
    assert refused.message.startswith("The project's token budget (total) does not cover this request: limit 150")
    assert isinstance(await ledger.hold(books.request()), Held), "a key outside the project is not bound"
    assert books.state(budget) == (0, 150)


async def test_two_gateways_at_once_tell_once_and_overshoot_nothing(books: Books) -> None:
    project = books.database.write_sync(lambda c: default_project(c, books.tenant.id))
    soft(books, 1000, 50, 100)
    limits: dict[str, Any] = {"tenant_id": books.tenant.id, "unit": "tokens", "period": "month", "limit_amount": 1450}
    hard = books.database.write_sync(
        lambda c: budgets.create_budget(c, scope="project", scope_id=project.id, thresholds=[90], **limits)
    )
    webhook(books)
    databases = [Database(books.url) for _ in range(2)]
    ledgers = [Ledger(database, f"gw_{number}") for number, database in enumerate(databases)]
    requests = [msgspec.structs.replace(books.request(), project_id=project.id) for _ in range(64)]
    pairs = [(ledgers[number % 2], request) for number, request in enumerate(requests)]
    held = await asyncio.gather(*(ledger.hold(request) for ledger, request in pairs))
    ran = [(pair, grant) for pair, grant in zip(pairs, held, strict=True) if isinstance(grant, Held)]
    assert sorted(grant.max_tokens for _pair, grant in ran) == [40, *[90] * 14]
    await asyncio.gather(*(ledger.settle(settlement(request, grant.max_tokens)) for (ledger, request), grant in ran))
    assert books.state(hard) == (1450, 0)
    assert sorted(threshold for threshold, _used in told(books)) == [50, 90, 100]
    books.assert_sound()
    for database in databases:
        database.close()


# ---- the outbox


def claim(books: Books, retry_s: float = RETRY_S) -> list[ClaimedDelivery[alerts.Alert]]:
    return books.database.write_sync(lambda c: alerts.OUTBOX.claim(c, retry_s=retry_s))


def delivery(books: Books) -> alerts.Delivery:
    [alert] = books.database.read_sync(alerts.list_alerts)
    [found] = books.database.read_sync(lambda c: alerts.deliveries(c, [alert.id]))[alert.id]
    return found


async def test_who_is_told(books: Books, ledger: Ledger) -> None:
    other = books.database.write_sync(lambda c: tenants.create_tenant(c, slug="other", name="Other", tier="batch"))
    all_of_them, own, foreign, gone = (webhook(books, tenant_id=t) for t in (None, books.tenant.id, other.id, None))
    books.database.write_sync(lambda c: webhooks.deactivate_webhook(c, gone.id))
    soft(books, 100, 50)
    await use(books, ledger, 60)
    claimed = claim(books)
    assert {one.receiver.id for one in claimed} == {all_of_them.id, own.id}
    assert foreign.id not in {one.receiver.id for one in claimed}
    assert {one.attempt for one in claimed} == {1}
    alert = claimed[0].event
    assert (alert.tenant_id, alert.scope, alert.unit, alert.kind) == (books.tenant.id, "tenant", "tokens", "soft")
    assert claim(books) == [], "whoever claimed it has time to deliver it"


async def test_a_delivery_is_attempted_until_it_succeeds(books: Books, ledger: Ledger) -> None:
    webhook(books)
    soft(books, 100, 50)
    await use(books, ledger, 60)
    [first] = claim(books, retry_s=0)
    books.database.write_sync(lambda c: alerts.OUTBOX.record_attempts(c, [(first, "the server said 500")]))
    assert (delivery(books).state, delivery(books).attempts) == ("pending", 1)
    assert delivery(books).last_error == "the server said 500"
    [second] = claim(books, retry_s=0)
    assert second == msgspec.structs.replace(first, attempt=2)
    books.database.write_sync(lambda c: alerts.OUTBOX.record_attempts(c, [(second, None)]))
    done = delivery(books)
    assert (done.state, done.attempts, done.last_error, done.next_attempt_at) == ("delivered", 2, None, None)
    books.database.write_sync(lambda c: alerts.OUTBOX.record_attempts(c, [(first, "late news of the first attempt")]))
    assert delivery(books) == done
    assert claim(books, retry_s=0) == []


async def test_waits_double_and_attempts_end(books: Books, ledger: Ledger) -> None:
    webhook(books)
    soft(books, 100, 50)
    await use(books, ledger, 60)
    outbox = tables.alert_deliveries
    waits: list[float] = []
    for attempt in range(1, ATTEMPTS_MAX + 1):
        [claimed] = claim(books)
        assert claimed.attempt == attempt
        books.database.write_sync(lambda c, one=claimed: alerts.OUTBOX.record_attempts(c, [(one, "nobody there")]))
        due = delivery(books).next_attempt_at
        if due is not None:
            now = books.database.read_sync(database_now)
            waits.append(round((due - now) / 1e8) * RETRY_S)
            books.database.write_sync(lambda c: c.execute(sa.update(outbox).values(next_attempt_at=0)))
    assert waits == [min(RETRY_S * 2**n, RETRY_S_MAX) for n in range(ATTEMPTS_MAX - 1)]
    assert (delivery(books).state, delivery(books).attempts) == ("failed", ATTEMPTS_MAX)
    assert claim(books) == []


async def test_a_gateway_that_died_with_the_last_attempt_leaves_it_failed(books: Books, ledger: Ledger) -> None:
    webhook(books)
    soft(books, 100, 50)
    await use(books, ledger, 60)
    for _ in range(ATTEMPTS_MAX):
        assert claim(books, retry_s=0)
    assert claim(books, retry_s=0) == []
    assert delivery(books).state == "failed"


async def test_what_is_on_its_way_to_a_removed_webhook_fails(books: Books, ledger: Ledger) -> None:
    made = webhook(books)
    soft(books, 100, 50)
    await use(books, ledger, 60)
    books.database.write_sync(lambda c: webhooks.deactivate_webhook(c, made.id))
    assert claim(books) == []
    assert (delivery(books).state, delivery(books).last_error) == ("failed", "the webhook was removed")


async def test_two_gateways_claim_each_delivery_once(books: Books, ledger: Ledger) -> None:
    for _ in range(8):
        webhook(books)
    soft(books, 100, 25, 50)
    await use(books, ledger, 60)
    claims = await asyncio.gather(
        *(
            asyncio.to_thread(books.database.write_sync, lambda c: alerts.OUTBOX.claim(c, retry_s=RETRY_S, limit=4))
            for _ in "ab"
        )
    )
    while batch := claim(books):
        claims.append(batch)
    names = [(one.event.id, one.receiver.id) for batch in claims for one in batch]
    assert len(names) == len(set(names)) == 16


async def test_pages_of_alerts(books: Books, ledger: Ledger) -> None:
    soft(books, 100, *range(10, 60, 10))
    await use(books, ledger, 60)
    whole = books.database.read_sync(alerts.list_alerts)
    first = books.database.read_sync(lambda c: alerts.list_alerts(c, limit=2))
    rest = books.database.read_sync(lambda c: alerts.list_alerts(c, before=first[-1].sequence))
    assert [alert.threshold for alert in whole] == [50, 40, 30, 20, 10]
    assert first + rest == whole
    assert books.database.read_sync(lambda c: alerts.list_alerts(c, tenant_id="ten_other")) == []


# ---- what may be asked


@pytest.mark.parametrize(
    ("kind", "thresholds"),
    [("soft", []), ("hard", [0]), ("hard", [1001]), ("soft", [50, 50]), ("hard", list(range(1, 12))), ("firm", None)],
)
def test_refused_thresholds(books: Books, kind: Any, thresholds: list[int] | None) -> None:
    budget = books.budget(100)
    with pytest.raises(InvalidValue):
        books.database.write_sync(lambda c: budgets.change_budget(c, budget.id, kind=kind, thresholds=thresholds))
    assert books.database.read_sync(lambda c: budgets.get_budget(c, budget.id)) == budget


def test_what_is_not_given_stays(books: Books) -> None:
    budget = books.budget(100)

    def change(**changes: Any) -> budgets.Budget:
        return books.database.write_sync(lambda c: budgets.change_budget(c, budget.id, **changes))

    assert change(kind="soft").thresholds == budgets.SOFT_THRESHOLDS
    assert change(thresholds=[70, 30]).thresholds == (30, 70)
    changed = change(limit_amount=5)
    assert (changed.kind, changed.thresholds, changed.limit_amount) == ("soft", (30, 70), 5)
    assert change(kind="hard").thresholds == (30, 70)
    assert change(thresholds=[]).thresholds == ()
    with pytest.raises(RowNotFound):
        books.database.write_sync(lambda c: budgets.change_budget(c, "bud_none", limit_amount=1))


def test_a_budget_of_another_tenants_project_is_refused(books: Books) -> None:
    other = books.database.write_sync(lambda c: tenants.create_tenant(c, slug="other", name="Other", tier="batch"))
    project = books.database.read_sync(lambda c: default_project(c, other.id))
    with pytest.raises(RowNotFound):
        books.database.write_sync(
            lambda c: budgets.create_budget(
                c,
                tenant_id=books.tenant.id,
                scope="project",
                scope_id=project.id,
                unit="tokens",
                period="day",
                limit_amount=1,
            )
        )


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://example.org/", "example.org", "http://", "https://user:pw@example.org/", "https://example.org/#x"),
        *(
            "http://example.org:99999/",
            "https://example.org/a b",
            "https://exämple.org/",
            f"https://e.org/{'x' * 2048}",
        ),
        *("file:///etc/passwd", "https://example.org/\r\nx: y", "http://[::1"),
    ],
)
def test_refused_urls(books: Books, url: str) -> None:
    with pytest.raises(InvalidValue):
        webhook(books, url)
    assert books.database.read_sync(webhooks.list_webhooks) == []


def test_a_webhooks_secret_is_in_nothing_but_the_answer(books: Books) -> None:
    made = books.database.write_sync(lambda c: webhooks.create_webhook(c, url="http://example.org/hook"))
    assert made.secret.startswith(webhooks.SECRET_PREFIX)
    assert books.database.read_sync(webhooks.list_webhooks) == [made.webhook]
    assert "secret" not in made.webhook.__struct_fields__
    with pytest.raises(RowNotFound):
        books.database.write_sync(lambda c: webhooks.deactivate_webhook(c, "whk_none"))


def test_so_many_webhooks_and_no_more(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "WEBHOOKS_MAX", 2)
    webhook(books)
    webhook(books)
    with pytest.raises(InvalidValue):
        webhook(books)


# ---- projects and time zones of tenants


def test_projects(books: Books) -> None:
    def make(name: str, **fields: Any) -> tenants.Project:
        return books.database.write_sync(
            lambda c: tenants.create_project(c, tenant_id=books.tenant.id, name=name, **fields)
        )

    def update(project: tenants.Project, **changes: Any) -> tenants.Project:
        return books.database.write_sync(lambda c: tenants.update_project(c, project.id, **changes))

    search = make("search", default_max_tokens=7)
    default = books.database.read_sync(lambda c: default_project(c, books.tenant.id))
    assert [p.name for p in books.database.read_sync(lambda c: tenants.projects(c, books.tenant.id))] == [
        "default",
        "search",
    ]
    for name in ("search", search.id):
        assert books.database.read_sync(lambda c, n=name: tenants.project_of(c, books.tenant.id, n)) == search
    with pytest.raises(AlreadyExists):
        make("search")
    with pytest.raises(InvalidValue):
        make("")
    with pytest.raises(InvalidValue):
        update(default, name="other")
    with pytest.raises(AlreadyExists):
        update(search, name="default")
    changed = update(search, name="find", default_max_tokens=None)
    assert (changed.name, changed.default_max_tokens) == ("find", None)
    assert books.database.read_sync(lambda c: tenants.get_project(c, search.id)) == changed


def test_a_time_zone_is_one_that_there_is(books: Books) -> None:
    def update(zone: str) -> tenants.Tenant:
        return books.database.write_sync(lambda c: tenants.update_tenant(c, books.tenant.id, time_zone=zone))

    assert update("Europe/Berlin").time_zone == "Europe/Berlin"
    for zone in ("Europe/Atlantis", "../../etc/passwd", "", "europe/berlin"):
        with pytest.raises(InvalidValue):
            update(zone)


async def test_a_tenants_time_zone_moves_its_windows(books: Books) -> None:
    """It is known to the very next hold, in every gateway: the revision says so."""
    time = from_datetime(datetime(2031, 1, 31, 23, 30, tzinfo=UTC))
    ledger = Ledger(books.database, "gw_1", clock=lambda _connection: time)
    books.budget(100, period="month")
    assert isinstance(await ledger.hold(books.request()), Held)
    refused = await ledger.hold(books.request())
    assert isinstance(refused, HoldRefused)
    assert refused.resets_at == from_datetime(datetime(2031, 2, 1, tzinfo=UTC))
    books.database.write_sync(lambda c: tenants.update_tenant(c, books.tenant.id, time_zone="Europe/Berlin"))
    assert isinstance(await ledger.hold(books.request()), Held), "in Berlin it is February"
    refused = await ledger.hold(books.request())
    assert isinstance(refused, HoldRefused)
    assert refused.resets_at == from_datetime(datetime(2031, 2, 28, 23, tzinfo=UTC))
