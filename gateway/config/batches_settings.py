"""The section [batches] of `laneway.toml`, which explains each setting."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from billing.accounts.tenants import OnBudget
from engine.protocol.config import ConfigSection as Section
from gateway.config.allowance import LIMIT_MAX

ENQUEUED_TOKENS_MAX = 2**53  # the largest limit of a tenant's enqueued tokens


class BatchesSection(Section, frozen=True, kw_only=True):
    """At which tier the lines of batches run, and limits of batches."""

    tier: Annotated[str, Meta(max_length=32)] = ""  # empty: the lowest of [[tiers]]
    # Lines that one gateway process runs at once at most; the engines' queues of the tier decide how many it runs.
    outstanding_max: Annotated[int, Meta(ge=1, le=65_536)] = 1024
    # Tokens of a tenant's batches that have not ended, estimated from the bytes of their bodies.
    tenant_enqueued_tokens_max: Annotated[int, Meta(ge=1, le=ENQUEUED_TOKENS_MAX)] = 2_000_000_000
    tenant_batches_max: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] = 1000  # batches of a tenant that have not ended
    # The policy for lines that a budget does not cover, for tenants without their own setting.
    on_budget: OnBudget = "wait"
