"""Settled requests and corrections as CloudEvents 1.0, one JSON object per line. A consumer counts each `id` once.

Fields are in a fixed order, so equal rows give equal bytes. Amounts are exact decimal strings.
"""

from __future__ import annotations

from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any

import msgspec

from billing.accounts.prices import Operation
from billing.books.corrections import Correction
from billing.exports.amounts import decimal_text, precise_moment_text

NAME = "laneway cloudevents 1"
SPEC_VERSION = "1.0"
CONTENT_TYPE = "application/json"
SETTLED = "laneway.usage.settled"
CORRECTED = "laneway.usage.corrected"
# The columns read of a usage row, in this order.
USAGE_COLUMNS = (
    "sequence",
    "request_id",
    "tenant_id",
    "project_id",
    "key_id",
    "model",
    "adapter",
    "tier",
    "price_version_id",
    "currency",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "cost_picos",
    "ending",
    "started_at",
    "finished_at",
    "tag_set_id",
    "operation",
    "batch_id",
)
TAG_SET_AT = USAGE_COLUMNS.index("tag_set_id")


class UsageData(msgspec.Struct):
    """`data` of a settled request. `cost`: exact units of `currency`. `tags`: the key's; absent without tags.
    `operation`: "embedding" if a vector was made of the prompt; absent for text. `batch_id`: of a line of a batch;
    absent for other requests."""

    sequence: int
    tenant_id: str
    project_id: str | None
    key_id: str
    model: str
    adapter: str | None
    tier: str
    price_version_id: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: str
    currency: str
    ending: str
    started_at: str
    tags: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    operation: str | msgspec.UnsetType = msgspec.UNSET
    batch_id: str | msgspec.UnsetType = msgspec.UNSET


class CorrectionData(msgspec.Struct):
    """`data` of a correction: tokens and an amount that are added or, below 0, taken off."""

    sequence: int
    tenant_id: str
    project_id: str | None
    key_id: str | None
    request_id: str | None
    model: str | None
    adapter: str | None
    tier: str | None
    meter: str | None
    price_version_id: str | None
    tokens: int
    cost: str
    currency: str
    reason: str


class UsageEvent(msgspec.Struct):
    """A CloudEvent. `id`: of the request or the correction. `subject`: the id of the key."""

    id: str
    source: str
    type: str
    time: str
    data: UsageData | CorrectionData
    specversion: str = SPEC_VERSION
    datacontenttype: str = CONTENT_TYPE
    subject: str | msgspec.UnsetType = msgspec.UNSET


def tokens_by_meter(rows: list[Any]) -> tuple[list[int], ...]:
    """Of usage rows, tuples in the order of USAGE_COLUMNS: the tokens of each row, by meter in the order of METERS."""
    prompt, cached, completion, operation = map(
        USAGE_COLUMNS.index, ("prompt_tokens", "cached_tokens", "completion_tokens", "operation")
    )
    return (
        [row[prompt] - row[cached] if row[operation] == "text" else 0 for row in rows],
        [row[cached] for row in rows],
        [row[completion] for row in rows],
        [row[prompt] if row[operation] == "embedding" else 0 for row in rows],
    )


_ENCODER = msgspec.json.Encoder()
GROUPS_MAX = 20_000  # in the cache; a full cache is emptied


class EventWriter:
    """Renders settled requests as lines. Text that is equal for a key, model, tier and price is rendered once."""

    def __init__(self) -> None:
        self._groups: dict[tuple[Any, ...], tuple[str, ...]] = {}

    def of_usage(self, rows: list[Any], tags: Mapping[str, Mapping[str, str]]) -> bytes:
        """Lines for usage rows, tuples in the order of USAGE_COLUMNS: the bytes of each row's encoded UsageEvent.
        `tags`: by tag set."""
        groups = self._groups
        pieces: list[str] = []
        for (
            sequence, request_id, tenant, project, key, model, adapter, tier, version, currency,
            prompt, cached, completion, cost, ending, started_at, finished_at, tag_set_id, operation, batch_id,
        ) in rows:  # fmt: skip
            named = (
                tenant, project, key, model, adapter, tier, version, currency, ending, operation, batch_id, tag_set_id,
            )  # fmt: skip
            group = groups.get(named)
            if group is None:
                if len(groups) >= GROUPS_MAX:
                    groups.clear()
                group = groups[named] = _rendered(*named[:-1], tags.get(tag_set_id))
            head, data, tail, last = group
            pieces += (
                '{"id":', encode_basestring(request_id), head, precise_moment_text(finished_at),
                '","data":{"sequence":', str(sequence), data, str(prompt), ',"cached_tokens":', str(cached),
                ',"completion_tokens":', str(completion), ',"cost":"', decimal_text(cost), tail,
                precise_moment_text(started_at), last,
            )  # fmt: skip
        return "".join(pieces).encode()


def _rendered(
    tenant_id: str,
    project_id: str | None,
    key_id: str,
    model: str,
    adapter: str | None,
    tier: str,
    price_version_id: str,
    currency: str,
    ending: str,
    operation: Operation,
    batch_id: str | None,
    tags: Mapping[str, str] | None,
) -> tuple[str, str, str, str]:
    """The parts of a line between a request's own values, in the order of UsageEvent's and UsageData's fields."""

    def fields(**values: str | None) -> str:
        return ",".join(f'"{name}":{_ENCODER.encode(value).decode()}' for name, value in values.items())

    named = fields(
        tenant_id=tenant_id,
        project_id=project_id,
        key_id=key_id,
        model=model,
        adapter=adapter,
        tier=tier,
        price_version_id=price_version_id,
    )
    marked = f',"tags":{_ENCODER.encode(tags).decode()}' if tags else ""
    marked += "" if operation == "text" else f",{fields(operation=operation)}"
    marked += "" if batch_id is None else f",{fields(batch_id=batch_id)}"
    return (
        f',{fields(source=f"/tenants/{tenant_id}", type=SETTLED)},"time":"',
        f',{named},"prompt_tokens":',
        f'",{fields(currency=currency, ending=ending)},"started_at":"',
        f'"{marked}}},{fields(specversion=SPEC_VERSION, datacontenttype=CONTENT_TYPE, subject=key_id)}}}\n',
    )


def of_correction(made: Correction) -> bytes:
    data = CorrectionData(
        made.sequence,
        made.tenant_id,
        made.project_id,
        made.key_id,
        made.request_id,
        made.model,
        made.adapter,
        made.tier,
        made.meter,
        made.price_version_id,
        made.tokens,
        decimal_text(made.picos),
        made.currency,
        made.reason,
    )
    event = UsageEvent(made.id, f"/tenants/{made.tenant_id}", CORRECTED, precise_moment_text(made.created_at), data)
    if made.key_id is not None:
        event.subject = made.key_id
    return _ENCODER.encode_lines([event])
