"""Recorded traffic: when requests arrived, and the prompt and output tokens of each.

This module must never know a tenant or a tier: traffic.py assigns them.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from engine.simulate.devices import BadInput, read_file

TRACE_BYTES_MAX = 256 * 1024 * 1024
REQUESTS_MAX = 2_000_000
TOKENS_MAX = 16_000_000  # of one request
COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(slots=True, frozen=True)
class TraceRow:
    """One recorded request. `at_s`: seconds after the first request."""

    at_s: float
    prompt_tokens: int
    new_tokens: int


def read_trace(path: Path) -> list[TraceRow]:
    """Read a CSV with the columns TIMESTAMP (ISO), ContextTokens and GeneratedTokens, the format of Azure's public LLM
    traces. Returns rows in order of time. Raises BadInput with the line and the limit."""
    try:
        text = read_file(path, "--trace", TRACE_BYTES_MAX).decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"--trace: {path} is not text: {error}") from error
    reader = csv.DictReader(io.StringIO(text, newline=""))
    found: list[tuple[datetime, int, int]] = []
    try:
        missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
        if missing:
            raise BadInput(f"--trace: {path} has no column {missing[0]}; it needs {', '.join(COLUMNS)}")
        for fields in reader:
            if len(found) == REQUESTS_MAX:
                raise BadInput(f"--trace: {path} has more than {REQUESTS_MAX} requests, the limit")
            try:
                tokens = _tokens(fields, "ContextTokens"), _tokens(fields, "GeneratedTokens")
                found.append((datetime.fromisoformat(fields["TIMESTAMP"]).replace(tzinfo=UTC), *tokens))
            except (ValueError, TypeError) as error:
                raise BadInput(f"--trace: {path}, line {reader.line_num}: {error}") from error
    except csv.Error as error:
        raise BadInput(f"--trace: {path}, line {reader.line_num}: {error}") from error
    if not found:
        raise BadInput(f"--trace: {path} has no requests")
    found.sort(key=lambda row: row[0])
    first = found[0][0]
    return [TraceRow((at - first).total_seconds(), prompt, new) for at, prompt, new in found]


def _tokens(fields: dict[str, str], column: str) -> int:
    """Raises ValueError."""
    tokens = int(fields[column])
    if not 1 <= tokens <= TOKENS_MAX:
        raise ValueError(f"{column} is {tokens}; it must be from 1 to {TOKENS_MAX}")
    return tokens
