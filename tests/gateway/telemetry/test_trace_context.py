"""`traceparent` as W3C Trace Context says, and which requests are recorded."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.settings import TelemetrySection
from gateway.log import RequestLine, RequestRecord
from gateway.metrics import Metrics
from gateway.telemetry.trace_context import CallerContext, caller_context
from gateway.telemetry.tracing import Tracing

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{SPAN}-01"
CHAT = "/v1/chat/completions"


def context(*values: str) -> CallerContext | None:
    return caller_context([(b"accept", b"*/*"), *((b"traceparent", value.encode()) for value in values)])


@pytest.mark.parametrize(
    ("value", "sampled"),
    [(VALID, True), (f" {VALID} ", True), (f"00-{TRACE}-{SPAN}-00", False), (f"00-{TRACE}-{SPAN}-fe", False),
     (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be", True), (f"01-{TRACE}-{SPAN}-01", True)],
)  # fmt: skip
def test_a_valid_context(value: str, sampled: bool) -> None:
    assert context(value) == CallerContext(bytes.fromhex(TRACE), bytes.fromhex(SPAN), sampled)


@pytest.mark.parametrize(
    "value",
    ["", "00", VALID.upper(), VALID[:-1], VALID + "0", f"{VALID}-more", f"ff-{TRACE}-{SPAN}-01", f"0-{TRACE}-{SPAN}-01",
     f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE[:-1]}g-{SPAN}-01", f"01-{TRACE}-{SPAN}-01x",
     f"{VALID}\n"[:-1] + "\x00"],
)  # fmt: skip
def test_an_invalid_context_is_none(value: str) -> None:
    assert context(value) is None


def test_several_contexts_are_none() -> None:
    assert context() is None
    assert context(VALID, VALID) is None


def begun(path: str = CHAT, method: str = "POST", caller: str = "", **settings: Any) -> tuple[str | None, int]:
    """The trace id of one request that ends at once, and the number of traces that wait for export."""
    tracing = Tracing(TelemetrySection(**settings), "gw_1", Metrics())
    line = RequestLine(RequestRecord(request_id="req_1", method=method))
    tracing.begin_trace(line, method, path, [(b"traceparent", caller.encode())] if caller else [])
    line.release()
    return line.record.trace_id, 0 if tracing.exporter is None else tracing.exporter.waiting


ENDPOINT = "http://127.0.0.1:4318"
ON = {"endpoint": ENDPOINT}


def test_without_an_endpoint_only_the_callers_trace_id_is_logged() -> None:
    assert begun() == (None, 0)
    assert begun(caller=VALID) == (TRACE, 0)
    assert begun(caller="nonsense") == (None, 0)


def test_each_request_of_a_tenant_is_recorded() -> None:
    made, waiting = begun(**ON)
    assert made is not None
    assert (len(made), waiting) == (32, 1)
    assert begun(caller=VALID, **ON) == (TRACE, 1)
    assert begun("/t/acme/v1/responses", **ON)[1] == 1
    unrecorded = [("/v1/models", "GET"), ("/v1/admin/keys", "POST"), ("/v1/organization/costs", "POST"), ("/", "POST")]
    for path, method in unrecorded:
        assert begun(path, method, **ON) == (None, 0)


def test_the_ratio_decides_or_the_caller_does() -> None:
    assert begun(sample_ratio=0.0, **ON) == (None, 0)
    assert begun(sample_ratio=0.0, caller=VALID, **ON) == (TRACE, 0), "the caller's trace is named, and not recorded"
    assert begun(sample_ratio=0.0, caller=VALID, follow_callers=True, **ON) == (TRACE, 1)
    assert begun(caller=f"00-{TRACE}-{SPAN}-00", follow_callers=True, **ON) == (TRACE, 0)
    assert begun(caller=f"00-{TRACE}-{SPAN}-00", **ON) == (TRACE, 1), "callers do not decide unless they are followed"
    tracing = Tracing(TelemetrySection(sample_ratio=0.25, endpoint=ENDPOINT), "gw_1", Metrics())
    lines = [RequestLine(RequestRecord(request_id="req_1", method="POST")) for _ in range(2000)]
    for line in lines:
        tracing.begin_trace(line, "POST", CHAT, [])
    assert 380 < sum(line.record.trace_id is not None for line in lines) < 620


def test_one_ratio_samples_the_same_traces_everywhere() -> None:
    low, high = f"00-{'f' * 16}{'0' * 15}1-{SPAN}-00", f"00-{'0' * 15}1{'f' * 16}-{SPAN}-00"
    assert begun(sample_ratio=0.5, caller=low, **ON)[1] == 1
    assert begun(sample_ratio=0.5, caller=high, **ON)[1] == 0
