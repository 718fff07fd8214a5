"""The picture of a flood: TTFT over time of both tiers, premium alone and under the flood.

It is the only serving benchmark that loads matplotlib.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot
from matplotlib.ticker import StrMethodFormatter

TITLES = {"alone": "premium alone", "flood": "under the flood"}
COLOURS = {"premium": "tab:blue", "batch": "tab:orange"}


def draw(points: Path, image: Path) -> None:
    """Draw `points`, as benchmarks.serving.flood writes them, into a PNG."""
    clouds: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    with points.open(newline="") as file:
        for row in csv.DictReader(file):
            clouds[row["half"], row["tier"]].append((float(row["due_s"]), float(row["ttft_ms"])))
    figure, halves = pyplot.subplots(1, 2, figsize=(11, 4), sharey=True, layout="constrained")
    try:
        for axes, (half, title) in zip(halves, TITLES.items(), strict=True):
            for tier, colour in COLOURS.items():
                cloud = clouds.get((half, tier))
                if cloud:
                    times, ttft = zip(*cloud, strict=True)
                    axes.scatter(
                        times, ttft, s=7, alpha=0.6, linewidths=0, color=colour, label=f"{tier} ({len(cloud)})"
                    )
            axes.set(title=f"TTFT, {title}", xlabel="s, when due", yscale="log")
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
            axes.grid(alpha=0.3)
            axes.legend(fontsize="small")
        halves[0].set_ylabel("ms")
        image.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(image, dpi=100, format="png")
    finally:
        pyplot.close(figure)
