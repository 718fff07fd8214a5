"""The books of a fleet after a fault: every engine's tokens, the ledger, and every answer billed once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import sqlalchemy as sa

from benchmarks.faults.fleet_clients import FleetClients
from benchmarks.faults.fleet_stage import FleetStage
from billing import tables
from billing.proofs import reconcile
from billing.proofs.ledger_audit import audit_ledger
from engine.protocol.frames import StatusReport

QUIET_S_MAX = 90.0
SETTLE_S = 1.0  # time for the confirmations of settlements to reach the engines


def open_requests(stage: FleetStage) -> set[str]:
    """The requests whose hold is open."""
    holds = tables.holds.c
    query = sa.select(holds.request_id).where(holds.state == "held")
    return set(stage.stack.read(lambda connection: list(connection.execute(query).scalars())))


def difference_of(stage: FleetStage, report: StatusReport) -> int:
    """Tokens of one engine process in the ledger, billed or discarded, less the engine's made − overrun − lost."""
    settled = stage.stack.read(lambda connection: tokens_of(connection, report.epoch))
    return settled - (report.tokens_made - report.tokens_overrun - report.tokens_lost)


def tokens_of(connection: sa.Connection, epoch: str) -> int:
    """Tokens that the ledger has of one engine process: the tokens of usage rows whose last engine it was, without
    other engines' tokens, and the tokens of attempts that moved to another engine."""
    usage, attempts = tables.usage.c, tables.usage_attempts.c
    own = sa.select(sa.func.coalesce(sa.func.sum(usage.made_tokens), 0)).where(usage.engine_epoch == epoch)
    others = sa.select(sa.func.coalesce(sa.func.sum(attempts.made_tokens), 0)).where(
        attempts.request_id.in_(sa.select(usage.request_id).where(usage.engine_epoch == epoch)),
        attempts.epoch != epoch,
    )
    moved = sa.select(sa.func.coalesce(sa.func.sum(attempts.made_tokens), 0)).where(attempts.epoch == epoch)
    own_tokens, other_tokens, moved_tokens = (int(connection.execute(q).scalar_one()) for q in (own, others, moved))
    return own_tokens - other_tokens + moved_tokens


def check_answers(stage: FleetStage, clients: FleetClients) -> list[str]:
    """Every answer that a client has is billed once, and no request was billed without an answer, except requests whose
    answer broke with its gateway."""
    billed = sa.select(tables.usage.c.request_id)
    rows = Counter(stage.stack.read(lambda connection: list(connection.execute(billed).scalars())))
    found = [f"billed {count} times: {request_id}" for request_id, count in rows.items() if count > 1]
    found += [f"not billed: {request_id}" for request_id in clients.answered - rows.keys()]
    unanswered = rows.keys() - clients.answered
    if len(unanswered) > clients.broken:
        found.append(f"{len(unanswered)} requests billed without an answer, {clients.broken} answers were broken")
    return found


async def check_books(stage: FleetStage, clients: FleetClients, *, gateways_killed: bool) -> tuple[int, list[str]]:
    """The largest difference between the tokens of an engine and of the ledger, and the faults of the books."""
    stack = stage.stack
    began = time.monotonic()
    while stack.open_holds():
        assert time.monotonic() - began < QUIET_S_MAX, "holds stay open"
        await asyncio.sleep(0.2)
    await asyncio.sleep(SETTLE_S)
    faults: list[str] = []
    worst = 0
    for engine in stage.engines:
        report = await stage.status(engine)
        difference = difference_of(stage, report)
        worst = max(worst, abs(difference))
        # A gateway that is killed between a settlement and its confirmation leaves tokens that count as lost too.
        limit = report.tokens_lost if gateways_killed else 0
        if not 0 <= difference <= limit:
            faults.append(
                f"{engine.name}: made {report.tokens_made}, overrun {report.tokens_overrun}, lost "
                f"{report.tokens_lost}: the ledger has {difference} more"
            )
    audit = stack.read(audit_ledger)
    if not audit.sound or audit.overshot:
        faults.append(f"the ledger: {audit}")
    for result in stack.read(reconcile.list_reconciliations):
        faults += [f"a reconciliation beside the load: {found}" for found in result.imbalances]
    minute = stack.read(reconcile.reconcile_minute)
    faults += [str(found) for found in minute.imbalances] + [f"overshot: {window}" for window in minute.overshot]
    return worst, faults + check_answers(stage, clients)
