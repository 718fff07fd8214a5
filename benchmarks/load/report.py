"""Figures of one run: percentiles, rates, goodput, errors by kind; as a typed report, and as text for people.

Milliseconds and seconds, in the names. It must never know how a request is made.
docs/contributors/load-tool.md has the schema.
"""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from benchmarks.load.measure import Outcome, Recorder
from benchmarks.load.run import Measured
from benchmarks.load.settings import Settings

SCHEMA = 1
LAG_P99_MS_MAX = 5.0  # above these two the tool measures itself
CPU_SHARE_MAX = 0.85
LINES_MAX = 12  # of one table in the text; the JSON has all
NOT_SAID = "(none)"


class Percentiles(msgspec.Struct, frozen=True):
    """Of `count` samples, interpolated linearly as numpy does; all null without samples. Milliseconds."""

    count: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None

    @classmethod
    def of_seconds(cls, samples: Sequence[float] | np.ndarray[Any, Any]) -> Percentiles:
        if len(samples) == 0:
            return cls(0)
        values = np.asarray(samples, dtype=np.float64) * 1000
        marks = np.percentile(values, [50, 90, 95, 99, 100])
        return cls(len(values), *(round(float(value), 4) for value in (values.mean(), *marks)))


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one tier, tenant or model. Latencies and tokens are of succeeded requests."""

    requests: int
    succeeded: int
    failed: int
    ttft_ms: Percentiles
    inter_token_ms: Percentiles
    time_per_output_token_ms: Percentiles
    e2e_ms: Percentiles
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    requests_per_s: float
    output_tokens_per_s: float


class Goodput(msgspec.Struct, frozen=True):
    """Requests that succeeded within the targets: a second, and as a share of all requests, including failed ones."""

    slo_ttft_ms: float | None
    slo_itl_ms: float | None
    requests_per_s: float
    share: float


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """How well the tool kept up. With `is_suspect` the figures may be the tool's rather than the server's."""

    cpu_s: float
    cpu_share: float
    loop_lag_ms: Percentiles
    send_lateness_ms: Percentiles
    events: int
    events_per_s: float
    in_flight_max: int
    inter_token_dropped: int
    is_suspect: bool


class Report(msgspec.Struct, frozen=True, kw_only=True):
    schema: int
    started_at: str
    interrupted: bool
    settings: dict[str, Any]
    machine: dict[str, Any]
    window_s: float
    wall_s: float
    abandoned: int
    usage_missing: int
    total: Group
    goodput: Goodput | None
    errors: dict[str, int]
    tiers: dict[str, Group]
    models: dict[str, Group]
    tenants: dict[str, Group]
    tool: Tool


def make_report(settings: Settings, measured: Measured, started_at: datetime.datetime) -> Report:
    recorder = measured.recorder
    outcomes = recorder.outcomes
    window = _Window(measured.began_s + measured.window_s, measured.window_s)

    def grouped(name: Callable[[Outcome], str]) -> dict[str, Group]:
        parts: dict[str, list[Outcome]] = {}
        for outcome in outcomes:
            parts.setdefault(name(outcome), []).append(outcome)
        return {key: window.group(parts[key]) for key in sorted(parts, key=lambda key: (-len(parts[key]), key))}

    return Report(
        schema=SCHEMA,
        started_at=started_at.isoformat(timespec="seconds"),
        interrupted=measured.interrupted,
        settings=settings.described(),
        machine={"system": platform.platform(), "cpus": os.cpu_count(), "python": platform.python_version()},
        window_s=round(measured.window_s, 4),
        wall_s=round(measured.wall_s, 4),
        abandoned=recorder.abandoned,
        usage_missing=sum(1 for outcome in outcomes if outcome.error is None and not outcome.usage),
        total=window.group(outcomes),
        goodput=window.goodput(settings, outcomes),
        errors=dict(recorder.errors.most_common()),
        tiers=grouped(lambda outcome: outcome.tier or NOT_SAID),
        models=grouped(lambda outcome: outcome.model),
        tenants=grouped(lambda outcome: outcome.tenant),
        tool=_tool(measured, recorder),
    )


class _Window:
    """Rates count requests that ended before `until_s` on the outcomes' clock, over `seconds`."""

    def __init__(self, until_s: float, seconds: float) -> None:
        self._until_s, self._seconds = until_s, seconds

    def _ended(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        return [outcome for outcome in outcomes if outcome.end_s <= self._until_s]

    def _rate(self, count: int) -> float:
        return round(count / self._seconds, 4) if self._seconds else 0.0

    def group(self, outcomes: list[Outcome]) -> Group:
        good = [outcome for outcome in outcomes if outcome.error is None]
        ended = self._ended(good)
        gaps = [np.frombuffer(outcome.gaps, dtype=np.float32) for outcome in good if outcome.gaps]
        return Group(
            requests=len(outcomes),
            succeeded=len(good),
            failed=len(outcomes) - len(good),
            ttft_ms=Percentiles.of_seconds([outcome.ttft_s for outcome in good]),
            inter_token_ms=Percentiles.of_seconds(np.concatenate(gaps) if gaps else []),
            time_per_output_token_ms=Percentiles.of_seconds([o.tpot_s for o in good if o.completion_tokens > 1]),
            e2e_ms=Percentiles.of_seconds([outcome.e2e_s for outcome in good]),
            prompt_tokens=sum(outcome.prompt_tokens for outcome in good),
            cached_tokens=sum(outcome.cached_tokens for outcome in good),
            completion_tokens=sum(outcome.completion_tokens for outcome in good),
            requests_per_s=self._rate(len(ended)),
            output_tokens_per_s=self._rate(sum(outcome.completion_tokens for outcome in ended)),
        )

    def goodput(self, settings: Settings, outcomes: list[Outcome]) -> Goodput | None:
        ttft_ms, itl_ms = settings.slo_ttft_ms, settings.slo_itl_ms
        if ttft_ms is None and itl_ms is None:
            return None
        good = [
            outcome
            for outcome in outcomes
            if outcome.error is None
            and (ttft_ms is None or outcome.ttft_s * 1000 <= ttft_ms)
            and (itl_ms is None or outcome.tpot_s * 1000 <= itl_ms)
        ]
        share = round(len(good) / len(outcomes), 4) if outcomes else 0.0
        return Goodput(ttft_ms, itl_ms, self._rate(len(self._ended(good))), share)


def _tool(measured: Measured, recorder: Recorder) -> Tool:
    lag = Percentiles.of_seconds(measured.lag.lags)
    share = measured.lag.cpu_s / measured.lag.wall_s if measured.lag.wall_s else 0.0
    return Tool(
        cpu_s=round(measured.lag.cpu_s, 4),
        cpu_share=round(share, 4),
        loop_lag_ms=lag,
        send_lateness_ms=Percentiles.of_seconds([outcome.sent_s - outcome.due_s for outcome in recorder.outcomes]),
        events=measured.events,
        events_per_s=round(measured.events / measured.wall_s, 2) if measured.wall_s else 0.0,
        in_flight_max=recorder.in_flight_max,
        inter_token_dropped=recorder.gaps_dropped,
        is_suspect=share > CPU_SHARE_MAX or (lag.p99 or 0.0) > LAG_P99_MS_MAX,
    )


# ---- as text


def text(report: Report) -> str:
    """The report as text, without a line break at its end."""
    total, tool = report.total, report.tool
    lines = [
        f"{total.requests} requests in {report.wall_s:.1f} s: {total.succeeded} answered, {total.failed} failed"
        + (f", {report.abandoned} abandoned when it was interrupted" if report.abandoned else "")
        + f"; rates over {report.window_s:.1f} s",
        f"{total.requests_per_s:,.1f} requests/s, {total.output_tokens_per_s:,.1f} output tokens/s; "
        f"{total.prompt_tokens:,} prompt tokens ({total.cached_tokens:,} cached), {total.completion_tokens:,} output",
    ]
    if (goodput := report.goodput) is not None:
        targets = [
            f"{name} <= {target:g} ms"
            for name, target in (("TTFT", goodput.slo_ttft_ms), ("mean inter-token", goodput.slo_itl_ms))
            if target is not None
        ]
        lines.append(
            f"goodput {goodput.requests_per_s:,.1f} requests/s, {goodput.share:.1%} within {', '.join(targets)}"
        )
    lines += ["", *_latencies(total)]
    for title, groups in (("tier", report.tiers), ("model", report.models), ("tenant", report.tenants)):
        if len(groups) > 1:
            lines += ["", *_groups(title, groups)]
    if report.errors:
        lines += ["", "errors", *(f"  {count:>8,}  {kind}" for kind, count in report.errors.items())]
    lines += ["", _kept_up(tool)]
    if report.usage_missing:
        lines.append(f"{report.usage_missing} answers had no usage: their output tokens are counted events")
    return "\n".join(lines)


def _latencies(group: Group) -> list[str]:
    rows = (
        ("TTFT", group.ttft_ms),
        ("inter-token", group.inter_token_ms),
        ("per output token", group.time_per_output_token_ms),
        ("end to end", group.e2e_ms),
    )
    head = f"{'ms':<18}" + "".join(f"{name:>11}" for name in ("mean", "p50", "p90", "p95", "p99", "max"))
    return [head, *(f"{name:<18}" + "".join(f"{_ms(value):>11}" for value in _marks(p)) for name, p in rows)]


def _groups(title: str, groups: dict[str, Group]) -> list[str]:
    columns = ("requests", "failed", "tokens/s", "TTFT p50", "p99", "inter-tok p50", "p99", "e2e p99")
    width = max(18, *(len(name) + 2 for name in list(groups)[:LINES_MAX]))
    lines = [title.ljust(width) + "".join(f"{name:>{max(10, len(name) + 2)}}" for name in columns)]
    for name, group in list(groups.items())[:LINES_MAX]:
        cells = (
            f"{group.requests:,}",
            f"{group.failed:,}",
            f"{group.output_tokens_per_s:,.1f}",
            *map(_ms, (group.ttft_ms.p50, group.ttft_ms.p99, group.inter_token_ms.p50, group.inter_token_ms.p99)),
            _ms(group.e2e_ms.p99),
        )
        row = (f"{cell:>{max(10, len(column) + 2)}}" for cell, column in zip(cells, columns, strict=True))
        lines.append(name.ljust(width) + "".join(row))
    if len(groups) > LINES_MAX:
        lines.append(f"… and {len(groups) - LINES_MAX} more; --json has them all")
    return lines


def _kept_up(tool: Tool) -> str:
    line = (
        f"the tool: {tool.cpu_share:.0%} of a core, loop lag p99 {_ms(tool.loop_lag_ms.p99)} ms, "
        f"sent late p99 {_ms(tool.send_lateness_ms.p99)} ms, {tool.events_per_s:,.0f} events/s, "
        f"{tool.in_flight_max} in flight at most"
    )
    if tool.is_suspect:
        line += (
            "\nTHE TOOL ITSELF WAS SHORT OF CPU: its own delays are in these figures. Give it a core, or ask for less."
        )
    return line


def _marks(p: Percentiles) -> tuple[float | None, ...]:
    return (p.mean, p.p50, p.p90, p.p95, p.p99, p.max)


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
