"""The audit of the ledger's own rows: every sum is computed again, and no counter is trusted."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.clock import Clock, database_now
from billing.proofs import equalities
from billing.proofs.equalities import FINDINGS_MAX, Imbalance

_usage = tables.usage
_entries = tables.entries
_holds = tables.holds


class LedgerAudit(msgspec.Struct, frozen=True):
    """The faults of the ledger: all lists are empty and the difference is 0 in a sound one. Lists have at most
    FINDINGS_MAX items."""

    unbalanced: list[str]  # transactions whose entries do not sum to 0
    cost_difference_picos: int  # Σ usage cost + Σ corrections − Σ receivable entries
    wrong_counters: list[str]  # budget windows that differ from their holds
    overshot: list[str]  # windows of hard budgets over their limit, as it was when it was reached
    oversettled: list[str]  # settled above what was held, or a usage row without its settled hold
    unrecorded: list[str]  # settled holds without a usage row
    orphaned: list[str]  # open holds of gateways without a living lease
    open_holds: int  # not a fault while requests run

    @property
    def sound(self) -> bool:
        """Whether there is no fault. Orphaned holds are not one: the Auditor expires them."""
        faults = (self.unbalanced, self.wrong_counters, self.overshot, self.oversettled, self.unrecorded)
        return not any(faults) and self.cost_difference_picos == 0

    def imbalances(self) -> list[Imbalance]:
        """One for each transaction, budget window and hold at fault, except overshot windows."""
        found = [Imbalance("unbalanced", where, 0, 1) for where in self.unbalanced]
        found += [Imbalance("wrong_counters", where, 0, 1) for where in self.wrong_counters]
        found += [Imbalance("oversettled", where, 0, 1) for where in self.oversettled]
        return found + [Imbalance("unrecorded", where, 0, 1) for where in self.unrecorded]


def audit_ledger(connection: sa.Connection, clock: Clock = database_now) -> LedgerAudit:
    """Audit the whole ledger. The connection must have one unchanging view, as in `Database.read`."""
    open_holds = sa.select(sa.func.count()).select_from(_holds).where(_holds.c.state == "held")
    return LedgerAudit(
        unbalanced=_some(connection, _unbalanced()),
        cost_difference_picos=_cost_difference(connection),
        wrong_counters=_wrong_counters(connection),
        overshot=equalities.overshot(connection),
        oversettled=_some(connection, _oversettled()),
        unrecorded=_some(connection, _unrecorded()),
        orphaned=_some(connection, _orphaned(clock(connection))),
        open_holds=int(connection.execute(open_holds).scalar_one()),
    )


def _some(connection: sa.Connection, ids: sa.Select[str]) -> list[str]:
    return list(connection.execute(ids.limit(FINDINGS_MAX)).scalars())


def _unbalanced() -> sa.Select[str]:
    transactions = sa.select(_entries.c.transaction_id).group_by(_entries.c.transaction_id)
    return transactions.having(sa.func.sum(_entries.c.amount_picos) != 0)


def _cost_difference(connection: sa.Connection) -> int:
    costs = sa.select(sa.func.coalesce(sa.func.sum(_usage.c.cost_picos), 0))
    corrected = sa.select(sa.func.coalesce(sa.func.sum(tables.corrections.c.picos), 0))
    received = sa.select(sa.func.coalesce(sa.func.sum(_entries.c.amount_picos), 0)).where(
        _entries.c.account == "receivable"
    )
    owed = int(connection.execute(costs).scalar_one()) + int(connection.execute(corrected).scalar_one())
    return owed - int(connection.execute(received).scalar_one())


def _oversettled() -> sa.Select[str]:
    rows = sa.select(_usage.c.request_id).join(_holds, _holds.c.request_id == _usage.c.request_id)
    return rows.where(
        sa.or_(
            _holds.c.state != "settled",
            _holds.c.settled_picos != _usage.c.cost_picos,
            _usage.c.cost_picos > _holds.c.hold_picos,
        )
    )


def _unrecorded() -> sa.Select[str]:
    rows = sa.select(_holds.c.request_id).outerjoin(_usage, _usage.c.request_id == _holds.c.request_id)
    return rows.where(_holds.c.state == "settled", _usage.c.request_id.is_(None))


def _orphaned(now: int) -> sa.Select[str]:
    alive = sa.select(tables.leases.c.gateway_id).where(tables.leases.c.expires_at > now)
    rows = sa.select(_holds.c.request_id).where(_holds.c.state == "held", _holds.c.gateway_id.not_in(alive))
    return rows.order_by(_holds.c.request_id)


def _wrong_counters(connection: sa.Connection) -> list[str]:
    """Budget windows whose counters differ from the holds and usage charged to them."""
    budgets, windows, charges = tables.budgets, tables.budget_windows, tables.hold_charges
    is_open = _holds.c.state == "held"
    in_tokens = budgets.c.unit == "tokens"
    held = sa.case(
        (sa.and_(is_open, in_tokens), _holds.c.prompt_tokens + _holds.c.max_tokens),
        (is_open, _holds.c.hold_picos),
        else_=0,
    )
    posted = sa.case(
        (_usage.c.request_id.is_(None), 0),
        (in_tokens, _usage.c.prompt_tokens + _usage.c.completion_tokens),
        else_=_usage.c.cost_picos,
    )
    recomputed = (
        sa.select(charges.c.budget_id, charges.c.window_start, sa.func.sum(held), sa.func.sum(posted))
        .join(budgets, budgets.c.id == charges.c.budget_id)
        .join(_holds, _holds.c.request_id == charges.c.request_id)
        .outerjoin(_usage, _usage.c.request_id == charges.c.request_id)
        .group_by(charges.c.budget_id, charges.c.window_start)
    )
    true = {(row[0], row[1]): (int(row[2]), int(row[3])) for row in connection.execute(recomputed)}
    stored = sa.select(windows.c.budget_id, windows.c.window_start, windows.c.held, windows.c.posted)
    wrong = [
        f"{row.budget_id}@{row.window_start}"
        for row in connection.execute(stored)
        if true.pop((row.budget_id, row.window_start), (0, 0)) != (row.held, row.posted)
    ]
    wrong += [f"{budget_id}@{start}" for budget_id, start in true]
    return wrong[:FINDINGS_MAX]
