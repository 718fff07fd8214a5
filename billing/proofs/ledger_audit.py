"""The audit of the ledger: the proofs of its transactions and budget windows over all rows, and its open holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.clock import Clock, database_now
from billing.proofs import budget_proofs, transaction_proofs
from billing.proofs.imbalances import FINDINGS_MAX, Imbalance
from billing.proofs.sums import sum_transactions

_holds = tables.holds


class LedgerAudit(msgspec.Struct, frozen=True):
    """The violations in the ledger, named by row: all lists are empty and the difference is 0 in a sound one. Lists
    have at most FINDINGS_MAX items."""

    unbalanced: list[str]  # transactions whose entries do not sum to 0
    cost_difference_picos: int  # Σ usage cost + Σ corrections − Σ receivable entries
    wrong_counters: list[str]  # budget windows that differ from their holds
    overshot: list[str]  # windows of hard budgets over their limit, as it was when it was reached
    oversettled: list[str]  # usage rows without a settled hold of the same amount, or above the held amount
    unrecorded: list[str]  # settled holds without a usage row
    orphaned: list[str]  # open holds of gateways whose lease ran out
    open_holds: int  # no violation while requests run

    @property
    def sound(self) -> bool:
        """Whether there is no violation. Orphaned holds are none: the Auditor expires them."""
        violations = (self.unbalanced, self.wrong_counters, self.overshot, self.oversettled, self.unrecorded)
        return not any(violations) and self.cost_difference_picos == 0


def ledger_imbalances(connection: sa.Connection) -> list[Imbalance]:
    """The violations of the ledger's proofs over all rows, except overshot windows."""
    proofs: tuple[Callable[[sa.Connection], list[Imbalance]], ...] = (
        transaction_proofs.balanced,
        budget_proofs.counted,
        transaction_proofs.charged_as_held,
        transaction_proofs.recorded,
    )
    return [imbalance for proof in proofs for imbalance in proof(connection)]


def audit_ledger(connection: sa.Connection, clock: Clock = database_now) -> LedgerAudit:
    """Audit the whole ledger. The connection must have one unchanging view, as in `Database.read`."""
    open_holds = sa.select(sa.func.count()).select_from(_holds).where(_holds.c.state == "held")
    return LedgerAudit(
        unbalanced=_names(transaction_proofs.balanced(connection)),
        cost_difference_picos=sum(one.owed_picos - one.entered_picos for one in sum_transactions(connection, None)),
        wrong_counters=_names(budget_proofs.counted(connection)),
        overshot=budget_proofs.overshot(connection),
        oversettled=_names(transaction_proofs.charged_as_held(connection)),
        unrecorded=_names(transaction_proofs.recorded(connection)),
        orphaned=_orphaned(connection, clock(connection)),
        open_holds=int(connection.execute(open_holds).scalar_one()),
    )


def _names(imbalances: Iterable[Imbalance]) -> list[str]:
    """Each row or group at fault once, in the order of its first imbalance."""
    return list(dict.fromkeys(imbalance.where for imbalance in imbalances))


def _orphaned(connection: sa.Connection, now: int) -> list[str]:
    alive = sa.select(tables.leases.c.gateway_id).where(tables.leases.c.expires_at > now)
    rows = sa.select(_holds.c.request_id).where(_holds.c.state == "held", _holds.c.gateway_id.not_in(alive))
    return list(connection.execute(rows.order_by(_holds.c.request_id).limit(FINDINGS_MAX)).scalars())
