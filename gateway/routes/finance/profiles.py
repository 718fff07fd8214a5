"""/v1/admin/tenants/{tenant_id}/billing_profile, billing_profiles and issuer: the parties of documents."""

from __future__ import annotations

from typing import Literal

import sqlalchemy as sa
from litestar import get, put
from msgspec import Struct

from billing.accounts import tenants
from billing.accounts.tenants import Tenant
from billing.books import documents
from billing.books.documents import Tax
from gateway.admin.administration import Administration
from gateway.admin.documents import issuer_of
from gateway.admin.writes import Actor, tenant_of
from gateway.routes.admin.finance import EVERYONES
from gateway.routes.admin.paging import PAGE_DEFAULT, After, Limit, Search, list_page, list_query
from gateway.services import Services
from gateway.views.accounts import Page
from gateway.views.finance import BillingProfileView, IssuerView, TenantProfileView

ProfileSort = Literal["slug", "-slug", "name", "-name"]  # of the tenant


class NewProfile(Struct, forbid_unknown_fields=True):
    """A tenant's data on its documents. `taxes`: names and rates in percent ("19", "7.5"); `accounts`: its account in
    another system, by the name of the connector."""

    legal_name: str | None = None
    address: list[str] = []
    tax_id: str | None = None
    taxes: list[Tax] = []
    payment_days: int | None = None
    accounts: dict[str, str] = {}


PROFILE = "/v1/admin/tenants/{tenant_id}/billing_profile"


@get("/tenants/{tenant_id:str}/billing_profile", opt={"route": PROFILE, "area": "billing"})
async def get_profile(services: Services, by: Actor, tenant_id: str) -> BillingProfileView:
    """The name, address, taxes and terms of a tenant (id or slug) on its next documents."""
    return BillingProfileView.of(
        await services.database.read(lambda c: documents.profile_of(c, tenant_of(c, tenant_id, by).id))
    )


@put("/tenants/{tenant_id:str}/billing_profile", opt={"route": PROFILE, "area": "billing"})
async def set_profile(
    services: Services, administration: Administration, tenant_id: str, data: NewProfile
) -> BillingProfileView:
    """Replace a tenant's billing profile. Issued documents do not change."""
    made = await services.database.write_in_background(
        lambda c: administration.documents.set_profile(
            c,
            tenant=tenant_id,
            legal_name=data.legal_name,
            address=tuple(data.address),
            tax_id=data.tax_id,
            taxes=tuple(data.taxes),
            payment_days=data.payment_days,
            accounts=data.accounts,
        )
    )
    return BillingProfileView.of(made)


@get("/billing_profiles", opt={"route": "/v1/admin/billing_profiles", **EVERYONES})
async def list_profiles(
    services: Services,
    search: Search = None,
    sort: ProfileSort = "slug",
    limit: Limit = PAGE_DEFAULT,
    after: After = None,
) -> Page[TenantProfileView]:
    """The billing profiles of all tenants that are not archived, also of tenants whose profile was never set."""
    wanted = list_query(sort, search, after, limit)

    def query(connection: sa.Connection) -> Page[TenantProfileView]:
        found = tenants.query_tenants(connection, wanted, archived=False)
        stored = documents.stored_profiles(connection, [tenant.id for tenant in found.items])

        def view(tenant: Tenant) -> TenantProfileView:
            return TenantProfileView.of_tenant(tenant, stored.get(tenant.id))

        return list_page(found, view)

    return await services.database.read(query)


@get("/issuer", opt={"route": "/v1/admin/issuer", **EVERYONES})
async def get_issuer(services: Services) -> IssuerView:
    """The issuer of the next documents: the settings issuer_…, …_series and payment_days of [billing] in
    laneway.toml."""
    return IssuerView.of(issuer_of(services.config))
