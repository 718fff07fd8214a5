"""`python -m gateway.openapi`: the OpenAPI description on standard output, without a server, a database or an engine.

`GET /schema/openapi.json` answers with the same description; here its keys are sorted. The console's types are
generated from it.
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
    """The description of every route. No services are needed: routes use them only during a request."""
    services = cast(Services, None)
    return complete(framework(services, [admin_router(services)]).openapi_schema.to_schema())


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(describe(), order="sorted"), indent=1) + b"\n")
