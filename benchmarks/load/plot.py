"""One picture of a run: TTFT over time by tier, and the distributions of TTFT, inter-token and end-to-end times.

It is the only module that loads matplotlib, and it is loaded only for a plot.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np

from benchmarks.load.measure import Outcome
from benchmarks.load.report import NOT_SAID, Report
from benchmarks.load.run import Measured

mpl.use("Agg")
from matplotlib import pyplot
from matplotlib.ticker import LogFormatter, StrMethodFormatter

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS_MAX = 20_000  # of one curve or cloud: further points make no visible difference
MS_MIN = 0.01
TIERS_MAX = 8  # curves; the rest is drawn together


def draw(path: Path, report: Report, measured: Measured) -> None:
    """Write a PNG. Raises OSError."""
    good = [outcome for outcome in measured.recorder.outcomes if outcome.error is None]
    failed = [outcome for outcome in measured.recorder.outcomes if outcome.error is not None]
    tiers = _by_tier(good)
    figure, grid = pyplot.subplots(2, 2, figsize=(12, 8), layout="constrained")
    over_time, ttft, inter_token, e2e = grid.flat
    try:
        for tier, outcomes in tiers.items():
            _cloud(over_time, tier, outcomes, measured.began_s)
            _curve(ttft, tier, [outcome.ttft_s for outcome in outcomes])
            gaps = [np.frombuffer(outcome.gaps, dtype=np.float32) for outcome in outcomes if outcome.gaps]
            _curve(inter_token, tier, np.concatenate(gaps) if gaps else [])
            _curve(e2e, tier, [outcome.e2e_s for outcome in outcomes])
        for outcome in failed[:POINTS_MAX]:
            over_time.axvline(outcome.due_s - measured.began_s, color="tab:red", alpha=0.15, linewidth=1, zorder=0)
        note = f", red: {len(failed)} failed" if failed else ""
        over_time.set(title=f"TTFT over time{note}", xlabel="s after the start, when due", ylabel="ms", yscale="log")
        for axes, title in ((ttft, "TTFT"), (inter_token, "Inter-token"), (e2e, "End to end")):
            axes.set(title=f"{title}: share within", xlabel="ms", xscale="log", ylim=(0, 1.01))
        for axes in grid.flat:
            axes.grid(alpha=0.3)
            for axis in (axes.xaxis, axes.yaxis):
                if axis.get_scale() == "log":  # 60, not 6 × 10¹
                    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
                    axis.set_minor_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(1.5, 0.5)))
            if tiers:
                axes.legend(fontsize="small")
        figure.suptitle(_title(report), fontsize="medium")
        figure.savefig(path, dpi=110, format="png")
    finally:
        pyplot.close(figure)


def _title(report: Report) -> str:
    total = report.total
    return (
        f"{report.settings['base_url']}, {report.started_at}: {total.requests} requests, "
        f"{total.requests_per_s:.1f} requests/s, {total.output_tokens_per_s:.0f} output tokens/s"
        + (f"\n{report.settings['note']}" if report.settings["note"] else "")
    )


def _by_tier(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    parts: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        parts.setdefault(outcome.tier or NOT_SAID, []).append(outcome)
    names = sorted(parts, key=lambda name: -len(parts[name]))
    kept = {name: parts[name] for name in sorted(names[:TIERS_MAX])}
    for name in names[TIERS_MAX:]:
        kept.setdefault("others", []).extend(parts[name])
    return kept


def _cloud(axes: Axes, label: str, outcomes: Sequence[Outcome], began_s: float) -> None:
    step = max(1, len(outcomes) // POINTS_MAX)
    shown = outcomes[::step]
    times = [outcome.due_s - began_s for outcome in shown]
    axes.scatter(times, [outcome.ttft_s * 1000 for outcome in shown], s=8, alpha=0.6, label=label, linewidths=0)


def _curve(axes: Axes, label: str, seconds: Sequence[float] | np.ndarray[Any, Any]) -> None:
    if len(seconds) == 0:
        return
    values = np.sort(np.asarray(seconds, dtype=np.float64)) * 1000
    shares = np.arange(1, len(values) + 1) / len(values)
    step = max(1, len(values) // POINTS_MAX)
    # A logarithmic axis has no 0: two events read at once are drawn as 10 microseconds.
    axes.plot(
        np.maximum(values[::step], MS_MIN), shares[::step], label=f"{label} ({len(values):,})", drawstyle="steps-post"
    )
