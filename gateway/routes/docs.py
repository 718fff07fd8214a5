"""GET /docs: the API's description for people."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any

from litestar import Litestar, Request, Response, get

from gateway.routes.automation.docs_page import SECURITY, docs_page
from gateway.routes.schema import complete


@get("/docs", include_in_schema=False)
async def docs(request: Request[Any, Any, Any]) -> Response[str]:
    """A page without scripts, made once in each process."""
    page = await asyncio.to_thread(_page, request.app)
    return Response(page, headers=SECURITY, media_type="text/html")


@lru_cache(maxsize=1)
def _page(app: Litestar) -> str:
    return docs_page(complete(app.openapi_schema.to_schema()))
