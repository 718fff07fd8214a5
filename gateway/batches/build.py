"""Builds the worker of a gateway process."""

from __future__ import annotations

from billing.database import Database
from engine.protocol.frames import Heartbeat
from gateway.access.callers import Callers
from gateway.batches import claims
from gateway.batches.assembly import Assembler
from gateway.batches.lines import LineRunner
from gateway.batches.pace import LinePace
from gateway.batches.preparation import BatchPreparer
from gateway.batches.worker import BatchWorker
from gateway.catalog.router import Router
from gateway.config.file import Config
from gateway.files.files import Files
from gateway.fleet.fleet import Fleet
from gateway.generation.generator import Generator
from gateway.generation.tier_choice import Tiers
from gateway.limits.limiter import Limiter
from gateway.metrics import Metrics


def build_worker(
    config: Config,
    database: Database,
    gateway_id: str,
    *,
    callers: Callers,
    files: Files,
    router: Router,
    generator: Generator,
    limiter: Limiter,
    tiers: Tiers,
    fleet: Fleet,
    metrics: Metrics,
) -> BatchWorker:
    tier, section = config.batches_tier, config.batches

    def heartbeats() -> list[Heartbeat | None]:
        return [member.engine.last_heartbeat for member in fleet.members.values() if member.engine.ready]

    def note_damaged(count: int) -> None:
        metrics.batch_lines_ended.labels("unreadable").inc(count)

    return BatchWorker(
        database,
        gateway_id,
        callers,
        BatchPreparer(database, files, router, config.gateway, section, tier),
        LineRunner(database, generator, limiter, tiers, tier),
        Assembler(database, files.contents, files.section.expires_s, note_damaged),
        LinePace(tier, section.outstanding_max, heartbeats),
        on_budget=lambda connection, tenant_id: claims.budget_policy(connection, tenant_id, section.on_budget),
        has_holds=lambda connection, tenant_id: claims.has_open_holds(connection, tenant_id, tier),
        note_ended=lambda succeeded: metrics.batch_lines_ended.labels("succeeded" if succeeded else "failed").inc(),
    )
