"""The arms of one alias, or the versions of one adapter: counts, timings and failures of their requests.

An arm is a base model or a version of an adapter.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from billing import tables

SAMPLE_MAX = 20_000  # requests, newest first, from which percentiles are computed
FAILED = ("engine_failed", "gateway_dead")

_usage = tables.usage
_ARM = (_usage.c.model, _usage.c.adapter, _usage.c.adapter_version)


class ArmUse(msgspec.Struct, frozen=True, kw_only=True):
    """One arm. `failed`: requests that ended because an engine or a gateway failed. `cost_picos` by currency.
    Percentiles of seconds to the first token, and the device's seconds per token made, are computed from at most the
    newest SAMPLE_MAX requests of all arms together; null: the arm served none of these requests."""

    model: str
    adapter: str | None
    adapter_version: int | None
    requests: int
    failed: int
    prompt_tokens: int
    completion_tokens: int
    cost_picos: dict[str, int]
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    device_s_per_token: float | None


def of_alias(connection: sa.Connection, name: str, *, start: int, tenant_id: str | None = None) -> list[ArmUse]:
    """The arms of the requests that named this alias and ended from `start` on, in microseconds UTC; most requests
    first. `tenant_id`: of this tenant's requests only."""
    return _arms(connection, [_usage.c.asked == name], start, tenant_id)


def of_adapter(connection: sa.Connection, adapter_id: str, *, start: int, tenant_id: str | None = None) -> list[ArmUse]:
    """The arms of an adapter, one for each of its versions; otherwise as `of_alias`. Requests that were settled before
    versions were recorded are left out."""
    where = [_usage.c.adapter == adapter_id, _usage.c.adapter_version.is_not(None)]
    return _arms(connection, where, start, tenant_id)


def _arms(
    connection: sa.Connection, where: Sequence[sa.ColumnElement[bool]], start: int, tenant_id: str | None
) -> list[ArmUse]:
    where = [*where, _usage.c.finished_at >= start]
    if tenant_id is not None:
        where.append(_usage.c.tenant_id == tenant_id)
    sums = (
        sa.func.count().label("requests"),
        sa.func.sum(sa.case((_usage.c.ending.in_(FAILED), 1), else_=0)).label("failed"),
        *(sa.func.sum(_usage.c[name]).label(name) for name in ("prompt_tokens", "completion_tokens", "cost_picos")),
    )
    query = sa.select(*_ARM, _usage.c.currency, *sums).where(*where).group_by(*_ARM, _usage.c.currency)
    totals: dict[tuple[str, str | None, int | None], list[sa.Row[tuple[object, ...]]]] = defaultdict(list)
    for row in connection.execute(query):
        totals[(row.model, row.adapter, row.adapter_version)].append(row)
    sample = _sample(connection, where)
    found = []
    for arm, rows in totals.items():
        model, adapter, version = arm
        ttfts, device_s, tokens = sample.get(arm, ([], 0.0, 0))
        found.append(
            ArmUse(
                model=model,
                adapter=adapter,
                adapter_version=version,
                **{
                    name: sum(int(getattr(row, name)) for row in rows)
                    for name in ("requests", "failed", "prompt_tokens", "completion_tokens")
                },
                cost_picos={row.currency: int(row.cost_picos) for row in rows},
                ttft_p50_s=_percentile(ttfts, 0.50),
                ttft_p95_s=_percentile(ttfts, 0.95),
                device_s_per_token=device_s / tokens if tokens else None,
            )
        )
    return sorted(found, key=lambda one: -one.requests)


def _sample(
    connection: sa.Connection, where: Sequence[sa.ColumnElement[bool]]
) -> dict[tuple[str, str | None, int | None], tuple[list[float], float, int]]:
    """For each arm: sorted seconds to the first token, seconds of the device, and tokens made."""
    columns = (*_ARM, _usage.c.ttft_s, _usage.c.device_s, _usage.c.made_tokens)
    query = sa.select(*columns).where(*where).order_by(_usage.c.finished_at.desc()).limit(SAMPLE_MAX)
    found: dict[tuple[str, str | None, int | None], tuple[list[float], float, int]] = {}
    for row in connection.execute(query):
        arm = (row.model, row.adapter, row.adapter_version)
        ttfts, device_s, tokens = found.get(arm, ([], 0.0, 0))
        if row.ttft_s:  # 0: no token arrived at the gateway
            ttfts.append(row.ttft_s)
        found[arm] = ttfts, device_s + row.device_s, tokens + row.made_tokens
    return {arm: (sorted(ttfts), device_s, tokens) for arm, (ttfts, device_s, tokens) in found.items()}


def _percentile(ascending: Sequence[float], part: float) -> float | None:
    return ascending[max(0, math.ceil(part * len(ascending)) - 1)] if ascending else None
