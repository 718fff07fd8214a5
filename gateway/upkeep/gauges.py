"""Gauges of one gateway process that are measured whenever /metrics is read: its problems, its journal, its disk and
its drain.
"""

from __future__ import annotations

import functools

from billing.ledger.settler import Settler
from gateway.catalog.served_models import ServedModels
from gateway.config.file import Config
from gateway.host.stop_state import StopState
from gateway.metrics import Metrics
from gateway.upkeep.readiness import PARTS, Readiness


def measure_gateway(
    metrics: Metrics, config: Config, readiness: Readiness, settler: Settler, stopping: StopState, models: ServedModels
) -> None:
    """Let the metrics read these parts. Nothing that they read waits for a disk, a database or an engine."""
    for part in PARTS:
        metrics.problems.labels(part).set_function(functools.partial(_has_problem, readiness, part))
    metrics.drain.set_function(lambda: 0.0 if stopping.phase == "drained" else stopping.seconds)
    metrics.journal_bytes.set_function(lambda: settler.bytes_used)
    metrics.journal_bytes_max.set(config.journal.bytes_max)
    metrics.journal_age.set_function(lambda: settler.waiting_s)
    metrics.disk_free.set_function(lambda: settler.disk_free)
    metrics.disk_free_min.set(config.journal.disk_free_min_bytes)
    metrics.models_refused.set_function(lambda: len(models.all_refused()))


def _has_problem(readiness: Readiness, part: str) -> float:
    return float(part in readiness.problems())
