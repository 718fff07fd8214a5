"""Which requests are recorded as traces, and under which trace id. `gateway.http.exchange` begins each of them."""

from __future__ import annotations

import functools
import importlib.metadata
import random
import re
import time
from collections.abc import Iterable

from gateway.config.settings import TelemetrySection
from gateway.log import RequestLine
from gateway.metrics import Metrics
from gateway.telemetry import names
from gateway.telemetry.collector import Collector
from gateway.telemetry.exporter import TraceExporter
from gateway.telemetry.otlp import envelope
from gateway.telemetry.spans import TracedRequest
from gateway.telemetry.trace_context import CallerContext, caller_context

NOT_CONFIGURED = "telemetry.endpoint is not set: no traces are exported"
# POST requests of tenants; the admin API has its audit log.
_PATH = re.compile(r"^(?:/t/[^/]+)?/v1/(?!admin(?:/|$)|organization(?:/|$))")
_HALF = 2**64


class Tracing:
    """One per gateway process."""

    def __init__(self, settings: TelemetrySection, gateway_id: str, metrics: Metrics) -> None:
        self._follows_callers = settings.follow_callers
        # As OpenTelemetry's TraceIdRatioBased: services with one ratio record the same traces.
        self._bound = round(settings.sample_ratio * _HALF)
        self.exporter: TraceExporter | None = None
        if settings.endpoint:
            collector = Collector(settings.endpoint, settings.headers_file, settings.timeout_s)
            self.exporter = TraceExporter(collector, _head(gateway_id), metrics)
            metrics.traces_waiting.set_function(lambda: exporter.waiting if (exporter := self.exporter) else 0)

    def begin_trace(self, line: RequestLine, method: str, path: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Decide whether the request is recorded, and put its trace id into the log line."""
        if method != "POST" or _PATH.match(path) is None:
            return
        caller = caller_context(headers)
        if caller is None and self.exporter is None:
            return
        trace_id = random.randbytes(16) if caller is None else caller.trace_id
        exporter = self.exporter if self._is_sampled(trace_id, caller) else None
        if exporter is not None:
            span_id = None if caller is None else caller.span_id
            line.on_end(functools.partial(_push, exporter, line, trace_id, span_id))
        if exporter is not None or caller is not None:
            line.record.trace_id = trace_id.hex()

    def problem(self) -> str | None:
        """See `TraceExporter.problem`."""
        return None if self.exporter is None else self.exporter.problem()

    async def run(self) -> None:
        """Export until cancelled; without an exporter returns at once."""
        if self.exporter is not None:
            await self.exporter.run()

    async def close(self) -> None:
        """See `TraceExporter.close`."""
        if self.exporter is not None:
            await self.exporter.close()

    def _is_sampled(self, trace_id: bytes, caller: CallerContext | None) -> bool:
        if caller is not None and self._follows_callers:
            return caller.sampled
        return int.from_bytes(trace_id[8:], "big") < self._bound


def _push(exporter: TraceExporter, line: RequestLine, trace_id: bytes, parent_id: bytes | None) -> None:
    exporter.push(TracedRequest(line, trace_id, parent_id, time.time_ns()))


def _head(gateway_id: str) -> tuple[bytes, bytes]:
    try:
        version = importlib.metadata.version("laneway")
    except importlib.metadata.PackageNotFoundError:  # a checkout that is not installed
        version = "unknown"
    resource = {
        names.SERVICE_NAME: names.PROVIDER,
        names.SERVICE_VERSION: version,
        names.SERVICE_INSTANCE_ID: gateway_id,
    }
    return envelope(resource, names.PROVIDER, version)
