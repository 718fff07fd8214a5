"""One budget for a key and the keys that replace it: whatever overlaps, every hold and charge counts in it once."""

from __future__ import annotations

import asyncio
import random
import threading

import msgspec
import pytest
import sqlalchemy as sa

from billing import tables
from billing.accounts import budgets
from billing.accounts.budgets import Budget, BudgetState
from billing.database import Database
from billing.ledger.ledger import Held, HoldRefused, Ledger
from billing.ledger.messages import HoldRequest
from billing.proofs import reconcile
from gateway.access import keys
from gateway.access.keys import Key
from gateway.admin.administration import Administration
from gateway.admin.writes import Actor
from gateway.config.file import Config
from support.billing.books import Books, settlement
from support.waiting import PATIENCE_S

CONFIG = Config()


class Rotating:
    """A key with a budget, the keys that replace it, and requests of each."""

    def __init__(self, books: Books, limit: int = 1_000) -> None:
        self.books = books
        self.write = Administration(CONFIG, Actor("cli:test"))
        made = books.database.write_sync(lambda c: self.write.keys.create(c, tenant_id=books.tenant.id, name="k"))
        self.first = made.key
        self.budget = self.set_budget(self.first, limit)

    def set_budget(self, key: Key, limit: int) -> Budget:
        return self.books.database.write_sync(
            lambda c: self.write.budgets.set(
                c, tenant_id=self.books.tenant.id, key_id=key.id, unit="tokens", period="total", limit_amount=limit
            )
        )

    def rotate(self, key: Key, overlap_s: int = 3600) -> Key:
        return self.books.database.write_sync(lambda c: self.write.keys.rotate(c, key.id, overlap_s=overlap_s)).key

    def request(self, key: Key, most: int = 90) -> HoldRequest:
        """As the gateway makes one for a caller of the key, of 10 tokens and `most`."""
        request = self.books.request(key=key.id, most=most)
        return msgspec.structs.replace(request, first_key_id=key.first_key_id)

    def states(self) -> list[BudgetState]:
        return self.books.database.read_sync(lambda c: budgets.list_budget_states(c, tenant_id=self.books.tenant.id))

    def assert_budget(self, of: Key, used: int, held: int) -> None:
        """There is one, it is this key's, and that much is used and held."""
        [state] = self.states()
        assert (state.budget.id, state.budget.scope_id) == (self.budget.id, of.id)
        assert (state.used, state.held) == (used, held)

    def assert_sound(self, open_holds: int = 0) -> None:
        self.books.assert_sound(open_holds)
        found = self.books.database.read_sync(lambda c: reconcile.reconcile_all(c))
        assert found.imbalances == found.overshot == [], found


@pytest.fixture
def rotating(books: Books) -> Rotating:
    return Rotating(books)


@pytest.fixture
def ledger(books: Books) -> Ledger:
    return Ledger(books.database, "gw_1")


async def test_both_keys_count_in_one_budget(rotating: Rotating, ledger: Ledger) -> None:
    old = rotating.first
    before = rotating.request(old)
    await ledger.hold(before)
    new = rotating.rotate(old)
    rotating.assert_budget(of=new, used=0, held=100)
    by_old, by_new = rotating.request(old), rotating.request(new)
    await ledger.hold(by_old)
    await ledger.hold(by_new)
    rotating.assert_budget(of=new, used=0, held=300)
    await ledger.settle(settlement(before, 5))
    await ledger.settle(settlement(by_old, 10))
    await ledger.settle(settlement(by_new, 20))
    rotating.assert_budget(of=new, used=65, held=0)
    rotating.assert_sound()


@pytest.mark.parametrize("who", ["old", "new"])
async def test_what_one_key_holds_is_lacking_for_the_other(books: Books, ledger: Ledger, who: str) -> None:
    rotating = Rotating(books, limit=150)
    old = rotating.first
    new = rotating.rotate(old)
    one, other = (old, new) if who == "old" else (new, old)
    assert isinstance(await ledger.hold(rotating.request(one)), Held)
    clamped = await ledger.hold(rotating.request(other))
    assert isinstance(clamped, Held)
    assert clamped.max_tokens == 40, "of 150, 100 are held and 10 are its prompt"
    refused = await ledger.hold(rotating.request(one))
    assert isinstance(refused, HoldRefused)
    assert refused.code == "key_budget_exceeded"
    rotating.assert_sound(open_holds=2)


async def test_a_hold_across_the_end_of_the_overlap(rotating: Rotating, ledger: Ledger) -> None:
    """It is moved to another model and settled after its key has ended, by whatever way."""
    old = rotating.first
    new = rotating.rotate(old)
    request = rotating.request(old)
    await ledger.hold(request)
    rotating.books.database.write_sync(lambda c: rotating.write.keys.revoke(c, old.id))
    moved = await ledger.move(msgspec.structs.replace(request, prompt_tokens=20))
    assert isinstance(moved, Held)
    rotating.assert_budget(of=new, used=0, held=110)
    await ledger.settle(settlement(request, 7, prompt=20))
    rotating.assert_budget(of=new, used=27, held=0)
    rotating.assert_sound()


async def test_a_second_rotation_during_the_overlap(rotating: Rotating, ledger: Ledger) -> None:
    first = rotating.first
    second = rotating.rotate(first)
    third = rotating.rotate(second)
    assert third.first_key_id == second.first_key_id == first.id
    for key, most in ((first, 10), (second, 20), (third, 30)):
        await ledger.hold(rotating.request(key, most))
    rotating.assert_budget(of=third, used=0, held=90)
    rotating.assert_sound(open_holds=3)


async def test_without_an_overlap_what_still_runs_counts_too(rotating: Rotating, ledger: Ledger) -> None:
    """A request that was let in before its key ended, and holds after it."""
    old = rotating.first
    new = rotating.rotate(old, overlap_s=0)
    await ledger.hold(rotating.request(old))
    rotating.assert_budget(of=new, used=0, held=100)
    rotating.assert_sound(open_holds=1)


@pytest.mark.parametrize("ended", ["old", "new"])
async def test_one_key_is_revoked_and_the_budget_is_the_others(rotating: Rotating, ledger: Ledger, ended: str) -> None:
    old = rotating.first
    new = rotating.rotate(old)
    end, left = (old, new) if ended == "old" else (new, old)
    request = rotating.request(end)
    await ledger.hold(request)
    rotating.books.database.write_sync(lambda c: rotating.write.keys.revoke(c, end.id))
    await ledger.hold(rotating.request(left))
    rotating.assert_budget(of=new, used=0, held=200)
    await ledger.void(request.request_id, "revoked")
    rotating.assert_budget(of=new, used=0, held=100)
    rotating.assert_sound(open_holds=1)


@pytest.mark.parametrize("by", ["old", "new"])
async def test_a_budget_changed_or_made_during_the_overlap_is_one(books: Books, ledger: Ledger, by: str) -> None:
    rotating = Rotating(books)
    old = rotating.first
    await ledger.hold(rotating.request(old))
    new = rotating.rotate(old)
    named = old if by == "old" else new
    assert rotating.set_budget(named, 250).id == rotating.budget.id, "it is changed, not made beside the other"
    for key in (old, new):
        await ledger.hold(rotating.request(key))
    rotating.assert_budget(of=new, used=0, held=250)
    books.database.write_sync(lambda c: rotating.write.budgets.remove(c, rotating.budget.id))
    made = rotating.set_budget(named, 120)
    assert made.id != rotating.budget.id
    for key in (old, new):
        await ledger.hold(rotating.request(key))
    [state] = rotating.states()
    assert (state.budget.id, state.budget.scope_id, state.held) == (made.id, new.id, 120)
    rotating.assert_sound(open_holds=5)


async def test_a_hold_that_waits_for_the_rotation(postgres_books: Books) -> None:
    """The hold finds the budget's row as it was before the rotation, waits for its lock, and must count in it still."""
    rotating = Rotating(postgres_books)
    old, rotated, go_on = rotating.first, threading.Event(), threading.Event()

    def rotate(connection: sa.Connection) -> Key:
        made = rotating.write.keys.rotate(connection, old.id, overlap_s=60)
        rotated.set()
        assert go_on.wait(PATIENCE_S)
        return made.key

    rotation = asyncio.create_task(postgres_books.database.write(rotate))
    await asyncio.to_thread(rotated.wait, PATIENCE_S)
    other = Database(postgres_books.url)
    holding = asyncio.create_task(Ledger(other, "gw_2").hold(rotating.request(old)))
    await asyncio.sleep(0.3)
    assert not holding.done(), "it waits for the lock of the budget's row"
    go_on.set()
    new = await rotation
    assert isinstance(await holding, Held)
    rotating.assert_budget(of=new, used=0, held=100)
    rotating.assert_sound(open_holds=1)
    other.close()


async def test_rotations_while_both_keys_are_busy(books: Books) -> None:
    """Holds, moves, settlements and voids of all keys of three rotations, from two ledgers: the one budget is neither
    passed nor left."""
    rotating = Rotating(books, limit=6_000)
    ring = [rotating.first]
    ledgers = [Ledger(books.database, f"gw_{number}") for number in range(2)]
    taken = 0

    async def client(seed: int) -> None:
        nonlocal taken
        chance = random.Random(seed)
        ledger = ledgers[seed % 2]
        for _ in range(8):
            request = rotating.request(chance.choice(ring), most=chance.randint(1, 200))
            held = await ledger.hold(request)
            if not isinstance(held, Held):
                continue
            if chance.random() < 0.3:
                moved = await ledger.move(msgspec.structs.replace(request, prompt_tokens=5))
                held = moved if isinstance(moved, Held) else held
            if chance.random() < 0.2:
                await ledger.void(request.request_id, "left")
                continue
            made = chance.randint(0, held.max_tokens)
            taken += 5 + made
            await ledger.settle(settlement(request, made, prompt=5))

    async def rotate() -> None:
        for _ in range(3):
            await asyncio.sleep(0.05)
            ring.append(await asyncio.to_thread(rotating.rotate, ring[-1]))

    await asyncio.gather(rotate(), *(client(seed) for seed in range(16)))
    assert len(ring) == 4
    rotating.assert_budget(of=ring[-1], used=taken, held=0)
    counted = sa.select(sa.func.count(sa.distinct(tables.hold_charges.c.request_id)))
    all_holds = sa.select(sa.func.count()).select_from(tables.holds)
    assert books.database.read_sync(lambda c: c.execute(counted).scalar_one() == c.execute(all_holds).scalar_one())
    rotating.assert_sound()


def test_a_key_and_its_successors_are_found(books: Books) -> None:
    rotating = Rotating(books)
    second = rotating.rotate(rotating.first)
    third = rotating.rotate(second, overlap_s=0)
    read = books.database.read_sync
    assert {read(lambda c, k=key: keys.newest(c, k)) for key in (rotating.first, second, third)} == {third.id}
    assert read(lambda c: keys.first_keys(c, {books.tenant.id})) == {
        second.id: rotating.first.id,
        third.id: rotating.first.id,
    }
