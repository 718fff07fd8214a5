"""The ASGI application: routes over services, inside the front that gives every exchange its id and its errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from litestar import Litestar, Request
from litestar.di import Provide
from litestar.openapi.config import OpenAPIConfig
from litestar.types import ASGIApp, ControllerRouterHandler

from gateway.http.cors import CrossOrigin
from gateway.http.exchange import Front
from gateway.http.head_requests import HeadRequests
from gateway.routes.chat import chat_completions
from gateway.routes.completions import completions
from gateway.routes.console import console
from gateway.routes.health import live, ready
from gateway.routes.messages import count_tokens, messages
from gateway.routes.metrics import MetricsListener, metrics
from gateway.routes.models import get_model, list_models
from gateway.routes.root import root, version
from gateway.routes.schema import SchemaPlugin
from gateway.routes.usage import own_budgets, own_usage
from gateway.services import Services

ROUTES: tuple[ControllerRouterHandler, ...] = (
    chat_completions,
    completions,
    messages,
    count_tokens,
    list_models,
    get_model,
    own_usage,
    own_budgets,
    live,
    ready,
    metrics,
    root,
    version,
    console,
)


def create_app(services: Services, routes: Sequence[ControllerRouterHandler] = ()) -> ASGIApp:
    """The application over `services`, which whoever serves it starts and stops. `routes`: those of the operator's
    side. A handler asks for `services: Services` by that name."""
    inner: ASGIApp = HeadRequests(framework(services, routes))
    if (place := services.config.gateway.metrics_host_port) is not None:
        inner = MetricsListener(inner, place[1])
    front: ASGIApp = Front(inner, services.metrics, services.pace, services.refusal_pace)
    origins = services.config.gateway.cors_origins
    return CrossOrigin(front, origins) if origins else front


def framework(services: Services, routes: Sequence[ControllerRouterHandler] = ()) -> Litestar:
    """The routes over `services`, without the front: what the description of the API is made from."""
    return Litestar(
        route_handlers=[*ROUTES, *routes],
        dependencies={"services": Provide(lambda: services, sync_to_thread=False)},
        logging_config=None,
        exception_handlers={Exception: _to_the_front},
        openapi_config=OpenAPIConfig(
            title="Laneway", version="1", path="/schema", render_plugins=[SchemaPlugin(path=["/", "/openapi.json"])]
        ),
    )


def _to_the_front(_: Request[Any, Any, Any], error: Exception) -> NoReturn:
    """The front says every refusal in one shape; the framework must not."""
    raise error
