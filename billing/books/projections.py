"""Projects when a budget will be exhausted: the amount left, divided by the scope's average rate of use.

The rate is the use of the budget's tenant, project or key in the roll-ups of the last PACE_DAYS days, divided by the
time since the first hour with use in them. It models no season and no trend. This module reads roll-ups, never usage
rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.accounts.budgets import Budget, BudgetState
from billing.books.rollups import HOUR
from billing.clock import SECOND

PACE_DAYS = 7
DAY = 24 * HOUR
NONE_ROTATED: Mapping[str, str] = MappingProxyType({})
YEARS_MAX = 10  # a budget that lasts longer counts as never exhausted

_hours = tables.usage_hours


class UsageRate(msgspec.Struct, frozen=True):
    """A scope's use per second, in tokens and in picos."""

    tokens: float
    money: float


class Projection(msgspec.Struct, frozen=True):
    """`at_end`: projected use at the window's end; None for a total budget. `run_out_at` (microseconds UTC): when
    the budget will be exhausted; None: not in this window, or not in YEARS_MAX years."""

    at_end: int | None
    run_out_at: int | None


def paces(
    connection: sa.Connection, budgets: Sequence[Budget], now: int, first_keys: Mapping[str, str] = NONE_ROTATED
) -> dict[str, UsageRate]:
    """Rates of use by `Budget.counts_for`. Scopes without use are missing. `first_keys`: by the id of a rotated key,
    the first key of its chain of rotations."""
    sums: dict[str, list[int]] = defaultdict(lambda: [now, 0, 0])
    prompts = _hours.c.input_tokens + _hours.c.cached_input_tokens + _hours.c.embedding_tokens
    tokens = prompts + _hours.c.output_tokens
    scopes = [_hours.c.tenant_id, _hours.c.project_id, _hours.c.key_id]
    query = (
        sa.select(*scopes, sa.func.min(_hours.c.hour), sa.func.sum(tokens), sa.func.sum(_hours.c.cost_picos))
        .where(_hours.c.tenant_id.in_({budget.tenant_id for budget in budgets}), _hours.c.hour >= now - PACE_DAYS * DAY)
        .group_by(*scopes)
    )
    counted_for = {budget.counts_for for budget in budgets}
    for *ids, first, used_tokens, used_picos in connection.execute(query):
        for scope_id in counted_for.intersection(first_keys.get(id_, id_) for id_ in ids):
            since, tokens_before, picos_before = sums[scope_id]
            sums[scope_id] = [min(since, first), tokens_before + int(used_tokens), picos_before + int(used_picos)]
    return {scope_id: _pace(now - first, *used) for scope_id, (first, *used) in sums.items()}


def project(state: BudgetState, pace: UsageRate | None, now: int) -> Projection:
    """Project a budget in its present window. Held amounts count as used."""
    per_second = 0.0 if pace is None else getattr(pace, state.budget.unit)
    at_end = None
    if state.resets_at is not None:
        at_end = state.used + state.held + round(per_second * max(0, state.resets_at - now) / SECOND)
    if state.left <= 0:
        return Projection(at_end, now)
    if per_second <= 0 or state.left / per_second > YEARS_MAX * 365 * DAY / SECOND:
        return Projection(at_end, None)
    run_out_at = now + round(state.left / per_second * SECOND)
    inside = state.resets_at is None or run_out_at < state.resets_at
    return Projection(at_end, run_out_at if inside else None)


def _pace(span: int, tokens: int, picos: int) -> UsageRate:
    seconds = max(span, HOUR) / SECOND
    return UsageRate(tokens / seconds, picos / seconds)
