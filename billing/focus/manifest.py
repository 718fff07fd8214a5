"""What lies beside an export, as JSON: the file's hash, rows and control totals, and what of the ledger it covers."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import msgspec

SUFFIX = ".manifest.json"
FORMAT = "laneway.export/1"
MANIFEST_BYTES_MAX = 64 << 20


class ManifestBroken(Exception):
    """No JSON, or not of this shape."""


class ManifestInvoice(msgspec.Struct, frozen=True):
    """`total`: what is owed, exact, in `currency`."""

    total: Decimal
    currency: str


class ManifestLedger(msgspec.Struct, frozen=True):
    """Usage rows and corrections of the ledger in the file, by their sequences; null: there are none."""

    usage_rows: int
    usage_sequence_min: int | None
    usage_sequence_max: int | None
    corrections: int
    correction_sequence_min: int | None
    correction_sequence_max: int | None


class ManifestPeriod(msgspec.Struct, frozen=True):
    """A tenant's billing period; moments as in the file."""

    id: str
    tenant_id: str
    month: str
    time_zone: str
    start: str
    end: str
    state: str


class Manifest(msgspec.Struct, frozen=True):
    """`billed` by currency. `provisional`: a period was still open, so a later export may hold more. `writer`: what the
    bytes depend on beside the ledger."""

    file: str
    kind: str
    size_bytes: int
    sha256: str
    rows: int
    billed: dict[str, Decimal]
    tokens: dict[str, int]
    ledger: ManifestLedger
    periods: list[ManifestPeriod]
    provisional: bool
    writer: str
    invoices: dict[str, ManifestInvoice] = {}
    format: str = FORMAT
    focus_version: str | None = None

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Raises ManifestBroken, OSError."""
        with path.open("rb") as file:
            text = file.read(MANIFEST_BYTES_MAX + 1)
        if len(text) > MANIFEST_BYTES_MAX:
            raise ManifestBroken(f"it is larger than {MANIFEST_BYTES_MAX} bytes")
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ManifestBroken(str(error)) from error

    def text(self) -> bytes:
        """Alike for alike manifests. Amounts are strings: a JSON number may be read as a float."""
        return msgspec.json.format(msgspec.json.encode(self, order="deterministic")) + b"\n"


def manifest_path(path: Path) -> Path | None:
    """The manifest of the file at `path`, where there is one."""
    found = path.with_name(path.name + SUFFIX)
    return found if found.is_file() else None
