"""Connectors: each hour's tokens reach the other system once, whatever happens to an attempt or to a gateway."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import sqlalchemy as sa

from billing.accounts import tenants
from billing.books import connectors, documents, rollups
from billing.books.connectors import ConnectorState, PushFailure
from billing.books.documents import BillingProfile
from billing.clock import SECOND
from billing.errors import RowNotFound
from billing.finance_tables import connector_hours
from billing.proofs import reconcile
from gateway.config.billing_settings import ConnectorSection
from gateway.metrics import Metrics
from gateway.upkeep.connectors import ConnectorPusher
from gateway.upkeep.health_checks import connectors_finding
from migrations.upgrade import upgrade
from support.billing.books import Books, make_books
from support.billing.finance import fold, use
from support.gateway.usage_receivers import KEY, UsageReceiver

Kind = Literal["stripe", "openmeter"]
HOUR = 3600 * SECOND
# Set for each test: the import of this file may be hours before its tests.
NOW = 0
HOURS_AGO = 0  # the start of an hour that has ended


@pytest.fixture(autouse=True)
def set_now(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns() // 1000
    monkeypatch.setitem(globals(), "NOW", now)
    monkeypatch.setitem(globals(), "HOURS_AGO", now - now % HOUR - 4 * HOUR)


@pytest.fixture
def books(database_url: str) -> Iterator[Books]:
    upgrade(database_url)
    made = make_books(database_url)
    yield made
    made.database.close()


@pytest.fixture
def sqlite_books(tmp_path: Path) -> Iterator[Books]:
    url = f"sqlite:///{tmp_path / 'laneway.db'}"
    upgrade(url)
    made = make_books(url)
    yield made
    made.database.close()


@pytest.fixture
def receive() -> Iterator[Callable[[Kind], UsageReceiver]]:
    made: list[UsageReceiver] = []

    def receiver(kind: Kind) -> UsageReceiver:
        made.append(UsageReceiver(kind))
        return made[-1]

    yield receiver
    for one in made:
        one.stop()


def section(receiver: UsageReceiver, folder: Path, **options: Any) -> ConnectorSection:
    key_file = folder / "key"
    key_file.write_text(f"{KEY}\n")
    fields: dict[str, Any] = {"name": receiver.kind, "kind": receiver.kind, "url": receiver.url, "retry_s": 10}
    return ConnectorSection(**fields | {"key_file": str(key_file), "timeout_s": 5, "after_s": 60} | options)


def write_key(own: ConnectorSection, key: str) -> None:
    Path(own.key_file).write_text(f"{key}\n")


def pusher(books: Books, own: ConnectorSection, gateway_id: str = "gw_1") -> ConnectorPusher:
    return ConnectorPusher(books.database, gateway_id, own, Metrics())


def state(books: Books, own: ConnectorSection) -> ConnectorState:
    needs = [own.name] if own.needs_account else []
    [found] = books.database.read_sync(
        lambda c: connectors.list_connector_states(c, after_s=own.after_s, needs_account=needs)
    )
    return found


def due_now(books: Books) -> None:
    books.database.write_sync(lambda c: c.execute(sa.update(connector_hours).values(next_attempt_at=0)))


def sound(books: Books) -> bool:
    return books.database.read_sync(reconcile.reconcile_all).sound


def account(books: Books, tenant_id: str, account_id: str) -> None:
    profile = BillingProfile(tenant_id=tenant_id, accounts={"stripe": account_id})
    books.database.write_sync(lambda c: documents.set_profile(c, profile))


async def test_stripe_has_each_hour_once(
    books: Books, tmp_path: Path, receive: Callable[[Kind], UsageReceiver]
) -> None:
    stripe = receive("stripe")
    own = section(stripe, tmp_path)
    one, other = pusher(books, own), pusher(books, own, "gw_2")
    use(books, HOURS_AGO)
    fold(books, HOURS_AGO)
    assert await one.push_due() == 0, "usage from before the connector's first run is not pushed"
    unknown = books.database.write_sync(lambda c: tenants.create_tenant(c, slug="b", name="B", tier="batch"))
    account(books, books.tenant.id, "cus_acme")
    for made in (5, 6):
        use(books, HOURS_AGO + SECOND, prompt=10, cached=4, made=made)
    use(books, HOURS_AGO + HOUR, prompt=3, made=1)
    use(books, HOURS_AGO + HOUR, tenant_id=unknown.id)
    use(books, NOW, prompt=100, made=1)  # its hour has not ended
    fold(books, NOW)
    assert await other.push_due() == 0, "the first gateway has the lease"

    stripe.behaviour = "busy"
    assert await one.push_due() == 0
    assert "503" in (state(books, own).last_error or "")
    assert await one.push_due() == 0, "not due yet"
    failing = state(books, own)
    assert failing.retrying == 5, "usage without an account is not tried"
    assert failing.failed_at is not None
    assert failing.next_attempt_at is not None
    assert failing.next_attempt_at > failing.failed_at
    attempts = stripe.attempts
    stripe.behaviour = "lost"  # Stripe has the events, and the gateway does not know it
    due_now(books)
    assert await one.push_due() == 0
    assert stripe.attempts > attempts
    assert sound(books)
    before = dict(stripe.counted)
    stripe.behaviour = "accept"
    due_now(books)
    # The gateway is gone: the next one sends the same identifiers and amounts, after the lease has ended.
    books.database.write_sync(lambda c: c.execute(sa.text("UPDATE connectors SET lease_until = 0")))
    assert await other.push_due() == 5
    assert (
        stripe.counted
        == before
        == {
            ("cus_acme", "laneway_input_tokens"): 12 + 3,
            ("cus_acme", "laneway_cached_input_tokens"): 8,
            ("cus_acme", "laneway_output_tokens"): 11 + 1,
        }
    )
    assert stripe.repeated == 5
    found = state(books, own)
    assert (found.gateway_id, found.waiting, found.without_account, found.last_error) == ("gw_2", 2, 1, None)
    assert (found.retrying, found.next_attempt_at) == (0, None)
    assert connectors_finding([found], own.after_s)[0] == "degraded"

    # Late usage of an hour that was sent is its next part.
    use(books, HOURS_AGO + 2 * SECOND, prompt=2, made=1)
    fold(books, NOW)
    account(books, unknown.id, "cus_b")
    assert await other.push_due() == 4
    assert stripe.counted["cus_acme", "laneway_output_tokens"] == 13
    assert stripe.counted["cus_b", "laneway_output_tokens"] == 5
    assert state(books, own).lag_s == state(books, own).waiting == 0
    assert sound(books)
    assert connectors_finding([state(books, own)], own.after_s)[0] == "ok"


def test_a_refusal_does_not_settle_an_earlier_attempt_without_an_answer(sqlite_books: Books) -> None:
    """The receiver may have the first attempt: after the time for which it knows an identifier, the event is stuck."""
    books = sqlite_books
    write = books.database.write_sync
    assert write(lambda c: connectors.take_lease(c, "stripe", "gw_1", 60))
    use(books, HOURS_AGO, prompt=10, made=0)
    fold(books, NOW)
    write(lambda c: connectors.collect(c, "stripe"))
    options: dict[str, Any] = {"after_s": 0, "retry_s": 1, "sure_s": 3600, "age_s_max": 86_400, "limit": 10}

    def claim(now: int) -> list[connectors.PushEvent]:
        return write(lambda c: connectors.claim_push_events(c, "stripe", **options, clock=lambda _: now))

    for at, certain in ((0, False), (30, True), (59, True)):
        [event] = claim(NOW + at * 60 * SECOND)
        failure = PushFailure("it failed", certain=certain)
        write(lambda c, event=event, failure=failure: connectors.record_push_results(c, "stripe", [(event, failure)]))
    assert claim(NOW + 61 * 60 * SECOND) == []
    [found] = books.database.read_sync(lambda c: connectors.list_connector_states(c, after_s=0))
    assert found.stuck == 1


async def test_openmeter_has_each_hour_once(
    sqlite_books: Books, tmp_path: Path, receive: Callable[[Kind], UsageReceiver]
) -> None:
    books, openmeter = sqlite_books, receive("openmeter")
    own = section(openmeter, tmp_path)
    one = pusher(books, own)
    await one.push_due()
    for hour in range(3):
        use(books, HOURS_AGO + hour * HOUR, prompt=10, made=5)
    fold(books, NOW)
    for behaviour in ("reset", "lost"):
        openmeter.behaviour = behaviour
        due_now(books)
        assert await one.push_due() == 0
        assert state(books, own).failed_at is not None
    openmeter.behaviour = "accept"
    due_now(books)
    assert await one.push_due() == 6
    tenant = books.tenant.id
    assert openmeter.counted == {(tenant, "input"): 30, (tenant, "output"): 15}
    assert openmeter.repeated == 6
    assert not openmeter.refused
    assert sound(books)

    # A wrong key is refused, and the next attempt reads the file again.
    use(books, HOURS_AGO + 1, prompt=1, made=1)
    fold(books, NOW)
    write_key(own, "wrong")
    assert await one.push_due() == 0
    assert "401" in (state(books, own).last_error or "")
    write_key(own, "")
    due_now(books)
    assert await one.push_due() == 0
    assert "key_file" in (state(books, own).last_error or "")
    write_key(own, KEY)
    due_now(books)
    assert await one.push_due() == 2


def test_what_may_not_be_repeated_waits_for_an_operator(sqlite_books: Books) -> None:
    """Stripe knows an identifier for a day, and accepts usage of 35 days."""
    books = sqlite_books
    write = books.database.write_sync
    assert write(lambda c: connectors.take_lease(c, "stripe", "gw_1", 60))
    use(books, HOURS_AGO, prompt=10, made=5)
    fold(books, NOW)
    assert write(lambda c: connectors.collect(c, "stripe", limit=1)) is False
    options: dict[str, Any] = {"after_s": 0, "retry_s": 1, "sure_s": 3600, "limit": 10}

    def claim(now: int, age_s_max: float = 86_400) -> list[connectors.PushEvent]:
        return write(
            lambda c: connectors.claim_push_events(c, "stripe", **options, age_s_max=age_s_max, clock=lambda _: now)
        )

    first = claim(NOW)
    assert [event.attempt for event in first] == [1, 1]
    unsure, refused = PushFailure("no answer", certain=False), PushFailure("it answered 400", certain=True)
    write(
        lambda c: connectors.record_push_results(c, "stripe", [(first[0], unsure), (first[1], refused)], lambda _: NOW)
    )
    again = claim(NOW + 2 * HOUR)
    assert [event.identifier for event in again] == [first[1].identifier], "the other one may have arrived"
    write(lambda c: connectors.record_push_results(c, "stripe", [(again[0], None)], lambda _: NOW))
    [found] = books.database.read_sync(lambda c: connectors.list_connector_states(c, after_s=0))
    assert (found.stuck, found.waiting, found.retrying) == (1, 1, 0)
    assert "too long ago" in (found.stuck_reason or "")
    assert connectors_finding([found], 0)[0] == "degraded"
    assert claim(NOW + 3 * HOUR) == []
    assert write(lambda c: connectors.release(c, "stripe")) == 1
    [last] = claim(NOW + 3 * HOUR)
    assert (last.identifier, last.tokens) == (first[0].identifier, first[0].tokens)
    write(lambda c: connectors.record_push_results(c, "stripe", [(last, None)], lambda _: NOW))
    write(
        lambda c: connectors.record_push_results(c, "stripe", [(last, None)], lambda _: NOW)
    )  # by a gateway that was slow
    assert sound(books)
    use(books, HOURS_AGO, prompt=1, made=1)
    fold(books, NOW)
    write(lambda c: connectors.collect(c, "stripe"))
    assert claim(NOW + 50 * 86_400 * SECOND) == []
    assert write(lambda c: connectors.release(c, "stripe")) == 2
    with pytest.raises(RowNotFound):
        write(lambda c: connectors.release(c, "none"))
    assert books.database.read_sync(lambda c: rollups.read_cursor(c).sequence) == found.sequence + 1
    write(lambda c: c.execute(sa.update(connector_hours).values(recorded=connector_hours.c.recorded + 1)))
    assert not sound(books), "an amount that no usage explains is found"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "openmeter", "url": ""}, "url is missing"),
        ({"url": "ftp://x"}, "must begin with https"),
        ({"timeout_s": 5, "retry_s": 5}, "less than retry_s"),
    ],
)
def test_a_section_that_cannot_work_is_refused(fields: dict[str, Any], message: str) -> None:
    given = {"name": "a", "kind": "stripe", "key_file": "key"} | fields
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(given, ConnectorSection)


def test_the_document_names_the_event_of_each_meter() -> None:
    document = Path("docs/finance/connectors.md").read_text()
    assert [f"`laneway_{meter}_tokens`" in document for meter in connectors.METERS] == [True] * len(connectors.METERS)
