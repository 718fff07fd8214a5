"""Billing's time: integer microseconds since 1970 UTC, by the database's clock; and the bounds of budget windows.

Gateways' clocks may differ, so this module reads no clock but the database's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from importlib.resources import files
from typing import Literal
from zoneinfo import ZoneInfo

import sqlalchemy as sa

SECOND = 1_000_000
DAY = 86_400 * SECOND

Period = Literal["day", "month", "total"]
Clock = Callable[[sa.Connection], int]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_POSTGRES_NOW = sa.text("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")


def database_now(connection: sa.Connection) -> int:
    """Microseconds UTC by the database's clock. SQLite runs in this process and uses the clock of this host."""
    if connection.dialect.name == "sqlite":
        return time.time_ns() // 1000
    return int(connection.execute(_POSTGRES_NOW).scalar_one())


def from_datetime(moment: datetime) -> int:
    """Exact microseconds of an aware datetime."""
    assert moment.tzinfo is not None, "the datetime has no time zone"
    return (moment - _EPOCH) // timedelta(microseconds=1)


def to_datetime(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def rfc3339(micros: int) -> str:
    """`2026-01-31T00:00:00Z`, whole seconds."""
    return to_datetime(micros).strftime("%Y-%m-%dT%H:%M:%SZ")


def is_time_zone(name: str) -> bool:
    """Whether `name` is an IANA time zone, for example Europe/Berlin."""
    return name in files("tzdata").joinpath("zones").read_text().splitlines()


def zone_of(name: str) -> ZoneInfo:
    """The time zone from the package `tzdata`, never from this host: if gateways had different time zone data,
    a budget would have two windows for one day. Raises FileNotFoundError."""
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


def window_start(period: Period, now: int, zone: ZoneInfo) -> int:
    """Start of the window of `now`: local midnight of `zone`; 0 for the only window of a total budget."""
    if period == "total":
        return 0
    today = to_datetime(now).astimezone(zone).date()
    return midnight(today if period == "day" else today.replace(day=1), zone)


def window_end(period: Period, start: int, zone: ZoneInfo) -> int | None:
    """First moment after the window that begins at `start`; None if it never ends."""
    if period == "total":
        return None
    first = to_datetime(start).astimezone(zone).date()
    if period == "day":
        return midnight(first + timedelta(days=1), zone)
    return midnight(first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1), zone)


def midnight(day: date, zone: ZoneInfo) -> int:
    """The first moment of a local day: the moment of the change where clocks skip midnight, and the first of two
    midnights. `fold` 0 gives both."""
    return from_datetime(datetime(day.year, day.month, day.day, tzinfo=zone))
