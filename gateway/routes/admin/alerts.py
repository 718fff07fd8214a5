"""/v1/admin/webhooks and /v1/admin/alerts: alerts about budgets that reached a threshold, and their deliveries."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa
from litestar import Controller, delete, get, patch, post

from billing.accounts import alerts, webhooks
from billing.accounts.webhooks import BUDGETS, FORMATS
from billing.errors import RowNotFound
from gateway.access import roles
from gateway.admin.administration import Administration
from gateway.admin.webhooks import seen_webhook
from gateway.admin.writes import Actor, visible_tenant
from gateway.routes.admin.paging import PAGE_DEFAULT, After, Limit, TenantFilter, after_id, decode_sequence
from gateway.services import Services
from gateway.upkeep.webhook_deliveries import WebhookTestResult
from gateway.views.accounts import ListedAlertView, NewWebhookView, Page, WebhookView, make_page


class NewWebhook(msgspec.Struct, forbid_unknown_fields=True):
    """`url`: http or https. `tenant`: an id or a slug, whose alerts are delivered; by default those of all tenants.
    `format`: laneway, slack or pagerduty. `events`: budgets, problems or both; a tenant's webhook receives budgets.
    `routing_key`: PagerDuty's integration key, which no answer shows."""

    url: str
    tenant: str | None = None
    format: str = FORMATS[0]
    events: list[str] = msgspec.field(default_factory=lambda: [BUDGETS])
    routing_key: str | None = None


class WebhookChange(msgspec.Struct, forbid_unknown_fields=True):
    """Only the given fields change. `active` false: the webhook gets no new events; pending deliveries are
    still sent."""

    url: str | None = None
    events: list[str] | None = None
    active: bool | None = None


class WebhookController(Controller):
    path = "/webhooks"
    opt = {"area": "alerts"}  # noqa: RUF012

    @post("/", opt={"route": "/v1/admin/webhooks"})
    async def create_webhook(
        self, services: Services, administration: Administration, data: NewWebhook
    ) -> NewWebhookView:
        """Make a webhook. Only this answer contains the secret that deliveries are signed with."""
        made = await services.database.administer(
            lambda c: administration.webhooks.create(
                c,
                url=data.url,
                tenant_id=data.tenant,
                format=data.format,
                events=data.events,
                routing_key=data.routing_key,
            )
        )
        return NewWebhookView.made(made)

    @get("/", opt={"route": "/v1/admin/webhooks"})
    async def list_webhooks(
        self,
        services: Services,
        by: Actor,
        tenant: TenantFilter = None,
        limit: Limit = PAGE_DEFAULT,
        after: After = None,
    ) -> Page[WebhookView]:
        """Webhooks without their secrets, oldest first. `tenant`: those for the alerts of this tenant alone."""

        def query(connection: sa.Connection) -> list[webhooks.Webhook]:
            return webhooks.list_webhooks(connection, visible_tenant(connection, by, tenant))

        def view(webhook: webhooks.Webhook) -> WebhookView:
            return WebhookView.of(webhook if roles.is_permitted(by.role, "alerts", "write") else webhook.redacted())

        found = await services.database.read(query)
        return make_page(after_id(found, after), limit, view, lambda webhook: webhook.id)

    @get("/{webhook_id:str}", opt={"route": "/v1/admin/webhooks/{webhook_id}"})
    async def get_webhook(self, services: Services, by: Actor, webhook_id: str) -> WebhookView:
        """One webhook, without its secrets."""
        found = await services.database.read(lambda c: seen_webhook(c, webhook_id, by))
        return WebhookView.of(found if roles.is_permitted(by.role, "alerts", "write") else found.redacted())

    @patch("/{webhook_id:str}", opt={"route": "/v1/admin/webhooks/{webhook_id}"})
    async def change_webhook(
        self, services: Services, administration: Administration, webhook_id: str, data: WebhookChange
    ) -> WebhookView:
        """Change the URL or the events of a webhook, pause it, or resume it."""
        fields = msgspec.structs.asdict(data)
        return WebhookView.of(
            await services.database.administer(
                lambda c: administration.webhooks.change_webhook(c, webhook_id, **fields)
            )
        )

    @post("/{webhook_id:str}/rotate_secret", opt={"route": "/v1/admin/webhooks/{webhook_id}/rotate_secret"})
    async def rotate_webhook_secret(
        self, services: Services, administration: Administration, webhook_id: str
    ) -> NewWebhookView:
        """Sign with a new secret from now on. Only this answer contains it."""
        return NewWebhookView.made(
            await services.database.administer(lambda c: administration.webhooks.rotate_secret(c, webhook_id))
        )

    @post("/{webhook_id:str}/test", opt={"route": "/v1/admin/webhooks/{webhook_id}/test"}, status_code=200)
    async def test_webhook(
        self, services: Services, administration: Administration, webhook_id: str
    ) -> WebhookTestResult:
        """Send one signed test event now, also to a paused webhook, and answer with the result."""
        receiver = await services.database.administer(lambda c: administration.webhooks.note_test(c, webhook_id))
        return await services.deliverer.send_test(receiver)

    @delete("/{webhook_id:str}", opt={"route": "/v1/admin/webhooks/{webhook_id}"})
    async def remove_webhook(self, services: Services, administration: Administration, webhook_id: str) -> None:
        """Remove a webhook; pending deliveries to it end."""
        await services.database.administer(lambda c: administration.webhooks.remove(c, webhook_id))


@get("/alerts", opt={"route": "/v1/admin/alerts", "area": "alerts"})
async def list_alerts(
    services: Services,
    by: Actor,
    tenant: TenantFilter = None,
    limit: Limit = PAGE_DEFAULT,
    after: After = None,
) -> Page[ListedAlertView]:
    """Thresholds that were reached, the newest first, each with its deliveries. An actor of a tenant sees deliveries
    to the tenant's own webhooks only."""
    before = decode_sequence(after)

    def query(connection: sa.Connection) -> Page[ListedAlertView]:
        tenant_id = visible_tenant(connection, by, tenant)
        found = alerts.list_alerts(connection, tenant_id=tenant_id, before=before, limit=limit + 1)
        deliveries = alerts.deliveries(connection, [alert.id for alert in found], seen_by=by.tenant_id)
        return make_page(
            found,
            limit,
            lambda alert: ListedAlertView.with_deliveries(alert, deliveries[alert.id]),
            lambda alert: str(alert.sequence),
        )

    return await services.database.read(query)


@get("/alerts/{alert_id:str}", opt={"route": "/v1/admin/alerts/{alert_id}", "area": "alerts"})
async def get_alert(services: Services, by: Actor, alert_id: str) -> ListedAlertView:
    """One alert with its deliveries; for an actor with a tenant, deliveries to its own webhooks."""

    def query(connection: sa.Connection) -> ListedAlertView:
        found = alerts.get_alert(connection, alert_id)
        if found is None or not by.sees(found.tenant_id):
            raise RowNotFound(f"there is no alert {alert_id!r}", "alert_id")
        deliveries = alerts.deliveries(connection, [found.id], seen_by=by.tenant_id)
        return ListedAlertView.with_deliveries(found, deliveries[found.id])

    return await services.database.read(query)
