"""/v1/admin/* and /v1/organization/*: the routes for operators, with an admin key or a session of one.

The guard runs before the body is read. A route does nothing that the command line cannot do too: both call
`gateway.admin.administration`.
"""

from __future__ import annotations

from typing import Any, Self

import msgspec
from litestar import Request, Router
from litestar.connection import ASGIConnection
from litestar.datastructures import CacheControlHeader
from litestar.di import Provide
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.types import Guard

from gateway import errors
from gateway.access.write_replays import WriteReplayed
from gateway.admin.administration import Administration
from gateway.admin.writes import Actor
from gateway.http.exchange import read_body
from gateway.routes.admin.adapters import AdapterController
from gateway.routes.admin.alerts import WebhookController, get_alert, list_alerts
from gateway.routes.admin.aliases import AliasController
from gateway.routes.admin.exports import ExportController
from gateway.routes.admin.finance import (
    close_period,
    get_invoice,
    get_period,
    get_reconciliation,
    list_corrections,
    list_invoices,
    list_periods,
    list_reconciliations,
    make_correction,
    reconcile_now,
    reconciliation_standing,
    tier_margins,
)
from gateway.routes.admin.limits import LimitsController
from gateway.routes.admin.live import engine_live
from gateway.routes.admin.lookup.arms import adapter_use, alias_use
from gateway.routes.admin.lookup.search import search
from gateway.routes.admin.models import ModelController
from gateway.routes.admin.money import BudgetController, PriceController
from gateway.routes.admin.operations import drain_engine, get_engine, get_tier, health_report, list_engines, list_tiers
from gateway.routes.admin.overview import overview
from gateway.routes.admin.people import KeyController, ProjectController, TenantController
from gateway.routes.admin.refusals import HANDLERS
from gateway.routes.admin.reload_after_writes import reload_after_writes
from gateway.routes.admin.reports import (
    audit_findings,
    engine_status,
    get_audit_line,
    list_audit_log,
    usage_requests,
    usage_totals,
)
from gateway.routes.admin.requests import get_request, list_error_rates, list_requests
from gateway.routes.admin.session import SessionController
from gateway.routes.admin.tiers.sla import export_sla, sla_report
from gateway.routes.automation.idempotency import begin_idempotent, keep_answers, replay_write, write_of
from gateway.routes.automation.query_parameters import check_query
from gateway.routes.batches.operators import BatchController, FileController
from gateway.routes.finance.closing import close_all, get_connector, list_closable, list_connectors, release_connector
from gateway.routes.finance.documents import get_correction, make_credit, record_payment
from gateway.routes.finance.profiles import get_issuer, get_profile, list_profiles, set_profile
from gateway.routes.guard import access_of, admit_operator
from gateway.routes.organization import organization_costs, organization_usage
from gateway.routes.sign_in.people import get_person, list_people
from gateway.routes.sign_in.provider import ProviderController
from gateway.routes.sign_in.totp import TotpController
from gateway.services import Services

BODY_BYTES_MAX = 64 * 1024
CONTROLLERS = (
    TenantController, ProjectController, KeyController, PriceController, BudgetController, WebhookController,
    ExportController, BatchController, FileController, LimitsController, AdapterController, AliasController,
    ModelController,
)  # fmt: skip
FUNCTIONS = (
    list_alerts, usage_totals, usage_requests, audit_findings, list_audit_log, engine_status, engine_live, list_tiers,
    health_report, list_periods, close_period, list_invoices, get_invoice, make_correction, list_corrections,
    list_engines, drain_engine, list_people, get_person, get_alert, get_correction, get_period, sla_report, export_sla,
    list_closable, close_all, list_connectors, release_connector, get_profile, set_profile, record_payment, make_credit,
    tier_margins, list_reconciliations, reconciliation_standing, reconcile_now, overview, list_requests, get_request,
    list_error_rates, search, adapter_use, alias_use, list_profiles, get_issuer, get_audit_line, get_reconciliation,
    get_engine, get_tier, get_connector,
)  # fmt: skip


class UncopiedRouter(Router):
    """A router that is registered once. Litestar copies a router deeply at each registration: the copies of two nested
    routers would take a tenth of the gateway's start."""

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self


def admin_router(services: Services) -> Router:
    """All routes below /v1/admin and /v1/organization."""
    below_admin = UncopiedRouter(path="/admin", route_handlers=[*CONTROLLERS, *FUNCTIONS])
    guarded = UncopiedRouter(
        path="/",
        route_handlers=[below_admin, organization_usage, organization_costs],
        guards=[_operators_only(services)],
    )
    return UncopiedRouter(
        path="/v1",
        route_handlers=[guarded, SessionController, ProviderController, TotpController],
        middleware=[reload_after_writes(services), keep_answers(services)],
        dependencies={
            "by": Provide(by, sync_to_thread=False),
            "administration": Provide(administration, sync_to_thread=False),
        },
        exception_handlers=HANDLERS | {WriteReplayed: replay_write},
        cache_control=CacheControlHeader(no_store=True),
        request_class=AdminRequest,
        tags=["admin"],
    )


def _operators_only(services: Services) -> Guard:
    async def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        assert isinstance(connection, Request)
        if connection.method == "OPTIONS":  # the framework answers with the methods, which /schema shows to everyone
            return
        actor = connection.state.actor = await admit_operator(services, connection, handler.opt)
        _check_texts(connection)
        assert isinstance(handler, HTTPRouteHandler)
        check_query(connection, handler)
        if access_of(connection, handler.opt) == "write":
            await begin_idempotent(services, connection, actor)

    return guard


class AdminRequest(Request[Any, Any, Any]):
    """Reads at most BODY_BYTES_MAX bytes of JSON. Raises InvalidRequest for a body that is not JSON."""

    _read: bytes | None = None

    async def body(self) -> bytes:
        if self._read is None:
            self._read = await read_body(self, BODY_BYTES_MAX)
            self.state.admin_body = self._read  # an error handler has another request object of the same scope
        return self._read

    async def json(self) -> Any:
        try:
            found = msgspec.json.decode(await self.body())
            _check_body(found)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise errors.InvalidRequest(f"The body is not JSON: {error}") from error
        except RecursionError as error:
            raise errors.InvalidRequest("The body is nested too deeply.") from error
        return found


def _check_texts(request: Request[Any, Any, Any]) -> None:
    """Refuse NUL characters in the path and the query, which PostgreSQL cannot store. Raises InvalidRequest,
    NotFound."""
    if "\0" in request.scope["path"]:
        raise errors.NotFound("There is nothing with a NUL character in its name.")
    for name, value in request.query_params.multi_items():
        if "\0" in value:
            raise errors.InvalidRequest(f"{name!r} has a NUL character.", param=name)


def _check_body(body: Any) -> None:
    """Refuse NUL characters, as in the query. Raises InvalidRequest, RecursionError."""
    for name, value in body.items() if isinstance(body, dict) else ():
        if _has_nul(value) or "\0" in name:
            raise errors.InvalidRequest(f"{name!r} has a NUL character, which cannot be stored.", param=name)


def _has_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(map(_has_nul, (*value, *value.values())))
    return isinstance(value, list) and any(map(_has_nul, value))


def by(request: Request[Any, Any, Any]) -> Actor:
    found: Actor = request.state.actor
    return found


def administration(request: Request[Any, Any, Any], services: Services) -> Administration:
    return Administration(services.config, request.state.actor, write_of(request))
