"""A list's CSV: all rows of the list under its filters, whatever part of them is shown, with moments in one format; its
progress is shown, and it can be stopped."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from playwright.sync_api import expect

from billing import tables
from billing.accounts import tenants
from billing.books import corrections
from billing.clock import DAY, database_now
from gateway.access import audit_log, keys
from support.web.console import Console

if TYPE_CHECKING:
    from playwright.sync_api import Page

Opens = Callable[..., "Page"]
MANY = 1_050  # more than two of the API's largest pages
SOME = 120  # more than two pages of a list
PAGE = 500
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
# Of each list: its address, the API's list, a column that tells rows apart with the field that it has, the columns of
# moments, and how many rows there are at least.
LISTS = [
    ("/admin/tenants", "tenants", {}, ("Tenant", "slug"), {"Created": "created_at"}, MANY),
    ("/admin/requests", "requests", {}, ("Request", "request_id"), {"Began": "started_at", "Ended": "ended_at"}, MANY),
    (
        "/admin/requests?tier=premium&ending=length",
        "requests",
        {"tier": "premium", "ending": "length"},
        ("Request", "request_id"),
        {"Ended": "ended_at"},
        SOME,
    ),
    (
        "/admin/keys?sort=-last_used_at&status=",
        "keys",
        {},
        ("Key", "name"),
        {"Created": "created_at", "Last used": "last_used_at", "Expires": "expires_at"},
        SOME,
    ),
    ("/admin/audit", "audit_log", {}, ("Object", "object_id"), {"When": "at"}, MANY),
    ("/admin/billing?tab=invoices", "invoices", {}, ("Invoice", "id"), {"Issued": "issued_at"}, SOME),
    ("/admin/billing?tab=corrections", "corrections", {}, ("Reason", "reason"), {"Created": "created_at"}, SOME),
    (
        "/admin/billing?tab=periods&state=closed",
        "periods",
        {"state": "closed"},
        ("Tenant", "tenant_id"),
        {"End": "end_at", "Closed": "closed_at"},
        SOME,
    ),
]


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Console]:
    made = Console.started(tmp_path_factory.mktemp("csv"), model_dir, days=40, last_hour=60)
    made.stack.write(lambda connection: _fill(connection, made.stack.tenants["hooli"]))
    yield made
    made.stack.stop()


def _fill(connection: sa.Connection, hooli: str) -> None:
    """Tenants and lines of the audit log by the thousand; keys, corrections and closed months by the hundred."""
    now = database_now(connection)
    made = [
        tenants.create_tenant(connection, slug=f"many-{number:04}", name="One of many", tier="batch").id
        for number in range(MANY)
    ]
    for number in range(SOME):
        keys.create_key(connection, tenant_id=hooli, name=f"one of many {number:03}")
        corrections.correct_tenant(
            connection, hooli, picos=-number - 1, reason=f'"No. {number}", owed', actor="the tests"
        )
    for number in range(MANY):
        audit_log.add_audit_line(
            connection, actor="the tests", action="tested", object_id=f"obj_{number:04}", tenant_id=hooli
        )
    start = now - 60 * DAY
    closed = {"month": "2026-01", "time_zone": "UTC", "start_at": start, "end_at": start + DAY, "state": "closed"}
    closed |= {"opened_at": start, "closed_sequence": 0, "closed_at": now, "closed_by": "the tests"}
    rows: list[dict[str, Any]] = [closed | {"id": f"per_{one}", "tenant_id": one} for one in made[:SOME]]
    connection.execute(sa.insert(tables.billing_periods), rows)
    amounts = {"usage_picos": 1, "correction_picos": 0, "total_picos": 1, "currency": "USD", "issued_at": now}
    owed: list[dict[str, Any]] = [
        amounts | {"id": f"inv_{one}", "period_id": f"per_{one}", "tenant_id": one} for one in made[:SOME]
    ]
    connection.execute(sa.insert(tables.invoices), owed)


def whole(console: Console, path: str, query: dict[str, str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    following: dict[str, str] = {}
    while True:
        answer = console.api("GET", f"/v1/admin/{path}", params={**query, **following, "limit": PAGE}).json()
        found += answer["data"]
        if answer["next_page"] is None:
            return found
        following = {"page": answer["next_page"]}


def saved(page: Page) -> list[dict[str, str]]:
    page.locator(".table tbody tr").nth(5).wait_for()
    page.get_by_role("button", name="CSV", exact=True).wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV", exact=True).click()
    text = Path(download.value.path()).read_bytes().decode()
    return list(csv.DictReader(io.StringIO(text, newline="")))


@pytest.mark.parametrize(
    ("address", "path", "query", "named", "moments", "least"), LISTS, ids=[one[0].split("/")[-1] for one in LISTS]
)
def test_the_csv_has_all_rows_of_the_list(
    console: Console,
    open_page: Opens,
    address: str,
    path: str,
    query: dict[str, str],
    named: tuple[str, str],
    moments: dict[str, str],
    least: int,
) -> None:
    rows = saved(open_page(address))
    expected = whole(console, path, query)
    assert len(expected) >= least
    column, field = named
    assert sorted(row[column] for row in rows) == sorted(one[field] for one in expected)
    by_name = {one[field]: one for one in expected}
    for row in rows:
        for header, name in moments.items():
            at = by_name[row[column]][name]
            assert (at is None) == (row[header] == ""), (header, row)
            if at is not None:
                assert MOMENT.fullmatch(row[header]), row
                assert abs(datetime.fromisoformat(row[header]).timestamp() - at) <= 0.001


def test_the_csv_of_requests_has_their_times(console: Console, open_page: Opens) -> None:
    rows = saved(open_page("/admin/requests?tier=premium"))
    expected = {one["request_id"]: one for one in whole(console, "requests", {"tier": "premium"})}
    assert set(expected) == {row["Request"] for row in rows}
    for row in rows:
        one = expected[row["Request"]]
        assert [float(row[name]) for name in ("TTFT s", "Queue s", "Duration s")] == pytest.approx(
            [one["ttft_s"], one["queue_s"], one["duration_s"]], abs=1e-9
        )


def test_its_progress_is_shown_and_it_can_be_stopped(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/requests")
    late: list[Any] = []

    def answer(route: Any) -> None:
        if f"limit={PAGE}" in route.request.url and "page=" in route.request.url:
            late.append(route)
        else:
            route.continue_()

    page.route("**/v1/admin/requests?*", answer)
    page.get_by_role("button", name="CSV", exact=True).click()
    page.get_by_role("status").get_by_text(f"{PAGE} rows read").wait_for()
    downloads: list[Any] = []
    page.on("download", lambda download: downloads.append(download))
    # Another page would lose it.
    page.get_by_role("link", name="Health").click()
    page.get_by_text("A CSV export is running. Stop it first.").wait_for()
    page.get_by_role("button", name="Stop the CSV export").click()
    page.get_by_text("CSV export stopped; nothing was saved.").wait_for()
    assert len(late) == 1
    page.unroute("**/v1/admin/requests?*")
    expect(page.get_by_role("button", name="CSV", exact=True)).to_be_enabled()
    assert downloads == []


def test_a_refusal_on_the_way_saves_nothing_and_is_said(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/requests")
    page.expected = [400]  # type: ignore[attr-defined]

    def answer(route: Any) -> None:
        if "page=" in route.request.url:
            route.fulfill(status=400, body='{"error": {"message": "Not this page.", "code": "invalid"}}')
        else:
            route.continue_()

    page.route("**/v1/admin/requests?*", answer)
    downloads: list[Any] = []
    page.on("download", lambda download: downloads.append(download))
    page.get_by_role("button", name="CSV", exact=True).click()
    page.get_by_text("The CSV could not be saved: Not this page.").wait_for()
    expect(page.get_by_role("button", name="CSV", exact=True)).to_be_enabled()
    assert downloads == []
