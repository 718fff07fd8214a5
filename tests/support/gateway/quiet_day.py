"""A recorded quiet day of /metrics: some minutes of a real stack with light traffic, repeated until the day is full.

`tests/programs/record_quiet_day.py` records it. Times count from the recording's start, as promtool's clock does.
"""

from __future__ import annotations

import json
import re

from support.gateway.monitored_stack import Samples
from support.paths import REPO, TESTS

RULES = REPO / "deploy" / "monitoring" / "rules.yml"
RECORDING = TESTS / "data" / "quiet_day.json"
STEP_S = 30
DAY_S = 86_400
INSTANCE, JOB = "gateway-1", "laneway"
_METRIC = re.compile(r"\b(?:laneway_|vllm:)\w+")
# Series of metrics with these endings grow: each repetition is added to the last value of the one before. All other
# series are repeated unchanged.
_MOVES = ("_total", "_timestamp_seconds")


def metrics_of_rules() -> set[str]:
    """The names of all metrics that the rules read."""
    return set(_METRIC.findall("\n".join(line for line in RULES.read_text().splitlines() if "#" not in line)))


def write_recording(pages: list[Samples], started_at: float) -> None:
    """`pages`: the metrics read every STEP_S seconds from `started_at` (Unix seconds) on."""
    recorded = {}
    for name in sorted(metrics_of_rules()):
        offset = started_at if name.endswith("_timestamp_seconds") else 0.0
        for labels in sorted(pages[0][name]):
            text = ",".join(f'{label}="{value}"' for label, value in labels)
            recorded[f"{name}{{{text}}}"] = [round(page[name][labels] - offset, 3) for page in pages]
    lines = ",\n".join(f"{json.dumps(series)}: {json.dumps(values)}" for series, values in recorded.items())
    RECORDING.write_text(f"{{\n{lines}\n}}\n")


def quiet_day() -> dict[str, str]:
    """The values of a day by series, one every STEP_S seconds, in promtool's form."""
    day = {f'up{{instance="{INSTANCE}",job="{JOB}"}}': f"1x{DAY_S // STEP_S}"}
    for series, values in json.loads(RECORDING.read_text()).items():
        name, labels = series.rstrip("}").split("{")
        moved = values[-1] - values[0] if name.endswith(_MOVES) else 0.0
        # The last value of a round is the first of the next.
        length = len(values) - 1
        numbers = [values[step % length] + moved * (step // length) for step in range(DAY_S // STEP_S + 1)]
        engine = f',engine="{INSTANCE}"' if "engine=" not in labels else ""
        full = f'{name}{{{labels}{"," if labels else ""}instance="{INSTANCE}",job="{JOB}"{engine}}}'
        day[full] = " ".join(f"{number:.10g}" for number in numbers)
    return day
