"""A migrated database with one tenant and one price, short ways to ask, and the books' examination."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import sqlalchemy as sa

from billing.accounts import budgets, prices, tenants
from billing.accounts.budget_windows import Unit
from billing.clock import Period
from billing.database import Database
from billing.ledger.ledger import Ledger, LedgerUnavailable
from billing.ledger.messages import HoldEnding, HoldRequest, Settlement
from billing.proofs.ledger_audit import LedgerAudit, audit_ledger

INPUT, CACHED, OUTPUT = 100, 10, 400  # picos a token in tier standard
# Statements after which each transaction fails: as on a standby, without rights, and without tables.
CANNOT_SERVE = [
    "SET TRANSACTION READ ONLY",
    "SET LOCAL ROLE pg_read_all_settings",
    "SET LOCAL search_path TO pg_catalog",
]
MULTIPLIERS: dict[str, str | int] = {"premium": "3", "standard": 1, "batch": "0.5"}


@dataclass
class Books:
    """A fixture for most tests: a database, a tenant with a priced model, and short queries."""

    database: Database
    tenant: tenants.Tenant
    url: str
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def budget(
        self, limit: int, *, unit: Unit = "tokens", period: Period = "total", key: str | None = None
    ) -> budgets.Budget:
        return self.database.write_sync(
            lambda connection: budgets.create_budget(
                connection,
                tenant_id=self.tenant.id,
                scope="key" if key else "tenant",
                scope_id=key or self.tenant.id,
                unit=unit,
                period=period,
                limit_amount=limit,
            )
        )

    def request(
        self,
        *,
        prompt: int = 10,
        most: int = 90,
        key: str = "key_a",
        tier: str = "standard",
        request_id: str | None = None,
        adapter: str | None = None,
        model: str = "model-a",
        tenant_id: str | None = None,
    ) -> HoldRequest:
        return HoldRequest(
            request_id or f"req_{next(self.numbers)}",
            tenant_id or self.tenant.id,
            key,
            model,
            adapter,
            tier,
            prompt,
            most,
        )

    def state(self, budget: budgets.Budget) -> tuple[int, int]:
        """Used and held of a budget in its present window."""
        states = self.database.read_sync(
            lambda connection: budgets.list_budget_states(connection, scope_id=budget.scope_id)
        )
        return next((state.used, state.held) for state in states if state.budget.id == budget.id)

    def findings(self) -> LedgerAudit:
        return self.database.read_sync(audit_ledger)

    def assert_sound(self, open_holds: int = 0) -> None:
        findings = self.findings()
        assert findings.sound, findings
        assert findings.overshot == []
        assert findings.open_holds == open_holds


@contextlib.contextmanager
def beginning_with(database: Database, setting: str) -> Iterator[None]:
    """Begin each writing transaction of `database` with this statement."""

    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql(setting)

    sa.event.listen(database._write_engine, "begin", begin)
    try:
        yield
    finally:
        sa.event.remove(database._write_engine, "begin", begin)


class CommitCount:
    """Counts the writing transactions of `database` that commit, from now on."""

    def __init__(self, database: Database) -> None:
        self.commits = 0
        sa.event.listen(database._write_engine, "commit", self._count)

    def _count(self, _connection: sa.Connection) -> None:
        self.commits += 1


async def settle_when_available(ledger: Ledger, ending: Settlement, every_s: float = 0.05) -> HoldEnding:
    """Settle, and repeat it while the database is unavailable."""
    while True:
        try:
            return await ledger.settle(ending)
        except LedgerUnavailable:
            await asyncio.sleep(every_s)


def default_project(connection: sa.Connection, tenant_id: str) -> tenants.Project:
    """The project that the tenant was created with."""
    project = tenants.project_of(connection, tenant_id, tenants.DEFAULT_PROJECT)
    assert project is not None
    return project


def settlement(
    request: HoldRequest | str,
    completion: int,
    *,
    prompt: int = 10,
    cached: int = 0,
    engines: dict[str, int] | None = None,
) -> Settlement:
    """`engines`: as in Settlement; None: unknown."""
    return Settlement(
        request_id=request if isinstance(request, str) else request.request_id,
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=completion,
        made_tokens=completion,
        ending="stop",
        engines=engines or {},
    )


def make_books(url: str) -> Books:
    """Make books in an empty, migrated database."""
    database = Database(url)
    tenant = database.write_sync(
        lambda connection: tenants.create_tenant(connection, slug="acme", name="Acme", tier="premium")
    )
    database.write_sync(
        lambda connection: prices.publish(
            connection,
            subject="model-a",
            input=INPUT,
            cached_input=CACHED,
            output=OUTPUT,
            multipliers=MULTIPLIERS,
        )
    )
    return Books(database, tenant, url)
