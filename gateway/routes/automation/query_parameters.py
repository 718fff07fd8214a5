"""Refuses query parameters that an admin route does not have: a misspelt filter would list everything."""

from __future__ import annotations

import difflib
from functools import lru_cache
from typing import Any

from litestar import Request
from litestar.handlers import HTTPRouteHandler

from gateway.errors import UnknownParameter

ARRAY = "[]"  # OpenAI's SDKs write `models[]=…` for `models=…`; /v1/organization reads both
_ARRAYS = "/v1/organization/"


def check_query(request: Request[Any, Any, Any], handler: HTTPRouteHandler) -> None:
    """Raises UnknownParameter, which names the first unknown parameter and the route's parameters."""
    if not request.scope["query_string"]:
        return
    known = _names(handler) - request.path_params.keys()
    arrays = request.scope["path"].startswith(_ARRAYS)
    for name in request.query_params:
        if name in known or (arrays and name.removesuffix(ARRAY) in known):
            continue
        near = difflib.get_close_matches(name, known, n=1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        has = f"It has {', '.join(sorted(known))}." if known else "It has none."
        raise UnknownParameter(f"This path has no query parameter {name[:100]!r}.{meant} {has}", param=name[:100])


@lru_cache(maxsize=512)  # over the number of routes
def _names(handler: HTTPRouteHandler) -> frozenset[str]:
    """The names of a route's query parameters, and of its path parameters."""
    found = handler.create_kwargs_model({}).expected_query_params
    return frozenset(parameter.field_alias for parameter in found)
