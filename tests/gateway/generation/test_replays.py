"""Idempotency-Key: one run, one bill, one answer, whoever asks again, leaves, or dies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import httpx
import pytest
import sqlalchemy as sa

from billing import tables
from billing.accounts import budgets, prices, tenants
from billing.clock import SECOND, database_now
from billing.database import Database, DatabaseUnavailable
from billing.ledger import leases
from billing.ledger.ledger import HoldRequest, Ledger, Settlement
from billing.timeouts import within_timeout
from gateway import errors
from gateway.access import keys
from gateway.config.server_secrets import ServerSecrets
from gateway.generation import replays as module
from gateway.generation.replays import HEADER, FirstCall, IdempotentCall, Replayed, Replays
from gateway.limits import overrides
from gateway.limits.overrides import LimitsChange
from gateway.tables import replays
from migrations.upgrade import upgrade
from support.gateway.slow_readers import send
from support.processes import stopped
from support.stack import MODEL, Stack, body
from support.waiting import eventually, eventually_async

T = TypeVar("T")
SECRET = ServerSecrets(bytes(range(32)))
SEAL_BYTES = 29  # that an encrypted answer is longer: its format, its nonce and its tag

# ---- end to end


def ask(
    stack: Stack, name: str, route: str = "chat/completions", tenant: str = "acme", **fields: Any
) -> httpx.Response:
    asked = body(**fields)
    if route == "completions":
        asked["prompt"] = asked.pop("messages")[0]["content"]
    headers = stack.headers(tenant) | {HEADER: name}
    return httpx.post(f"{stack.url}/v1/{route}", headers=headers, json=asked, timeout=60)


def paid(stack: Stack, key_id: str) -> int:
    """Requests that a key was billed for."""
    query = sa.select(sa.func.count()).select_from(tables.usage).where(tables.usage.c.key_id == key_id)
    return stack.read(lambda connection: int(connection.execute(query).scalar_one()))


@pytest.mark.parametrize("route", ["chat/completions", "completions", "messages"])
def test_asked_again_it_is_answered_the_same_and_paid_once(stack: Stack, route: str) -> None:
    before = paid(stack, stack.key_ids["acme"])
    first = ask(stack, f"again-{route}", route)
    assert first.status_code == 200
    assert "idempotent-replayed" not in first.headers
    again = ask(stack, f"again-{route}", route)
    assert (again.status_code, again.content) == (200, first.content)
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["content-type"] == "application/json"
    assert again.headers["x-request-id"] != first.headers["x-request-id"]
    assert stack.usage(again.headers["x-request-id"]) is None
    assert stack.request_line(again.headers["x-request-id"])["replay_of"] == first.headers["x-request-id"]
    assert paid(stack, stack.key_ids["acme"]) == before + 1
    other = ask(stack, f"again-{route}", route, "globex")
    assert other.json()["id"] != first.json()["id"], "another key's is another"
    assert ask(stack, f"again-{route}-2", route).json()["id"] != first.json()["id"]


def test_another_body_is_refused(stack: Stack) -> None:
    assert ask(stack, "body", max_tokens=3).status_code == 200
    wrong = ask(stack, "body", max_tokens=4)
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (422, "idempotency_mismatch")
    assert wrong.headers["x-should-retry"] == "false"
    elsewhere = ask(stack, "body", "messages", max_tokens=3)
    assert (elsewhere.status_code, elsewhere.json()["error"]["type"]) == (422, "invalid_request_error")


@pytest.mark.parametrize(
    ("name", "fields"), [("stream", {"stream": True}), ("with blank", {}), ("x" * 256, {}), ("", {})]
)
def test_what_cannot_be_kept_is_refused(stack: Stack, name: str, fields: dict[str, Any]) -> None:
    refused = ask(stack, name, **fields)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, HEADER)


def test_limits_come_first_and_an_answer_is_there_for_whoever_used_them_up(stack: Stack) -> None:
    """What is refused by a limit writes nothing; what was answered, or runs, is said to whoever has nothing left."""
    made = stack.new_key("acme")
    stack.keys["limited"] = made.secret
    two = LimitsChange(requests_per_minute=2)
    stack.write(
        lambda c: overrides.change_own_limits(
            c, scope="key", subject_id=made.key.id, tenant_id=stack.tenants["acme"], change=two
        )
    )
    count = "CREATE TRIGGER counted AFTER INSERT ON replays BEGIN INSERT INTO begun VALUES (NEW.key_id); END"
    for statement in ("CREATE TABLE begun (key_id TEXT)", count):
        stack.write(lambda c, text=statement: c.exec_driver_sql(text))
    eventually(lambda: stack.chat("limited", max_tokens=1).status_code == 200)
    first = ask(stack, "limited", tenant="limited")
    assert first.status_code == 200
    assert [ask(stack, f"limited-{n}", tenant="limited").status_code for n in range(5)] == [429] * 5
    query = sa.text("SELECT count(*) FROM begun WHERE key_id = :key_id")
    assert stack.read(lambda c: c.execute(query, {"key_id": made.key.id}).scalar()) == 1
    again = ask(stack, "limited", tenant="limited")
    assert (again.status_code, again.content) == (200, first.content)
    assert ask(stack, "limited", tenant="limited", max_tokens=3).status_code == 422
    assert ask(stack, "limited-0", tenant="limited").status_code == 429
    for statement in ("DROP TRIGGER counted", "DROP TABLE begun"):
        stack.write(lambda c, text=statement: c.exec_driver_sql(text))


def test_what_was_refused_runs_when_it_is_asked_again(stack: Stack) -> None:
    made = stack.new_key("acme")
    stack.keys["poor"] = made.secret
    budget = stack.budget(made.key, "tokens", 1)
    eventually(lambda: ask(stack, "refused", tenant="poor").status_code == 429)
    assert ask(stack, "refused", tenant="poor").headers.get("idempotent-replayed") is None
    assert ask(stack, "refused-too", model="none").status_code == 404
    stack.write(lambda c: budgets.change_budget(c, budget.id, limit_amount=10**6))
    stack.known()
    answers = [ask(stack, "refused", tenant="poor") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].content == answers[1].content
    assert paid(stack, made.key.id) == 1


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory, model_dir: Any) -> Iterator[Stack]:
    """20 ms a token; leases are short."""
    directory = tmp_path_factory.mktemp("replays")
    stack = Stack(
        directory,
        f"sqlite:///{directory}/laneway.db",
        model_dir,
        fake={"step_ms": 20.0},
        toml="[lease]\nlength_s = 2\nrenew_s = 0.5\nexpire_s = 0.3\n",
    )
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()


async def test_of_many_at_once_one_runs(slow: Stack) -> None:
    headers = slow.headers() | {HEADER: "many"}
    async with httpx.AsyncClient(headers=headers, timeout=60) as client:
        asked = body(max_tokens=20, ignore_eos=True)
        answers = await asyncio.gather(*(client.post(f"{slow.url}/v1/chat/completions", json=asked) for _ in range(12)))
    codes = [answer.status_code for answer in answers]
    assert sorted(codes) == [200] + [409] * 11
    refused = answers[codes.index(409)]
    assert refused.json()["error"]["code"] == "idempotency_in_flight"
    assert refused.headers["x-should-retry"] == "false"
    again = ask(slow, "many", max_tokens=20, ignore_eos=True)
    assert again.content == answers[codes.index(200)].content
    assert paid(slow, slow.key_ids["acme"]) == 1


def leave(stack: Stack, name: str, tenant: str, asked: dict[str, Any]) -> None:
    """Ask, and leave when its hold is there."""
    holds = stack.holds()
    with send(stack, tenant, asked, f"{HEADER}: {name}\r\n"):
        eventually(lambda: stack.holds() == holds + 1)


def test_a_caller_who_leaves_may_ask_for_the_answer(slow: Stack) -> None:
    """What still runs has the one place that there is: who asks again hears of it all the same."""
    asked: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True}
    globex, key_id, one = slow.tenants["globex"], slow.key_ids["globex"], LimitsChange(concurrency=1)
    slow.write(lambda c: overrides.change_own_limits(c, scope="key", subject_id=key_id, tenant_id=globex, change=one))
    slow.known()
    assert slow.engine is not None
    with stopped(slow.engine.pid):
        leave(slow, "left", "globex", asked)
        assert ask(slow, "left", tenant="globex", **asked).status_code == 409, "it goes on"
        assert ask(slow, "another", tenant="globex", **asked).status_code == 429
    eventually(lambda: ask(slow, "left", tenant="globex", **asked).status_code == 200)
    again = ask(slow, "left", tenant="globex", **asked)
    assert again.json()["usage"]["completion_tokens"] == 40
    assert paid(slow, slow.key_ids["globex"]) == 1
    assert slow.open_holds() == 0


def test_a_gateway_that_is_killed(slow: Stack) -> None:
    """What ran there is not run again while it may still be paid for, and then it is."""
    asked: dict[str, Any] = {"max_tokens": 1000, "ignore_eos": True}
    leave(slow, "killed", "initech", asked)
    assert slow.gateway is not None
    slow.gateway.kill()
    slow.gateway.wait()
    slow.start_gateway()
    slow.wait_ready()
    codes: list[int] = []

    def runs() -> bool:
        codes.append(ask(slow, "killed", tenant="initech", max_tokens=2).status_code)
        return codes[-1] == 200

    eventually(runs)
    assert set(codes) <= {200, 409, 422}
    assert paid(slow, slow.key_ids["initech"]) == 1


# ---- the table, on both databases


class Counting(Database):
    """Counts what its threads are asked."""

    writes = reads = 0

    async def write(self, function: Callable[[sa.Connection], T]) -> T:
        self.writes += 1
        return await super().write(function)

    async def read(self, function: Callable[[sa.Connection], T]) -> T:
        self.reads += 1
        return await super().read(function)


@pytest.fixture
def house(database_url: str) -> Iterator[House]:
    upgrade(database_url)
    made = House(Counting(database_url))
    yield made
    made.database.close()


class House:
    """A tenant, a ledger of gateway gw_1, and two gateways' replays."""

    def __init__(self, database: Counting) -> None:
        self.database = database
        self.first, self.second = (Replays(database, name, SECRET) for name in ("gw_1", "gw_2"))
        self.ledger = Ledger(database, "gw_1")
        database.write_sync(self._seed)

    def _seed(self, connection: sa.Connection) -> None:
        tenant = tenants.create_tenant(connection, slug="acme", name="Acme", tier="premium")
        self.tenant_id = tenant.id
        self.key_id = keys.create_key(connection, tenant_id=tenant.id, name="k").key.id
        prices.publish(connection, subject=MODEL, input=1, cached_input=1, output=1, multipliers={"premium": "1"})
        for gateway_id in ("gw_1", "gw_2"):
            leases.extend(connection, gateway_id, 60.0, database_now(connection))

    async def begin(self, replays: Replays, request_id: str, body: bytes = b"{}") -> FirstCall | Replayed:
        return await self.call(replays, request_id, body).begin_call()

    def call(self, replays: Replays, request_id: str, body: bytes = b"{}", name: str = "n") -> IdempotentCall:
        return replays.call(
            tenant_id=self.tenant_id, key_id=self.key_id, name=name, route="/r", body=body, request_id=request_id
        )

    async def look(self, request_id: str, body: bytes = b"{}") -> Replayed | None:
        return await self.call(self.second, request_id, body).look_up()

    async def hold(self, request_id: str) -> None:
        asked = HoldRequest(request_id, self.tenant_id, self.key_id, MODEL, None, "premium", 5, 5)
        await self.ledger.hold(asked)

    async def settle(self, request_id: str) -> None:
        used = Settlement(
            request_id=request_id, prompt_tokens=5, cached_tokens=0, completion_tokens=5, made_tokens=5, ending="stop"
        )
        await self.ledger.settle(used)

    def older(self, seconds: float) -> None:
        micros = round(seconds * SECOND)
        columns = {name: replays.c[name] - micros for name in ("begun_at", "expires_at")}
        self.database.write_sync(lambda connection: connection.execute(sa.update(replays).values(columns)))

    def die(self, gateway_id: str) -> None:
        delete = sa.delete(tables.leases).where(tables.leases.c.gateway_id == gateway_id)
        self.database.write_sync(lambda connection: connection.execute(delete))

    def rows(self) -> int:
        query = sa.select(sa.func.count()).select_from(replays)
        return self.database.read_sync(lambda connection: int(connection.execute(query).scalar_one()))

    def sweep(self) -> int:
        return self.database.write_sync(module.remove_expired)


async def answered(house: House, answer: bytes = b"answer") -> None:
    """req_1 ran on gw_1, was kept and settled."""
    first = await house.begin(house.first, "req_1")
    assert isinstance(first, FirstCall)
    await house.hold("req_1")
    await first.keep_answer(answer)
    with pytest.raises(errors.IdempotencyInFlight):
        await house.begin(house.second, "req_2")
    with pytest.raises(errors.IdempotencyInFlight):
        await house.look("req_2")
    await house.settle("req_1")


async def test_another_gateway_replays(house: House) -> None:
    await answered(house)
    house.die("gw_1")  # after it was settled: the answer outlives its gateway
    assert await house.begin(house.second, "req_2") == await house.look("req_2") == Replayed("req_1", b"answer")
    with pytest.raises(errors.IdempotencyMismatch):
        await house.begin(house.second, "req_2", b"{} ")
    with pytest.raises(errors.IdempotencyMismatch):
        await house.look("req_2", b"{} ")


async def test_ten_minutes(house: House) -> None:
    await answered(house)
    house.older(module.KEEP_S - 5)
    assert house.sweep() == 0
    assert isinstance(await house.begin(house.first, "req_2"), Replayed)
    house.older(5)
    assert house.sweep() == 1
    assert isinstance(await house.begin(house.first, "req_3"), FirstCall)


async def test_an_expired_one_need_not_be_swept_first(house: House) -> None:
    await answered(house)
    house.older(module.KEEP_S)
    assert await house.look("req_2", b"another body") is None
    assert isinstance(await house.begin(house.first, "req_2", b"another body"), FirstCall)
    assert house.rows() == 1


async def test_a_gateway_that_dies_before_it_held_anything(house: House) -> None:
    await house.begin(house.first, "req_1")
    with pytest.raises(errors.IdempotencyInFlight):
        await house.begin(house.second, "req_2")
    house.die("gw_1")
    assert isinstance(await house.begin(house.second, "req_2"), FirstCall)


@pytest.mark.parametrize("kept", [False, True])
async def test_a_gateway_that_dies_before_it_settled(house: House, kept: bool) -> None:
    """While the hold is open the request may still be paid for; once it has expired nobody pays."""
    first = await house.begin(house.first, "req_1")
    assert isinstance(first, FirstCall)
    await house.hold("req_1")
    if kept:
        await first.keep_answer(b"answer")
    house.die("gw_1")
    house.older(2 * module.KEEP_S)
    assert house.sweep() == 0
    with pytest.raises(errors.IdempotencyInFlight):
        await house.begin(house.second, "req_2")
    await house.ledger.void("req_1", "expired")
    assert isinstance(await house.begin(house.second, "req_2"), FirstCall)


async def test_what_is_forgotten_may_run_again(house: House) -> None:
    first = await house.begin(house.first, "req_1")
    assert isinstance(first, FirstCall)
    await first.forget_call()
    assert house.rows() == 0
    second = await house.begin(house.first, "req_2")
    await first.forget_call()
    assert house.rows() == 1, "the second's"
    assert isinstance(second, FirstCall)
    await second.keep_answer(b"answer")
    await second.forget_call()
    assert house.rows() == 1, "what is kept stays"


async def test_an_answer_too_long_to_keep_is_not_made_again(house: House) -> None:
    await answered(house, b"x" * (module.ANSWER_BYTES_MAX + 1))
    with pytest.raises(errors.AnswerNotKept):
        await house.begin(house.second, "req_2")
    with pytest.raises(errors.AnswerNotKept):
        await house.look("req_2")


async def test_two_gateways_at_once(house: House) -> None:
    """For a row that is not there, and for one that is over."""
    for turn in range(10):
        asked = [house.begin(one, f"req_{turn}_{number}") for number, one in enumerate((house.first, house.second) * 4)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(one, FirstCall) for one in found) == 1
        assert sum(isinstance(one, errors.IdempotencyInFlight) for one in found) == 7
        house.older(2 * module.KEEP_S)


async def test_two_gateways_with_the_same_calls_in_other_orders(house: House) -> None:
    """Neither waits for the other in a circle, rows that are over among them."""
    names = [f"n{number}" for number in range(60)]
    for turn in range(5):
        forth = [house.call(house.first, f"a_{turn}_{name}", name=name) for name in names]
        back = [house.call(house.second, f"b_{turn}_{name}", name=name) for name in reversed(names)]
        found = await asyncio.gather(*(call.begin_call() for call in forth + back), return_exceptions=True)
        firsts = [one for one in found if isinstance(one, FirstCall)]
        assert len(firsts) == 60
        assert sum(isinstance(one, errors.IdempotencyInFlight) for one in found) == 60
        await asyncio.gather(*(first.forget_call() for first in firsts[::2]))
        house.older(module.KEEP_S)


async def test_many_calls_are_a_few_transactions(house: House) -> None:
    """The ledger's holds go through the same writer thread."""
    calls = [house.call(house.first, f"req_{number}", name=f"n{number}") for number in range(300)]
    house.database.writes = house.database.reads = 0
    assert await asyncio.gather(*(call.look_up() for call in calls)) == [None] * 300
    assert (house.database.writes, house.database.reads) == (0, 3)
    firsts = await asyncio.gather(*(call.begin_call() for call in calls))
    assert house.database.writes == 3
    assert house.rows() == 300
    kept = [first for first in firsts[:40] if isinstance(first, FirstCall)]
    await asyncio.gather(*(first.keep_answer(b"%d" % number) for number, first in enumerate(kept)))
    await asyncio.gather(*(first.forget_call() for first in firsts if isinstance(first, FirstCall)))
    assert house.rows() == len(kept) == 40
    assert house.database.writes == 3 + 3 + 17
    query = sa.select(replays.c.request_id, replays.c.answer)
    answers = dict(house.database.read_sync(lambda connection: connection.execute(query).all()))
    for number, first in enumerate(kept):
        sealed = answers[first._asked.request_id]
        assert house.second._sealing.unseal(sealed, first._asked.owner) == b"%d" % number


async def test_more_than_may_wait_are_turned_away(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [house.call(house.first, f"req_{number}", name=f"n{number}") for number in range(module.WAITING_MAX + 9)]
    for ask in (IdempotentCall.look_up, IdempotentCall.begin_call):
        answers = await asyncio.gather(*(ask(call) for call in calls), return_exceptions=True)
        assert sum(isinstance(answer, errors.Overloaded) for answer in answers) == 9
    assert house.rows() == module.WAITING_MAX


async def test_an_answer_waits_no_longer_than_it_may_and_is_kept_all_the_same(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade(sqlite_url)
    house = House(Counting(sqlite_url))
    first = await house.begin(house.first, "req_1")
    assert isinstance(first, FirstCall)
    await house.hold("req_1")
    monkeypatch.setattr(module, "WRITE_S_MAX", 0.05)
    other = sa.create_engine(sqlite_url, isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool)
    with other.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        await within_timeout(20, first.keep_answer(b"answer"))
        assert house.first._keeping_bytes == 6 + SEAL_BYTES
        connection.exec_driver_sql("ROLLBACK")
    await eventually_async(lambda: house.first._keeping_bytes == 0)
    await house.settle("req_1")
    assert await house.look("req_2") == Replayed("req_1", b"answer")
    house.database.close()


async def test_answers_that_wait_are_bounded(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [house.call(house.first, f"req_{number}", name=f"n{number}") for number in range(4)]
    firsts = await asyncio.gather(*(call.begin_call() for call in calls))
    monkeypatch.setattr(module, "KEEPING_BYTES_MAX", 20 + SEAL_BYTES)
    await asyncio.gather(*(first.keep_answer(b"x" * 9) for first in firsts if isinstance(first, FirstCall)))
    query = sa.select(sa.func.count(replays.c.answer))
    assert house.database.read_sync(lambda connection: connection.execute(query).scalar()) == 2
    assert house.first._keeping_bytes == 0


async def test_what_could_not_be_forgotten_is_forgotten_later(house: House) -> None:
    first = await house.begin(house.first, "req_1")
    assert isinstance(first, FirstCall)
    rename = "ALTER TABLE replays RENAME TO away", "ALTER TABLE away RENAME TO replays"
    house.database.write_sync(lambda connection: connection.exec_driver_sql(rename[0]))
    await first.forget_call()
    house.database.write_sync(lambda connection: connection.exec_driver_sql(rename[1]))
    assert house.rows() == 1
    sweeping = asyncio.create_task(house.first.run(0.01))
    await eventually_async(lambda: house.rows() == 0)
    sweeping.cancel()


async def test_a_sweep_is_bounded_and_finds_by_an_index(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [house.call(house.first, f"req_{number}", name=f"n{number}") for number in range(7)]
    await asyncio.gather(*(call.begin_call() for call in calls))
    house.older(module.KEEP_S)
    monkeypatch.setattr(module, "REMOVE_MAX", 3)
    assert [house.sweep() for _ in range(4)] == [3, 3, 1, 0]
    if house.database.is_sqlite:
        plan = "EXPLAIN QUERY PLAN SELECT request_id FROM replays WHERE expires_at <= 1 ORDER BY expires_at LIMIT 3"
        [step] = house.database.read_sync(lambda connection: connection.exec_driver_sql(plan).all())
        assert "ix_replays_expires_at" in step[3]


@pytest.mark.slow
async def test_a_database_that_hangs_keeps_nobody_waiting(sqlite_url: str) -> None:
    """What it did after all is undone, and the call may run."""
    upgrade(sqlite_url)
    house = House(Counting(sqlite_url))
    other = sa.create_engine(sqlite_url, isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool)
    with other.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseUnavailable, match="within 5 s"):
            await house.begin(house.first, "req_1")
        connection.exec_driver_sql("ROLLBACK")
    deadline = time.monotonic() + 20
    while True:
        try:
            assert isinstance(await house.begin(house.first, "req_2"), FirstCall)
            break
        except errors.IdempotencyInFlight:  # made late, not yet forgotten
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
    assert house.rows() == 1
    house.database.close()


async def test_it_is_swept_by_itself(house: House) -> None:
    await answered(house)
    house.older(module.KEEP_S)
    sweeping = asyncio.create_task(house.first.run(0.01))
    await eventually_async(lambda: not house.rows())
    sweeping.cancel()
