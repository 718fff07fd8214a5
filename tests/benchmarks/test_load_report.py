"""From what was seen of requests to figures: percentiles, windows, goodput, groups; and how a stream is read."""

from __future__ import annotations

import datetime
import itertools
from array import array
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load import measure, report
from benchmarks.load.client import LINE_BYTES_MAX, BadStream, EventReader
from benchmarks.load.measure import LoopLag, Outcome, Recorder
from benchmarks.load.report import Goodput, Group, Percentiles, Report, Tool, make_report
from benchmarks.load.run import Measured
from benchmarks.load.settings import Settings, Tenant
from support.paths import REPO

DOCUMENT = REPO / "docs" / "contributors" / "load-tool.md"
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def outcome(due: float, ttft: float = 0.1, gaps: tuple[float, ...] = (0.01, 0.03), **fields: Any) -> Outcome:
    first = due + ttft
    made = Outcome("acme", "priority", "m", due, due, first, first + sum(gaps), array("f", gaps), usage=True)
    made.completion_tokens = len(gaps) + 1
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def reported(outcomes: list[Outcome], window_s: float = 10.0, **settings: Any) -> Report:
    recorder = Recorder()
    for one in outcomes:
        recorder.add(one)
    made = Settings(base_url="http://127.0.0.1:1/v1", tenants=(Tenant("acme", "k"),), rate=1.0, requests=1, **settings)
    return make_report(made, Measured(recorder, LoopLag(), 0.0, window_s, window_s + 1), NOW)


def test_percentiles_are_numpys() -> None:
    samples = np.random.default_rng(1).lognormal(size=1001)
    found = Percentiles.of_seconds(list(samples))
    for mark in (50, 90, 95, 99):
        assert getattr(found, f"p{mark}") == pytest.approx(np.percentile(samples, mark) * 1000, abs=1e-4)
    assert (found.count, found.max) == (1001, pytest.approx(samples.max() * 1000, abs=1e-4))


def test_percentiles_of_a_sample_done_by_hand() -> None:
    found = Percentiles.of_seconds([number / 1000 for number in range(101)])
    assert (found.mean, found.p50, found.p90, found.p95, found.p99, found.max) == (50, 50, 90, 95, 99, 100)
    assert Percentiles.of_seconds([]) == Percentiles(0)


def test_latency_counts_from_when_a_request_was_due() -> None:
    late = outcome(1.0, ttft=0.5, sent_s=1.4)
    made = reported([late])
    assert made.total.ttft_ms.max == pytest.approx(500)
    assert made.total.e2e_ms.max == pytest.approx(540)
    assert made.tool.send_lateness_ms.max == pytest.approx(400)
    assert made.total.inter_token_ms.max == pytest.approx(30, abs=1e-3)
    assert made.total.time_per_output_token_ms.mean == pytest.approx(20)


def test_rates_are_over_the_window_and_latencies_over_all() -> None:
    made = reported([outcome(at) for at in (1.0, 5.0, 9.99)])
    assert made.total.succeeded == made.total.ttft_ms.count == 3
    assert made.total.requests_per_s == pytest.approx(0.2)
    assert made.total.output_tokens_per_s == pytest.approx(0.6)
    assert made.total.completion_tokens == 9


def test_goodput_counts_what_kept_both_targets() -> None:
    outcomes = [
        outcome(1.0),
        outcome(2.0, ttft=0.3),
        outcome(3.0, gaps=(0.2, 0.2)),
        outcome(4.0, error="timeout"),
    ]
    assert reported(outcomes).goodput is None
    assert reported(outcomes, slo_ttft_ms=200.0).goodput == Goodput(200.0, None, 0.2, 0.5)
    assert reported(outcomes, slo_ttft_ms=200.0, slo_itl_ms=50.0).goodput == Goodput(200.0, 50.0, 0.1, 0.25)


def test_groups_and_errors() -> None:
    outcomes = [
        outcome(1.0),
        outcome(1.0, tier="flex", model="adapter", tenant="globex"),
        outcome(1.0, tier="flex", error="timeout"),
        outcome(1.0, tier=None, error="503 full"),
        outcome(1.0, error="timeout"),
    ]
    made = reported(outcomes)
    assert made.errors == {"timeout": 2, "503 full": 1}
    assert {name: (g.requests, g.succeeded, g.failed) for name, g in made.tiers.items()} == {
        "flex": (2, 1, 1),
        "priority": (2, 1, 1),
        "(none)": (1, 0, 1),
    }
    assert list(made.models) == ["m", "adapter"]
    assert made.tenants["globex"].ttft_ms.count == 1
    page = report.text(made)
    assert "2  timeout" in page
    assert "adapter" in page


def test_nothing_measured_is_a_report_too() -> None:
    made = reported([], window_s=0.0, slo_ttft_ms=1.0)
    assert made.total.ttft_ms == Percentiles(0)
    assert "0 requests" in report.text(made)


def test_the_kept_gaps_and_error_kinds_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "GAPS_MAX", 5)
    recorder = Recorder()
    for number in range(3):
        recorder.add(outcome(float(number)))
    assert (recorder.gaps_kept, recorder.gaps_dropped) == (4, 2)
    for number in range(measure.ERROR_KINDS_MAX + 10):
        recorder.add(outcome(1.0, error=f"kind {number}"))
    assert len(recorder.errors) == measure.ERROR_KINDS_MAX + 1
    assert recorder.errors["other"] == 10


def fields_of(struct: Any) -> set[str]:
    names: set[str] = set()
    for field in msgspec.structs.fields(struct):
        names.add(field.name)
        for kind in (field.type, *get_args(field.type)):
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                names |= fields_of(kind)
    return names


def test_the_schema_is_documented_whole() -> None:
    document = DOCUMENT.read_text()
    names = fields_of(Report)
    assert names >= {"p99", "is_suspect", "share"}
    assert [name for name in sorted(names) if f"`{name}`" not in document] == []
    assert all(struct.__doc__ for struct in (Group, Tool, Goodput))


# ---- reading a stream

STREAM = b': hello\n\ndata: {"a": 1}\r\n\r\ndata:{"b": "x"}\n\nevent: ping\nid: 3\ndata: [DONE]\n\n'


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_events_do_not_depend_on_how_the_bytes_were_cut(cuts: list[int]) -> None:
    marks = [0, *sorted(cuts), len(STREAM)]
    reader = EventReader()
    found = [event for start, end in itertools.pairwise(marks) for event in reader.feed(STREAM[start:end])]
    assert found == [b'{"a": 1}', b'{"b": "x"}', b"[DONE]"]


def test_a_line_without_an_end_is_refused() -> None:
    reader = EventReader()
    reader.feed(b"data: " + b"x" * (LINE_BYTES_MAX - 10))
    with pytest.raises(BadStream):
        reader.feed(b"x" * 100)
