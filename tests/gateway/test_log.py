"""Lines that may come with every request come seldom, and say how often they would have; and where lines go."""

from __future__ import annotations

import contextlib
import json
import logging
from pathlib import Path

import pytest

from engine.protocol import log_output
from engine.protocol.log_output import JsonFormatter
from gateway.log import ThrottledWarning


def test_a_seldom_warning_counts_what_it_keeps_back(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    seldom = ThrottledWarning(logging.getLogger("test"), "it.happened", every_s=5.0, clock=lambda: now[0])
    for at in (100.0, 101.0, 104.9, 105.0, 105.1, 111.0):
        now[0] = at
        seldom.warn(reason=f"at {at}")
    said = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    assert said == [
        {"reason": "at 100.0", "times": 1},
        {"reason": "at 105.0", "times": 3},
        {"reason": "at 111.0", "times": 2},
    ]


def line_of(level: str, *, exception: bool = False) -> logging.LogRecord:
    error = (ValueError, ValueError("bad\nvalue"), None) if exception else None
    record = logging.LogRecord("gateway", logging.getLevelName(level), "", 0, "it.happened", (), error)
    record.fields = {"reason": "no\x1b[2J disk", "times": 2}
    return record


def test_a_log_file_has_all_as_json_and_the_terminal_the_warnings_as_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gateway.jsonl"
    file, terminal = log_output.handlers(JsonFormatter(), {log_output.VARIABLE: str(path)})
    for level in ("INFO", "WARNING", "ERROR"):
        record = line_of(level, exception=level == "ERROR")
        for handler in (file, terminal):
            if record.levelno >= handler.level:
                handler.handle(record)
    file.close()
    assert [json.loads(line)["level"] for line in path.read_text().splitlines()] == ["info", "warning", "error"]
    warning, error = capsys.readouterr().err.splitlines()
    assert warning[9:] == "warning: it.happened: reason=no [2J disk, times=2"
    assert error.endswith("times=2: ValueError: bad value")


def test_a_log_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_output, "FILE_BYTES_MAX", 2000)
    file, _ = log_output.handlers(JsonFormatter(), {log_output.VARIABLE: str(tmp_path / "a.jsonl")})
    for _ in range(500):
        file.handle(line_of("INFO"))
    file.close()
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sorted(sizes) == ["a.jsonl", *(f"a.jsonl.{number}" for number in range(1, log_output.FILES_KEPT + 1))]
    assert max(sizes.values()) <= 2000


def test_a_log_that_cannot_be_written_goes_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    away = tmp_path / "away" / "a.jsonl"
    (terminal,) = log_output.handlers(JsonFormatter(), {log_output.VARIABLE: str(away)})
    terminal.handle(line_of("INFO"))
    warning, line = capsys.readouterr().err.splitlines()
    assert warning == f"warning: the log goes to the terminal, as {away} cannot be written: No such file or directory"
    assert json.loads(line)["event"] == "it.happened"


def test_a_full_disk_costs_lines_of_the_log_alone(capsys: pytest.CaptureFixture[str]) -> None:
    file = log_output.LogFile(Path("/dev/full"))
    for _ in range(3):
        file.handle(line_of("INFO"))
    assert file.stream is not None
    with contextlib.suppress(OSError):
        file.stream.close()
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning == "warning: lines of the log /dev/full are lost: [Errno 28] No space left on device"
