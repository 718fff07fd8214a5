"""The log output of gateway and engine: JSON lines on stderr or, if LANEWAY_LOG_FILE is set, JSON lines in that file
and warnings as plain text on stderr. `laneway serve` sets the variable for the processes that it starts.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from logging.handlers import RotatingFileHandler
from pathlib import Path

import msgspec

VARIABLE = "LANEWAY_LOG_FILE"
# A file is renamed to FILE.1 at this size, FILE.1 to FILE.2 and so on; the last is deleted.
FILE_BYTES_MAX = 10 * 1024 * 1024
FILES_KEPT = 4  # older files, besides the current file


def handlers(json_lines: logging.Formatter, variables: Mapping[str, str] = os.environ) -> list[logging.Handler]:
    """The handlers of a process: to the file that LANEWAY_LOG_FILE names, with warnings as text on stderr; without a
    file that can be written, to stderr alone."""
    terminal = logging.StreamHandler(sys.stderr)
    terminal.setFormatter(json_lines)
    if not (name := variables.get(VARIABLE)):
        return [terminal]
    try:
        file = LogFile(Path(name))
    except OSError as error:
        sys.stderr.write(f"warning: the log goes to the terminal, as {name} cannot be written: {error.strerror}\n")
        return [terminal]
    file.setFormatter(json_lines)
    terminal.setFormatter(PlainFormatter())
    terminal.setLevel(logging.WARNING)
    return [file, terminal]


class LogFile(RotatingFileHandler):
    """One process's log file, of bounded size. A full disk costs lines of the log and nothing else."""

    def __init__(self, path: Path) -> None:
        """Raises OSError when it cannot be opened."""
        super().__init__(path, maxBytes=FILE_BYTES_MAX, backupCount=FILES_KEPT, encoding="utf-8")
        self._failed = False

    def handleError(self, record: logging.LogRecord) -> None:
        """The first lost line is reported, not each with a traceback as the base class does."""
        if not self._failed:
            self._failed = True
            sys.stderr.write(f"warning: lines of the log {self.baseFilename} are lost: {sys.exc_info()[1]}\n")


class JsonFormatter(logging.Formatter):
    """One JSON object a record: ts (Unix seconds), level, event, then the fields given as `extra={"fields": …}`, a dict
    or a struct."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {"ts": round(record.created, 3), "level": record.levelname.lower()}
        line["event"] = record.getMessage()
        fields = getattr(record, "fields", None)
        if fields is not None:
            line.update(msgspec.to_builtins(fields, enc_hook=str))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class PlainFormatter(logging.Formatter):
    """One line for people: 14:03:22 warning: event: field=value, …; of an exception its last line."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower()}: {record.getMessage()}"
        fields = getattr(record, "fields", None)
        if fields is not None:
            plain = msgspec.to_builtins(fields, enc_hook=str)
            text += ": " + ", ".join(f"{name}={value}" for name, value in plain.items())
        if record.exc_info and record.exc_info[0] is not None:
            text += f": {record.exc_info[0].__name__}: {record.exc_info[1]}"
        return "".join(char if char.isprintable() else " " for char in text)
