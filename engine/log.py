"""Structured JSON lines, for every logger of the engine's process that is ours.

A record's `extra={"fields": {...}}` becomes fields of the line. Prompts, ids and adapters' weights are never logged.
"""

from __future__ import annotations

import logging

import msgspec

from engine.protocol.log_output import handlers

LOGGERS = ("engine", "adapters", "kernels")


class EngineJsonFormatter(logging.Formatter):
    """One JSON object a record: ts (Unix seconds), level, event, then the record's fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {"ts": round(record.created, 3), "level": record.levelname.lower()}
        line["event"] = record.getMessage()
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            line.update(fields)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def configure(level: int = logging.INFO) -> None:
    """Send the engine's log to stderr, or where LANEWAY_LOG_FILE says. Called once, by `__main__`."""
    chosen = handlers(EngineJsonFormatter())
    for logger in map(logging.getLogger, LOGGERS):
        logger.handlers[:] = chosen
        logger.setLevel(level)
        logger.propagate = False
