"""The losses of a restored database: since when entries are lost, and how many tokens the books of surviving engines
have more than the ledger. This module reads no engine: callers pass counts."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from billing.clock import rfc3339
from billing.proofs import engine_books, reconcile
from billing.proofs.engine_books import EngineCount
from gateway.access import audit_chain
from gateway.recovery.restore import RestoreReport


class EngineLoss(msgspec.Struct, frozen=True):
    """`missing`: tokens that an engine process made since the backup and that no entry has. `exact`: no request runs in
    it; else requests in flight are among them."""

    epoch: str
    missing: int
    exact: bool


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """`silent`: engine processes of the backup that do not answer any more; their tokens since are unknown. `findings`:
    why the restored books or the audit log are not sound; empty: they are sound."""

    report: RestoreReport
    engines: list[EngineLoss]
    silent: list[str]
    findings: list[str]

    @property
    def missing_tokens(self) -> int:
        return sum(engine.missing for engine in self.engines)


def verify_restore(
    connection: sa.Connection, report: RestoreReport, counts: Sequence[EngineCount], signers: Sequence[str]
) -> Verification:
    """Compare the books with themselves, with the engines' `counts`, and the audit log with its chain. Call it in one
    unchanging view."""
    books = reconcile.reconcile_all(connection)
    findings = [
        f"{found.what}: {found.where}: expected {found.expected}, found {found.found}" for found in books.imbalances
    ]
    findings += [f"overshot: {window}" for window in books.overshot]
    chain = audit_chain.verify_chain(connection, signers)
    if chain.finding is not None:
        findings.append(f"the audit log, position {chain.finding.position}: {chain.finding.reason}")
    answered = {count.epoch for count in counts}
    return Verification(
        report=report,
        engines=missing_tokens(connection, counts),
        silent=[epoch for epoch in report.engines if epoch not in answered],
        findings=findings,
    )


def missing_tokens(connection: sa.Connection, counts: Sequence[EngineCount]) -> list[EngineLoss]:
    """Of each engine process: its tokens less the tokens that it counted as lost, less its tokens in the ledger."""
    ledger = engine_books.ledger_count(connection)
    losses = []
    for count in counts:
        entered = ledger.engines.get(count.epoch, 0) + ledger.late_engines.get(count.epoch, 0)
        made = count.made_tokens - count.overrun_tokens - count.lost_tokens
        losses.append(EngineLoss(count.epoch, made - entered, count.idle))
    return losses


def sentences(found: Verification) -> list[str]:
    """The lines that a person reads."""
    report = found.report
    newest = (
        "it has no entry" if report.newest_entry_at is None else f"its newest is of {rfc3339(report.newest_entry_at)}"
    )
    lines = [f"Entries committed after {rfc3339(report.lost_since)}, the moment of the backup, are lost ({newest})."]
    for engine in found.engines:
        least = "" if engine.exact else ", with those of requests that run now"
        lines.append(f"Engine {engine.epoch}: {engine.missing} tokens made since the backup are missing{least}.")
    lines += [f"Engine {epoch} of the backup does not answer: what it made since is unknown." for epoch in found.silent]
    if not found.engines and not found.silent:
        lines.append("No engine answers, and the backup names none: missing tokens cannot be counted.")
    if report.rejected:
        lines.append(
            f"{report.rejected} endings in this host's journals had no hold in the backup ({report.rejected_tokens} "
            "tokens); they are in endings.rejected."
        )
    if report.missing_adapters:
        lines.append(f"The backup lacks the files of {len(report.missing_adapters)} adapters: upload them again.")
    lines += found.findings or ["The books and the audit log are sound."]
    return lines
