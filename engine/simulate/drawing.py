"""Draws a simulation: one self-contained SVG with four panels over the same time.

The same numbers give the same bytes. This module must never compute a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from engine.simulate.measure import Measure
from engine.simulate.report import SimulationReport

WIDTH, PANEL, LEFT, RIGHT, GAP = 960, 150, 64, 28, 44
TITLE_Y, LEGEND_Y, LINE = 24, 44, 17
# Steps between marks on the time axis: seconds, minutes, hours, days.
TIMES_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400, 172_800)
TIME_MARKS_MAX = 9
COLOURS = ("#b3261e", "#1a73e8", "#188038", "#a142f4", "#e37400", "#5f6368", "#007b83", "#b80672")
GREY, LIGHT = "#5f6368", "#e8eaed"
Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Line:
    colour: str
    values: Values  # by bin; None: a gap in the line
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    lines: Sequence[Line]
    logarithmic: bool = False


def draw(measure: Measure, report: SimulationReport, title: str) -> str:
    """The SVG document."""
    legend = [f"{tier.name}: {_verdict(report, rank)}" for rank, tier in enumerate(measure.tiers)]
    return draw_page(title, legend, _panels(measure), len(measure.bins) * measure.bin_s, len(measure.bins))


def draw_page(title: str, legend: Sequence[str], panels: Sequence[Panel], end_s: float, bins: int) -> str:
    """The SVG document of panels over the same time. A line of the legend has the colour of its index."""
    top = LEGEND_Y + len(legend) * LINE + 16
    height = top + len(panels) * (PANEL + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="{TITLE_Y}" font-size="15" font-weight="600">{escape(title)}</text>',
    ]
    for rank, line in enumerate(legend):
        y = LEGEND_Y + rank * LINE
        parts.append(f'<rect x="{LEFT}" y="{y - 9}" width="10" height="10" fill="{colour(rank)}"/>')
        parts.append(f'<text x="{LEFT + 16}" y="{y}">{escape(line)}</text>')
    for index, panel in enumerate(panels):
        parts += _panel(panel, top + index * (PANEL + GAP), end_s, bins)
    return "\n".join([*parts, "</svg>", ""])


def _verdict(report: SimulationReport, rank: int) -> str:
    tier = report.tiers[rank]
    words = {True: "holds", False: "fails", None: "not measured"}
    return f"first token {words[tier.ttft_holds]}, between tokens {words[tier.inter_token_holds]}"


def _panels(measure: Measure) -> list[Panel]:
    bins, width_s = measure.bins, measure.bin_s
    ranks = range(len(measure.tiers))

    def by_tier(value: Callable[[int, int], float | None]) -> list[Line]:
        return [Line(colour(rank), [value(rank, index) for index in range(len(bins))]) for rank in ranks]

    first_ms = _first_tokens(measure)
    waits = by_tier(lambda rank, i: first_ms[rank][i])
    arrived = by_tier(lambda rank, i: bins[i].arrived[rank] / width_s)
    refused = Line(GREY, [sum(one.refused) / width_s or None for one in bins], dashed=True)
    targets = [
        Line(colour(rank), [tier.ttft_base_ms] * len(bins), dashed=True) for rank, tier in enumerate(measure.tiers)
    ]
    return [
        Panel("Requests arriving per second (dashed: refused)", [*arrived, refused]),
        Panel("First token, p95, ms (dashed: the target of a short prompt)", [*waits, *targets], logarithmic=True),
        Panel("Waiting requests", by_tier(lambda rank, i: bins[i].waiting[rank])),
        Panel("Tokens made per second", by_tier(lambda rank, i: bins[i].made[rank] / width_s)),
    ]


def _first_tokens(measure: Measure) -> list[list[float | None]]:
    """p95 by tier, of the requests that arrived in each bin, ms."""
    rank = {tier.name: index for index, tier in enumerate(measure.tiers)}
    found: list[list[list[float]]] = [[[] for _ in measure.bins] for _ in measure.tiers]
    for ending in measure.endings:
        if ending.ttft_s is not None:
            place = int(ending.request.at_s / measure.bin_s)
            found[rank[ending.request.tier]][place].append(1000 * ending.ttft_s)
    return [[float(np.percentile(values, 95)) if values else None for values in of] for of in found]


def _panel(panel: Panel, top: int, end_s: float, bins: int) -> list[str]:
    values = [value for line in panel.lines for value in line.values if value is not None]
    scale, ticks = (_logarithmic if panel.logarithmic else _linear)(values)
    bottom, right = top + PANEL, WIDTH - RIGHT
    parts = [f'<text x="{LEFT}" y="{top - 8}" fill="{GREY}">{escape(panel.title)}</text>']
    for tick in ticks:
        y = bottom - scale(tick) * PANEL
        parts.append(f'<path d="M{LEFT} {y:.1f}H{right}" stroke="{LIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="{GREY}">{tick:,.4g}</text>')
    for tick in _times(end_s):
        x = LEFT + tick / end_s * (right - LEFT)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle" fill="{GREY}">{_clock(tick)}</text>')
    for line in panel.lines:
        points = [
            None if value is None else (LEFT + (i + 0.5) / bins * (right - LEFT), bottom - scale(value) * PANEL)
            for i, value in enumerate(line.values)
        ]
        dash = ' stroke-dasharray="4 3"' if line.dashed else ""
        parts.append(f'<path d="{_path(points)}" fill="none" stroke="{line.colour}" stroke-width="1.5"{dash}/>')
    return parts


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    """An SVG path with gaps at missing points; an isolated point is a short stroke."""
    parts: list[str] = []
    before: tuple[float, float] | None = None
    for point in points:
        if point is not None:
            parts.append(f"{'L' if before else 'M'}{point[0]:.1f} {point[1]:.1f}{'' if before else 'h1'}")
        before = point
    return "".join(parts)


def _linear(values: Sequence[float]) -> tuple[Callable[[float], float], list[float]]:
    top = max((*values, 1.0))
    ticks = _ticks(top, 4)
    highest = max(top, ticks[-1])
    return (lambda value: value / highest), ticks


def _logarithmic(values: Sequence[float]) -> tuple[Callable[[float], float], list[float]]:
    positive = [value for value in values if value > 0] or [1.0]
    low = math.floor(math.log10(min(positive)))
    high = max(low + 1, math.ceil(math.log10(max(positive))))
    ticks = [10.0**exponent for exponent in range(low, high + 1)]
    return (lambda value: (math.log10(max(value, ticks[0])) - low) / (high - low)), ticks


def _ticks(top: float, about: int) -> list[float]:
    """About `about` round numbers from 0 up to `top`."""
    raw = top / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw)
    return [step * i for i in range(int(top / step) + 1)]


def _times(end_s: float) -> list[float]:
    """Marks from 0 up to `end_s`, at most TIME_MARKS_MAX."""
    fitting = (step for step in TIMES_S if end_s / step < TIME_MARKS_MAX)
    step = next(fitting, math.ceil(end_s / TIME_MARKS_MAX / TIMES_S[-1]) * TIMES_S[-1])
    if end_s < TIMES_S[0]:
        return [0.0, end_s]
    return [float(step * i) for i in range(int(end_s / step) + 1)]


def _clock(seconds: float) -> str:
    for unit_s, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit_s and not seconds % unit_s:
            return f"{seconds / unit_s:g} {unit}"
    return f"{seconds:.3g} s" if seconds else "0"


def colour(rank: int) -> str:
    return COLOURS[rank % len(COLOURS)]
