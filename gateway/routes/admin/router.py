"""/v1/admin/*: the operator's routes, for keys with the admin scope and their sessions, and how refusals are said.

The guard comes before anything of the request is read. It must never do what the command line cannot: both are doors
to `gateway.admin.administration`.
"""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec
from litestar import Request, Router
from litestar.connection import ASGIConnection
from litestar.datastructures import CacheControlHeader
from litestar.di import Provide
from litestar.exceptions import ValidationException
from litestar.handlers import BaseRouteHandler

from adapters.files.header import AdapterRefused
from billing.errors import (
    AlreadyExists,
    BillingRefused,
    NotPossibleYet,
    QuotaBytesExceeded,
    RowNotFound,
    TenantQuotaExceeded,
)
from gateway import errors
from gateway.access.keys import KeyRefused
from gateway.admin.administration import Actor, Administration
from gateway.admin.finance import Finance
from gateway.http.exchange import read_body
from gateway.routes.admin.adapters import AdapterController
from gateway.routes.admin.alerts import WebhookController, list_alerts
from gateway.routes.admin.aliases import AliasController
from gateway.routes.admin.exports import ExportController
from gateway.routes.admin.finance import (
    close_period,
    get_invoice,
    list_corrections,
    list_invoices,
    list_periods,
    list_reconciliations,
    make_correction,
    reconcile_now,
    reconciliation_standing,
    tier_margins,
)
from gateway.routes.admin.following import reload_after_writes
from gateway.routes.admin.limits import LimitsController
from gateway.routes.admin.live import engine_live
from gateway.routes.admin.models import ModelController
from gateway.routes.admin.money import BudgetController, PriceController
from gateway.routes.admin.operations import health_report, list_tiers
from gateway.routes.admin.overview import overview
from gateway.routes.admin.people import KeyController, ProjectController, TenantController
from gateway.routes.admin.reports import (
    audit_findings,
    engine_status,
    list_audit_log,
    usage_requests,
    usage_totals,
)
from gateway.routes.admin.requests import get_request, list_requests
from gateway.routes.admin.session import SessionController
from gateway.routes.guard import admit_operator
from gateway.routes.organization import organization_costs, organization_usage
from gateway.services import Services

BODY_BYTES_MAX = 64 * 1024


def admin_router(services: Services) -> Router:
    """Everything below /v1/admin and /v1/organization."""

    async def operators_only(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        assert isinstance(connection, Request)
        if connection.method == "OPTIONS":  # the framework answers with the methods, which /schema shows anyway
            return
        connection.state.actor = await admit_operator(services, connection, handler.opt)
        _check_texts(connection)

    below_admin = Router(
        path="/admin",
        route_handlers=[
            TenantController,
            ProjectController,
            KeyController,
            PriceController,
            BudgetController,
            WebhookController,
            list_alerts,
            ExportController,
            LimitsController,
            AdapterController,
            AliasController,
            usage_totals,
            usage_requests,
            audit_findings,
            list_audit_log,
            engine_status,
            engine_live,
            list_tiers,
            ModelController,
            health_report,
            list_periods,
            close_period,
            list_invoices,
            get_invoice,
            make_correction,
            list_corrections,
            tier_margins,
            list_reconciliations,
            reconciliation_standing,
            reconcile_now,
            overview,
            list_requests,
            get_request,
        ],
    )
    guarded = Router(
        path="/",
        route_handlers=[below_admin, organization_usage, organization_costs],
        guards=[operators_only],
    )
    return Router(
        path="/v1",
        route_handlers=[guarded, SessionController],
        middleware=[reload_after_writes(services)],
        dependencies={
            "by": Provide(by, sync_to_thread=False),
            "administration": Provide(administration, sync_to_thread=False),
            "finance": Provide(finance, sync_to_thread=False),
        },
        exception_handlers={
            ValidationException: _say_validation,
            BillingRefused: _say_billing,
            KeyRefused: _say_key,
            AdapterRefused: _say_adapter,
            errors.InvalidApiKey: _say_unauthorized,
        },
        cache_control=CacheControlHeader(no_store=True),
        request_class=AdminRequest,
        tags=["admin"],
    )


class AdminRequest(Request[Any, Any, Any]):
    """Reads its JSON within a limit, and says what is no JSON as a refusal."""

    _read: bytes | None = None

    async def body(self) -> bytes:
        if self._read is None:
            self._read = await read_body(self, BODY_BYTES_MAX)
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
    """PostgreSQL cannot even be asked for a NUL, and nothing here has one. Raises InvalidRequest, RowNotFound."""
    if "\0" in request.scope["path"]:
        raise errors.NotFound("Nothing here has a character 0 in its name.")
    for name, value in request.query_params.multi_items():
        if "\0" in value:
            raise errors.InvalidRequest(f"{name!r} has a character 0, which nothing here has.", param=name)


def _check_body(body: Any) -> None:
    """As of the query. Raises InvalidRequest, RecursionError."""
    for name, value in body.items() if isinstance(body, dict) else ():
        if _has_nul(value) or "\0" in name:
            raise errors.InvalidRequest(f"{name!r} has a character 0, which nothing here keeps.", param=name)


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
    return Administration(services.config, request.state.actor)


def finance(request: Request[Any, Any, Any], services: Services) -> Finance:
    return Finance(services.config, request.state.actor)


def _say_validation(_: Request[Any, Any, Any], error: ValidationException) -> NoReturn:
    """The first thing that is wrong, with its field."""
    first = error.extra[0] if isinstance(error.extra, list) and error.extra else {}
    param = first.get("key") if isinstance(first, dict) else None
    message = first.get("message") if isinstance(first, dict) else None
    raise errors.InvalidRequest(message or error.detail, param=param) from error


def _say_billing(_: Request[Any, Any, Any], error: BillingRefused) -> NoReturn:
    kinds: dict[type[BillingRefused], type[errors.ApiError]] = {
        RowNotFound: errors.NotFound,
        AlreadyExists: errors.Conflict,
        NotPossibleYet: errors.Conflict,
        TenantQuotaExceeded: errors.QuotaExceeded,
        QuotaBytesExceeded: errors.RequestTooLarge,
    }
    kind = next((said for is_kind, said in kinds.items() if isinstance(error, is_kind)), errors.InvalidRequest)
    raise kind(error.message, param=error.param) from error


def _say_unauthorized(request: Request[Any, Any, Any], error: errors.InvalidApiKey) -> NoReturn:
    """Of a cookie, it is the session that is over."""
    raise errors.SessionExpired() if request.state.get("by_cookie") else error


def _say_key(_: Request[Any, Any, Any], error: KeyRefused) -> NoReturn:
    raise errors.InvalidRequest(str(error)) from error


def _say_adapter(_: Request[Any, Any, Any], error: AdapterRefused) -> NoReturn:
    raise errors.InvalidAdapter(error.reason) from error
