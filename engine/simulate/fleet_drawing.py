"""Draws a simulated fleet: the first tokens under each policy over time, and below them what each engine made."""

from __future__ import annotations

import numpy as np

from engine.simulate.drawing import Line, Panel, colour, draw_page
from engine.simulate.fleet import FleetWorld
from engine.simulate.fleet_report import FleetReport
from engine.simulate.report import percent


def draw_fleet(worlds: list[FleetWorld], report: FleetReport) -> str:
    """The SVG document."""
    bin_s = worlds[0].bin_s
    bins = 1 + max(index for world in worlds for made in world.bins.values() for index in (0, *made))
    first = Panel(
        "First token, p95, ms, by routing",
        [Line(colour(n), _first_tokens(world, bins)) for n, world in enumerate(worlds)],
        logarithmic=True,
    )
    made = [
        Panel(
            f"Tokens made per second by each engine, {world.policy}",
            [
                Line(colour(n), [own[index] / bin_s for index in range(bins)])
                for n, own in enumerate(world.bins.values())
            ],
        )
        for world in worlds
    ]
    legend = [
        f"{run.routing}: {run.output_tokens_per_s:,.0f} tokens/s, {percent(run.prefix_hit_rate)} of prompts cached"
        for run in report.runs
    ]
    title = f"{report.settings['engines']} engines, {report.runs[0].requests:,} requests"
    return draw_page(title, legend, [first, *made], bins * bin_s, bins)


def _first_tokens(world: FleetWorld, bins: int) -> list[float | None]:
    found: list[list[float]] = [[] for _ in range(bins)]
    for text in world.texts:
        if text.first_at is not None:
            found[min(bins - 1, int(text.at_s / world.bin_s))].append(1000 * (text.first_at - text.at_s))
    return [float(np.percentile(values, 95)) if values else None for values in found]
