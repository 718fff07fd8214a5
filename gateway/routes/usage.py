"""GET /v1/usage and /v1/budget: the usage of the caller's own key, and the budgets that apply to it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import sqlalchemy as sa
from litestar import Request, get
from litestar.params import Parameter

from billing.accounts import budgets
from billing.accounts.tags import source_filter
from billing.books import usage
from billing.books.usage import UsageFilter
from billing.clock import SECOND
from billing.ledger.messages import Recompute
from gateway.routes.guard import admit
from gateway.services import Services
from gateway.views.accounts import BudgetView

Moment = Annotated[int | None, Parameter(ge=0, le=2**40, description="Unix seconds")]


class OwnUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over this key's settled requests with start_time ≤ finished < end_time; the cost by currency, in picos
    (10⁻¹²). `device_s` excludes recomputation after preemptions, which `recomputed` has by the tier that caused it."""

    object: Literal["usage"] = "usage"
    key_id: str
    start_time: int | None
    end_time: int | None
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    device_s: float
    preemptions: int
    recomputed: dict[str, Recompute]
    swapped_tokens: int
    cost_picos: dict[str, int]


class OwnBudgets(msgspec.Struct, frozen=True, kw_only=True):
    """The budgets of the key, its project and its tenant in their present windows. Each hard budget must cover a
    request."""

    object: Literal["list"] = "list"
    data: list[BudgetView]


@get(["/v1/usage", "/t/{tenant:str}/v1/usage"], opt={"route": "/v1/usage"})
async def own_usage(
    request: Request[Any, Any, Any],
    services: Services,
    start_time: Moment = None,
    end_time: Moment = None,
    batch: Annotated[bool | None, Parameter(description="true: lines of batches; false: all other requests")] = None,
) -> OwnUsage:
    """The usage of this key."""
    caller = await admit(services, request)
    which = UsageFilter(
        tenant_id=caller.tenant_id,
        key_id=caller.key_id,
        tags=source_filter(batch),
        start=None if start_time is None else start_time * SECOND,
        end=None if end_time is None else end_time * SECOND,
    )
    totals = await services.database.report(lambda connection: usage.sum_usage(connection, which))
    return OwnUsage(
        key_id=caller.key_id,
        start_time=start_time,
        end_time=end_time,
        requests=totals.requests,
        prompt_tokens=totals.prompt_tokens,
        cached_tokens=totals.cached_tokens,
        completion_tokens=totals.completion_tokens,
        device_s=totals.device_s,
        preemptions=totals.preemptions,
        recomputed=totals.recomputed,
        swapped_tokens=totals.swapped_tokens,
        cost_picos=totals.cost_picos,
    )


@get(["/v1/budget", "/t/{tenant:str}/v1/budget"], opt={"route": "/v1/budget"})
async def own_budgets(request: Request[Any, Any, Any], services: Services) -> OwnBudgets:
    """The used, held and remaining amounts of each budget, and when it resets (Unix seconds; null: never)."""
    caller = await admit(services, request)

    def query(connection: sa.Connection) -> list[budgets.BudgetState]:
        scopes = (caller.first_key_id, caller.project_id, caller.tenant_id)
        return [
            state
            for scope_id in scopes
            if scope_id is not None
            for state in budgets.list_budget_states(connection, scope_id=scope_id)
        ]

    return OwnBudgets(data=[BudgetView.of(state) for state in await services.database.report(query)])
