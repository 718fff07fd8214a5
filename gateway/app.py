"""The ASGI application: the routes, inside `Front`, which gives every exchange its request id and writes its errors."""

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
from gateway.routes.automation.operation_ids import operation_id
from gateway.routes.batches.batches import cancel_batch, create_batch, get_batch, list_batches
from gateway.routes.batches.files import delete_file, get_file, get_file_content, list_files, upload_file
from gateway.routes.batches.message_batches import (
    cancel_message_batch,
    create_message_batch,
    delete_message_batch,
    get_message_batch,
    get_message_batch_results,
    list_message_batches,
)
from gateway.routes.chat import chat_completions
from gateway.routes.completions import completions
from gateway.routes.console import console
from gateway.routes.conversations import (
    add_items,
    create_conversation,
    delete_conversation,
    delete_item,
    get_conversation,
    get_item,
    list_items,
    update_conversation,
)
from gateway.routes.docs import docs
from gateway.routes.health import live, ready
from gateway.routes.messages import count_tokens, messages
from gateway.routes.metrics import MetricsListener, metrics
from gateway.routes.models import get_model, list_models
from gateway.routes.pooling.embeddings import embeddings, rerank, score
from gateway.routes.responses import compact, input_tokens, responses
from gateway.routes.root import VERSION, root, version
from gateway.routes.schema import SchemaPlugin
from gateway.routes.stored_responses import cancel_response, delete_response, get_response, list_input_items
from gateway.routes.tokenize import detokenize, tokenize
from gateway.routes.usage import own_budgets, own_usage
from gateway.services import Services

ROUTES: tuple[ControllerRouterHandler, ...] = (
    chat_completions,
    completions,
    embeddings,
    rerank,
    score,
    messages,
    count_tokens,
    tokenize,
    detokenize,
    responses,
    input_tokens,
    compact,
    get_response,
    delete_response,
    cancel_response,
    list_input_items,
    create_conversation,
    get_conversation,
    update_conversation,
    delete_conversation,
    list_items,
    add_items,
    get_item,
    delete_item,
    upload_file,
    list_files,
    get_file,
    delete_file,
    get_file_content,
    create_batch,
    list_batches,
    get_batch,
    cancel_batch,
    create_message_batch,
    list_message_batches,
    get_message_batch,
    cancel_message_batch,
    delete_message_batch,
    get_message_batch_results,
    list_models,
    get_model,
    own_usage,
    own_budgets,
    live,
    ready,
    metrics,
    root,
    version,
    docs,
    console,
)


def create_app(services: Services, routes: Sequence[ControllerRouterHandler] = ()) -> ASGIApp:
    """The application over `services`; the caller starts and stops these. `routes`: further routes, such as the admin
    API's. A handler gets the services as its parameter `services: Services`."""
    inner: ASGIApp = HeadRequests(framework(services, routes))
    if (address := services.config.gateway.metrics_host_port) is not None:
        inner = MetricsListener(inner, address[1])
    front: ASGIApp = Front(
        inner,
        services.metrics,
        services.pace,
        services.refusal_pace,
        services.tracing,
        services.readiness.public_cause,
        services.request_errors.note,
    )
    origins = services.config.gateway.cors_origins
    return CrossOrigin(front, origins) if origins else front


def framework(services: Services, routes: Sequence[ControllerRouterHandler] = ()) -> Litestar:
    """The routes over `services`, without `Front`. The OpenAPI description is made from it."""
    return Litestar(
        route_handlers=[*ROUTES, *routes],
        dependencies={"services": Provide(lambda: services, sync_to_thread=False)},
        logging_config=None,
        exception_handlers={Exception: _reraise},
        openapi_config=OpenAPIConfig(
            title="Laneway",
            # The version of Laneway, which rises with every release; the 1 of /v1 never changes. openapi-python-client
            # uses this version for the package that it generates.
            version=VERSION,
            operation_id_creator=operation_id,
            path="/schema",
            render_plugins=[SchemaPlugin(path=["/", "/openapi.json"])],
            use_handler_docstrings=True,
        ),
    )


def _reraise(_: Request[Any, Any, Any], error: Exception) -> NoReturn:
    """Leave every error to `Front`, so that all error answers have the same shape."""
    raise error
