"""Tenants whose responses are stored."""

from __future__ import annotations

from billing.accounts import tenants
from support.stack import Stack


def opt_in(stack: Stack, slug: str, seconds: int | None) -> None:
    """Store the tenant's responses for `seconds`; None: store none."""
    stack.write(lambda c: tenants.update_tenant(c, stack.tenants[slug], store_responses_s=seconds))
