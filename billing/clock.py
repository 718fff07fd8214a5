"""Time as billing keeps it: integer microseconds since 1970 UTC, read from the database; and budget windows.

Gateways' clocks may differ; the database's is one for all of them. Nothing here may ask another clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Literal

import sqlalchemy as sa

SECOND = 1_000_000
DAY = 86_400 * SECOND

Period = Literal["day", "month", "total"]
Clock = Callable[[sa.Connection], int]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_POSTGRES_NOW = sa.text("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")


def database_now(connection: sa.Connection) -> int:
    """Microseconds UTC by the database's clock. SQLite runs in this process, so there it is this host's."""
    if connection.dialect.name == "sqlite":
        return time.time_ns() // 1000
    return int(connection.execute(_POSTGRES_NOW).scalar_one())


def from_datetime(moment: datetime) -> int:
    """Exact microseconds of an aware datetime."""
    assert moment.tzinfo is not None, "a datetime without a zone names no moment"
    return (moment - _EPOCH) // timedelta(microseconds=1)


def to_datetime(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def rfc3339(micros: int) -> str:
    """`2026-01-31T00:00:00Z`, whole seconds."""
    return to_datetime(micros).strftime("%Y-%m-%dT%H:%M:%SZ")


def window_start(period: Period, now: int) -> int:
    """Start of the window that `now` lies in; 0 for the only window of a total budget."""
    if period == "day":
        return now - now % DAY
    if period == "month":
        return from_datetime(to_datetime(now).replace(day=1, hour=0, minute=0, second=0, microsecond=0))
    return 0


def window_end(period: Period, start: int) -> int | None:
    """First moment after the window that begins at `start`; None when it never ends."""
    if period == "day":
        return start + DAY
    if period == "month":
        first = to_datetime(start)
        return from_datetime(first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1))
    return None
