"""A small FOCUS file without a fault, as rows, and ways to write it in each format."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from billing.focus.columns import COLUMNS
from billing.focus.manifest import SUFFIX, Manifest, ManifestInvoice, ManifestLedger

Row = dict[str, str | None]

USAGE: Row = {
    "BilledCost": "0.0123",
    "BillingAccountId": "ten_1",
    "BillingAccountName": "Acme",
    "BillingCurrency": "USD",
    "BillingPeriodEnd": "2026-02-01T00:00:00Z",
    "BillingPeriodStart": "2026-01-01T00:00:00Z",
    "ChargeCategory": "Usage",
    "ChargeClass": None,
    "ChargeDescription": "Input tokens of model-a, tier standard",
    "ChargeFrequency": "Usage-Based",
    "ChargePeriodEnd": "2026-01-05T11:00:00Z",
    "ChargePeriodStart": "2026-01-05T10:00:00Z",
    "CommitmentDiscountCategory": None,
    "CommitmentDiscountId": None,
    "CommitmentDiscountName": None,
    "CommitmentDiscountQuantity": None,
    "CommitmentDiscountStatus": None,
    "CommitmentDiscountType": None,
    "CommitmentDiscountUnit": None,
    "ConsumedQuantity": "123",
    "ConsumedUnit": "Tokens",
    "ContractedCost": "0.0123",
    "ContractedUnitPrice": "0.0001",
    "EffectiveCost": "0.0123",
    "InvoiceId": "inv_1",
    "InvoiceIssuerName": "Laneway",
    "ListCost": "0.0123",
    "ListUnitPrice": "0.0001",
    "PricingCategory": "Standard",
    "PricingQuantity": "123",
    "PricingUnit": "Tokens",
    "ProviderName": "Laneway",
    "PublisherName": "Laneway",
    "RegionId": None,
    "RegionName": None,
    "ResourceId": "model-a",
    "ResourceName": None,
    "ResourceType": "Model",
    "ServiceCategory": "AI and Machine Learning",
    "ServiceName": "Laneway",
    "ServiceSubcategory": "Generative AI",
    "SkuId": "model-a/input",
    "SkuMeter": "Input Tokens",
    "SkuPriceDetails": '{"x_Tier":"standard"}',
    "SkuPriceId": "prv_1/standard/input",
    "SubAccountId": "prj_1",
    "SubAccountName": "search",
    "Tags": '{"team":"web"}',
    "x_Tier": "standard",
}
CORRECTION = USAGE | {
    "BilledCost": "-0.01",
    "ChargeClass": "Correction",
    "ContractedCost": "-0.01",
    "EffectiveCost": "-0.01",
    "ListCost": "-0.01",
    "ConsumedQuantity": None,
    "ConsumedUnit": None,
    "PricingQuantity": None,
    "PricingUnit": None,
    "ChargePeriodStart": "2025-12-05T10:00:00Z",
    "ChargePeriodEnd": "2025-12-05T11:00:00Z",
}
_NO_PRICE: Row = {
    "ContractedUnitPrice": None,
    "ListUnitPrice": None,
    "PricingCategory": None,
    "PricingQuantity": None,
    "PricingUnit": None,
    "SkuId": None,
    "SkuMeter": None,
    "SkuPriceId": None,
    "SkuPriceDetails": None,
    "ConsumedQuantity": None,
    "ConsumedUnit": None,
}
TAX = USAGE | _NO_PRICE | {"ChargeCategory": "Tax", "ChargeFrequency": "One-Time"}
CREDIT = USAGE | _NO_PRICE | {"ChargeCategory": "Credit", "ChargeFrequency": "One-Time"}
DISCOUNTED = USAGE | {
    "CommitmentDiscountCategory": "Usage",
    "CommitmentDiscountId": "com_1",
    "CommitmentDiscountName": "A year",
    "CommitmentDiscountQuantity": "123",
    "CommitmentDiscountStatus": "Used",
    "CommitmentDiscountType": "Yearly",
    "CommitmentDiscountUnit": "Tokens",
    "PricingCategory": "Committed",
}
CLEAN: tuple[Row, ...] = (USAGE, CORRECTION, TAX, CREDIT, DISCOUNTED)


def clean() -> list[Row]:
    return [dict(row) for row in CLEAN]


def write_csv(path: Path, rows: Sequence[Mapping[str, str | None]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(rows[0])
        writer.writerows(["" if cell is None else cell for cell in row.values()] for row in rows)
    return path


def write_jsonl(path: Path, rows: Sequence[Mapping[str, str | None]]) -> Path:
    """Numbers as they are written: JSON numbers of any precision."""
    with path.open("w") as file:
        for row in rows:
            cells = (f"{json.dumps(name)}:{_json(name, cell)}" for name, cell in row.items())
            file.write("{" + ",".join(cells) + "}\n")
    return path


def _json(name: str, cell: str | None) -> str:
    number = name in COLUMNS and COLUMNS[name].kind == "decimal"
    return cell if number and cell is not None else json.dumps(cell)


def write_parquet(path: Path, rows: Sequence[Mapping[str, str | None]]) -> Path:
    import pyarrow
    from pyarrow import parquet

    arrays = {}
    for name in rows[0]:
        cells = [row[name] for row in rows]
        if name in COLUMNS and COLUMNS[name].kind == "decimal":
            numbers = [None if cell is None else Decimal(cell) for cell in cells]
            arrays[name] = pyarrow.array(numbers, pyarrow.decimal128(38, 12))
        else:
            arrays[name] = pyarrow.array(cells, pyarrow.string())
    parquet.write_table(pyarrow.table(arrays), path)
    return path


WRITERS = {"csv": write_csv, "jsonl": write_jsonl, "parquet": write_parquet}


def write_manifest(path: Path, of: Sequence[Mapping[str, str | None]], **changes: Any) -> Path:
    """Write the manifest that an export of these rows has."""
    costs = [Decimal(row["BilledCost"] or 0) for row in of]
    promised = Manifest(
        file=path.name,
        kind="focus",
        size_bytes=path.stat().st_size,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        rows=len(of),
        billed={"USD": sum(costs, Decimal(0))},
        tokens={},
        ledger=ManifestLedger(0, None, None, 0, None, None),
        periods=[],
        provisional=False,
        writer="test",
        invoices={"inv_1": ManifestInvoice(sum(costs, Decimal(0)), "USD")},
    )
    where = path.with_name(path.name + SUFFIX)
    where.write_bytes(msgspec.structs.replace(promised, **changes).text())
    return where
