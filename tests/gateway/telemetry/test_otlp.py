"""The bytes of spans, decoded by OpenTelemetry's own classes; and the answers of collectors."""

from __future__ import annotations

import random
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, SpanFlags, Status

from gateway.telemetry import otlp
from gateway.telemetry.otlp import SPAN_ATTRIBUTE, AnswerMalformed, PartialSuccess
from support.gateway.otlp_receiver import attributes_of, read_attributes

TRACE, SPAN, PARENT = bytes(range(16)), bytes(range(1, 9)), bytes(range(2, 10))
VALUES: dict[str, Any] = {
    "text": "grün ✓",
    "empty": "",
    "surrogate": "a\ud800b",
    "long": "x" * 70_000,
    "yes": True,
    "no": False,
    "zero": 0,
    "big": 2**63 - 1,
    "negative": -5,
    "float": 0.125,
    "none": [],
    "texts": ["a", ""],
}


def decoded(*spans: bytes, resource: dict[str, str] | None = None) -> Any:
    head = otlp.envelope(resource or {}, "laneway", "1.0")
    [found] = ExportTraceServiceRequest.FromString(otlp.export_request(head, spans)).resource_spans
    return found


def test_every_kind_of_value_and_field_is_read_as_it_was_meant() -> None:
    attributes = b"".join([otlp.attribute(SPAN_ATTRIBUTE, name, value) for name, value in VALUES.items()])
    encoded = otlp.span(
        "chat m", otlp.CLIENT, TRACE, SPAN, PARENT, 1_700_000_000_000_000_000, 1_700_000_000_000_000_500, attributes,
        remote_parent=True, failed=True,
    )  # fmt: skip
    found = decoded(encoded, resource={"service.name": "laneway"})
    assert read_attributes(found.resource.attributes) == {"service.name": "laneway"}
    [scope] = found.scope_spans
    assert (scope.scope.name, scope.scope.version) == ("laneway", "1.0")
    [span] = scope.spans
    assert (span.name, span.kind, span.status.code) == ("chat m", Span.SPAN_KIND_CLIENT, Status.STATUS_CODE_ERROR)
    assert (span.trace_id, span.span_id, span.parent_span_id) == (TRACE, SPAN, PARENT)
    assert span.end_time_unix_nano - span.start_time_unix_nano == 500
    known, remote = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK, SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK
    assert span.flags == known | remote | 1
    assert attributes_of(span) == VALUES | {"surrogate": "a?b"}


def test_a_root_has_no_parent_and_no_error() -> None:
    root, back = decoded(
        otlp.span("a", otlp.SERVER, TRACE, SPAN, None, 5, 9), otlp.span("b", otlp.INTERNAL, TRACE, SPAN, SPAN, 9, 5)
    ).scope_spans[0].spans  # fmt: skip
    assert (root.parent_span_id, root.status.code, root.kind) == (b"", Status.STATUS_CODE_UNSET, Span.SPAN_KIND_SERVER)
    assert root.flags == SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK | 1
    assert (back.start_time_unix_nano, back.end_time_unix_nano) == (9, 9), "a span does not end before it begins"


def test_seeded_values_survive() -> None:
    draw = random.Random(26)
    for _ in range(200):
        values: dict[str, Any] = {
            f"a{index}": draw.choice(
                [draw.getrandbits(63), -draw.getrandbits(63), draw.random(), "é" * draw.randrange(300)]
            )
            for index in range(draw.randrange(20))
        }
        attributes = b"".join([otlp.attribute(SPAN_ATTRIBUTE, name, value) for name, value in values.items()])
        [span] = decoded(otlp.span("s", 1, TRACE, SPAN, None, 1, 2, attributes)).scope_spans[0].spans
        assert attributes_of(span) == values


def test_answers_of_collectors() -> None:
    assert otlp.partial_success(b"") == PartialSuccess()
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans, answer.partial_success.error_message = 300, "zu alt"
    assert otlp.partial_success(answer.SerializeToString()) == PartialSuccess(300, "zu alt")


@pytest.mark.parametrize("body", [b"\x0a\x05a", b"\xff" * 11, b"\x0b", b"<html>"])
def test_other_answers_are_refused(body: bytes) -> None:
    with pytest.raises(AnswerMalformed):
        otlp.partial_success(body)
