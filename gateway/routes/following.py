"""What an operator wrote holds in this gateway before it is answered."""

from __future__ import annotations

import contextlib

from billing.database import DatabaseUnavailable
from gateway.services import Services


async def follow(services: Services) -> None:
    """When the database goes away just then, it holds later."""
    with contextlib.suppress(DatabaseUnavailable):
        await services.watch.poll()
