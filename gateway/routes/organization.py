"""GET /v1/organization/usage/completions and /v1/organization/costs: OpenAI's administration API over all tenants, for
admin keys. Fields beyond OpenAI's are tenant, adapter, tier and exact picos.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

import msgspec
import sqlalchemy as sa
from litestar import Request, get
from litestar.params import Parameter

from billing.accounts.prices import PICOS_PER_UNIT
from billing.accounts.tags import source_filter
from billing.books import reports
from billing.books.reports import (
    SOURCE_GROUP,
    TAG_GROUP,
    TAG_GROUPS_MAX,
    VALUES_MAX,
    WIDTHS,
    GroupSums,
    Report,
    ReportCursor,
    ReportFilter,
    Width,
)
from billing.clock import SECOND, database_now
from gateway.admin.writes import Actor, tenant_of
from gateway.errors import InvalidRequest
from gateway.routes.pages import decode_cursor, encode_cursor, tag_filter, tag_groups
from gateway.services import Services
from gateway.views.names import name_line_items

# Buckets of a page by default and at most, as in OpenAI's API.
LIMITS: dict[Width, tuple[int, int]] = {"1m": (60, 1440), "1h": (24, 168), "1d": (7, 31), "all": (1, 1)}
COST_LIMITS: dict[Width, tuple[int, int]] = {"1d": (7, 180), "all": (1, 1)}

GroupName = Literal["tenant_id", "project_id", "api_key_id", "model", "adapter", "service_tier", "batch"]
CostGroupName = Literal[
    "tenant_id", "project_id", "api_key_id", "model", "adapter", "service_tier", "batch", "line_item"
]
GROUP_OF = {"api_key_id": "key_id", "service_tier": "tier", "batch": SOURCE_GROUP}

Start = Annotated[int, Parameter(ge=0, le=2**40, description="Unix seconds")]
End = Annotated[int | None, Parameter(ge=0, le=2**40, description="Unix seconds; by default now")]
Names = Annotated[list[str] | None, Parameter(max_items=VALUES_MAX)]
TagNames = Annotated[
    list[str] | None, Parameter(max_items=TAG_GROUPS_MAX, description="Names of tags whose values are groups")
]
OfBatch = Annotated[bool | None, Parameter(description="true: lines of batches; false: all other requests")]
Buckets = Annotated[int | None, Parameter(ge=1, le=1440)]
PageToken = Annotated[
    str | None, Parameter(query="page", max_length=4096, description="`next_page` of the previous page")
]


class UsageResult(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of one group; names that are not in `group_by` are null. `tags`: the values of `group_by_tags`, null where
    usage has no such tag. `input_tokens` include cached tokens and `embedding_tokens`, which are those of prompts of
    which vectors were made. `batch`: true for lines of batches, false for other requests, null unless in `group_by`."""

    object: Literal["organization.usage.completions.result"] = "organization.usage.completions.result"
    input_tokens: int
    input_cached_tokens: int
    output_tokens: int
    embedding_tokens: int
    input_audio_tokens: int = 0
    output_audio_tokens: int = 0
    num_model_requests: int
    project_id: str | None = None
    user_id: None = None
    api_key_id: str | None = None
    model: str | None = None
    batch: bool | None = None
    service_tier: str | None = None
    tenant_id: str | None = None
    adapter: str | None = None
    tier: str | None = None
    tags: dict[str, str | None] | None = None
    currency: str
    cost_picos: int
    made_tokens: int
    discarded_tokens: int
    device_s: float
    preemptions: int


class Amount(msgspec.Struct, frozen=True):
    """`value` in currency units, rounded to a JSON number; `picos` is exact."""

    value: float
    currency: str
    picos: int


class CostResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one group owes, including the `correction_picos` of its corrections. `line_item`: the name of the model or
    the adapter, and the meter, for example `model-a, cached input`; `quantity`: its tokens. Both are null unless
    grouped by line_item. Adapters of two tenants may have one name: `adapter` in `group_by` has their ids. `batch`: as
    in usage; a correction without a request is no line's."""

    object: Literal["organization.costs.result"] = "organization.costs.result"
    amount: Amount
    line_item: str | None = None
    quantity: int | None = None
    correction_picos: int
    project_id: str | None = None
    api_key_id: str | None = None
    model: str | None = None
    batch: bool | None = None
    service_tier: str | None = None
    tenant_id: str | None = None
    adapter: str | None = None
    tier: str | None = None
    tags: dict[str, str | None] | None = None


class UsageBucket(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["bucket"] = "bucket"
    start_time: int
    end_time: int
    results: list[UsageResult]


class CostBucket(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["bucket"] = "bucket"
    start_time: int
    end_time: int
    results: list[CostResult]


class UsagePage(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket with more groups than fit on a page continues on the next page with the same start_time."""

    object: Literal["page"] = "page"
    data: list[UsageBucket]
    has_more: bool
    next_page: str | None


class CostPage(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["page"] = "page"
    data: list[CostBucket]
    has_more: bool
    next_page: str | None


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a report, before its tenants are looked up."""

    tenants: list[str]
    which: ReportFilter
    end: int | None
    width: Width
    group_by: list[str]
    limit: int
    place: ReportCursor | None


@get("/organization/usage/completions", opt={"route": "/v1/organization/usage/completions", "area": "usage"})
async def organization_usage(
    request: Request[Any, Any, Any],
    services: Services,
    by: Actor,
    start_time: Start,
    end_time: End = None,
    bucket_width: Width = "1d",
    tenants: Names = None,
    project_ids: Names = None,
    api_key_ids: Names = None,
    models: Names = None,
    adapters: Names = None,
    tiers: Names = None,
    tags: Names = None,
    batch: OfBatch = None,
    group_by: list[GroupName] | None = None,
    group_by_tags: TagNames = None,
    limit: Buckets = None,
    page: PageToken = None,
) -> UsagePage:
    """Settled requests by group, in buckets of UTC; `all` is one bucket of the whole time. Currencies are separate
    groups. Arrays are repeated parameters, with or without []; an empty value matches rows without such a name, for
    example without an adapter. `tags`: NAME=VALUE, one value of each name must match; NAME= matches usage without the
    tag."""
    lists = _lists(request, tenants, project_ids, api_key_ids, models, adapters, tiers, tags)
    query = _usage_query(
        request,
        lists,
        batch,
        start_time,
        end_time,
        bucket_width,
        group_by,
        group_by_tags,
        limit,
        LIMITS[bucket_width],
        page,
    )
    report, which = await services.database.report(lambda c: _read_report(c, query, by))
    data = [
        UsageBucket(start_time=start, end_time=end, results=[_usage(services, row) for row in rows if row.requests])
        for start, end, rows in _buckets(report, which, query)
    ]
    following = None if report.next is None else encode_cursor(report.next)
    return UsagePage(data=data, has_more=following is not None, next_page=following)


@get("/organization/costs", opt={"route": "/v1/organization/costs", "area": "usage"})
async def organization_costs(
    request: Request[Any, Any, Any],
    services: Services,
    by: Actor,
    start_time: Start,
    end_time: End = None,
    bucket_width: Literal["1d", "all"] = "1d",
    tenants: Names = None,
    project_ids: Names = None,
    api_key_ids: Names = None,
    models: Names = None,
    adapters: Names = None,
    tiers: Names = None,
    tags: Names = None,
    batch: OfBatch = None,
    group_by: list[CostGroupName] | None = None,
    group_by_tags: TagNames = None,
    limit: Buckets = None,
    page: PageToken = None,
) -> CostPage:
    """The cost of usage and corrections by group and currency, in days of UTC or in one bucket (`all`)."""
    lists = _lists(request, tenants, project_ids, api_key_ids, models, adapters, tiers, tags)
    query = _usage_query(
        request,
        lists,
        batch,
        start_time,
        end_time,
        bucket_width,
        group_by,
        group_by_tags,
        limit,
        COST_LIMITS[bucket_width],
        page,
        CostGroupName,
    )

    def read(connection: sa.Connection) -> tuple[Report, ReportFilter]:
        report, which = _read_report(connection, query, by)
        return name_line_items(connection, report), which

    report, which = await services.database.report(read)
    data = [
        CostBucket(start_time=start, end_time=end, results=[_cost(services, row) for row in rows])
        for start, end, rows in _buckets(report, which, query)
    ]
    following = None if report.next is None else encode_cursor(report.next)
    return CostPage(data=data, has_more=following is not None, next_page=following)


def _lists(request: Request[Any, Any, Any], *given: list[str] | None) -> dict[str, list[str]]:
    """The filters by name. OpenAI's SDKs write `models[]=…` for `models=…`."""
    names = ("tenants", "project_ids", "api_key_ids", "models", "adapters", "tiers", "tags")
    lists = {}
    for name, values in zip(names, given, strict=True):
        lists[name] = [*(values or ()), *request.query_params.getall(f"{name}[]", [])]
        if len(lists[name]) > VALUES_MAX:
            raise InvalidRequest(f"{name!r} has {len(lists[name])} values; the limit is {VALUES_MAX}.", param=name)
    return lists


def _usage_query(
    request: Request[Any, Any, Any],
    lists: dict[str, list[str]],
    of_batch: bool | None,
    start_time: int,
    end_time: int | None,
    width: Width,
    group_by: Sequence[str] | None,
    group_by_tags: Sequence[str] | None,
    limit: int | None,
    limits: tuple[int, int],
    page: str | None,
    known: Any = GroupName,
) -> UsageQuery:
    if end_time is not None and end_time <= start_time:
        raise InvalidRequest("'end_time' must be after 'start_time'.", param="end_time")
    default, most = limits
    if limit is not None and limit > most:
        raise InvalidRequest(f"'limit' is {limit}; for buckets of {width} it is at most {most}.", param="limit")
    names = [*(group_by or ()), *request.query_params.getall("group_by[]", [])]
    if unknown := [name for name in names if name not in get_args(known)]:
        raise InvalidRequest(f"'group_by' {unknown[0]!r} is not a group of this report.", param="group_by")
    groups: list[str] = [GROUP_OF.get(name, name) for name in names]
    groups += tag_groups([*(group_by_tags or ()), *request.query_params.getall("group_by_tags[]", [])])
    which = ReportFilter(
        start=start_time * SECOND,
        end=0,
        project_ids=tuple(lists["project_ids"]),
        key_ids=tuple(lists["api_key_ids"]),
        models=tuple(lists["models"]),
        adapters=tuple(lists["adapters"]),
        tiers=tuple(lists["tiers"]),
        tags=(*tag_filter(lists["tags"], "tags"), *source_filter(of_batch)),
    )
    place = None if page is None else decode_cursor(page, start_time * SECOND, WIDTHS[width], len(set(groups)))
    return UsageQuery(
        tenants=lists["tenants"],
        which=which,
        end=None if end_time is None else end_time * SECOND,
        width=width,
        group_by=groups,
        limit=limit or default,
        place=place,
    )


def _read_report(connection: sa.Connection, query: UsageQuery, by: Actor) -> tuple[Report, ReportFilter]:
    tenant_ids = tuple(tenant_of(connection, tenant, by).id for tenant in query.tenants)
    if not tenant_ids and by.tenant_id is not None:
        tenant_ids = (by.tenant_id,)
    start = query.which.start
    end = max(start, database_now(connection) + SECOND) if query.end is None else query.end
    which = msgspec.structs.replace(query.which, tenant_ids=tenant_ids, end=end)
    report = reports.buckets(
        connection, which, width=query.width, group_by=query.group_by, place=query.place, limit=query.limit
    )
    return report, which


def _buckets(report: Report, which: ReportFilter, query: UsageQuery) -> list[tuple[int, int, list[GroupSums]]]:
    """The buckets of the page, empty ones too: start and end in Unix seconds, and rows."""
    step = WIDTHS[query.width]
    by_bucket: dict[int, list[GroupSums]] = {}
    for row in report.rows:
        by_bucket.setdefault(row.bucket, []).append(row)
    first = which.start - which.start % step if query.place is None else query.place.bucket
    return [
        (max(start, which.start) // SECOND, min(start + step, which.end) // SECOND, by_bucket.get(start, []))
        for start in range(first, report.covered_to, step)
    ]


def _named(services: Services, row: GroupSums) -> dict[str, Any]:
    named = {name: value for name, value in row.groups.items() if not name.startswith(TAG_GROUP)}
    names: dict[str, Any] = {("api_key_id" if name == "key_id" else name): value for name, value in named.items()}
    if len(named) < len(row.groups):
        tags = {name: value for name, value in row.groups.items() if name not in named}
        if SOURCE_GROUP in tags:
            names["batch"] = tags.pop(SOURCE_GROUP) is not None
        names["tags"] = {name.removeprefix(TAG_GROUP): value for name, value in tags.items()} or None
    if (tier := names.get("tier")) is not None:
        section = services.config.tier(tier)
        names["service_tier"] = section.service_tier if section else None
    return names


def _usage(services: Services, row: GroupSums) -> UsageResult:
    return UsageResult(
        input_tokens=row.input_tokens + row.cached_input_tokens + row.embedding_tokens,
        embedding_tokens=row.embedding_tokens,
        input_cached_tokens=row.cached_input_tokens,
        output_tokens=row.output_tokens,
        num_model_requests=row.requests,
        currency=row.currency,
        cost_picos=row.cost_picos - row.correction_picos,
        made_tokens=row.made_tokens,
        discarded_tokens=row.discarded_tokens,
        device_s=row.device_s,
        preemptions=row.preemptions,
        **_named(services, row),
    )


def _cost(services: Services, row: GroupSums) -> CostResult:
    amount = Amount(row.cost_picos / PICOS_PER_UNIT, row.currency.lower(), row.cost_picos)
    tokens = row.input_tokens + row.cached_input_tokens + row.output_tokens + row.embedding_tokens
    quantity = tokens if reports.LINE_ITEM in row.groups else None
    return CostResult(amount=amount, quantity=quantity, correction_picos=row.correction_picos, **_named(services, row))
