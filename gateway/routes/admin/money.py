"""/v1/admin/prices and /v1/admin/budgets. Money is integer picos: 10⁻¹² of a currency unit."""

from __future__ import annotations

import functools
from typing import Annotated, Literal

import msgspec
import sqlalchemy as sa
from litestar import Controller, delete, get, post
from litestar.params import Parameter
from msgspec import Meta

from billing.accounts import budgets, prices
from billing.accounts.budgets import THRESHOLD_MAX, THRESHOLDS_MAX, BudgetState
from billing.accounts.prices import PICOS_MAX, UNIT_PRICE_PICOS_MAX, SubjectKind
from billing.books import projections
from billing.books.margins import Preview
from billing.clock import SECOND, database_now
from billing.errors import RowNotFound
from gateway.access import keys
from gateway.admin.administration import Administration
from gateway.admin.budgets import budget_state, end_user_states
from gateway.admin.writes import Actor, visible_tenant
from gateway.routes.admin.paging import (
    PAGE_DEFAULT,
    After,
    Limit,
    Search,
    TenantFilter,
    after_id,
    list_page,
    list_query,
)
from gateway.services import Services
from gateway.views.accounts import BudgetView, EndUserView, ListedBudgetView, Page, PriceView, make_page

END_USER_CHARS_MAX = 1024  # of a name that is looked up
BudgetSort = Literal[
    "created_at", "-created_at", "limit_amount", "-limit_amount", "scope", "-scope", "unit", "-unit",
    "period", "-period", "kind", "-kind",
]  # fmt: skip
EndUserSort = Literal["used", "-used", "held", "-held", "created_at", "-created_at"]
EndUserName = Annotated[
    str | None, Parameter(min_length=1, max_length=END_USER_CHARS_MAX, description="as requests name the end user")
]
Threshold = Annotated[int, Meta(ge=1, le=THRESHOLD_MAX)]
PicosPerToken = Annotated[int, Meta(ge=0, le=UNIT_PRICE_PICOS_MAX)]


class NewPrice(msgspec.Struct, forbid_unknown_fields=True):
    """Picos per token of a model (by name) or an adapter (by id), times each tier's multiplier ("3", "0.5"; 1 for a
    tier that is not named). `effective_from` in Unix seconds; by default now. `ahead`: the price of a model that is
    added later."""

    subject: str
    input: PicosPerToken
    output: PicosPerToken
    cached_input: PicosPerToken | None = None  # this and `embedding` by default as `input`
    embedding: PicosPerToken | None = None
    multipliers: dict[str, str] = {}
    subject_kind: SubjectKind = "model"
    currency: str = "USD"
    effective_from: Annotated[int, Meta(ge=0, le=2**40)] | None = None
    ahead: bool = False


class PricePreview(NewPrice, forbid_unknown_fields=True):
    """A price, and the month whose usage is priced with it (2026-01; by default the last whole month), of one tenant or
    of all. `effective_from` and `ahead` have no effect."""

    month: Annotated[str, Meta(max_length=7)] | None = None
    tenant: str | None = None


class BudgetSetting(msgspec.Struct, forbid_unknown_fields=True):
    """The budget of this unit and period of the tenant, of its project (id or name) or of its key `key_id`: each has at
    most one. `limit_amount` in tokens or picos. `thresholds`: percentages of the limit at which an alert is raised.
    Fields that are left out do not change an existing budget; a new budget is hard by default, and a new soft budget
    has the thresholds 80 and 100. `per_end_user`: the limit is that of each end user that requests name by
    `safety_identifier`, `user` or `metadata.user_id`; such a budget is hard and has no thresholds, and exists beside an
    ordinary budget of the same unit and period."""

    tenant: str
    unit: Literal["tokens", "money"]
    period: Literal["day", "month", "total"]
    limit_amount: Annotated[int, Meta(ge=0, le=PICOS_MAX)]
    project: str | None = None
    key_id: str | None = None
    kind: Literal["hard", "soft"] | None = None
    thresholds: Annotated[list[Threshold], Meta(max_length=THRESHOLDS_MAX)] | None = None
    per_end_user: bool = False


class PriceController(Controller):
    path = "/prices"
    opt = {"area": "prices"}  # noqa: RUF012

    @post("/", opt={"route": "/v1/admin/prices", "everyones": True})
    async def publish_price(self, services: Services, administration: Administration, data: NewPrice) -> PriceView:
        """Publish a price version. A version never changes; requests have the price of the newest one in force."""
        fields = msgspec.structs.asdict(data)
        if data.cached_input is None:
            fields["cached_input"] = data.input
        if data.effective_from is not None:
            fields["effective_from"] = data.effective_from * SECOND
        return PriceView.of(await services.database.administer(lambda c: administration.prices.publish(c, **fields)))

    @post("/preview", opt={"route": "/v1/admin/prices/preview", "everyones": True, "access": "read"}, status_code=200)
    async def preview_price(self, services: Services, administration: Administration, data: PricePreview) -> Preview:
        """The cost of a month's usage at these prices, by tenant and in total. Nothing is published."""
        fields = msgspec.structs.asdict(data)
        del fields["effective_from"], fields["ahead"]
        if data.cached_input is None:
            fields["cached_input"] = data.input
        return await services.database.report(lambda c: administration.prices.preview(c, **fields))

    @get("/{price_id:str}", opt={"route": "/v1/admin/prices/{price_id}", "everyones": True})
    async def get_price(self, services: Services, price_id: str) -> PriceView:
        """One price version, by id."""
        found = await services.database.read(lambda c: prices.get_price_version(c, price_id))
        if found is None:
            raise RowNotFound(f"there is no price version {price_id!r}", "price_id")
        return PriceView.of(found)

    @get("/", opt={"route": "/v1/admin/prices", "everyones": True})
    async def list_prices(
        self, services: Services, subject: str | None = None, limit: Limit = PAGE_DEFAULT, after: After = None
    ) -> Page[PriceView]:
        """The newest thousand price versions, by `effective_from` in descending order."""
        found = await services.database.read(lambda c: prices.list_price_versions(c, subject=subject))
        return make_page(after_id(found, after), limit, PriceView.of, lambda version: version.id)


class BudgetController(Controller):
    path = "/budgets"
    opt = {"area": "money"}  # noqa: RUF012

    @post("/", opt={"route": "/v1/admin/budgets"}, status_code=200)
    async def set_budget(self, services: Services, administration: Administration, data: BudgetSetting) -> BudgetView:
        """Make a budget or change it. It applies to the next request."""

        def change(connection: sa.Connection) -> BudgetState:
            budget = administration.budgets.set(
                connection,
                tenant_id=data.tenant,
                unit=data.unit,
                period=data.period,
                limit_amount=data.limit_amount,
                project=data.project,
                key_id=data.key_id,
                kind=data.kind,
                thresholds=data.thresholds,
                per_end_user=data.per_end_user,
            )
            return budget_state(connection, budget)

        return BudgetView.of(await services.database.administer(change))

    @get("/", opt={"route": "/v1/admin/budgets"})
    async def list_budgets(
        self,
        services: Services,
        by: Actor,
        tenant: TenantFilter = None,
        search: Search = None,
        sort: BudgetSort = "created_at",
        limit: Limit = PAGE_DEFAULT,
        after: After = None,
    ) -> Page[ListedBudgetView]:
        """Budgets with the used, held and remaining amounts of their present windows, and a projection."""
        wanted = list_query(sort, search, after, limit)

        def query(connection: sa.Connection) -> Page[ListedBudgetView]:
            found = budgets.query_budget_states(connection, wanted, tenant_id=visible_tenant(connection, by, tenant))
            now = database_now(connection)
            shown = [state.budget for state in found.items]
            tenant_ids = {budget.tenant_id for budget in shown}
            paces = projections.paces(connection, shown, now, keys.first_keys(connection, tenant_ids))

            def view(state: BudgetState) -> ListedBudgetView:
                return ListedBudgetView.projecting(
                    state, projections.project(state, paces.get(state.budget.counts_for), now)
                )

            return list_page(found, view)

        return await services.database.report(query)

    @get("/{budget_id:str}/end_users", opt={"route": "/v1/admin/budgets/{budget_id}/end_users"})
    async def list_end_users(
        self,
        services: Services,
        by: Actor,
        budget_id: str,
        end_user: EndUserName = None,
        sort: EndUserSort = "-used",
        limit: Limit = PAGE_DEFAULT,
        after: After = None,
    ) -> Page[EndUserView]:
        """The end users of a budget for each end user, in its present window; with `end_user`, this end user alone. An
        end user beyond the limit of end users has the shared budget."""
        wanted = list_query(sort, None, after, limit)
        digest_in = None if end_user is None else functools.partial(services.end_users.digest, name=end_user)
        found = await services.database.report(lambda c: end_user_states(c, by, budget_id, wanted, digest_in))
        return list_page(found, EndUserView.of)

    @get("/{budget_id:str}", opt={"route": "/v1/admin/budgets/{budget_id}"})
    async def get_budget(self, services: Services, by: Actor, budget_id: str) -> BudgetView:
        """One budget that is enforced, with the used, held and remaining amounts of its present window."""

        def query(connection: sa.Connection) -> BudgetView:
            found = budgets.get_budget(connection, budget_id)
            if found is None or not found.active or not by.sees(found.tenant_id):
                raise RowNotFound(f"there is no budget {budget_id!r}", "budget_id")
            return BudgetView.of(budget_state(connection, found))

        return await services.database.read(query)

    @delete("/{budget_id:str}", opt={"route": "/v1/admin/budgets/{budget_id}"})
    async def remove_budget(self, services: Services, administration: Administration, budget_id: str) -> None:
        """Stop enforcing a budget."""
        await services.database.administer(lambda c: administration.budgets.remove(c, budget_id))
