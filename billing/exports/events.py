"""Settled requests and corrections as CloudEvents 1.0, one JSON object a line. A consumer counts each `id` once.

Fields are in a fixed order, so alike rows give alike bytes. Amounts are exact decimal strings.
"""

from __future__ import annotations

from typing import Any

import msgspec

from billing.corrections import Correction
from billing.exports.amounts import decimal_text, precise_moment_text

NAME = "laneway cloudevents 1"
SPEC_VERSION = "1.0"
SETTLED = "laneway.usage.settled"
CORRECTED = "laneway.usage.corrected"
# Read of a usage row, in this order.
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
)


class Used(msgspec.Struct):
    """`data` of a settled request. `cost`: exact units of `currency`."""

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


class Corrected(msgspec.Struct):
    """`data` of a correction: tokens and an amount more or, below 0, less."""

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


class Event(msgspec.Struct):
    """`id` is the request's, or the correction's; `subject` the key's."""

    id: str
    source: str
    type: str
    time: str
    data: Used | Corrected
    specversion: str = SPEC_VERSION
    datacontenttype: str = "application/json"
    subject: str | msgspec.UnsetType = msgspec.UNSET


_ENCODER = msgspec.json.Encoder()


def of_usage(rows: list[Any]) -> bytes:
    """Rows of usage, as tuples in the order of USAGE_COLUMNS."""
    return _ENCODER.encode_lines([_used(*row) for row in rows])


def _used(
    sequence: int,
    request_id: str,
    tenant_id: str,
    project_id: str | None,
    key_id: str,
    model: str,
    adapter: str | None,
    tier: str,
    price_version_id: str,
    currency: str,
    prompt_tokens: int,
    cached_tokens: int,
    completion_tokens: int,
    cost_picos: int,
    ending: str,
    started_at: int,
    finished_at: int,
) -> Event:
    data = Used(
        sequence,
        tenant_id,
        project_id,
        key_id,
        model,
        adapter,
        tier,
        price_version_id,
        prompt_tokens,
        cached_tokens,
        completion_tokens,
        decimal_text(cost_picos),
        currency,
        ending,
        precise_moment_text(started_at),
    )
    return Event(request_id, f"/tenants/{tenant_id}", SETTLED, precise_moment_text(finished_at), data, subject=key_id)


def of_correction(made: Correction) -> bytes:
    data = Corrected(
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
    event = Event(made.id, f"/tenants/{made.tenant_id}", CORRECTED, precise_moment_text(made.created_at), data)
    if made.key_id is not None:
        event.subject = made.key_id
    return _ENCODER.encode_lines([event])
