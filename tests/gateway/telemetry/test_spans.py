"""Spans of requests that ended in unusual ways."""

from __future__ import annotations

import time
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from gateway.log import RequestLine, RequestRecord, TextTimes
from gateway.telemetry import spans
from gateway.telemetry.otlp import envelope, export_request
from gateway.telemetry.spans import TracedRequest, spans_of
from support.gateway.otlp_receiver import attributes_of

TRACE = bytes(range(16))
ONE = TextTimes(0.1, 1.0, queue_s=0.2, ttft_s=0.5, epochs=("epo_1",), finish_reason="stop")


def made(*texts: TextTimes, **fields: Any) -> list[Span]:
    record = RequestRecord(request_id="req_1", method="POST", route="/v1/chat/completions", model="m", **fields)
    record.total_s, record.status = 1.5, fields.get("status", 200)
    line = RequestLine(record)
    line.times.operation, line.times.texts = "chat", texts
    encoded = spans_of(TracedRequest(line, TRACE, None, time.time_ns()))
    request = ExportTraceServiceRequest.FromString(export_request(envelope({}, "laneway", "1"), encoded))
    return list(request.resource_spans[0].scope_spans[0].spans)


def seconds(root: Span, span: Span) -> tuple[float, float]:
    """Beginning and end of `span`, from the beginning of `root`."""
    began, ended = span.start_time_unix_nano, span.end_time_unix_nano
    return (began - root.start_time_unix_nano) / 1e9, (ended - root.start_time_unix_nano) / 1e9


def test_phases_are_placed_by_the_engines_own_times() -> None:
    root, generation, queue, prefill, decode = made(ONE)
    assert seconds(root, root) == (0.0, pytest.approx(1.5))
    assert seconds(root, generation) == pytest.approx((0.1, 1.0))
    assert seconds(root, queue) == pytest.approx((0.1, 0.3))
    assert seconds(root, prefill) == pytest.approx((0.3, 0.6))
    assert seconds(root, decode) == pytest.approx((0.6, 1.0))


def test_an_engines_clock_never_puts_a_phase_outside_its_text() -> None:
    late = TextTimes(0.1, 0.2, queue_s=5.0, ttft_s=0.001, epochs=("epo_1",))
    root, generation, *phases = made(late)
    for span in phases:
        began, ended = seconds(root, span)
        assert seconds(root, generation)[0] <= began <= ended <= seconds(root, generation)[1] + 1e-9


def test_a_text_of_several_engines_has_no_phases() -> None:
    moved = TextTimes(0.1, 1.0, device_s=0.5, epochs=("epo_1", "epo_2"), finish_reason="stop")
    _, generation = made(moved)
    found = attributes_of(generation)
    assert (found["laneway.engine.epochs"], found["laneway.device_s"]) == (["epo_1", "epo_2"], 0.5)


def test_a_text_without_a_token_has_no_decode() -> None:
    waited = TextTimes(0.1, 1.0, queue_s=0.2, epochs=("epo_1",))
    assert [span.name for span in made(waited, ending="client_left")][2:] == ["queue", "prefill"]
    gone = TextTimes(0.1, 1.0, queue_s=0.9, epochs=("epo_1",))
    assert [span.name for span in made(gone, ending="client_left")][2:] == ["queue"]


def test_preemptions_are_counted_where_they_cost() -> None:
    preempted = TextTimes(0.1, 1.0, 0.2, 0.5, preemptions=2, recomputed_tokens=70, epochs=("epo_1",))
    _, generation, _, _, decode = made(preempted)
    for span in (generation, decode):
        found = attributes_of(span)
        assert (found["laneway.preemptions"], found["laneway.recomputed_tokens"]) == (2, 70)


def test_the_spans_of_many_texts_are_bounded() -> None:
    count = spans.TEXTS_MAX + 50
    _, generation, *phases = made(*[ONE] * count)
    assert len(phases) == 3 * spans.TEXTS_MAX
    found = attributes_of(generation)
    assert (found["laneway.texts"], len(found["gen_ai.response.finish_reasons"])) == (count, spans.TEXTS_MAX)


@pytest.mark.parametrize(
    ("fields", "failed"),
    [
        ({"status": 200}, False),
        ({"status": 429, "code": "rate_limit_exceeded"}, False),
        ({"status": 499, "ending": "client_left"}, False),
        ({"status": 503, "code": "engine_unavailable"}, True),
        ({"status": 200, "code": "engine_unavailable", "ending": "engine_lost", "stream": True}, True),
    ],
)
def test_only_the_servers_failures_are_errors(fields: dict[str, Any], failed: bool) -> None:
    root, generation, *_ = made(ONE, **fields)
    expected = Status.STATUS_CODE_ERROR if failed else Status.STATUS_CODE_UNSET
    assert root.status.code == generation.status.code == expected
    assert attributes_of(root).get("error.type") == fields.get("code")
