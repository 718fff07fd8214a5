"""`python -m gateway.openapi`: the OpenAPI description on standard output, without a server, a database or an engine.

In a fixed order, it is what `GET /schema/openapi.json` answers; the console's types are made from it.
"""

from __future__ import annotations

import sys
from typing import Any, cast

import msgspec

from gateway.app import framework
from gateway.routes.admin.router import admin_router
from gateway.routes.schema import complete
from gateway.services import Services


def describe() -> dict[str, Any]:
    """The description of every route. Routes close over their services and ask nothing of them before a request."""
    services = cast(Services, None)
    return complete(framework(services, [admin_router(services)]).openapi_schema.to_schema())


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(describe(), order="sorted"), indent=1) + b"\n")
