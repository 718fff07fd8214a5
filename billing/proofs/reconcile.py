"""Reconciles the whole ledger, a month, or the usage since the last result of kind "minute". Each result is stored as a
row.

The cost of a minute's reconciliation grows with the usage of that minute only. `engine_books` compares the engines'
tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.books import rollups
from billing.books.periods import check_month
from billing.clock import SECOND, Clock, database_now
from billing.proofs import (
    budget_proofs,
    connector_proofs,
    document_proofs,
    engine_books,
    entry_proofs,
    period_proofs,
    transaction_proofs,
)
from billing.proofs.engine_books import EngineBounds
from billing.proofs.imbalances import FINDINGS_MAX, Imbalance
from billing.proofs.ledger_audit import ledger_imbalances
from billing.proofs.sums import Sums, sum_transactions

MINUTE_ROWS_MAX = 100_000  # usage rows of one minute's check; the next check reads the remaining rows
# A minute's check repeats the corrections of this time before the last check: a correction may become visible this long
# after its created_at.
CORRECTIONS_AGAIN_S = 120
RESULTS_KEPT_MAX = 10_000  # sound results; results with findings are never deleted
LIST_MAX = 1000

Kind = Literal["minute", "month", "whole"]
PeriodProof = Callable[[sa.Connection, str | None], list[Imbalance]]
# The proofs over a month, or over all months (None).
PERIOD_PROOFS: tuple[PeriodProof, ...] = (
    period_proofs.rolled_up,
    period_proofs.rolled_up_days,
    entry_proofs.entered,
    period_proofs.invoiced,
    period_proofs.exported,
    document_proofs.documented,
    connector_proofs.pushed,
)

_results = tables.reconciliations
# Settings for the check of a minute: the pages of its rows are in memory, and starting parallel workers would take
# longer than reading the rows.
_FEW_AND_NEW = sa.text("SET LOCAL max_parallel_workers_per_gather = 0; SET LOCAL random_page_cost = 1.1")


class Reconciliation(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one reconciliation, of usage with sequence_from < sequence ≤ sequence_to at the moment `at`.
    `overshot`: budget windows over their limit. `engine_gap`: the running engines' tokens in the ledger less the tokens
    that they made and did not lose, if no request ran; `engine_bounds`: of each engine, also while requests run.
    `sums`: owed and entered amounts of each currency."""

    number: int = 0
    kind: Kind
    at: int
    sequence_from: int
    sequence_to: int
    took_s: float
    imbalances: list[Imbalance] = []
    overshot: list[str] = []
    engine_gap: int | None = None
    engine_bounds: list[EngineBounds] = []
    sums: list[Sums] = []

    @property
    def sound(self) -> bool:
        return not self.imbalances and not self.overshot


class _EngineBooks(msgspec.Struct, frozen=True):
    """The column engine_books."""

    gap: int | None
    bounds: list[EngineBounds]


class OpenFindings(msgspec.Struct, frozen=True):
    """The findings of the last reconciliation of the whole ledger and of all later results. `overshot`: of the newest
    result only."""

    imbalances: int
    overshot: int
    at: int | None  # of the newest result


def reconcile_all(connection: sa.Connection, clock: Clock = database_now) -> Reconciliation:
    """Reconcile the whole ledger. Call it in one unchanging view."""
    began, at = time.monotonic(), clock(connection)
    found = [imbalance for proof in PERIOD_PROOFS for imbalance in proof(connection, None)]
    found += transaction_proofs.corrected(connection)
    found = list(dict.fromkeys(found + ledger_imbalances(connection)))  # both prove that corrections are balanced
    return _result("whole", began, at, 0, connection, found, sum_transactions(connection, None))


def reconcile_month(connection: sa.Connection, label: str, clock: Clock = database_now) -> Reconciliation:
    """Reconcile all tenants' periods of a month (`2026-01`). Call it in one unchanging view. Raises InvalidValue."""
    check_month(label)
    began, at = time.monotonic(), clock(connection)
    found = [imbalance for proof in PERIOD_PROOFS for imbalance in proof(connection, label)]
    found += transaction_proofs.corrected(connection)
    return _result("month", began, at, 0, connection, found, sum_transactions(connection, label))


def reconcile_minute(connection: sa.Connection, clock: Clock = database_now) -> Reconciliation:
    """Reconcile the usage folded since the last minute's result. Call it in one unchanging view."""
    if connection.dialect.name != "sqlite":
        connection.execute(_FEW_AND_NEW)
    began, at = time.monotonic(), clock(connection)
    last = newest_result(connection, "minute")
    first = 0 if last is None else last.sequence_to
    upto = min(rollups.read_cursor(connection).sequence, first + MINUTE_ROWS_MAX)
    found, sums = transaction_proofs.settled(connection, first, upto)
    found += period_proofs.rolled_up_hours(connection, first, upto)
    found += transaction_proofs.corrected(connection, 0 if last is None else last.at - CORRECTIONS_AGAIN_S * SECOND)
    bounds, contradictions = engine_books.compare_engines(connection, [] if last is None else last.engine_bounds)
    found += contradictions
    result = _result("minute", began, at, first, connection, found, sums)
    gap = engine_books.engine_gap(connection)
    return msgspec.structs.replace(result, sequence_to=upto, engine_gap=gap, engine_bounds=bounds)


def store_reconciliation(connection: sa.Connection, result: Reconciliation) -> Reconciliation:
    """Store the result. The next minute's reconciliation begins where a stored result of kind "minute" ends."""
    row = {
        "kind": result.kind,
        "at": result.at,
        "sequence_from": result.sequence_from,
        "sequence_to": result.sequence_to,
        "took_s": result.took_s,
        "imbalances": len(result.imbalances),
        "overshot": len(result.overshot),
        "findings": {
            "imbalances": msgspec.to_builtins(result.imbalances),
            "overshot": result.overshot,
            "sums": msgspec.to_builtins(result.sums),
        },
        "engine_books": msgspec.json.encode(_EngineBooks(result.engine_gap, result.engine_bounds)).decode(),
    }
    made = connection.execute(sa.insert(_results).values(row).returning(_results.c.number))
    number = int(made.scalar_one())
    nothing = sa.and_(_results.c.imbalances == 0, _results.c.overshot == 0)
    connection.execute(sa.delete(_results).where(_results.c.number <= number - RESULTS_KEPT_MAX, nothing))
    return msgspec.structs.replace(result, number=number)


def newest_result(connection: sa.Connection, kind: Kind | None = None) -> Reconciliation | None:
    query = sa.select(_results).order_by(_results.c.number.desc()).limit(1)
    row = connection.execute(query if kind is None else query.where(_results.c.kind == kind)).one_or_none()
    return None if row is None else _read(row)


def get_reconciliation(connection: sa.Connection, number: int) -> Reconciliation | None:
    """The result with this number. None: there was no such result, or it had no finding and was deleted after
    RESULTS_KEPT_MAX newer results."""
    row = connection.execute(sa.select(_results).where(_results.c.number == number)).one_or_none()
    return None if row is None else _read(row)


def list_reconciliations(
    connection: sa.Connection, *, before: int | None = None, limit: int = LIST_MAX
) -> list[Reconciliation]:
    """Results, newest first; a page begins below the number `before`."""
    query = sa.select(_results).order_by(_results.c.number.desc()).limit(min(limit, LIST_MAX))
    return [
        _read(row) for row in connection.execute(query if before is None else query.where(_results.c.number < before))
    ]


def open_findings(connection: sa.Connection) -> OpenFindings:
    """The open findings, for gauges that should be 0. A finding of a minute counts until the whole ledger is
    reconciled."""
    last = newest_result(connection)
    if last is None:
        return OpenFindings(0, 0, None)
    last_whole = newest_result(connection, "whole")
    since = 0 if last_whole is None else last_whole.number
    query = sa.select(sa.func.coalesce(sa.func.sum(_results.c.imbalances), 0)).where(_results.c.number >= since)
    return OpenFindings(int(connection.execute(query).scalar_one()), len(last.overshot), last.at)


def _result(
    kind: Kind,
    began: float,
    at: int,
    first: int,
    connection: sa.Connection,
    found: list[Imbalance],
    sums: list[Sums],
) -> Reconciliation:
    overshot = budget_proofs.overshot(connection)
    return Reconciliation(
        kind=kind,
        at=at,
        sequence_from=first,
        sequence_to=rollups.read_cursor(connection).sequence,
        took_s=time.monotonic() - began,
        imbalances=found[:FINDINGS_MAX],
        overshot=overshot,
        sums=sums,
    )


def _read(row: sa.Row[Any]) -> Reconciliation:
    found = row.findings
    if row.engine_books is None:  # of a version that compared sums over all engines
        books = _EngineBooks(row.engine_gap, [])
    else:
        books = msgspec.json.decode(row.engine_books, type=_EngineBooks)
    return Reconciliation(
        number=row.number,
        kind=row.kind,
        at=row.at,
        sequence_from=row.sequence_from,
        sequence_to=row.sequence_to,
        took_s=row.took_s,
        imbalances=msgspec.convert(found["imbalances"], list[Imbalance]),
        overshot=found["overshot"],
        engine_gap=books.gap,
        engine_bounds=books.bounds,
        sums=msgspec.convert(found.get("sums", []), list[Sums]),
    )
