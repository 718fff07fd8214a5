"""Rules over several cells of one row, as data: a rule, its columns, and a function that checks their cells.

A rule is checked only if its columns are in the file, and once for each combination of their cells. So its result must
depend on these cells only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from billing.focus.findings import Severity
from billing.focus.services import SERVICES
from billing.focus.values import moment, number

Question = Callable[..., str | None]
CORRECTION = "Correction"
PRICED = ("Usage", "Purchase")
# Null for a tax; required for usage and purchases, except corrections.
PRICE_COLUMNS = (
    "ContractedUnitPrice",
    "ListUnitPrice",
    "PricingCategory",
    "PricingCurrencyContractedUnitPrice",
    "PricingCurrencyListUnitPrice",
    "PricingQuantity",
    "SkuId",
    "SkuPriceId",
)
# (column, the column that it depends on, whether the former is required where the latter is not null)
DEPENDENT = (
    ("CapacityReservationStatus", "CapacityReservationId", False),
    ("CommitmentDiscountCategory", "CommitmentDiscountId", True),
    ("CommitmentDiscountName", "CommitmentDiscountId", False),
    ("CommitmentDiscountStatus", "CommitmentDiscountId", False),
    ("CommitmentDiscountType", "CommitmentDiscountId", True),
    ("CommitmentDiscountUnit", "CommitmentDiscountQuantity", True),
    ("ConsumedUnit", "ConsumedQuantity", True),
    ("PricingUnit", "PricingQuantity", True),
    ("RegionName", "RegionId", True),
    ("ResourceName", "ResourceId", False),
    ("ResourceType", "ResourceId", True),
    ("SkuMeter", "SkuId", False),
    ("SkuPriceDetails", "SkuPriceId", False),
    ("SubAccountName", "SubAccountId", True),
    ("SubAccountType", "SubAccountId", True),
)
PRODUCTS = (("ListUnitPrice", "ListCost"), ("ContractedUnitPrice", "ContractedCost"))


class Rule(msgspec.Struct, frozen=True):
    """`question`: a function that takes the cells of `columns` in their order and returns the fault, or None. Findings
    name the first column. Columns in `maybe` need not be in the file; they then count as null."""

    id: str
    columns: tuple[str, ...]
    question: Question
    severity: Severity = "must"
    maybe: frozenset[str] = frozenset()


def _ordered(start: Any, end: Any) -> str | None:
    if moment(start) and moment(end) and not start < end:
        return f"is not before its end {end}"
    return None


def _within(start: Any, end: Any, begin: Any, finish: Any, category: Any, kind: Any) -> str | None:
    if category != "Usage" or kind == CORRECTION or not all(map(moment, (start, end, begin, finish))):
        return None
    return (
        None if begin <= start and end <= finish else f"to {end} is not within the billing period {begin} to {finish}"
    )


def _parent(subcategory: Any, category: Any) -> str | None:
    if category in SERVICES and subcategory is not None and subcategory not in SERVICES[category]:
        return f"is no subcategory of {category!r}"
    return None


def _not_for_tax(value: Any, category: Any) -> str | None:
    return "is not null, and ChargeCategory is Tax" if category == "Tax" and value is not None else None


def _for_usage(value: Any, category: Any, kind: Any) -> str | None:
    if value is None and category in PRICED and kind != CORRECTION:
        return f"is null, and ChargeCategory is {category} without being a correction"
    return None


def _consumed(quantity: Any, category: Any, kind: Any, status: Any) -> str | None:
    if category != "Usage":
        return None if quantity is None else "is not null, and ChargeCategory is not Usage"
    if status == "Unused":
        return None if quantity is None else "is not null, and CommitmentDiscountStatus is Unused"
    return "is null, and ChargeCategory is Usage" if quantity is None and kind != CORRECTION else None


def _only_with(name: str) -> Question:
    def question(value: Any, other: Any) -> str | None:
        return f"is not null, and {name} is" if value is not None and other is None else None

    return question


def _needed_with(name: str) -> Question:
    def question(value: Any, other: Any) -> str | None:
        return f"is null, and {name} is not" if value is None and other is not None else None

    return question


def _used_or_unused(name: str) -> Question:
    def question(status: Any, subject: Any, category: Any) -> str | None:
        if status is None and subject is not None and category == "Usage":
            return f"is null, and {name} is not, on a row of Usage"
        return None

    return question


def _commitment_quantity(quantity: Any, discount: Any, category: Any, kind: Any) -> str | None:
    if category in PRICED and discount is not None:
        return "is null on a charge with a commitment discount" if quantity is None and kind != CORRECTION else None
    return None if quantity is None else "is not null on a charge without a commitment discount"


def _product(cost: Any, price: Any, quantity: Any, kind: Any) -> str | None:
    numbers = [number(value) for value in (cost, price, quantity)]
    if kind == CORRECTION or None in numbers:
        return None
    paid, each, many = numbers
    return None if each * many == paid else f"is not {show(price)} × {show(quantity)}"  # type: ignore[operator]


def show(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _of_credit(cost: Any, billed: Any, category: Any) -> str | None:
    ours, theirs = number(cost), number(billed)
    if category == "Credit" and None not in (ours, theirs) and ours != theirs:
        return f"is not the BilledCost {show(billed)} of a Credit"
    return None


def _frequency(frequency: Any, category: Any) -> str | None:
    return "on a Purchase" if category == "Purchase" and frequency == "Usage-Based" else None


def _committed(pricing: Any, discount: Any) -> str | None:
    return "without a CommitmentDiscountId" if pricing == "Committed" and discount is None else None


def _one_name(name: Any, identifier: Any) -> str | None:
    return (
        "repeats ResourceId: without a name of its own it is null" if name is not None and name == identifier else None
    )


def _rules() -> Iterator[Rule]:
    yield Rule("period-order", ("BillingPeriodStart", "BillingPeriodEnd"), _ordered)
    yield Rule("charge-order", ("ChargePeriodStart", "ChargePeriodEnd"), _ordered)
    yield Rule(
        "charge-within-period",
        (
            "ChargePeriodStart", "ChargePeriodEnd", "BillingPeriodStart", "BillingPeriodEnd", "ChargeCategory",
            "ChargeClass",
        ),
        _within,
        "should",
    )  # fmt: skip
    yield Rule("subcategory-parent", ("ServiceSubcategory", "ServiceCategory"), _parent)
    for name in PRICE_COLUMNS:
        yield Rule("null-for-tax", (name, "ChargeCategory"), _not_for_tax)
        yield Rule("null-for-usage", (name, "ChargeCategory", "ChargeClass"), _for_usage)
    yield Rule(
        "consumed-quantity",
        ("ConsumedQuantity", "ChargeCategory", "ChargeClass", "CommitmentDiscountStatus"),
        _consumed,
        maybe=frozenset(("CommitmentDiscountStatus",)),
    )
    for name, other, needed in DEPENDENT:
        yield Rule("null-without", (name, other), _only_with(other))
        if needed:
            yield Rule("needed-with", (name, other), _needed_with(other))
    for subject in ("CommitmentDiscount", "CapacityReservation"):
        columns = (f"{subject}Status", f"{subject}Id", "ChargeCategory")
        yield Rule("used-or-unused", columns, _used_or_unused(columns[1]))
    yield Rule(
        "commitment-quantity",
        ("CommitmentDiscountQuantity", "CommitmentDiscountId", "ChargeCategory", "ChargeClass"),
        _commitment_quantity,
    )
    for price, cost in PRODUCTS:
        yield Rule("quantity-times-price", (cost, price, "PricingQuantity", "ChargeClass"), _product)
    for cost in ("ListCost", "ContractedCost", "EffectiveCost"):
        yield Rule("credit-cost", (cost, "BilledCost", "ChargeCategory"), _of_credit)
    yield Rule("purchase-frequency", ("ChargeFrequency", "ChargeCategory"), _frequency)
    yield Rule(
        "committed-discount",
        ("PricingCategory", "CommitmentDiscountId"),
        _committed,
        maybe=frozenset(("CommitmentDiscountId",)),
    )
    yield Rule("resource-name", ("ResourceName", "ResourceId"), _one_name, "should")


RULES = tuple(_rules())
