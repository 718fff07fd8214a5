"""The routes as the application itself has them, with what each declares."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import msgspec

from support.paths import REPO

# In a separate process, like a gateway: in a test the framework's warnings are errors.
LIST_ROUTES = """
import json
from litestar import Litestar
from gateway.app import ROUTES
from gateway.routes.admin.router import admin_router
app = Litestar(route_handlers=[*ROUTES, admin_router(None)], openapi_config=None)
found = []
for route in app.routes:
    for method, (handler, _) in route.route_handler_map.items():
        opt = {name: value for name, value in handler.opt.items() if name != "route"}
        if method != "OPTIONS":
            found.append([method, route.path.rstrip("/"), opt])
print(json.dumps(found))
"""


class ServedRoute(msgspec.Struct, frozen=True):
    """`opt`: what its handler declares, the `area` above all."""

    method: str
    path: str
    opt: dict[str, Any]

    @property
    def access(self) -> str:
        return str(self.opt.get("access") or ("read" if self.method == "GET" else "write"))


def served_routes() -> list[ServedRoute]:
    """All routes except the description of the API."""
    listed = subprocess.run([sys.executable, "-c", LIST_ROUTES], cwd=REPO, check=True, capture_output=True)
    return [ServedRoute(*route) for route in json.loads(listed.stdout)]


def admin_routes() -> list[ServedRoute]:
    return [route for route in served_routes() if route.path.startswith(("/v1/admin/", "/v1/organization/"))]
