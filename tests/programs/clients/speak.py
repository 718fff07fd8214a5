"""How a client's script is run: case by case, against the recorder or against a running Laneway.

Read by the interpreter of the client's own virtual environment, so it imports nothing but the standard library.
`CLIENT_URL` has `{case}` in it when a recorder wants each case under a path of its own.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable
from importlib import metadata

URL = os.environ["CLIENT_URL"]  # without /v1
KEY = os.environ.get("CLIENT_KEY", "lw_live_nobody")
MODEL = os.environ.get("CLIENT_MODEL", "smollm2-135m-instruct")

Case = Callable[[str], object]  # takes the base URL, without /v1


def run(package: str, cases: list[Case], refused: dict[str, int], also: tuple[str, ...] = ()) -> None:
    """Print a line of JSON for each case. `refused`: cases that must raise an error with this `status_code`. `also`:
    other packages whose versions count."""
    warnings.simplefilter("ignore")
    versions = {name: metadata.version(name) for name in (package, *also)}
    tell(versions={**versions, "python": platform.python_version()})
    for case in cases:
        run_case(case, refused)


def run_case(case: Case, refused: dict[str, int]) -> None:
    """Print its line of JSON."""
    name = case.__name__
    began = time.monotonic()
    try:
        detail = case(URL.format(case=name))
        ok = name not in refused
    except Exception as error:  # noqa: BLE001 - whatever the client raises is the finding
        status = getattr(error, "status_code", None)
        ok = name in refused and status == refused[name]
        detail = f"{type(error).__name__} {status}: {error}"
    tell(case=name, ok=ok, seconds=round(time.monotonic() - began, 2), detail=str(detail)[:300])


def tell(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()
