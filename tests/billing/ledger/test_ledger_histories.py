"""Random histories of holds, moves to another model, settlements, voids, deaths, days and price changes at every level
of the hierarchy and in several time zones, beside an auditor with books of its own: it keeps a plain list of what was
asked and answered, and shares no counter and no formula with the ledger."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import hypothesis.strategies as st
import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, given, settings

from billing import tables
from billing.accounts import budgets, prices, tenants
from billing.accounts.budgets import Budget
from billing.accounts.prices import PriceBook
from billing.books import usage
from billing.clock import SECOND
from billing.ledger import expiry
from billing.ledger.messages import Held, HoldEnding, HoldMove, HoldRefused, HoldRequest, Settlement, Void
from billing.ledger.transaction import HoldEnded, HoldResult, LedgerTransaction
from billing.proofs.ledger_audit import audit_ledger
from support.billing.books import Books, settlement

GATEWAYS = ("a", "b")
LEASE_S = 60
PASSING_S = (20, 61, 3600, 23 * 3600, 86_400, 20 * 86_400)
KEYS = ("key_x", "key_y")
PROJECT = "project"
# Ten seconds before something happens to the clocks or to the calendar, in each zone.
ZONES = {
    "UTC": ("2031-01-30T23:59:50", "2031-12-31T23:59:50"),
    "America/New_York": ("2031-03-09T04:59:50", "2031-11-01T03:59:50", "2031-11-03T04:59:50"),
    "Europe/Berlin": ("2031-03-29T22:59:50", "2031-10-25T21:59:50", "2031-10-31T22:59:50"),
    "Africa/Cairo": ("2031-04-24T21:59:50", "2031-04-30T20:59:50"),
    "Australia/Lord_Howe": ("2031-04-04T12:59:50", "2031-09-30T13:29:50"),
}
places = st.sampled_from([(zone, text) for zone, texts in ZONES.items() for text in texts])

hold = st.tuples(
    st.just("hold"),
    st.sampled_from(KEYS),
    st.booleans(),
    st.integers(0, 12),
    st.integers(1, 20),
    st.sampled_from(("standard", "batch")),
)
settle = st.tuples(st.just("settle"), st.integers(0, 30), st.floats(0, 1), st.floats(0, 1))
void = st.tuples(st.just("void"), st.integers(0, 30))
move = st.tuples(
    st.just("move"), st.integers(0, 30), st.integers(0, 12), st.integers(1, 20), st.sampled_from(("model", "dear"))
)
group = st.tuples(
    st.just("group"), st.sampled_from(GATEWAYS), st.lists(hold | move, max_size=4), st.lists(settle | void, max_size=4)
)
between = (
    st.tuples(st.just("die"), st.sampled_from(GATEWAYS))
    | st.tuples(st.just("pass"), st.sampled_from([seconds * SECOND for seconds in PASSING_S]))
    | st.tuples(st.just("limit"), st.integers(0, 4), st.integers(0, 120))
    | st.tuples(st.just("price"), st.integers(1, 9))
)
histories = st.lists(st.tuples(group, group, between), min_size=2, max_size=6)
limits = st.lists(
    st.tuples(
        st.sampled_from((None, PROJECT, *KEYS)),
        st.sampled_from(("tokens", "money")),
        st.sampled_from(("day", "month", "total")),
        st.integers(0, 400),
        st.sampled_from(("hard", "hard", "soft")),
        st.sampled_from(((50, 80, 100), (1,), (30, 150))),
    ),
    min_size=1,
    max_size=5,
)


def name_of(period: str, moment: int, zone: str) -> str:
    """The day or month on a wall calendar there."""
    form = {"day": "%Y-%m-%d", "month": "%Y-%m", "total": ""}[period]
    return datetime.fromtimestamp(moment // SECOND, ZoneInfo(zone)).strftime(form)


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
    zone: str
    budgets: dict[str, Budget] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    touched: set[tuple[str, str]] = field(default_factory=set)  # windows that the present group changed
    told: set[tuple[str, str, int]] = field(default_factory=set)  # thresholds of windows
    lowered: set[str] = field(default_factory=set)  # budgets whose limit was, maybe below what was used
    price: tuple[int, int, int] = (2, 1, 4)
    kept: dict[str, Kept] = field(default_factory=dict)
    leases: dict[str, int] = field(default_factory=dict)

    def left(self, budget_id: str, name: str) -> int:
        unit = self.budgets[budget_id].unit
        taken = sum(k.amount(unit) for k in self.kept.values() if (budget_id, name) in k.windows)
        return self.limits[budget_id] - taken

    def expect_move(self, request: HoldRequest, now: int) -> int | None:
        """As a hold that nothing of it is there for; refused, it is there as before. None: it is not to be had."""
        before = self.kept[request.request_id]
        if before.state != "held":
            return None
        if (before.request.model, before.request.prompt_tokens) == (request.model, request.prompt_tokens):
            return before.granted
        self.touched.update(before.windows)
        del self.kept[request.request_id]
        granted = self.expect_hold(request, before.gateway, now)
        if not granted:
            self.kept[request.request_id] = before
        return granted

    def expect_hold(self, request: HoldRequest, gateway: str, now: int) -> int:
        """The tokens to be granted, found by trying; 0 is a refusal."""
        factor = {"standard": 2, "batch": 1}[request.tier]  # base prices are twice the auditor's, batch is half
        factor *= 3 if request.model.startswith("dear") else 1
        price = (self.price[0] * factor, self.price[1] * factor, self.price[2] * factor)
        concerned = (self.tenant_id, request.project_id, request.key_id)
        windows = [(b.id, name_of(b.period, now, self.zone)) for b in self.budgets.values() if b.scope_id in concerned]
        hard = [(budget_id, name) for budget_id, name in windows if self.budgets[budget_id].kind == "hard"]
        for tokens in range(request.max_tokens, 0, -1):
            trial = Kept(request, gateway, tokens, price, windows)
            if all(trial.amount(self.budgets[budget_id].unit) <= self.left(budget_id, n) for budget_id, n in hard):
                self.kept[request.request_id] = trial
                self.touched.update(windows)
                return tokens
        return 0

    def expect_alerts(self) -> None:
        """Of the windows that this transaction changed."""
        for budget_id, name in self.touched:
            budget = self.budgets[budget_id]
            settled = [k for k in self.kept.values() if k.state == "settled" and (budget_id, name) in k.windows]
            used = sum(k.amount(budget.unit) for k in settled)
            for threshold in budget.thresholds:
                if used and Fraction(used, threshold) * 100 >= self.limits[budget_id]:
                    self.told.add((budget_id, name, threshold))
        self.touched.clear()

    def expect_end(self, ending: Settlement | Void) -> HoldEnding:
        kept = self.kept[ending.request_id]
        if kept.state == "held":
            self.touched.update(kept.windows)
            if isinstance(ending, Settlement):
                kept.prompt, kept.cached = ending.prompt_tokens, ending.cached_tokens
                kept.state, kept.completion = "settled", ending.completion_tokens
            else:
                kept.state = "voided"
        return HoldEnding(ending.request_id, kept.state, kept.cost() if kept.state == "settled" else 0)  # type: ignore[arg-type]


def granted_by(answer: HoldResult) -> int | None:
    if isinstance(answer, Held):
        return answer.max_tokens
    assert isinstance(answer, HoldRefused | HoldEnded), answer
    return 0 if isinstance(answer, HoldRefused) else None


class History:
    """Plays one history against the database and the auditor."""

    numbers = itertools.count()

    def __init__(self, books: Books, given_limits: list[Any], place: tuple[str, str]) -> None:
        self.number = next(self.numbers)
        self.database = books.database
        self.prices = {gateway: PriceBook() for gateway in GATEWAYS}
        zone, text = place
        self.now = int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND
        tenant = self.database.write_sync(
            lambda connection: tenants.create_tenant(
                connection, slug=f"t{self.number}", name="T", tier="standard", time_zone=zone
            )
        )
        self.project = self.database.write_sync(
            lambda connection: tenants.create_project(connection, tenant_id=tenant.id, name="p").id
        )
        self.auditor = Auditor(tenant.id, zone)
        self.publish(1)
        for given_limit in given_limits:
            budget = self.database.write_sync(partial(self.create_budget, given=given_limit))
            self.auditor.budgets[budget.id] = budget
            self.auditor.limits[budget.id] = budget.limit_amount

    def create_budget(self, connection: sa.Connection, given: Any) -> Budget:
        of, unit, period, limit, kind, thresholds = given
        scopes = {None: ("tenant", self.auditor.tenant_id), PROJECT: ("project", self.project)}
        scope, scope_id = scopes[of] if of in scopes else ("key", self.key(of))
        return budgets.create_budget(
            connection,
            tenant_id=self.auditor.tenant_id,
            scope=scope,  # type: ignore[arg-type]
            scope_id=scope_id,
            unit=unit,
            period=period,
            limit_amount=limit,
            kind=kind,
            thresholds=thresholds,
        )

    def key(self, name: str) -> str:
        return f"{name}_{self.number}"

    def gateway(self, name: str) -> str:
        return f"gw_{name}_{self.number}"

    def publish(self, factor: int) -> None:
        self.auditor.price = (2 * factor, factor, 4 * factor)
        for model, times in (("model", factor), ("dear", 3 * factor)):
            self.database.write_sync(
                lambda connection, model=model, times=times: prices.publish(
                    connection,
                    subject=f"{model}-{self.number}",
                    input=4 * times,
                    cached_input=2 * times,
                    output=8 * times,
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
                if step[2] < self.auditor.limits[budget_id]:
                    self.auditor.lowered.add(budget_id)
                self.auditor.limits[budget_id] = step[2]
                self.database.write_sync(
                    lambda connection, b=budget_id, n=step[2]: budgets.change_budget(connection, b, limit_amount=n)
                )
            elif step[0] == "die":
                self.die(step[1])

    def play_group(self, gateway: str, operations: list[Any]) -> None:
        auditor, asked = self.auditor, list(self.auditor.kept)
        holds: list[HoldRequest | HoldMove] = []
        endings: list[Settlement | Void] = []
        for operation in operations:
            if operation[0] == "move":
                if asked:
                    holds.append(self.move(auditor.kept[asked[operation[1] % len(asked)]], operation))
            elif operation[0] == "hold":
                _, key, in_project, prompt, most, tier = operation
                request_id = f"req_{self.number}_{next(self.numbers)}"
                asking = (request_id, auditor.tenant_id, self.key(key), f"model-{self.number}", None, tier)
                holds.append(HoldRequest(*asking, prompt, most, self.project if in_project else None))
            elif asked:
                kept = auditor.kept[asked[operation[1] % len(asked)]]
                endings.append(self.ending(kept, operation))
        if holds and auditor.leases.get(gateway, 0) <= self.now:
            auditor.leases[gateway] = self.now + LEASE_S * SECOND
        expected_ends = [auditor.expect_end(ending) for ending in endings]
        expected_holds = [
            auditor.expect_move(asking.request, self.now)
            if isinstance(asking, HoldMove)
            else auditor.expect_hold(asking, gateway, self.now)
            for asking in holds
        ]
        auditor.expect_alerts()
        work = LedgerTransaction(self.gateway(gateway), LEASE_S, lambda _connection: self.now, self.prices[gateway])
        held, ended = self.database.write_sync(lambda connection: work.run(connection, holds, endings))
        assert ended == expected_ends
        assert list(map(granted_by, held)) == expected_holds

    def move(self, kept: Kept, operation: Any) -> HoldMove:
        _, _, prompt, most, model = operation
        return HoldMove(
            msgspec.structs.replace(kept.request, model=f"{model}-{self.number}", prompt_tokens=prompt, max_tokens=most)
        )

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
        expired = self.database.write_sync(lambda connection: expiry.expire_dead(connection, auditing, self.now))
        assert set(expired) == expected
        for request_id in expired:
            self.auditor.touched.update(self.auditor.kept[request_id].windows)
            self.auditor.kept[request_id].state = "expired"
        self.auditor.expect_alerts()

    def examine(self) -> None:
        """The database's sums are the auditor's."""
        states = self.database.read_sync(
            lambda connection: budgets.list_budget_states(
                connection, tenant_id=self.auditor.tenant_id, clock=lambda _connection: self.now
            )
        )
        zone = self.auditor.zone
        for state in states:
            name = name_of(state.budget.period, self.now, zone)
            assert state.left == self.auditor.left(state.budget.id, name)
            if state.budget.kind == "hard" and state.budget.id not in self.auditor.lowered:
                assert state.left >= 0, "overshot"
        query = sa.select(tables.alerts).where(tables.alerts.c.tenant_id == self.auditor.tenant_id)
        told = [
            (row.budget_id, name_of(self.auditor.budgets[row.budget_id].period, row.window_start, zone), row.threshold)
            for row in self.database.read_sync(lambda connection: connection.execute(query).all())
        ]
        assert sorted(told) == sorted(self.auditor.told)
        totals = self.database.read_sync(
            lambda connection: usage.sum_usage(connection, usage.UsageFilter(tenant_id=self.auditor.tenant_id))
        )
        settled = [kept for kept in self.auditor.kept.values() if kept.state == "settled"]
        assert totals.requests == len(settled)
        assert totals.completion_tokens == sum(kept.completion for kept in settled)
        assert totals.cost_picos.get("USD", 0) == sum(kept.cost() for kept in settled)
        findings = self.database.read_sync(audit_ledger)
        assert findings.sound, findings


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_histories(kind: str, request: pytest.FixtureRequest) -> None:
    books: Books = request.getfixturevalue(f"{kind}_books")

    @settings(
        max_examples=40,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(given_limits=limits, history=histories, place=places)
    def run(given_limits: list[Any], history: list[Any], place: tuple[str, str]) -> None:
        played = History(books, given_limits, place)
        played.play(history)
        played.examine()
        for gateway in GATEWAYS:
            played.die(gateway)
        played.examine()
        assert played.database.read_sync(audit_ledger).open_holds == 0

    run()
