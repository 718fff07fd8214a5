"""Random histories of holds, settlements, voids, deaths, days and price changes, beside an auditor with books of its
own: it keeps a plain list of what was asked and answered, and shares no counter and no formula with the ledger."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import hypothesis.strategies as st
import pytest
from billing_books import Books, settlement
from hypothesis import HealthCheck, Phase, given, settings

from billing import audit, budgets, prices, tenants, usage
from billing.budgets import Budget
from billing.clock import SECOND
from billing.group import Group
from billing.prices import PriceBook
from billing.requests import Ended, Held, HoldRefused, HoldRequest, Settlement, Void

GATEWAYS = ("a", "b")
LEASE_S = 60
KEYS = ("key_x", "key_y")

hold = st.tuples(
    st.just("hold"),
    st.sampled_from(KEYS),
    st.integers(0, 12),
    st.integers(1, 20),
    st.sampled_from(("standard", "batch")),
)
settle = st.tuples(st.just("settle"), st.integers(0, 30), st.floats(0, 1), st.floats(0, 1))
void = st.tuples(st.just("void"), st.integers(0, 30))
group = st.tuples(
    st.just("group"), st.sampled_from(GATEWAYS), st.lists(hold, max_size=4), st.lists(settle | void, max_size=4)
)
between = (
    st.tuples(st.just("die"), st.sampled_from(GATEWAYS))
    | st.tuples(st.just("pass"), st.sampled_from((20 * SECOND, 61 * SECOND, 86_400 * SECOND, 20 * 86_400 * SECOND)))
    | st.tuples(st.just("limit"), st.integers(0, 4), st.integers(0, 120))
    | st.tuples(st.just("price"), st.integers(1, 9))
)
histories = st.lists(st.tuples(group, group, between), min_size=2, max_size=6)
limits = st.lists(
    st.tuples(
        st.sampled_from((None, *KEYS)),
        st.sampled_from(("tokens", "money")),
        st.sampled_from(("day", "month", "total")),
        st.integers(0, 400),
    ),
    min_size=1,
    max_size=4,
)


@dataclass
class Kept:
    """One hold as the auditor remembers it."""

    request: HoldRequest
    gateway: str
    granted: int
    price: tuple[int, int, int]
    windows: list[tuple[str, str]]  # budget id, and the day or month it was held in
    state: str = "held"
    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def cost(self) -> int:
        input, cached, output = self.price
        return (self.prompt - self.cached) * input + self.cached * cached + self.completion * output

    def amount(self, unit: str) -> int:
        if self.state == "held":
            most = self.request.prompt_tokens * self.price[0] + self.granted * self.price[2]
            return self.request.prompt_tokens + self.granted if unit == "tokens" else most
        if self.state == "settled":
            return self.prompt + self.completion if unit == "tokens" else self.cost()
        return 0


@dataclass
class Auditor:
    """Keeps its own books and says what each answer must be."""

    tenant_id: str
    budgets: dict[str, Budget] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    price: tuple[int, int, int] = (2, 1, 4)
    kept: dict[str, Kept] = field(default_factory=dict)
    leases: dict[str, int] = field(default_factory=dict)

    def left(self, budget_id: str, name: str) -> int:
        unit = self.budgets[budget_id].unit
        taken = sum(k.amount(unit) for k in self.kept.values() if (budget_id, name) in k.windows)
        return self.limits[budget_id] - taken

    def expect_hold(self, request: HoldRequest, gateway: str, now: int) -> int:
        """The tokens to be granted, found by trying; 0 is a refusal."""
        factor = {"standard": 2, "batch": 1}[request.tier]  # base prices are twice the auditor's, batch is half
        price = (self.price[0] * factor, self.price[1] * factor, self.price[2] * factor)
        day = datetime.fromtimestamp(now // SECOND, UTC)
        names = {"day": day.strftime("%Y-%m-%d"), "month": day.strftime("%Y-%m"), "total": ""}
        windows = [
            (b.id, names[b.period]) for b in self.budgets.values() if b.scope_id in (self.tenant_id, request.key_id)
        ]
        for tokens in range(request.max_tokens, 0, -1):
            trial = Kept(request, gateway, tokens, price, windows)
            if all(trial.amount(self.budgets[budget_id].unit) <= self.left(budget_id, n) for budget_id, n in windows):
                self.kept[request.request_id] = trial
                return tokens
        return 0

    def expect_end(self, ending: Settlement | Void) -> Ended:
        kept = self.kept[ending.request_id]
        if kept.state == "held":
            if isinstance(ending, Settlement):
                kept.prompt, kept.cached = ending.prompt_tokens, ending.cached_tokens
                kept.state, kept.completion = "settled", ending.completion_tokens
            else:
                kept.state = "voided"
        return Ended(ending.request_id, kept.state, kept.cost() if kept.state == "settled" else 0)  # type: ignore[arg-type]


class History:
    """Plays one history against the database and the auditor."""

    numbers = itertools.count()

    def __init__(self, books: Books, given_limits: list[Any]) -> None:
        self.number = next(self.numbers)
        self.database = books.database
        self.prices = {gateway: PriceBook() for gateway in GATEWAYS}
        self.now = int(datetime(2031, 1, 30, 23, 59, 50, tzinfo=UTC).timestamp()) * SECOND
        tenant = self.database.write_sync(
            lambda connection: tenants.create(connection, slug=f"t{self.number}", name="T", tier="standard")
        )
        self.auditor = Auditor(tenant.id)
        self.publish(1)
        for key, unit, period, limit in given_limits:
            budget = self.database.write_sync(
                lambda connection, key=key, unit=unit, period=period, limit=limit: budgets.create(
                    connection,
                    tenant_id=tenant.id,
                    scope="key" if key else "tenant",
                    scope_id=self.key(key) if key else tenant.id,
                    unit=unit,
                    period=period,
                    limit_amount=limit,
                )
            )
            self.auditor.budgets[budget.id] = budget
            self.auditor.limits[budget.id] = limit

    def key(self, name: str) -> str:
        return f"{name}_{self.number}"

    def gateway(self, name: str) -> str:
        return f"gw_{name}_{self.number}"

    def publish(self, factor: int) -> None:
        self.auditor.price = (2 * factor, factor, 4 * factor)
        self.database.write_sync(
            lambda connection: prices.publish(
                connection,
                subject=f"model-{self.number}",
                input=4 * factor,
                cached_input=2 * factor,
                output=8 * factor,
                multipliers={"standard": 1, "batch": "0.5"},
            )
        )

    def play(self, history: list[Any]) -> None:
        for step in itertools.chain(*history):
            if step[0] == "group":
                self.play_group(step[1], [*step[2], *step[3]])
            elif step[0] == "pass":
                self.now += step[1]
            elif step[0] == "price":
                self.publish(step[1])
            elif step[0] == "limit" and step[1] < len(self.auditor.budgets):
                budget_id = list(self.auditor.budgets)[step[1]]
                self.auditor.limits[budget_id] = step[2]
                self.database.write_sync(
                    lambda connection, b=budget_id, n=step[2]: budgets.change_limit(connection, b, n)
                )
            elif step[0] == "die":
                self.die(step[1])

    def play_group(self, gateway: str, operations: list[Any]) -> None:
        auditor, asked = self.auditor, list(self.auditor.kept)
        holds: list[HoldRequest] = []
        endings: list[Settlement | Void] = []
        for operation in operations:
            if operation[0] == "hold":
                _, key, prompt, most, tier = operation
                request_id = f"req_{self.number}_{next(self.numbers)}"
                model = f"model-{self.number}"
                holds.append(HoldRequest(request_id, auditor.tenant_id, self.key(key), model, None, tier, prompt, most))
            elif asked:
                kept = auditor.kept[asked[operation[1] % len(asked)]]
                endings.append(self.ending(kept, operation))
        if holds and auditor.leases.get(gateway, 0) <= self.now:
            auditor.leases[gateway] = self.now + LEASE_S * SECOND
        expected_ends = [auditor.expect_end(ending) for ending in endings]
        expected_holds = [auditor.expect_hold(request, gateway, self.now) for request in holds]
        work = Group(self.gateway(gateway), LEASE_S, lambda _connection: self.now, self.prices[gateway])
        held, ended = self.database.write_sync(lambda connection: work.run(connection, holds, endings))
        assert ended == expected_ends
        assert [answer.max_tokens if isinstance(answer, Held) else 0 for answer in held] == expected_holds
        assert all(isinstance(answer, Held | HoldRefused) for answer in held)

    def ending(self, kept: Kept, operation: Any) -> Settlement | Void:
        if operation[0] == "void":
            return Void(kept.request.request_id, "refused")
        prompt = kept.request.prompt_tokens
        return settlement(
            kept.request, round(operation[2] * kept.granted), prompt=prompt, cached=round(operation[3] * prompt)
        )

    def die(self, gateway: str) -> None:
        """That gateway is silent for a lease; the other one expires what it held."""
        self.now = max(self.now, self.auditor.leases.get(gateway, 0))
        alive = {name for name, until in self.auditor.leases.items() if until > self.now} | {"auditing"}
        expected = {rid for rid, k in self.auditor.kept.items() if k.state == "held" and k.gateway not in alive}
        auditing = f"gw_auditing_{self.number}"
        expired = self.database.write_sync(lambda connection: audit.expire_dead(connection, auditing, self.now))
        assert set(expired) == expected
        for request_id in expired:
            self.auditor.kept[request_id].state = "expired"

    def examine(self) -> None:
        """The database's sums are the auditor's."""
        states = self.database.read_sync(
            lambda connection: budgets.states(
                connection, tenant_id=self.auditor.tenant_id, clock=lambda _connection: self.now
            )
        )
        day = datetime.fromtimestamp(self.now // SECOND, UTC)
        names = {"day": day.strftime("%Y-%m-%d"), "month": day.strftime("%Y-%m"), "total": ""}
        for state in states:
            assert state.left == self.auditor.left(state.budget.id, names[state.budget.period])
        totals = self.database.read_sync(
            lambda connection: usage.totals(connection, usage.Filter(tenant_id=self.auditor.tenant_id))
        )
        settled = [kept for kept in self.auditor.kept.values() if kept.state == "settled"]
        assert totals.requests == len(settled)
        assert totals.completion_tokens == sum(kept.completion for kept in settled)
        assert totals.cost_picos.get("USD", 0) == sum(kept.cost() for kept in settled)
        findings = self.database.read_sync(audit.reconcile)
        assert findings.sound, findings


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_histories(kind: str, request: pytest.FixtureRequest) -> None:
    books: Books = request.getfixturevalue(f"{kind}_books")

    @settings(
        max_examples=25,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(given_limits=limits, history=histories)
    def run(given_limits: list[Any], history: list[Any]) -> None:
        played = History(books, given_limits)
        played.play(history)
        played.examine()
        for gateway in GATEWAYS:
            played.die(gateway)
        played.examine()
        assert played.database.read_sync(audit.reconcile).open_holds == 0

    run()
