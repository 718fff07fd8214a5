"""The manifest beside an export, as JSON: the file's hash, rows and control totals, and its rows of the ledger."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import msgspec

SUFFIX = ".manifest.json"
FORMAT = "laneway.export/1"
MANIFEST_BYTES_MAX = 64 << 20


class ManifestBroken(Exception):
    """The manifest is not JSON, or lacks fields of Manifest."""


class ManifestInvoice(msgspec.Struct, frozen=True):
    """`total`: the exact amount owed, in `currency`."""

    total: Decimal
    currency: str


class ManifestLedger(msgspec.Struct, frozen=True):
    """The usage rows and corrections in the file, by their sequences; null if there are none."""

    usage_rows: int
    usage_sequence_min: int | None
    usage_sequence_max: int | None
    corrections: int
    correction_sequence_min: int | None
    correction_sequence_max: int | None


class ManifestPeriod(msgspec.Struct, frozen=True):
    """A tenant's billing period; moments as text, as in the file."""

    id: str
    tenant_id: str
    month: str
    time_zone: str
    start: str
    end: str
    state: str


class Manifest(msgspec.Struct, frozen=True):
    """`billed`: by currency. `provisional`: a period was still open, so a later export may have more rows. `writer`:
    all that the file's bytes depend on in addition to the ledger, such as versions."""

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
        """JSON, equal for equal manifests. Amounts are strings, since a JSON number may be read as a float."""
        return msgspec.json.format(msgspec.json.encode(self, order="deterministic")) + b"\n"


def manifest_path(path: Path) -> Path | None:
    """The path of the manifest beside the file at `path`; None if there is none."""
    beside = path.with_name(path.name + SUFFIX)
    return beside if beside.is_file() else None
