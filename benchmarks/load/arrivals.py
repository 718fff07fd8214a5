"""When requests arrive: a Poisson process at a rate, or a recorded trace on a scaled clock.

Times are seconds after the start and never decrease. It must never know a request's content or whether others are done.
"""

from __future__ import annotations

import csv
import datetime
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.settings import REQUESTS_MAX, BadSetting

TRACE_BYTES_MAX = 256 * 1024 * 1024
COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(slots=True, frozen=True)
class TraceRow:
    """One recorded request: seconds after the first one, tokens in, tokens out."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


def poisson(rate: float, rng: random.Random) -> Iterator[float]:
    """Arrival times of a Poisson process of `rate` a second: gaps are exponential."""
    at_s = 0.0
    while True:
        at_s += rng.expovariate(rate)
        yield at_s


def read_trace(path: Path, option: str = "--trace") -> list[TraceRow]:
    """A CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens, put in order of time. Raises BadSetting."""
    try:
        size = path.stat().st_size
        if size > TRACE_BYTES_MAX:
            raise BadSetting(option, f"{path} has {size} bytes; the limit is {TRACE_BYTES_MAX}")
        with path.open(newline="", encoding="utf-8") as file:
            return _parse(csv.DictReader(file), str(path), option)
    except OSError as error:
        raise BadSetting(option, f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadSetting(option, f"{path} is not a CSV file: {error}") from error


def _parse(reader: csv.DictReader[str], name: str, option: str) -> list[TraceRow]:
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise BadSetting(option, f"{name} has no column {missing[0]}; it needs {', '.join(COLUMNS)}")
    rows: list[tuple[datetime.datetime, int, int]] = []
    for fields in reader:
        if len(rows) == REQUESTS_MAX:
            raise BadSetting(option, f"{name} has more than {REQUESTS_MAX} requests, the limit")
        try:
            at = datetime.datetime.fromisoformat(fields["TIMESTAMP"])
            rows.append((at.replace(tzinfo=datetime.UTC), int(fields["ContextTokens"]), int(fields["GeneratedTokens"])))
        except (ValueError, TypeError) as error:
            raise BadSetting(option, f"{name}, line {reader.line_num}: {error}") from error
    if not rows:
        raise BadSetting(option, f"{name} has no requests")
    rows.sort(key=lambda row: row[0])
    first = rows[0][0]
    return [TraceRow((at - first).total_seconds(), max(1, prompt), max(1, output)) for at, prompt, output in rows]
