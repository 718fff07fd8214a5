"""What is wrong with a file: findings by rule, column and row, and how many there are of each."""

from __future__ import annotations

from typing import Literal

import msgspec

# must: the specification, or our own promise, is broken. should: a recommendation of either is not followed.
Severity = Literal["must", "should"]

FINDINGS_MAX = 1000  # told in full; all are counted
PER_RULE_MAX = 20  # of one rule on one column: what one mistake of a generator gives is not the whole report
VALUE_CHARS_MAX = 80


class Finding(msgspec.Struct, frozen=True):
    """`row` counts the file's data rows from 1; None: of the file, not of a row."""

    rule: str
    severity: Severity
    column: str | None
    row: int | None
    value: str | None
    message: str


class FindingList:
    """Collects them within the bounds above. `counts` by rule and severity, of all."""

    def __init__(self) -> None:
        self.told: list[Finding] = []
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
        if seen < PER_RULE_MAX and len(self.told) < FINDINGS_MAX:
            self._of_column[rule, column] = seen + 1
            self.told.append(Finding(rule, severity, column, row, show(value), message))

    def number(self, severity: Severity) -> int:
        return sum(count for (_, of), count in self.counts.items() if of == severity)


def show(value: object) -> str | None:
    """A cell as it stands, shortened."""
    if value is None:
        return None
    text = value.decode() if isinstance(value, bytes) else value if isinstance(value, str) else repr(value)
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 1] + "…"
