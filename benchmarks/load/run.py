"""Drives a workload through a client: warm-up, then an open or a closed loop, until its end or until it is stopped.

An open loop never waits for answers: latency counts from when a request was due. It must never know a percentile.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.load.client import Client, clock
from benchmarks.load.measure import LoopLag, Outcome, Recorder
from benchmarks.load.settings import Settings
from benchmarks.load.workload import Planned, Workload

WARMUP_AT_ONCE_MAX = 16
TOO_MANY = "not sent: too many outstanding"


@dataclass(slots=True)
class Measured:
    """The results of a run. `window_s`: the interval of rates: the given time, without the drain after it; for a run
    without a time, until its last answer. Times in outcomes are on `clock`; the run began at `began_s`."""

    recorder: Recorder
    lag: LoopLag
    began_s: float = 0.0
    window_s: float = 0.0
    wall_s: float = 0.0
    events: int = 0
    interrupted: bool = False


async def _until(due_s: float) -> None:
    """Wait until a time; yields to the event loop at least once. The loop's timers are coarse, and may fire a little
    early."""
    await asyncio.sleep(max(0.0, due_s - clock()))
    while (early_s := due_s - clock()) > 0:  # noqa: ASYNC110 (it waits for a time)
        await asyncio.sleep(early_s)


class Run:
    """One run. `go()` once; `stop()` from a signal handler ends it early, with what was measured."""

    def __init__(self, settings: Settings, workload: Workload, client: Client) -> None:
        self._settings = settings
        self._workload = workload
        self._client = client
        self._main: asyncio.Task[None] | None = None
        self.warming = True
        self.measured = Measured(Recorder(), LoopLag())

    def stop(self) -> None:
        """End now. Requests in flight are abandoned, not counted as failed."""
        self.measured.interrupted = True
        if self._main is not None:
            self._main.cancel()

    async def go(self) -> Measured:
        self._main = asyncio.create_task(self._phases())
        try:
            await self._main
        except asyncio.CancelledError:
            if not self.measured.interrupted:  # the caller of this run was cancelled
                raise
        return self.measured

    async def _phases(self) -> None:
        measured, settings = self.measured, self._settings
        warmup = Recorder()
        await self._closed(self._workload.warmup(), min(WARMUP_AT_ONCE_MAX, max(1, settings.warmup)), warmup, None)
        # The collector would stop the loop to scan long-lived objects.
        gc.collect()
        gc.freeze()
        self.warming = False
        events = self._client.events
        measured.began_s = clock()
        watch = asyncio.create_task(measured.lag.watch())
        try:
            if settings.concurrency is not None:
                until = None if settings.duration_s is None else measured.began_s + settings.duration_s
                await self._closed(self._workload.measured(), settings.concurrency, measured.recorder, until)
            else:
                await self._open(self._workload.measured(), measured.recorder)
        finally:
            measured.wall_s = clock() - measured.began_s
            measured.window_s = measured.wall_s
            if settings.duration_s is not None:
                measured.window_s = min(measured.wall_s, settings.duration_s)
            measured.events = self._client.events - events
            watch.cancel()
            gc.unfreeze()
            await asyncio.wait([watch])

    async def _closed(self, plan: Iterator[Planned], places: int, recorder: Recorder, until: float | None) -> None:
        """Keep `places` requests in flight, each followed by the next, until the plan ends or until the time
        `until`."""

        async def place() -> None:
            for planned in plan:
                if until is not None and clock() >= until:
                    return
                await self._one(planned, None, recorder)

        async with asyncio.TaskGroup() as group:
            for _ in range(places):
                group.create_task(place())

    async def _open(self, plan: Iterator[Planned], recorder: Recorder) -> None:
        """Send each request at its time, regardless of earlier requests."""
        began_s, outstanding_max = self.measured.began_s, self._settings.outstanding_max
        async with asyncio.TaskGroup() as group:
            for planned in plan:
                assert planned.at_s is not None
                due_s = began_s + planned.at_s
                await _until(due_s)
                if recorder.in_flight < outstanding_max:
                    group.create_task(self._one(planned, due_s, recorder))
                else:
                    refused = Outcome(planned.tenant, planned.tier, planned.model, due_s, clock(), error=TOO_MANY)
                    refused.end_s = refused.sent_s
                    recorder.add(refused)

    async def _one(self, planned: Planned, due_s: float | None, recorder: Recorder) -> None:
        recorder.began()
        try:
            outcome = await self._client.ask(planned, due_s)
        except asyncio.CancelledError:
            recorder.abandon()
            raise
        recorder.ended(outcome)
