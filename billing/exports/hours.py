"""The roll-ups of a period as FOCUS exports read them: the hours of usage_hours, divided by tag set."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from billing import tables
from billing.books import rollups
from billing.books.periods import Period
from billing.exports.rows import UsageHour

_hours = tables.usage_hours


def hours_of(connection: sa.Connection, period: Period) -> sa.Select[Any] | sa.CompoundSelect[Any]:
    """The period's rows of the roll-ups with the columns of UsageHour: usage with tags by its tag set, the rest
    without."""
    tagged = tables.tag_hours
    names = [name for name in UsageHour.__struct_fields__ if name != "tag_set_id"]
    untagged = rollups.NOTHING.label("tag_set_id")
    columns = [_hours.c[name] for name in names]
    any_tags = sa.select(sa.exists().where(tagged.c.period_id == period.id))
    if not connection.execute(any_tags).scalar_one():
        return sa.select(*columns, untagged).where(_hours.c.period_id == period.id)
    key = [column.name for column in _hours.primary_key]
    counted = ("input_tokens", "cached_input_tokens", "output_tokens", "embedding_tokens", "cost_picos", "requests")
    # PostgreSQL's sum is numeric, which drivers return as Decimal.
    sums = [sa.cast(sa.func.sum(tagged.c[name]), sa.BigInteger).label(name) for name in counted]
    marked = (
        sa.select(*(tagged.c[name] for name in key), *sums)
        .where(tagged.c.period_id == period.id)
        .group_by(*(tagged.c[name] for name in key))
        .subquery()
    )
    rest = {name: _hours.c[name] - sa.func.coalesce(marked.c[name], 0) for name in counted}
    same = sa.and_(*(_hours.c[name] == marked.c[name] for name in key))
    return sa.union_all(
        sa.select(*(rest[name].label(name) if name in rest else _hours.c[name] for name in names), untagged)
        .select_from(_hours.outerjoin(marked, same))
        .where(_hours.c.period_id == period.id, rest["requests"] > 0),
        sa.select(*(tagged.c[name] for name in names), tagged.c.tag_set_id).where(tagged.c.period_id == period.id),
    )
