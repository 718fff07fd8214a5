"""What a test needs of its machine and cannot bring along."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing_service(name: str, reason: str) -> NoReturn:
    """Skip the test, or fail it where CI promised that all is there."""
    if os.environ.get("LANEWAY_REQUIRE_SERVICES") == "1":
        pytest.fail(f"LANEWAY_REQUIRE_SERVICES=1, and {name} is not usable: {reason}", pytrace=False)
    pytest.skip(f"!!! {name} NOT AVAILABLE, THIS TEST DID NOT RUN: {reason}")
