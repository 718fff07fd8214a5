"""Publishing prices, and previewing the charges at new prices."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from billing.accounts import prices
from billing.accounts.prices import PriceVersion, SubjectKind
from billing.books import margins
from billing.books.margins import Preview
from billing.clock import database_now
from gateway.admin.writes import Writes
from gateway.catalog import base_models


class PriceWrites:
    """Prices are in picos per token, times the multiplier of each tier: 1 for a tier that `multipliers` lacks."""

    def __init__(self, writes: Writes) -> None:
        self._writes = writes

    def publish(
        self,
        connection: sa.Connection,
        *,
        subject: str,
        input: int,
        cached_input: int,
        output: int,
        multipliers: Mapping[str, str],
        embedding: int | None = None,
        subject_kind: SubjectKind = "model",
        currency: str = "USD",
        effective_from: int | None = None,
        ahead: bool = False,
    ) -> PriceVersion:
        """`embedding` None: as input. `effective_from` in microseconds UTC; None: now. `ahead`: the price of a model
        that is added later."""
        self._writes.lock(connection)
        self._check_multipliers(multipliers)
        if ahead and subject_kind == "model":
            base_models.check_name(subject)
        else:
            self._writes.check_subject(connection, subject_kind, subject)
        version = prices.publish(
            connection,
            subject=subject,
            input=input,
            cached_input=cached_input,
            output=output,
            embedding=embedding,
            multipliers=self._by_tier(multipliers),
            subject_kind=subject_kind,
            currency=currency,
            effective_from=effective_from,
        )
        self._writes.record_line(connection, "price.publish", version.id, after=version)
        return version

    def preview(
        self,
        connection: sa.Connection,
        *,
        subject: str,
        input: int,
        cached_input: int,
        output: int,
        multipliers: Mapping[str, str],
        embedding: int | None = None,
        subject_kind: SubjectKind = "model",
        currency: str = "USD",
        month: str | None = None,
        tenant: str | None = None,
    ) -> Preview:
        """The charges for a month's usage at these prices; month None: the last whole month in UTC. Reads only."""
        self._check_multipliers(multipliers)
        self._writes.check_subject(connection, subject_kind, subject)
        return margins.preview(
            connection,
            month=month or margins.month_before(database_now(connection)),
            subject=subject,
            subject_kind=subject_kind,
            currency=currency,
            tiers=prices.by_tier(
                prices.unit_prices(input, cached_input, output, embedding), self._by_tier(multipliers)
            ),
            tenant_id=None if tenant is None else self._writes.tenant(connection, tenant).id,
        )

    def _check_multipliers(self, multipliers: Mapping[str, str]) -> None:
        for tier in multipliers:
            self._writes.check_tier(tier, "multipliers")

    def _by_tier(self, multipliers: Mapping[str, str]) -> dict[str, str]:
        return {tier.name: multipliers.get(tier.name, "1") for tier in self._writes.config.tiers}
