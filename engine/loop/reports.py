"""The loop's reports to gateways about its state: a StatusReport on demand, and an EngineLoad in each heartbeat."""

from __future__ import annotations

from collections.abc import Callable

from engine.guided.requests import GuidedRequests
from engine.loop.gauges import read_gauges
from engine.loop.metrics import EngineMetrics
from engine.protocol.frames import StatusReport
from engine.protocol.inbox import LoopProgress
from engine.protocol.snapshot_parts import EngineLoad
from engine.scheduler.scheduler import Scheduler
from engine.step import Runner

# Of each list of digests in a StatusReport.
ADAPTERS_REPORTED_MAX = 4096
# Of an EngineLoad: the most recently used ones, because each heartbeat carries them.
ADAPTERS_RESIDENT_MAX = 512
# Seconds between two computations of the load: while the loop works, and when it has become idle.
LOAD_EVERY_S, LOAD_IDLE_S = 1.0, 0.1
# `tokens_per_s` is the mean of at least this time.
RATE_S = 1.0


class Reports:
    """Used only by the loop's thread. It reads the scheduler and the runner."""

    def __init__(
        self,
        epoch: str,
        scheduler: Scheduler,
        runner: Runner,
        guided: GuidedRequests,
        metrics: EngineMetrics,
        progress: LoopProgress,
        clock: Callable[[], float],
    ) -> None:
        self._epoch, self._scheduler, self._runner, self._guided = epoch, scheduler, runner, guided
        self._metrics, self._progress, self._clock = metrics, progress, clock
        self._load_at = self._rate_at = clock()
        self._rate_made = 0  # tokens made at `_rate_at`
        self._tokens_per_s = 0.0
        progress.silent_after_s = scheduler.probes.after_s
        self._active = True  # the loop worked after `_load_at`: the load may have changed

    def status(self) -> StatusReport:
        metrics, scheduler = self._metrics, self._scheduler
        self._take_loads()
        metrics.guided = self._guided.counts()
        resident = self._runner.adapters.resident()
        gauges = read_gauges(scheduler, len(resident))
        return StatusReport(
            epoch=self._epoch,
            step=self._progress.step,
            running=scheduler.running,
            waiting=gauges.waiting,
            pages_total=gauges.pages_total,
            pages_free=gauges.pages_free,
            pages_cached=gauges.pages_cached,
            pages_adapters=gauges.pages_adapters,
            adapters_resident=resident,
            tokens_made=scheduler.results.tokens_made,
            metrics=metrics.render(gauges),
            tokens_overrun=scheduler.results.tokens_overrun,
            tokens_lost=metrics.tokens_lost - metrics.tokens_reclaimed,
            tokens_reclaimed=metrics.tokens_reclaimed,
            tokens_probed=scheduler.probes.tokens,
            adapters_running=scheduler.residency.digests_in_use()[:ADAPTERS_REPORTED_MAX],
            adapters_waiting=scheduler.residency.digests_waited_for()[:ADAPTERS_REPORTED_MAX],
            adapters_step_max=scheduler.residency.sequences_max,
        )

    # ---- the load, for heartbeats

    def load_due_at(self) -> float | None:
        """When `note_round` of an idle loop computes the load again; None: not before the loop works."""
        if self._active:
            return self._load_at + LOAD_IDLE_S
        return self._rate_at + RATE_S if self._tokens_per_s else None

    def note_round(self, *, active: bool) -> None:
        """A round of the loop is over; `active`: it worked, or took a command."""
        self._active |= active
        due_at = self._load_at + LOAD_EVERY_S if active else self.load_due_at()
        if due_at is not None and self._clock() >= due_at:
            self.update_load()

    def update_load(self) -> None:
        """Compute the load that heartbeats carry. Its cost depends on the numbers of tiers, models and resident
        adapters, not on that of requests."""
        now, scheduler = self._clock(), self._scheduler
        made = scheduler.results.tokens_made - scheduler.probes.tokens
        if now >= self._rate_at + RATE_S:
            self._tokens_per_s = (made - self._rate_made) / (now - self._rate_at)
            self._rate_at, self._rate_made = now, made
        self._take_loads()
        self._progress.tokens = scheduler.probes.token_times()
        self._load_at, self._active = now, False
        self._progress.load = EngineLoad(
            waits=scheduler.admission.queue_waits_s(),
            queued=scheduler.waiting(),
            prefill_token_s=scheduler.cost_models.prefill_token_s(scheduler.served.live),
            models=scheduler.admission.weights_waits_s(),
            adapters=self._runner.adapters.resident()[-ADAPTERS_RESIDENT_MAX:],
            adapter_load_s=self._adapter_load_s(),
            tokens_per_s=self._tokens_per_s,
            queries=scheduler.prefix.queries,
            hits=scheduler.prefix.hits,
        )

    def _adapter_load_s(self) -> float:
        """Mean seconds of an adapter's way to the device, from its file where it was not in host memory."""
        loads = self._metrics.adapter_load
        return sum(load.sum for load in loads.values()) / max(1, sum(loads["host"].counts))

    def _take_loads(self) -> None:
        self._metrics.observe_loads(self._scheduler.residency.take_loads())
        self._metrics.observe_model_loads(self._scheduler.weight_residency.take_loads())
