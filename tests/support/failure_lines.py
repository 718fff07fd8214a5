"""A line for each failed test when it fails: a run that is cut off has no summary."""

from __future__ import annotations

import pytest

MESSAGE_LENGTH_MAX = 300


class FailureLines:
    """A plugin of the process that writes the output: pytest-xdist sends it the reports of its workers."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed:
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        message = (crash.message if crash else str(report.longrepr)).strip().splitlines()
        first_line = message[0][:MESSAGE_LENGTH_MAX] if message else ""
        self._terminal.write_line(f"\nFAILED {report.nodeid} ({report.when}, {report.duration:.1f} s): {first_line}")
