"""Usage and cost by group in buckets of time. Complete days and hours are read from the roll-ups and the rest from the
usage rows, so that a report is complete and exact at any moment. This module only reads, in one unchanging view.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.accounts.prices import METERS, all_unit_prices
from billing.accounts.tags import SOURCE_TAG, has_tags
from billing.books import day_rollups, rollups
from billing.books.rollups import HOUR
from billing.clock import DAY, SECOND
from billing.day_tables import usage_days

MINUTE = 60 * SECOND
Width = Literal["1m", "1h", "1d", "all"]
# "all": one bucket that begins in 1970; the filter's start and end limit it.
WIDTHS: dict[Width, int] = {"1m": MINUTE, "1h": HOUR, "1d": DAY, "all": 2**62}
ROWS_MAX = 5_000  # of one page
VALUES_MAX = 100  # of one filter
UNFOLDED_MAX = 50_000  # usage rows that the hours have and the days have not; with more, a report reads the hours

Group = Literal["tenant_id", "project_id", "key_id", "model", "adapter", "tier", "line_item"]
TAG_GROUP = "tag:"  # before the name of a tag, whose values are the groups
TAG_GROUPS_MAX = 4  # of one report
SOURCE_GROUP = TAG_GROUP + SOURCE_TAG  # lines of batches, and (None) other requests
LINE_ITEM_SEPARATOR = ", "  # between the model or the adapter's id and the meter
LINE_ITEM: Group = "line_item"  # a group for each meter of each model or adapter, with cost and tokens only
# Groups that are columns of the tables.
GROUPS: tuple[Group, ...] = ("tenant_id", "project_id", "key_id", "model", "adapter", "tier")
COUNTED = (
    "requests", "input_tokens", "cached_input_tokens", "output_tokens", "embedding_tokens", "made_tokens",
    "discarded_tokens", "preemptions", "swapped_tokens", "cost_picos",
)  # fmt: skip
_SUMMED = (*COUNTED, "correction_picos")

_usage = tables.usage
_hours = tables.usage_hours
_corrections = tables.corrections
_unit = all_unit_prices()


class ReportFilter(msgspec.Struct, frozen=True, kw_only=True):
    """start ≤ moment < end, in microseconds UTC. A row must match one value of each given list; tables.NONE
    matches rows without a value. `tags`: names and values; a row must match one value of each
    name."""

    start: int
    end: int
    tenant_ids: tuple[str, ...] = ()
    project_ids: tuple[str, ...] = ()
    key_ids: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()

    def of(self, table: sa.FromClause) -> list[sa.ColumnElement[bool]]:
        """Conditions on the columns that the table has: tables of sums may have no tags."""
        given = (self.tenant_ids, self.project_ids, self.key_ids, self.models, self.adapters, self.tiers)
        named = [_among(table.c[name], values) for name, values in zip(GROUPS, given, strict=True) if values]
        return [*named, *has_tags(table.c.tag_set_id, self.tags)] if "tag_set_id" in table.c else named


class GroupSums(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of one group in one bucket. `groups`: the group's value, or None, by the name of the column. Corrections are
    in `correction_picos` and in `cost_picos`; their tokens are counted in line items only."""

    bucket: int
    groups: dict[str, str | None]
    currency: str
    requests: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    embedding_tokens: int = 0  # of prompts of which vectors were made
    made_tokens: int = 0
    discarded_tokens: int = 0
    preemptions: int = 0
    swapped_tokens: int = 0
    cost_picos: int = 0
    correction_picos: int = 0
    device_s: float = 0.0


class ReportCursor(msgspec.Struct, frozen=True, array_like=True):
    """Where a page begins: after the group `after` of `bucket`, or at the bucket's first group if `after` is empty."""

    bucket: int
    after: tuple[str, ...] = ()


class Report(msgspec.Struct, frozen=True):
    """Rows by bucket and group, without empty buckets. They cover the time from the page's start to `covered_to`.
    `next`: the cursor of the next page; None at the end."""

    rows: list[GroupSums]
    covered_to: int
    next: ReportCursor | None


def buckets(
    connection: sa.Connection,
    which: ReportFilter,
    *,
    width: Width,
    group_by: Iterable[str] = (),
    place: ReportCursor | None = None,
    limit: int,
) -> Report:
    """A page of at most `limit` buckets and ROWS_MAX rows. Buckets begin at multiples of their width in UTC; `which`
    limits the first and the last bucket. `group_by`: names of Group, and TAG_GROUP with the name of a tag. Groups are
    always divided by currency."""
    step = WIDTHS[width]
    place = place or ReportCursor(which.start - which.start % step)
    covered_to = min(which.end, place.bucket + limit * step)
    part = msgspec.structs.replace(which, start=max(which.start, place.bucket), end=covered_to)
    chosen = list(dict.fromkeys(group_by))
    names: list[str] = [name for name in (*GROUPS, LINE_ITEM) if name in chosen]
    names += [name for name in chosen if name.startswith(TAG_GROUP)]
    source = sa.union_all(*_sources(connection, part, names, step), _corrected(part, names)).subquery()
    bucket = (source.c.at - source.c.at % sa.literal_column(str(step), sa.BigInteger)).label("bucket")
    keys = [bucket, *(source.c[name] for name in names), source.c.currency]
    sums = [sa.func.sum(source.c[name]).label(name) for name in (*_SUMMED, "device_s")]
    query = sa.select(*keys, *sums).group_by(*keys).order_by(*keys).limit(ROWS_MAX + 1)
    if _is_tagged(which, names):  # usage without tags is all usage less usage with tags: nothing may be left
        query = query.having(sa.or_(*(sa.func.sum(source.c[name]) != 0 for name in _SUMMED)))
    if place.after:
        query = query.having(sa.tuple_(*keys) > (place.bucket, *place.after))
    rows = connection.execute(query).all()
    if len(rows) > ROWS_MAX:
        last = rows[ROWS_MAX - 1]
        after = (*(getattr(last, name) for name in names), last.currency)
        following: ReportCursor | None = ReportCursor(int(last.bucket), after)
        covered_to = min(covered_to, int(last.bucket) + step)
    else:
        following = ReportCursor(covered_to) if covered_to < which.end else None
    return Report([_sums(row, names) for row in rows[:ROWS_MAX]], covered_to, following)


def sum_by_currency(connection: sa.Connection, which: ReportFilter) -> list[GroupSums]:
    """Sums for each currency, without corrections; `bucket` is the start of `which`."""
    source = sa.union_all(*_sources(connection, which, [], DAY)).subquery()
    start = sa.literal(which.start).label("bucket")
    sums = [sa.func.sum(source.c[name]).label(name) for name in (*_SUMMED, "device_s")]
    query = sa.select(start, source.c.currency, *sums).group_by(source.c.currency).order_by(source.c.currency)
    return [_sums(row, []) for row in connection.execute(query)]


def recomputed(connection: sa.Connection, which: ReportFilter) -> dict[str, tuple[int, float]]:
    """Tokens and device seconds of the matching requests' recomputes, by the tier whose preemptions caused them. The
    roll-up of recomputes has no tags: a filter by tags reads every request."""
    folded = rollups.read_cursor(connection).sequence
    first, last = _up(which.start, HOUR), which.end - which.end % HOUR
    hours, rows = tables.recompute_hours, tables.usage_recompute
    edges = sa.or_(_within(which.start, min(first, which.end)), _within(max(first, last), which.end))
    if which.tags:
        first = last = which.end
        edges = _within(which.start, which.end)
    raw = sa.or_(
        sa.and_(_usage.c.sequence <= folded, edges),
        sa.and_(_usage.c.sequence > folded, _within(which.start, which.end)),
    )
    parts = sa.union_all(
        sa.select(hours.c.caused_by, hours.c.tokens, hours.c.device_s).where(
            hours.c.hour >= first, hours.c.hour < last, *which.of(hours)
        ),
        sa.select(rows.c.tier.label("caused_by"), rows.c.tokens, rows.c.device_s)
        .join(_usage, _usage.c.request_id == rows.c.request_id)
        .where(raw, *which.of(_usage)),
    ).subquery()
    query = sa.select(parts.c.caused_by, sa.func.sum(parts.c.tokens), sa.func.sum(parts.c.device_s))
    return {row[0]: (int(row[1]), row[2]) for row in connection.execute(query.group_by(parts.c.caused_by))}


def _sums(row: sa.Row[Any], names: list[str]) -> GroupSums:
    """Parse a row with the bucket, the groups, the currency, then the sums in the order of _SUMMED, and device_s.
    Columns are read by index, for speed."""
    values = tuple(row)
    at = 1 + len(names)
    groups = {str(name): value or None for name, value in zip(names, values[1:at], strict=True)}
    counted = dict(zip(_SUMMED, map(int, values[at + 1 : -1]), strict=True))
    return GroupSums(bucket=int(values[0]), groups=groups, currency=values[at], device_s=values[-1], **counted)


def _is_tagged(which: ReportFilter, names: list[str]) -> bool:
    return bool(which.tags) or any(name.startswith(TAG_GROUP) for name in names)


def _sources(connection: sa.Connection, which: ReportFilter, names: list[str], step: int) -> list[sa.Select[Any]]:
    """Selects of the same columns; each row that `which` matches is in exactly one of them."""
    folded = rollups.read_cursor(connection).sequence
    first, last = _up(which.start, HOUR), which.end - which.end % HOUR
    if step < HOUR or first >= last:
        return [_raw(which, names, _within(which.start, which.end))]
    edges = sa.or_(_within(which.start, first), _within(last, which.end))
    raw = [
        _raw(which, names, sa.and_(_usage.c.sequence <= folded, edges)),
        _raw(which, names, sa.and_(_usage.c.sequence > folded, _within(which.start, which.end))),
    ]
    in_days = day_rollups.read_day_cursor(connection).sequence
    first_day, last_day = _up(which.start, DAY), which.end - which.end % DAY
    if step < DAY or first_day >= last_day or folded - in_days > UNFOLDED_MAX or _is_tagged(which, names):
        hours = _tagged_hours(which, first, last) if _is_tagged(which, names) else _hours
        return [_rolled_up(hours, hours.c.hour, which, names, (first, last), step), *raw]
    unfolded = sa.and_(_usage.c.sequence > in_days, _usage.c.sequence <= folded, _within(first_day, last_day))
    return [
        _rolled_up(_hours, _hours.c.hour, which, names, (first, first_day), step),
        _rolled_up(usage_days, usage_days.c.day, which, names, (first_day, last_day), step),
        _rolled_up(_hours, _hours.c.hour, which, names, (last_day, last), step),
        _raw(which, names, unfolded),
        *raw,
    ]


def _among(column: sa.ColumnElement[Any], values: tuple[str, ...]) -> sa.ColumnElement[bool]:
    """The column has one of the values. NONE also matches null: roll-ups have NONE where rows have null."""
    given = column.in_(values)
    return sa.or_(given, column.is_(None)) if tables.NONE in values else given


def _up(moment: int, width: int) -> int:
    return moment + -moment % width


def _within(start: int, end: int) -> sa.ColumnElement[bool]:
    return sa.and_(_usage.c.finished_at >= start, _usage.c.finished_at < end)


def _rolled_up(
    table: sa.FromClause,
    moment: sa.ColumnElement[int],
    which: ReportFilter,
    names: list[str],
    span: tuple[int, int],
    step: int,
) -> sa.Select[Any]:
    """Sums of the rows of a roll-up whose `moment`, the beginning of an hour or a day, is within the span."""
    between = sa.and_(moment >= span[0], moment < span[1])
    if LINE_ITEM in names:
        tokens = {f"{meter}_tokens": table.c[f"{meter}_tokens"] for meter in METERS}
        return _by_meter(table, moment, tokens, names).where(between, *which.of(table))
    sums = [sa.func.sum(table.c[name]).label(name) for name in (*COUNTED, "device_s")]
    at = (moment - moment % sa.literal_column(str(step), sa.BigInteger)).label("at")
    joined, groups = _grouped(table, names)
    keys = [at, *groups, table.c.currency]
    query = sa.select(*keys, *sums, sa.literal_column("0").label("correction_picos")).select_from(joined)
    return query.where(between, *which.of(table)).group_by(*keys)


def _tagged_hours(which: ReportFilter, first: int, last: int) -> sa.FromClause:
    """The rows of usage_hours with the column tag_set_id: the rows with tags, and all rows less the rows with tags."""
    counted = (*COUNTED, "device_s")
    key = [column.name for column in _hours.c if column.name not in counted]
    untagged = sa.literal_column("NULL", sa.String).label("tag_set_id")

    def rows(table: sa.Table, sign: int, tag_set_id: sa.ColumnElement[Any]) -> sa.Select[Any]:
        sums = [(table.c[name] if sign > 0 else -table.c[name]).label(name) for name in counted]
        between = sa.and_(table.c.hour >= first, table.c.hour < last)
        limits = msgspec.structs.replace(which, tags=()).of(table)
        return sa.select(*(table.c[name] for name in key), *sums, tag_set_id).where(between, *limits)

    tagged = tables.tag_hours
    return sa.union_all(
        rows(_hours, 1, untagged), rows(tagged, -1, untagged), rows(tagged, 1, tagged.c.tag_set_id)
    ).subquery()


def _by_meter(
    table: sa.FromClause, at: sa.ColumnElement[int], tokens: Mapping[str, sa.ColumnElement[int]], names: list[str]
) -> sa.Select[Any]:
    """A row for each meter with tokens of each row of usage or of the roll-ups: the meter's tokens and their cost."""
    own = sa.case(*((_unit.c.meter == meter, tokens[f"{meter}_tokens"]) for meter in METERS), else_=0)
    joined, groups = _grouped(table, names)
    columns: list[Any] = [at.label("at"), *groups, table.c.currency]
    for name in COUNTED:
        meter = name.removesuffix("_tokens")
        nothing = sa.literal_column("0", sa.BigInteger)
        value = sa.case((_unit.c.meter == meter, own), else_=0) if meter in METERS else nothing
        columns.append((own * _unit.c.picos if name == "cost_picos" else value).label(name))
    columns += [sa.literal_column("0.0", sa.Double).label("device_s"), sa.literal_column("0").label("correction_picos")]
    price = sa.and_(_unit.c.price_version_id == table.c.price_version_id, _unit.c.tier == table.c.tier)
    return sa.select(*columns).select_from(joined.join(_unit, price)).where(own != 0)


def _raw(which: ReportFilter, names: list[str], rows: sa.ColumnElement[bool]) -> sa.Select[Any]:
    meters = rollups.meters()
    if LINE_ITEM in names:
        return _by_meter(_usage, _usage.c.finished_at.expression, meters, names).where(rows, *which.of(_usage))
    joined, groups = _grouped(_usage, names)
    columns: list[Any] = [_usage.c.finished_at.label("at"), *groups, _usage.c.currency]
    for name in COUNTED:
        one = sa.literal_column("1") if name == "requests" else meters.get(name, _usage.c.get(name))
        columns.append(one.label(name))  # type: ignore[union-attr]
    columns += [_usage.c.device_s, sa.literal_column("0").label("correction_picos")]
    return sa.select(*columns).select_from(joined).where(rows, *which.of(_usage))


def _corrected(which: ReportFilter, names: list[str]) -> sa.Select[Any]:
    made: sa.FromClause = _corrections
    if _is_tagged(which, names):  # a correction has the tags of its request
        of_request = _corrections.outerjoin(_usage, _usage.c.request_id == _corrections.c.request_id)
        made = sa.select(_corrections, _usage.c.tag_set_id).select_from(of_request).subquery()
    joined, groups = _grouped(made, names)
    counted_at = sa.func.coalesce(made.c.counted_at, made.c.created_at)
    columns: list[Any] = [counted_at.label("at"), *groups, made.c.currency]
    for name in COUNTED[:-1]:
        meter = name.removesuffix("_tokens")
        of_meter = LINE_ITEM in names and meter in METERS
        moved = sa.case((made.c.meter == meter, made.c.tokens), else_=0)
        columns.append((moved if of_meter else sa.literal_column("0")).label(name))
    columns += [made.c.picos.label("cost_picos"), sa.literal_column("0.0", sa.Double).label("device_s")]
    columns.append(made.c.picos.label("correction_picos"))
    # Two conditions instead of `coalesce`, so that the columns' indexes find the rows.
    between = sa.or_(
        sa.and_(made.c.counted_at >= which.start, made.c.counted_at < which.end),
        sa.and_(made.c.counted_at.is_(None), made.c.created_at >= which.start, made.c.created_at < which.end),
    )
    return sa.select(*columns).select_from(joined).where(between, *which.of(made))


def _grouped(table: sa.FromClause, names: list[str]) -> tuple[sa.FromClause, list[sa.ColumnElement[Any]]]:
    """The table joined with its tags, and the groups' columns, with NONE in place of null as in the roll-ups."""
    joined = table
    groups: list[sa.ColumnElement[Any]] = []
    for name in names:
        column: sa.ColumnElement[Any]
        if name.startswith(TAG_GROUP):
            tag = tables.tag_sets.alias()
            is_own = sa.and_(tag.c.tag_set_id == table.c.tag_set_id, tag.c.name == name.removeprefix(TAG_GROUP))
            joined = joined.outerjoin(tag, is_own)
            column = sa.func.coalesce(tag.c.value, rollups.NOTHING)
        else:
            column = _line_item(table) if name == LINE_ITEM else sa.func.coalesce(table.c[name], rollups.NOTHING)
        groups.append(column.label(name))
    return joined, groups


def _line_item(table: sa.FromClause) -> sa.ColumnElement[str]:
    """For example `model-a, input`, or `ada_…, output` of an adapter; a correction may have no meter."""
    called = sa.func.coalesce(sa.func.nullif(table.c.adapter, tables.NONE), table.c.model)
    meter = table.c.meter if "meter" in table.c else _unit.c.meter
    words = sa.func.coalesce(sa.func.replace(meter, "_", " "), "correction")
    return sa.case((called.is_(None), words), else_=called + LINE_ITEM_SEPARATOR + words)
