"""Structured JSON log lines from the loggers of LOGGERS; other libraries' loggers are left alone.

A record's `extra={"fields": {...}}` becomes fields of the line. Prompts, ids and adapters' weights are never logged.
"""

from __future__ import annotations

import logging

from engine.protocol.log_output import JsonFormatter, handlers

LOGGERS = ("engine", "adapters", "kernels")


def configure(level: int = logging.INFO) -> None:
    """Send the engine's log to stderr, or where LANEWAY_LOG_FILE says. Called once, by `__main__`."""
    chosen = handlers(JsonFormatter())
    for logger in map(logging.getLogger, LOGGERS):
        logger.handlers[:] = chosen
        logger.setLevel(level)
        logger.propagate = False
