"""Findings in a checked file by rule, column and row, and their counts."""

from __future__ import annotations

from typing import Literal

import msgspec

# must: a requirement of the specification, or of Laneway's own, is broken. should: a recommendation is not followed.
Severity = Literal["must", "should"]

FINDINGS_MAX = 1000  # in the list; all findings are counted
PER_RULE_MAX = 20  # in the list for one rule and column, so that one defect of a generator does not fill the report
VALUE_CHARS_MAX = 80


class Finding(msgspec.Struct, frozen=True):
    """`row` counts the file's data rows from 1; None if the finding concerns the file."""

    rule: str
    severity: Severity
    column: str | None
    row: int | None
    value: str | None
    message: str


class FindingList:
    """Lists findings up to FINDINGS_MAX and PER_RULE_MAX. `counts`: all findings by rule and severity."""

    def __init__(self) -> None:
        self.listed: list[Finding] = []
        self.counts: dict[tuple[str, Severity], int] = {}
        self._of_column: dict[tuple[str, str | None], int] = {}

    def add_finding(
        self,
        rule: str,
        message: str,
        *,
        column: str | None = None,
        row: int | None = None,
        value: object = None,
        severity: Severity = "must",
    ) -> None:
        self.counts[rule, severity] = self.counts.get((rule, severity), 0) + 1
        seen = self._of_column.get((rule, column), 0)
        if seen < PER_RULE_MAX and len(self.listed) < FINDINGS_MAX:
            self._of_column[rule, column] = seen + 1
            self.listed.append(Finding(rule, severity, column, row, show(value), message))

    def number(self, severity: Severity) -> int:
        return sum(count for (_, of), count in self.counts.items() if of == severity)


def show(value: object) -> str | None:
    """A cell's text, shortened to VALUE_CHARS_MAX."""
    if value is None:
        return None
    text = value.decode() if isinstance(value, bytes) else value if isinstance(value, str) else repr(value)
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 1] + "…"
