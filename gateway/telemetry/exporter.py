"""Traces on their way to the collector: a bounded queue, and one export at a time. Requests never wait for it.

Everything runs in the event loop, in turns of a fraction of a millisecond: a thread that encodes would hold the
interpreter's lock for 5 ms at a time. While the collector is unavailable, the queue fills, and further traces are
dropped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque

from gateway.log import ThrottledWarning
from gateway.metrics import Metrics
from gateway.telemetry.collector import Collector, ExportFailed
from gateway.telemetry.otlp import PartialSuccess, export_request
from gateway.telemetry.spans import TracedRequest, spans_of

QUEUE_MAX = 4096  # requests
BATCH_MAX = 256  # requests of one export
TURN_REQUESTS = 4  # encoded in one turn of the event loop
EXPORT_S = 1.0  # a trace waits at most this long for others
ATTEMPTS_MAX = 8  # of one export
RETRY_S, RETRY_S_MAX = 1.0, 30.0  # the wait before the second attempt; it doubles up to the maximum
CLOSE_S_MAX = 1.0  # by which the exporter delays the stop of the process
WARN_S = 60.0

_log = logging.getLogger(__name__)


class TraceExporter:
    """`push` requests, `run` it as a task, and `close` it after that."""

    def __init__(self, collector: Collector, head: tuple[bytes, bytes], metrics: Metrics) -> None:
        """`head`: of `otlp.envelope`."""
        self._collector = collector
        self._head = head
        self._metrics = metrics
        self._queue: deque[TracedRequest] = deque()
        self._batch: list[bytes] = []  # spans of the export in hand, so that `close` can send it again
        self._batch_requests = 0
        self._full = asyncio.Event()
        self._warning = ThrottledWarning(_log, "traces.undelivered", every_s=WARN_S)
        self._reason = ""  # why the last attempt failed; "": it did not
        self._failing_since = 0.0  # time.monotonic
        self._dropped = 0  # since the collector failed

    @property
    def waiting(self) -> int:
        """Requests whose trace is not exported yet."""
        return len(self._queue) + self._batch_requests

    def problem(self) -> str | None:
        """Why traces do not reach the collector, for people; None: they do."""
        if not self._reason:
            return None
        for_s = time.monotonic() - self._failing_since
        return (
            f"the collector {self._collector.endpoint} has accepted no traces for {for_s:.0f} s: {self._reason}; "
            f"{self.waiting} wait, {self._dropped} were dropped"
        )

    def push(self, request: TracedRequest) -> None:
        """Returns at once. A trace for which the queue has no space is dropped and counted."""
        if len(self._queue) >= QUEUE_MAX:
            self._drop("queue_full", 1)
            return
        self._queue.append(request)
        if len(self._queue) >= BATCH_MAX:
            self._full.set()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            try:
                async with asyncio.timeout(EXPORT_S):
                    await self._full.wait()
            except TimeoutError:
                pass
            self._full.clear()
            while await self._encode_batch():
                await self._deliver_batch()

    async def close(self) -> None:
        """Deliver what waits, for at most CLOSE_S_MAX; not at all while the collector fails. The rest is dropped. Call
        it when `run` has ended."""
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                while not self._reason and await self._encode_batch():
                    await self._send_batch()
        except TimeoutError:
            self._note_failed("it was too slow for the stop of this process")
        if left := self.waiting:
            self._drop("stopping", left)
            _log.warning("traces.dropped", extra={"fields": {"traces": left, "reason": self._reason}})
            self._queue.clear()

    async def _encode_batch(self) -> bool:
        """Encode the next requests, unless a batch is pending. Returns whether a batch is pending now."""
        while self._queue and self._batch_requests < BATCH_MAX:
            try:
                self._batch += spans_of(self._queue.popleft())
            except Exception:  # noqa: BLE001 - counted and logged: a trace must not end the gateway
                self._metrics.errors.inc()
                self._drop("failed", 1)
                _log.exception("traces.failed")
                continue
            self._batch_requests += 1
            if not self._batch_requests % TURN_REQUESTS:
                await asyncio.sleep(0)
        return bool(self._batch_requests)

    async def _deliver_batch(self) -> None:
        """Send the batch until it is delivered or dropped."""
        delay_s = RETRY_S
        for _ in range(ATTEMPTS_MAX - 1):
            if await self._send_batch():
                return
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_S_MAX)
        if not await self._send_batch():
            self._end_batch("undelivered")

    async def _send_batch(self) -> bool:
        """One attempt. Returns whether it was the last: the batch is delivered, or the collector refuses it."""
        try:
            answer = await self._collector.send(export_request(self._head, self._batch))
        except ExportFailed as failed:
            if not failed.retryable:
                self._end_batch("refused")
            self._note_failed(str(failed))
            return not failed.retryable
        self._metrics.traces_exported.inc(self._batch_requests)
        self._end_batch(None)
        self._note_delivered(answer)
        return True

    def _end_batch(self, dropped: str | None) -> None:
        """The batch is delivered, or `dropped` for this reason."""
        if dropped is not None:
            self._drop(dropped, self._batch_requests)
        self._batch, self._batch_requests = [], 0

    def _drop(self, reason: str, traces: int) -> None:
        self._dropped += traces
        self._metrics.traces_dropped.labels(reason).inc(traces)

    def _note_failed(self, reason: str) -> None:
        if not self._reason:
            self._failing_since = time.monotonic()
        self._reason = reason
        self._warning.warn(
            endpoint=self._collector.endpoint, reason=reason, waiting=self.waiting, dropped=self._dropped
        )

    def _note_delivered(self, answer: PartialSuccess) -> None:
        if self._reason:
            fields = {"endpoint": self._collector.endpoint, "dropped": self._dropped}
            _log.info("traces.delivered", extra={"fields": fields})
            self._dropped = 0
        self._reason = ""
        if answer.rejected_spans:
            self._metrics.spans_rejected.inc(answer.rejected_spans)
            fields = {"endpoint": self._collector.endpoint, "spans": answer.rejected_spans, "reason": answer.message}
            _log.warning("traces.rejected", extra={"fields": fields})
