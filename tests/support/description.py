"""The OpenAPI description, made in a separate process as `make openapi` and `npm run types` make it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from support.paths import REPO

METHODS = ("get", "post", "put", "patch", "delete")


@lru_cache(maxsize=1)
def description() -> dict[str, Any]:
    made = subprocess.run(
        [sys.executable, "-m", "gateway.openapi"], cwd=REPO, capture_output=True, timeout=60, check=True
    )
    described: dict[str, Any] = json.loads(made.stdout)
    return described


def operations() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each operation by its method and path, as `GET /v1/models`."""
    for path, item in description()["paths"].items():
        for method in METHODS:
            if method in item:
                yield f"{method.upper()} {path}", item[method]
