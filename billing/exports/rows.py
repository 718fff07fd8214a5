"""Rows of a FOCUS export: one for each hour, key, model or adapter, meter, tier and price, and one for each correction.

Rows share their equal cells in SharedCells; a row adds the hour, the tokens and the amount. This module knows no
format.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from billing.accounts.prices import METERS, Meter
from billing.accounts.tags import RESERVED_PREFIX
from billing.books.corrections import Correction
from billing.books.periods import Period
from billing.clock import SECOND
from billing.exports.amounts import ascii_text, moment_text

HOUR = 3600 * SECOND
GROUPS_MAX = 20_000  # in the cache; a full cache is emptied
SERVICE = "Laneway"
CATEGORY, SUBCATEGORY = "AI and Machine Learning", "Generative AI"
UNIT = "Tokens"
TAG_PREFIX = RESERVED_PREFIX  # of tags that the provider sets, as FOCUS requires; a key's own tags have no prefix
METER_NAMES: Mapping[Meter, str] = {
    "input": "Input Tokens",
    "cached_input": "Cached Input Tokens",
    "output": "Output Tokens",
    "embedding": "Embedding Tokens",
}
MONEY = ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost")
PRICES = ("ContractedUnitPrice", "ListUnitPrice")
QUANTITIES = ("ConsumedQuantity", "PricingQuantity")
MOMENTS = ("BillingPeriodEnd", "BillingPeriodStart", "ChargePeriodEnd", "ChargePeriodStart")
# FOCUS's columns in alphabetical order, then Laneway's own.
COLUMNS = (
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "ContractedUnitPrice",
    "EffectiveCost",
    "InvoiceId",
    "InvoiceIssuerName",
    "ListCost",
    "ListUnitPrice",
    "PricingCategory",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "ServiceSubcategory",
    "SkuId",
    "SkuMeter",
    "SkuPriceDetails",
    "SkuPriceId",
    "SubAccountId",
    "SubAccountName",
    "Tags",
    "x_Adapter",
    "x_BillingAccountName",
    "x_CorrectionId",
    "x_CorrectionReason",
    "x_KeyId",
    "x_KeyName",
    "x_Model",
    "x_PriceVersionId",
    "x_SubAccountName",
    "x_Tier",
)
# Columns that differ between rows with the same SharedCells.
VARYING = frozenset((*MONEY, *QUANTITIES, "ChargePeriodEnd", "ChargePeriodStart"))


class SharedCells:
    """Cells that are equal in many rows, by column: strings or null, moments in microseconds, unit prices in picos.
    `rendered`: the cells as a writer caches them."""

    __slots__ = ("cells", "rendered")

    def __init__(self, cells: dict[str, Any]) -> None:
        self.cells = cells
        self.rendered: Any = None


# Shared cells, start and end in microseconds, tokens (null: an amount without a price), picos.
Row = tuple[SharedCells, int, int, int | None, int]


class Price(msgspec.Struct, frozen=True):
    """Picos per token in the order of METERS, in one tier of a price version; `subject`: the priced model or
    adapter."""

    subject: str
    picos: tuple[int, ...]


class UsageHour(msgspec.Struct, frozen=True, array_like=True):
    """The columns read of usage_hours, in this order. `tag_set_id`: NONE for usage without tags."""

    hour: int
    key_id: str
    model: str
    adapter: str
    tier: str
    price_version_id: str
    project_id: str
    currency: str
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    embedding_tokens: int
    cost_picos: int
    requests: int
    sequence_min: int
    sequence_max: int
    tag_set_id: str


# Positions in UsageHour of the tokens, in the order of METERS, and of the cost.
COUNTED_FROM = UsageHour.__struct_fields__.index("input_tokens")
COST_AT = COUNTED_FROM + len(METERS)


class BooksDiffer(Exception):
    """Sums of the books that must be equal differ, so the export fails."""


class PeriodRows:
    """Makes the rows of one period. `names`: the names of projects, adapters, keys and the tenant by their ids, and the
    issuer's name under "provider". `invoice_id`: of a closed period; None for an open period."""

    def __init__(self, period: Period, invoice_id: str | None, names: Mapping[str, str]) -> None:
        self._period = period
        self._names = names
        self._groups: dict[tuple[Any, ...], tuple[SharedCells | None, ...]] = {}
        provider = ascii_text(names["provider"])
        self._base: dict[str, Any] = dict.fromkeys(COLUMNS) | {
            "BillingAccountId": period.tenant_id,
            "BillingAccountName": ascii_text(names[period.tenant_id]),
            "BillingPeriodEnd": period.end_at,
            "BillingPeriodStart": period.start_at,
            "InvoiceId": invoice_id,
            "InvoiceIssuerName": provider,
            "ProviderName": provider,
            "PublisherName": provider,
            "ServiceCategory": CATEGORY,
            "ServiceName": SERVICE,
            "ServiceSubcategory": SUBCATEGORY,
            "x_BillingAccountName": names[period.tenant_id],
        }

    def of_hours(
        self, read: Iterable[Any], prices: Mapping[tuple[str, str], Price], tags: Mapping[str, Mapping[str, str]]
    ) -> list[Row]:
        """Rows for tuples of usage_hours in the order of UsageHour. `tags`: by tag set. Raises BooksDiffer."""
        made: list[Row] = []
        groups = self._groups
        first, last = self._period.start_at, self._period.end_at
        for row in read:
            hour, key, model, adapter, tier, version, project, currency = row[:COUNTED_FROM]
            counts, cost, tag_set = row[COUNTED_FROM:COST_AT], row[COST_AT], row[-1]
            end = hour + HOUR
            late = end <= first
            named = (key, model, adapter, tier, version, project, currency, late, tag_set)
            price = prices[version, tier]
            shared = groups.get(named)
            if shared is None:
                if len(groups) >= GROUPS_MAX:
                    groups.clear()
                own = tags.get(tag_set, {})
                shared = groups[named] = tuple(self._usage(named[:-1], price, meter, own) for meter in METERS)
            if (
                hour < first < end or hour < last < end
            ):  # an hour in two periods has rows in both, which end or begin at the bound
                hour, end = max(hour, first), min(end, last)
            paid = 0
            for group, tokens, picos in zip(shared, counts, price.picos, strict=True):
                if tokens:
                    amount = tokens * picos
                    paid += amount
                    made.append((group, hour, end, tokens, amount))  # type: ignore[arg-type]
            if paid != cost:
                raise BooksDiffer(
                    f"usage of {key} in the hour {moment_text(hour)} cost {cost} picos, its tokens {paid}"
                )
        return made

    def _usage(self, named: tuple[Any, ...], price: Price, meter: Meter, tags: Mapping[str, str]) -> SharedCells:
        key, model, adapter, tier, version, project, currency, late = named
        # Usage recorded after its own month was closed is a correction of that month's invoice.
        cells = (
            self._base | self._of(project, key, model, adapter, tier, tags) | self._priced(price, version, tier, meter)
        )
        return SharedCells(
            cells
            | {
                "BillingCurrency": currency,
                "ChargeCategory": "Usage",
                "ChargeClass": "Correction" if late else None,
                "ChargeDescription": f"{METER_NAMES[meter]} of {self._called(model, adapter)}, tier {tier}",
                "ChargeFrequency": "Usage-Based",
            }
        )

    def _priced(self, price: Price, version: str, tier: str, meter: Meter) -> dict[str, Any]:
        picos = price.picos[METERS.index(meter)]
        return {
            "ConsumedUnit": UNIT,
            "ContractedUnitPrice": picos,
            "ListUnitPrice": picos,
            "PricingCategory": "Standard",
            "PricingUnit": UNIT,
            "SkuId": f"{price.subject}/{meter}",
            "SkuMeter": METER_NAMES[meter],
            "SkuPriceDetails": msgspec.json.encode({"x_Tier": tier}).decode(),
            "SkuPriceId": f"{version}/{tier}/{meter}",
            "x_PriceVersionId": version,
        }

    def _of(
        self,
        project: str | None,
        key: str | None,
        model: str | None,
        adapter: str | None,
        tier: str | None,
        tags: Mapping[str, str],
    ) -> dict[str, Any]:
        """Cells that name the usage. Missing names are NONE in roll-ups and null in corrections."""
        project, key, adapter = project or None, key or None, adapter or None
        resource = adapter or model
        named = {"key": self._names.get(key or ""), "project": self._names.get(project or "")}
        tags = {**tags, **{f"{TAG_PREFIX}{what}": name for what, name in named.items() if name is not None}}
        return {
            "ResourceId": resource,
            "ResourceName": None if adapter is None else _ascii(self._names.get(adapter)),
            "ResourceType": None if resource is None else "Model" if adapter is None else "Adapter",
            "SubAccountId": project,
            "SubAccountName": None if project is None else ascii_text(self._names.get(project, project)),
            "Tags": json.dumps(tags, separators=(",", ":")) if tags else None,
            "x_Adapter": adapter,
            "x_KeyId": key,
            "x_KeyName": None if key is None else self._names.get(key),
            "x_Model": model,
            "x_SubAccountName": None if project is None else self._names.get(project, project),
            "x_Tier": tier,
        }

    def _called(self, model: str | None, adapter: str | None) -> str:
        return ascii_text(self._names.get(adapter, adapter)) if adapter else model or SERVICE

    def correction(self, made: Correction, used_at: int | None, price: Price | None, tags: Mapping[str, str]) -> Row:
        """`used_at`: when the corrected request ended; None for a free correction. `tags`: the request's."""
        moment = made.counts_at if used_at is None else used_at
        start = moment - moment % HOUR
        end = start + HOUR
        first, last = self._period.start_at, self._period.end_at
        late = used_at is None or end <= first
        if start < first < end or start < last < end:
            start, end = max(start, first), min(end, last)
        cells = self._base | self._of(made.project_id, made.key_id, made.model, made.adapter, made.tier, tags)
        cells |= {
            "BillingCurrency": made.currency,
            "ChargeClass": "Correction" if late else None,
            "ChargeDescription": f"Correction: {ascii_text(made.reason)}",
            "x_CorrectionId": made.id,
            "x_CorrectionReason": made.reason,
        }
        if price is None or made.price_version_id is None or made.meter is None or made.tier is None:
            kind = {"ChargeCategory": "Credit" if made.picos < 0 else "Adjustment", "ChargeFrequency": "One-Time"}
            return SharedCells(cells | kind), start, end, None, made.picos
        cells |= self._priced(price, made.price_version_id, made.tier, _meter(made.meter))
        kind = {"ChargeCategory": "Usage", "ChargeFrequency": "Usage-Based"}
        return SharedCells(cells | kind), start, end, made.tokens, made.picos


def _ascii(text: str | None) -> str | None:
    return None if text is None else ascii_text(text)


def _meter(name: str) -> Meter:
    return next(meter for meter in METERS if meter == name)
