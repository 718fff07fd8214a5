"""GET / and /version: the name, the version and the endpoints of this server."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import msgspec
from litestar import Request, Response, get
from litestar.response import Redirect

CONSOLE = "/admin"
ENDPOINTS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "messages": "/v1/messages",
    "models": "/v1/models",
    "console": CONSOLE,
    "health": "/health",
    "description": "/schema",
    "docs": "/docs",
}


def _version() -> str:
    try:
        return importlib.metadata.version("laneway")
    except importlib.metadata.PackageNotFoundError:  # a checkout that is not installed
        return "unknown"


VERSION = _version()


class GatewayVersion(msgspec.Struct):
    version: str


class RootView(msgspec.Struct):
    """`endpoints`: paths by purpose."""

    name: str
    version: str
    endpoints: dict[str, str]


@get("/", include_in_schema=False, sync_to_thread=False)
def root(request: Request[Any, Any, Any]) -> Response[Any]:
    """A browser is sent to the console; others get the names of the endpoints."""
    headers = {"vary": "accept"}
    if "text/html" in request.headers.get("accept", "").lower():
        return Redirect(CONSOLE, status_code=307, headers=headers)
    return Response(RootView("Laneway", VERSION, ENDPOINTS), headers=headers)


@get("/version", sync_to_thread=False)
def version() -> GatewayVersion:
    """The version of this gateway."""
    return GatewayVersion(VERSION)
