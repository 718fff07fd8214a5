"""Months of two tenants with every kind of row that an export has, and functions that export them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from billing.accounts import prices, tenants
from billing.accounts.tenants import Tenant
from billing.books import corrections, periods
from billing.exports import export, labels
from billing.exports.export import ExportSpec
from billing.focus.manifest import Manifest
from support.billing.books import MULTIPLIERS, Books
from support.billing.finance import at, close, fold, use

BYTES_MAX = 1 << 30
JANUARY = at("2031-01-10T09:30")
FEBRUARY = at("2031-02-10T10:30")
LATER = at("2040-01-01T00:00")
HOUR = 3_600_000_000


def second_tenant(books: Books, name: str = "Globex", zone: str = "UTC") -> Tenant:
    return books.database.write_sync(
        lambda c: tenants.create_tenant(c, slug="globex", name=name, tier="standard", time_zone=zone)
    )


def january(books: Books, other: Tenant) -> list[str]:
    """Close January of both tenants. Returns the ids of the requests of the first tenant."""
    books.database.write_sync(
        lambda c: prices.publish(
            c,
            subject="adp_1",
            subject_kind="adapter",
            input=7,
            cached_input=0,
            output=11,
            multipliers=MULTIPLIERS | {"batch": 1},
        )
    )
    used = [
        use(books, JANUARY, prompt=100, cached=40, made=7),
        use(books, JANUARY + 60_000_000, prompt=3, made=1),  # same rows: same hour, key and price
        use(books, JANUARY + HOUR, prompt=10, made=5, tier="premium", key="key_b"),
        use(books, JANUARY + HOUR, prompt=10, made=5, tier="batch", adapter="adp_1"),
        use(books, JANUARY + HOUR, prompt=0, made=0),  # no tokens, no cost
    ]
    use(books, JANUARY, tenant_id=other.id, made=1_000_000, prompt=1_000_000, key="key_other")
    first = used[0].request_id
    correct(books, first, "output", -2, JANUARY + 2 * HOUR)
    close(books, "2031-01", FEBRUARY)
    close(books, "2031-01", FEBRUARY, other.id)
    return [request.request_id for request in used]


def february(books: Books, request_id: str) -> None:
    """Usage that was settled too late for January, a correction of it, a credit and a charge; and a closed month."""
    use(books, JANUARY + HOUR, prompt=20, made=2)
    use(books, FEBRUARY, prompt=10, made=5)
    correct(books, request_id, "input", 5, FEBRUARY)
    books.database.write_sync(
        lambda c: corrections.correct_tenant(
            c, books.tenant.id, picos=-12_345, reason="=for the outage", actor="me", clock=lambda _: FEBRUARY
        )
    )
    books.database.write_sync(
        lambda c: corrections.correct_tenant(
            c, books.tenant.id, picos=99, reason="support", actor="me", clock=lambda _: FEBRUARY
        )
    )
    close(books, "2031-02", at("2031-03-02T00:00"))


def correct(books: Books, request_id: str, meter: str, tokens: int, now: int) -> None:
    books.database.write_sync(
        lambda c: corrections.correct_request(
            c, request_id, meter=meter, tokens=tokens, reason="a recount", actor="me", clock=lambda _: now
        )
    )


def name_all(books: Books, spec: ExportSpec, **names: str) -> None:
    """Stores the names that the rows need, as a gateway does before an export."""
    for period in books.database.read_sync(lambda c: list(export.of_spec(c, spec))):
        own = books.database.read_sync(lambda c, tenant_id=period.tenant_id: labels.current_names(c, tenant_id))
        kept = own | {"provider": "Laneway"} | names
        books.database.write_sync(
            lambda c, period=period, kept=kept: labels.store_names(c, period, kept, lambda _: LATER)
        )


def run(books: Books, directory: Path, spec: ExportSpec, **options: Any) -> Manifest:
    name_all(books, spec)
    directory.mkdir(exist_ok=True)
    settings: dict[str, Any] = {"bytes_max": BYTES_MAX} | options
    return books.database.read_sync(lambda c: export.run(c, spec, directory, **settings))


def open_month(books: Books, month: str) -> None:
    fold(books, at(f"{month}-28T00:00"))
    books.database.read_sync(lambda c: periods.get_period(c, books.tenant.id, month))
