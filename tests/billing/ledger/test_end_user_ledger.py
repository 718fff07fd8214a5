"""Budgets for each end user in the ledger: who counts where, what a changed template does, and the books after it."""

from __future__ import annotations

import random
import threading
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from billing import revision, tables
from billing.accounts import budgets, end_users, prices, tenants
from billing.accounts.budgets import Budget, BudgetState
from billing.accounts.end_users import EndUserState
from billing.accounts.prices import PriceBook
from billing.clock import SECOND, database_now
from billing.database import Database
from billing.errors import InvalidValue
from billing.ledger import expiry
from billing.ledger.ledger import Held, HoldRefused, Ledger
from billing.ledger.messages import Ending, HoldRequest, Void
from billing.ledger.transaction import LedgerTransaction
from billing.lists import ListQuery
from billing.proofs import reconcile
from support.billing.books import Books, settlement

ANN, BOB = "a" * 64, "b" * 64  # digests


class EndUsers:
    """Short ways to templates and to what their end users have."""

    def __init__(self, books: Books) -> None:
        self.books = books
        self.database = books.database

    def template(self, limit: int, **fields: Any) -> Budget:
        wanted = {"scope": "tenant", "scope_id": self.books.tenant.id, "unit": "tokens", "period": "month"} | fields
        return self.database.write_sync(
            lambda c: budgets.create_budget(
                c, tenant_id=self.books.tenant.id, limit_amount=limit, per_end_user=True, **wanted
            )
        )

    def request(self, end_user: str | None, **fields: Any) -> HoldRequest:
        return msgspec.structs.replace(self.books.request(**fields), end_user=end_user)

    def states(self, template: Budget, digest: str | None = None, **query: Any) -> list[EndUserState]:
        wanted = ListQuery(**{"sort": "-used"} | query)
        return self.database.read_sync(
            lambda c: end_users.query_end_user_states(
                c, template.id, template.tenant_id, template.period, wanted, database_now(c), digest
            )
        ).items

    def used_and_held(self, template: Budget, digest: str) -> tuple[int, int]:
        [state] = self.states(template, digest)
        return state.used, state.held

    def shown(self) -> list[BudgetState]:
        return self.database.read_sync(lambda c: budgets.list_budget_states(c, tenant_id=self.books.tenant.id))

    def change(self, template: Budget, limit: int) -> None:
        self.database.write_sync(lambda c: budgets.change_budget(c, template.id, limit_amount=limit))

    def assert_sound(self, open_holds: int = 0) -> None:
        self.books.assert_sound(open_holds)
        found = self.database.read_sync(lambda c: reconcile.reconcile_all(c))
        assert found.imbalances == found.overshot == [], found


@pytest.fixture
def users(books: Books) -> EndUsers:
    return EndUsers(books)


@pytest.fixture
def ledger(books: Books) -> Ledger:
    return Ledger(books.database, "gw_1")


async def test_each_end_user_has_the_limit(users: EndUsers, ledger: Ledger) -> None:
    template = users.template(150)
    tenants_own = users.books.budget(10_000)
    before = users.database.read_sync(revision.read_revision)
    first, second = users.request(ANN), users.request(ANN)
    assert isinstance(await ledger.hold(first), Held)
    clamped = await ledger.hold(second)
    assert isinstance(clamped, Held)
    assert clamped.max_tokens == 40, "of 150, 100 are held and 10 are its prompt"
    refused = await ledger.hold(users.request(ANN))
    assert isinstance(refused, HoldRefused)
    assert (refused.code, refused.nothing_left) == ("end_user_budget_exceeded", False)
    assert refused.message.startswith("The end user's token budget (month) does not cover this request: limit 150 ")
    assert refused.resets_at is not None
    other, nameless = users.request(BOB), users.request(None)
    assert isinstance(await ledger.hold(other), Held)
    assert isinstance(await ledger.hold(nameless), Held)
    assert users.database.read_sync(revision.read_revision) == before, "no gateway reloads because an end user is new"

    await ledger.settle(settlement(first, 40))
    await ledger.settle(settlement(second, 40))
    await ledger.void(other.request_id, "refused")
    assert users.used_and_held(template, ANN) == (100, 0)
    assert users.used_and_held(template, BOB) == (0, 0)
    assert [state.used for state in users.states(template)] == [100, 0]
    assert users.books.state(tenants_own) == (100, 100)
    assert await ledger.move(msgspec.structs.replace(nameless, prompt_tokens=20))

    [shown] = [state for state in users.shown() if state.budget.per_end_user]
    assert (shown.used, shown.held, shown.left, shown.end_users, shown.end_users_near) == (0, 0, 150, 2, 0)
    last = users.request(ANN, most=40)
    assert isinstance(await ledger.hold(last), Held)
    [shown] = [state for state in users.shown() if state.budget.per_end_user]
    assert (shown.end_users, shown.end_users_near) == (2, 1), "150 of 150 are used or held"
    assert len(users.shown()) == 2, "the budgets of end users are in no list"
    spent = users.database.read_sync(lambda c: budgets.fullest_budgets(c, limit=10))
    assert spent == []
    users.assert_sound(open_holds=2)


async def test_a_hold_that_is_moved_and_one_that_expires(users: EndUsers, ledger: Ledger) -> None:
    template = users.template(1000, period="total")
    request = users.request(ANN)
    await ledger.hold(request)
    moved = await ledger.move(msgspec.structs.replace(request, prompt_tokens=20, max_tokens=500))
    assert isinstance(moved, Held)
    assert users.used_and_held(template, ANN) == (0, 520)
    refused = await ledger.move(msgspec.structs.replace(request, prompt_tokens=2000, max_tokens=5))
    assert isinstance(refused, HoldRefused)
    assert users.used_and_held(template, ANN) == (0, 520), "a refused move changes nothing"
    later = users.database.read_sync(database_now) + 3600 * SECOND
    users.database.write_sync(lambda c: expiry.expire_dead(c, "gw_auditor", later))
    assert users.used_and_held(template, ANN) == (0, 0)
    users.assert_sound()


async def test_templates_of_tenant_and_key_apply_together(users: EndUsers, ledger: Ledger) -> None:
    """Also after a rotation of the key, which moves the template and no budget of an end user."""
    by_tenant = users.template(1000)
    by_key = users.template(1_000_000, unit="money", period="day", scope="key", scope_id="key_a")
    request = users.request(ANN)
    held = await ledger.hold(request)
    assert isinstance(held, Held)
    assert users.used_and_held(by_tenant, ANN) == (0, 100)
    assert users.used_and_held(by_key, ANN) == (0, held.hold_picos)
    await ledger.hold(users.request(ANN, key="key_b"))
    assert users.used_and_held(by_key, ANN) == (0, held.hold_picos), "another key's requests do not count"

    moved = users.database.write_sync(lambda c: budgets.hand_over(c, "key_a", "key_new"))
    assert [after.scope_id for _before, after in moved] == ["key_new"]
    by_new = msgspec.structs.replace(users.request(ANN, key="key_new"), first_key_id="key_a")
    again = await ledger.hold(by_new)
    assert isinstance(again, Held)
    assert users.used_and_held(by_key, ANN) == (0, 2 * held.hold_picos)
    users.assert_sound(open_holds=3)


async def test_a_changed_template_changes_its_end_users(users: EndUsers, ledger: Ledger) -> None:
    template = users.template(100)
    request = users.request(ANN)
    await ledger.hold(request)
    assert isinstance(await ledger.hold(users.request(ANN)), HoldRefused)
    users.change(template, 200)
    assert isinstance(await ledger.hold(users.request(ANN)), Held)
    users.change(template, 50)
    assert isinstance(await ledger.hold(users.request(BOB, most=41)), Held), "clamped to 50"
    refused = await ledger.hold(users.request(ANN, most=1))
    assert isinstance(refused, HoldRefused)
    assert "limit 50 tokens" in refused.message
    users.assert_sound(open_holds=3)
    with pytest.raises(InvalidValue) as soft:
        users.database.write_sync(lambda c: budgets.change_budget(c, template.id, kind="soft"))
    assert soft.value.param == "kind"
    with pytest.raises(InvalidValue) as alerting:
        users.template(1, thresholds=(80,))
    assert alerting.value.param == "thresholds"

    users.database.write_sync(lambda c: budgets.deactivate_budget(c, template.id))
    assert isinstance(await ledger.hold(users.request(ANN)), Held)
    await ledger.settle(settlement(request, 7))
    assert users.used_and_held(template, ANN) == (17, 100), "a removed budget still gets its endings"
    users.assert_sound(open_holds=3)


async def test_end_users_beyond_the_limit_share_a_budget(
    users: EndUsers, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_users, "END_USERS_MAX", 2)
    template = users.template(150)
    for name in "abcd":
        assert isinstance(await ledger.hold(users.request(name * 64, most=50)), Held)
    assert [state.held for state in users.states(template, sort="-held")] == [120, 60, 60]
    assert [state.shared for state in users.states(template, sort="-held")] == [True, False, False]
    refused = await ledger.hold(users.request("e" * 64, most=50))
    clamped = await ledger.hold(users.request("f" * 64, most=20))
    assert isinstance(refused, Held)
    assert refused.max_tokens == 20, "the rest of the shared budget"
    assert isinstance(clamped, HoldRefused)
    assert "limit of 2 end users is reached" in clamped.message
    assert users.states(template, "f" * 64)[0].shared
    assert isinstance(await ledger.hold(users.request(ANN, most=50)), Held), "the first keep their own"
    users.assert_sound(open_holds=6)


async def test_two_tenants_share_no_end_user(users: EndUsers, ledger: Ledger) -> None:
    """Even if their end users had one digest."""
    template = users.template(100)
    other = users.database.write_sync(lambda c: tenants.create_tenant(c, slug="other", name="Other", tier="batch"))
    theirs = users.database.write_sync(
        lambda c: budgets.create_budget(
            c,
            tenant_id=other.id,
            scope="tenant",
            scope_id=other.id,
            unit="tokens",
            period="month",
            limit_amount=100,
            per_end_user=True,
        )
    )
    for tenant_id in (users.books.tenant.id, other.id):
        request = msgspec.structs.replace(users.request(ANN), tenant_id=tenant_id)
        assert isinstance(await ledger.hold(request), Held)
    ids = [state.id for one in (template, theirs) for state in users.states(one)]
    assert len(set(ids)) == 2
    assert users.used_and_held(template, ANN) == users.used_and_held(theirs, ANN) == (0, 100)
    users.assert_sound(open_holds=2)


async def test_what_older_gateways_charged_to_a_template_is_settled(users: EndUsers, ledger: Ledger) -> None:
    """They enforce a template as an ordinary budget."""
    budget = users.books.budget(1000)
    request = users.request(ANN)
    await ledger.hold(request)
    table = tables.budgets
    as_template = sa.update(table).where(table.c.id == budget.id).values(per_end_user=True, end_user="salt")
    users.database.write_sync(lambda c: c.execute(as_template).rowcount)
    work = LedgerTransaction("gw_1", 60.0, database_now, PriceBook())
    [held], _ = users.database.write_sync(lambda c: work.run(c, [users.request(ANN)], [settlement(request, 7)]))
    assert isinstance(held, Held)
    windows = tables.budget_windows
    query = sa.select(windows.c.posted, windows.c.held).where(windows.c.budget_id == budget.id)
    assert users.database.read_sync(lambda c: tuple(c.execute(query).one())) == (17, 0)
    assert users.used_and_held(budget, ANN) == (0, 100)
    users.assert_sound(open_holds=1)


ROUNDS, NAMES, LIMIT = 25, 4, 400


class PlayingGateway(threading.Thread):
    """Holds, moves and ends requests of a few end users, all of which begin at the same moment."""

    def __init__(self, users: EndUsers, number: int, seed: int, start: threading.Barrier) -> None:
        super().__init__()
        self._users, self._name, self._start = users, f"gw_{number}", start
        self._random = random.Random(seed * 100 + number)
        self.open: list[HoldRequest] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        database, book = Database(self._users.books.url), PriceBook()
        try:
            self._start.wait(30)
            for number in range(ROUNDS):
                holds = [self._hold(number, one) for one in range(self._random.randint(1, 3))]
                endings = [self._ending() for _ in range(self._random.randint(0, min(2, len(self.open))))]
                work = LedgerTransaction(self._name, 60.0, database_now, book)
                given, _ = database.write_sync(lambda c, w=work, h=holds, e=endings: w.run(c, h, e))
                self.open += [hold for hold, got in zip(holds, given, strict=True) if isinstance(got, Held)]
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error
        finally:
            database.close()

    def _hold(self, number: int, one: int) -> HoldRequest:
        # In the first round every gateway is the first to name the end users.
        digest = f"{self._random.randrange(NAMES)}" * 64
        request_id = f"req_{self._name}_{number}_{one}"
        return self._users.request(
            digest if self._random.random() < 0.9 else None, most=self._random.randint(1, 60), request_id=request_id
        )

    def _ending(self) -> Ending:
        request = self.open.pop(self._random.randrange(len(self.open)))
        if self._random.random() < 0.3:
            return Void(request.request_id, "refused")
        return settlement(request, 1)


@pytest.mark.parametrize("seed", [1, 2])
def test_gateways_at_once_never_overshoot(users: EndUsers, seed: int) -> None:
    """Two gateways and an operator that changes the templates meanwhile; no deadlock, one budget for an end user."""
    by_tenant = users.template(LIMIT)
    by_key = users.template(40_000, unit="money", period="day", scope="key", scope_id="key_a")
    users.books.budget(100_000)
    start = threading.Barrier(3)
    gateways = [PlayingGateway(users, number, seed, start) for number in range(2)]
    for gateway in gateways:
        gateway.start()
    operator = random.Random(seed)
    start.wait(30)
    highest = LIMIT
    while any(gateway.is_alive() for gateway in gateways):
        limit = operator.randint(LIMIT // 4, LIMIT)
        users.change(by_tenant, limit)
        users.change(by_key, 40_000 + limit)
        for gateway in gateways:
            gateway.join(0.005)
    for gateway in gateways:
        assert gateway.error is None, gateway.error
    found = users.states(by_tenant)
    assert 1 <= len(found) <= NAMES
    assert all(state.held + state.used <= highest for state in found)
    assert len(users.states(by_key)) == len(found)
    users.assert_sound(open_holds=sum(len(gateway.open) for gateway in gateways))


def test_prices_do_not_make_a_free_request_limitless(users: EndUsers) -> None:
    """A template in money and a model without a price: nothing is refused, and nothing is counted."""
    users.database.write_sync(
        lambda c: prices.publish(c, subject="free", input=0, cached_input=0, output=0, multipliers={"standard": 1})
    )
    template = users.template(0, unit="money")
    work = LedgerTransaction("gw_1", 60.0, database_now, PriceBook())
    asked = [users.request(ANN, model="free"), users.request(ANN)]
    [free, refused], _ = users.database.write_sync(lambda c: work.run(c, asked, []))
    assert isinstance(free, Held)
    assert isinstance(refused, HoldRefused)
    assert users.used_and_held(template, ANN) == (0, 0)
    users.assert_sound(open_holds=1)
