"""The columns of FOCUS 1.2 (FinOps Open Cost and Usage Specification) as data: types, nulls, allowed values.

Rules over several columns are in rules.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from billing.focus.services import SERVICES

VERSION = "1.2"

Level = Literal["mandatory", "conditional", "recommended"]
# currency: a string of ISO 4217; pairs: a JSON object of scalars; unit: a string in the specification's unit format.
Kind = Literal["string", "decimal", "moment", "currency", "pairs", "unit"]


class Column(msgspec.Struct, frozen=True):
    """`level`: mandatory columns are in every file; conditional columns depend on the provider's offers. `nullable`:
    whether a cell may be null. `least`: 0 if a number must not be negative."""

    name: str
    level: Level
    kind: Kind
    nullable: bool
    allowed: frozenset[str] | None = None
    least: int | None = None


def _column(
    name: str,
    level: Level,
    kind: Kind = "string",
    *,
    null: bool = True,
    allowed: tuple[str, ...] | None = None,
    least: int | None = None,
) -> Column:
    return Column(name, level, kind, null, None if allowed is None else frozenset(allowed), least)


CHARGE_CATEGORIES = ("Usage", "Purchase", "Tax", "Credit", "Adjustment")
CHARGE_FREQUENCIES = ("One-Time", "Recurring", "Usage-Based")
PRICING_CATEGORIES = ("Standard", "Dynamic", "Committed", "Other")

_ALL = (
    _column("AvailabilityZone", "recommended"),
    _column("BilledCost", "mandatory", "decimal", null=False),
    _column("BillingAccountId", "mandatory", null=False),
    _column("BillingAccountName", "mandatory"),
    _column("BillingAccountType", "conditional", null=False),
    _column("BillingCurrency", "mandatory", "currency", null=False),
    _column("BillingPeriodEnd", "mandatory", "moment", null=False),
    _column("BillingPeriodStart", "mandatory", "moment", null=False),
    _column("CapacityReservationId", "conditional"),
    _column("CapacityReservationStatus", "conditional", allowed=("Used", "Unused")),
    _column("ChargeCategory", "mandatory", null=False, allowed=CHARGE_CATEGORIES),
    _column("ChargeClass", "mandatory", allowed=("Correction",)),
    _column("ChargeDescription", "mandatory"),
    _column("ChargeFrequency", "recommended", null=False, allowed=CHARGE_FREQUENCIES),
    _column("ChargePeriodEnd", "mandatory", "moment", null=False),
    _column("ChargePeriodStart", "mandatory", "moment", null=False),
    _column("CommitmentDiscountCategory", "conditional", allowed=("Spend", "Usage")),
    _column("CommitmentDiscountId", "conditional"),
    _column("CommitmentDiscountName", "conditional"),
    _column("CommitmentDiscountQuantity", "conditional", "decimal"),
    _column("CommitmentDiscountStatus", "conditional", allowed=("Used", "Unused")),
    _column("CommitmentDiscountType", "conditional"),
    _column("CommitmentDiscountUnit", "conditional", "unit"),
    _column("ConsumedQuantity", "conditional", "decimal"),
    _column("ConsumedUnit", "conditional", "unit"),
    _column("ContractedCost", "mandatory", "decimal", null=False),
    _column("ContractedUnitPrice", "conditional", "decimal", least=0),
    _column("EffectiveCost", "mandatory", "decimal", null=False),
    _column("InvoiceId", "recommended"),
    _column("InvoiceIssuerName", "mandatory", null=False),
    _column("ListCost", "mandatory", "decimal", null=False),
    _column("ListUnitPrice", "conditional", "decimal", least=0),
    _column("PricingCategory", "conditional", allowed=PRICING_CATEGORIES),
    _column("PricingCurrency", "conditional", null=False),
    _column("PricingCurrencyContractedUnitPrice", "conditional", "decimal", least=0),
    _column("PricingCurrencyEffectiveCost", "conditional", "decimal", null=False),
    _column("PricingCurrencyListUnitPrice", "conditional", "decimal", least=0),
    _column("PricingQuantity", "mandatory", "decimal"),
    _column("PricingUnit", "mandatory", "unit"),
    _column("ProviderName", "mandatory", null=False),
    _column("PublisherName", "mandatory", null=False),
    _column("RegionId", "conditional"),
    _column("RegionName", "conditional"),
    _column("ResourceId", "conditional"),
    _column("ResourceName", "conditional"),
    _column("ResourceType", "conditional"),
    _column("ServiceCategory", "mandatory", null=False, allowed=tuple(SERVICES)),
    _column("ServiceName", "mandatory", null=False),
    _column(
        "ServiceSubcategory",
        "recommended",
        null=False,
        allowed=tuple(name for names in SERVICES.values() for name in names),
    ),
    _column("SkuId", "conditional"),
    _column("SkuMeter", "conditional"),
    _column("SkuPriceDetails", "conditional", "pairs"),
    _column("SkuPriceId", "conditional"),
    _column("SubAccountId", "conditional"),
    _column("SubAccountName", "conditional"),
    _column("SubAccountType", "conditional"),
    _column("Tags", "conditional", "pairs"),
)

COLUMNS: Mapping[str, Column] = {column.name: column for column in _ALL}
MANDATORY = tuple(column.name for column in _ALL if column.level == "mandatory")
# The properties of SkuPriceDetails; the names of all other properties begin with x_.
PRICE_PROPERTIES = frozenset(
    (
        "CoreCount", "DiskMaxIops", "DiskSpace", "DiskType", "GpuCount", "InstanceType", "InstanceSeries", "MemorySize",
        "NetworkMaxIops", "NetworkMaxThroughput", "OperatingSystem", "Redundancy", "StorageClass",
    )
)  # fmt: skip
