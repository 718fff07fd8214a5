"""The export of traces to collectors that work, refuse, hang, drip or are not there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway.log import RequestLine, RequestRecord
from gateway.metrics import Metrics
from gateway.telemetry import exporter as exporters
from gateway.telemetry.collector import Collector, read_headers
from gateway.telemetry.exporter import TraceExporter
from gateway.telemetry.otlp import envelope
from gateway.telemetry.spans import TracedRequest
from support.gateway.otlp_receiver import Behaviour, OtlpReceiver
from support.ports import free_port
from support.waiting import eventually_async

HEAD = envelope({"service.name": "laneway"}, "laneway", "test")
TIMEOUT_S = 0.2


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    made = OtlpReceiver()
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporters, "EXPORT_S", 0.01)
    monkeypatch.setattr(exporters, "RETRY_S", 0.01)
    monkeypatch.setattr(exporters, "RETRY_S_MAX", 0.02)


def finished(number: int) -> TracedRequest:
    line = RequestLine(RequestRecord(request_id=f"req_{number}", method="POST", route="/v1/messages", status=200))
    line.record.total_s = 0.5
    return TracedRequest(line, number.to_bytes(16, "big"), None, time.time_ns())


@contextlib.asynccontextmanager
async def running(exporter: TraceExporter) -> AsyncIterator[None]:
    task = asyncio.create_task(exporter.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def make(url: str, headers_file: str = "", timeout_s: float = TIMEOUT_S) -> tuple[TraceExporter, Metrics]:
    metrics = Metrics()
    return TraceExporter(Collector(url, headers_file, timeout_s), HEAD, metrics), metrics


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(name, labels) or 0.0


def dropped(metrics: Metrics) -> dict[str, float]:
    return {
        sample.labels["reason"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "laneway_traces_dropped_total"
    }


async def test_every_trace_arrives_once(receiver: OtlpReceiver) -> None:
    exporter, metrics = make(receiver.url, timeout_s=30)
    count = exporters.BATCH_MAX + 44
    async with running(exporter):
        for number in range(1, count + 1):
            exporter.push(finished(number))
        await eventually_async(lambda: not exporter.waiting)
    assert {int(trace, 16) for trace in receiver.traces()} == set(range(1, count + 1))
    assert len(receiver.spans()) == count
    assert set(receiver.paths) == {"/v1/traces"}
    assert (value(metrics, "laneway_traces_exported_total"), dropped(metrics)) == (count, {})
    assert exporter.problem() is None


async def test_headers_of_a_file_that_changes(receiver: OtlpReceiver, tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("# of the vendor\n\nX-Team: ops\nAuthorization: Bearer one\n")
    exporter, _ = make(f"{receiver.url}/otlp/v1/traces", str(file), timeout_s=30)
    async with running(exporter):
        exporter.push(finished(1))
        await eventually_async(lambda: len(receiver.bodies) == 1)
        file.write_text("Authorization: Bearer two\n")
        exporter.push(finished(2))
        await eventually_async(lambda: len(receiver.bodies) == 2)
    assert [head["authorization"] for head in receiver.heads] == ["Bearer one", "Bearer two"]
    assert receiver.heads[0]["x-team"] == "ops"
    assert receiver.paths == ["/otlp/v1/traces"] * 2


async def test_a_file_of_headers_that_cannot_be_used_is_named_and_not_quoted(
    receiver: OtlpReceiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "headers"
    exporter, _ = make(receiver.url, str(file))
    async with running(exporter):
        exporter.push(finished(1))
        await eventually_async(lambda: "No such file" in (exporter.problem() or ""))
        file.write_text("the-secret-without-a-name")
        await eventually_async(lambda: 'line 1 is not "Name: value"' in (exporter.problem() or ""))
        assert str(file) in str(exporter.problem())
        file.write_text("Authorization: Bearer good")
        await eventually_async(lambda: len(receiver.bodies) == 1)
        await eventually_async(lambda: exporter.problem() is None)
    assert "the-secret" not in caplog.text
    file.write_text("x" * 20_000)
    with pytest.raises(ValueError, match="over the limit"):
        read_headers(file)


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("hang", "it did not answer within 0.2 s"),
        ("drip", "it did not answer within 0.2 s"),
        ("busy", "it answered 503"),
    ],
)
async def test_what_a_collector_does_not_take_waits_until_it_does(
    receiver: OtlpReceiver, behaviour: Behaviour, reason: str
) -> None:
    receiver.behaviour = behaviour
    exporter, metrics = make(receiver.url)
    async with running(exporter):
        exporter.push(finished(1))
        await eventually_async(lambda: reason in (exporter.problem() or ""))
        exporter.push(finished(2))
        assert receiver.url in str(exporter.problem())
        receiver.behaviour = "accept"
        await eventually_async(lambda: len(receiver.traces()) == 2)
        await eventually_async(lambda: exporter.problem() is None)
    assert dropped(metrics) == {}


@pytest.mark.parametrize(
    ("behaviour", "reason"), [("refuse", "it answered 400"), ("nonsense", "its first line is no status line")]
)
async def test_what_a_collector_refuses_is_dropped_at_once(
    receiver: OtlpReceiver, behaviour: Behaviour, reason: str
) -> None:
    receiver.behaviour = behaviour
    exporter, metrics = make(receiver.url, timeout_s=30)
    async with running(exporter):
        exporter.push(finished(1))
        await eventually_async(lambda: dropped(metrics) == {"refused": 1})
        await eventually_async(lambda: reason in (exporter.problem() or ""))
        assert "1 were dropped" in str(exporter.problem())


async def test_nobody_listens_then_somebody_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporters, "ATTEMPTS_MAX", 3)
    port = free_port()
    exporter, metrics = make(f"http://127.0.0.1:{port}")
    async with running(exporter):
        exporter.push(finished(1))
        await eventually_async(lambda: dropped(metrics) == {"undelivered": 1})
        assert "the connection failed: Connection refused" in str(exporter.problem())
        receiver = OtlpReceiver(port)
        try:
            exporter.push(finished(2))
            await eventually_async(lambda: exporter.problem() is None)
            assert [int(trace, 16) for trace in receiver.traces()] == [2]
        finally:
            receiver.stop()


async def test_a_full_queue_drops_the_newest_and_counts_them(
    receiver: OtlpReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.behaviour = "hang"
    exporter, metrics = make(receiver.url)
    for number in range(1, exporters.QUEUE_MAX + 8):
        exporter.push(finished(number))
    assert (exporter.waiting, dropped(metrics)) == (exporters.QUEUE_MAX, {"queue_full": 7})
    async with running(exporter):
        await eventually_async(lambda: exporter.problem() is not None)
    assert "7 were dropped" in str(exporter.problem())
    [line] = [record for record in caplog.records if record.message == "traces.undelivered"]
    assert line.fields == {  # type: ignore[attr-defined]
        "endpoint": receiver.url, "reason": "it did not answer within 0.2 s", "waiting": exporters.QUEUE_MAX,
        "dropped": 7, "times": 1,
    }  # fmt: skip


async def test_a_stop_delivers_what_waits(receiver: OtlpReceiver) -> None:
    exporter, metrics = make(receiver.url, timeout_s=30)
    for number in range(1, 301):
        exporter.push(finished(number))
    await exporter.close()
    assert (len(receiver.traces()), dropped(metrics)) == (300, {})


@pytest.mark.parametrize("behaviour", ["hang", "drip"])
async def test_a_stop_has_a_bound(
    receiver: OtlpReceiver, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporters, "CLOSE_S_MAX", 0.1)
    receiver.behaviour = behaviour
    exporter, metrics = make(receiver.url, timeout_s=600)
    exporter.push(finished(1))
    async with asyncio.timeout(30):
        await exporter.close()
    assert dropped(metrics) == {"stopping": 1}


async def test_a_stop_does_not_try_a_collector_that_fails() -> None:
    exporter, metrics = make(f"http://127.0.0.1:{free_port()}")
    async with running(exporter):
        exporter.push(finished(1))
        await eventually_async(lambda: exporter.problem() is not None)
    exporter.push(finished(2))
    await exporter.close()
    assert dropped(metrics) == {"stopping": 2}


async def test_rejected_spans_are_counted(receiver: OtlpReceiver, caplog: pytest.LogCaptureFixture) -> None:
    receiver.behaviour = "partial"
    exporter, metrics = make(receiver.url, timeout_s=30)
    async with running(exporter):
        exporter.push(finished(1))
        await eventually_async(lambda: value(metrics, "laneway_trace_spans_rejected_total") == 1)
    [line] = [record for record in caplog.records if record.message == "traces.rejected"]
    assert line.fields["reason"] == "too old"  # type: ignore[attr-defined]


async def test_a_trace_that_cannot_be_encoded_is_dropped_alone(receiver: OtlpReceiver) -> None:
    exporter, metrics = make(receiver.url, timeout_s=30)
    broken = finished(1)
    broken.line.record.total_s = float("inf")
    async with running(exporter):
        exporter.push(broken)
        exporter.push(finished(2))
        await eventually_async(lambda: len(receiver.traces()) == 1)
    assert dropped(metrics) == {"failed": 1}
    assert value(metrics, "laneway_internal_errors_total") == 1
