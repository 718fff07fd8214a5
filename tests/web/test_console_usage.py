"""Usage and costs: the table, its sum and the CSV are what the API says, to the last place; a click narrows; an address
shows the same again."""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest

from support.web.console import Console
from support.web.pages import serious_faults

if TYPE_CHECKING:
    from playwright.sync_api import Page

DAY = 86_400
PICO = Decimal(1).scaleb(-12)
ID = re.compile(r"^(ten|prj|key|ada)_")


@pytest.fixture(scope="module")
def month(console: Console) -> dict[str, int]:
    """The 30 days of UTC that the page begins with."""
    end = (int(time.time()) // DAY + 1) * DAY
    return {"start_time": end - 30 * DAY, "end_time": end}


def asked(console: Console, path: str, **query: Any) -> list[dict[str, Any]]:
    page = console.api("GET", f"/v1/organization/{path}", params=query).json()
    assert page["next_page"] is None
    return [one for bucket in page["data"] for one in bucket["results"]]


def rows_of(page: Page) -> dict[str, list[str]]:
    """The shown table: cells by the row's name."""
    table = page.locator(".usage-block table")
    table.locator("tfoot").wait_for()
    table.locator("tbody th").filter(has_text=ID).first.wait_for(state="detached")  # names come after the sums
    found: dict[str, list[str]] = {}
    for row in table.locator("tbody tr, tfoot tr").all():
        name = row.locator("th").inner_text().strip()
        found[name] = [cell.inner_text().strip() for cell in row.locator("td").all()]
    return found


def number(text: str) -> Decimal:
    return Decimal(text.replace(",", "").replace("−", "-"))


def test_the_table_its_sum_and_the_csv_are_the_apis(
    console: Console, open_page: Callable[..., Page], month: dict[str, int]
) -> None:
    page = open_page("/admin/usage")
    shown = rows_of(page)
    names = {tenant["id"]: tenant["slug"] for tenant in console.api("GET", "/v1/admin/tenants").json()["data"]}
    expected = asked(console, "usage/completions", **month, bucket_width="1d", limit=31, group_by="tenant_id")
    for field, column in (
        ("num_model_requests", 0),
        ("input_cached_tokens", 2),
        ("output_tokens", 3),
        ("embedding_tokens", 4),
    ):
        sums: dict[str, int] = {}
        for one in expected:
            sums[names[one["tenant_id"]]] = sums.get(names[one["tenant_id"]], 0) + one[field]
        assert {name: number(cells[column]) for name, cells in shown.items() if name != "Sum"} == sums
    whole = sum(one["cost_picos"] for one in expected) * PICO
    assert number(shown["Sum"][5]) == whole == sum(number(shown[name][5]) for name in shown if name != "Sum") > 0
    with page.expect_download() as saved:
        page.locator(".usage-save").click()
    lines = list(csv.reader(saved.value.path().read_text().splitlines()))
    assert lines[0][0] == "tenant"
    assert {line[0]: Decimal(line[7]) for line in lines[1:]} == {
        ("sum" if name == "Sum" else name): number(cells[5]) for name, cells in shown.items()
    }
    page.get_by_role("button", name="By day").click()
    page.get_by_role("columnheader", name="Day").wait_for()
    by_day = rows_of(page)
    assert len(by_day) == 31
    assert number(by_day["Sum"][-1]) == whole == sum(number(cells[-1]) for day, cells in by_day.items() if day != "Sum")
    assert serious_faults(page) == []


def test_embedding_tokens_are_not_input_tokens(console: Console, open_page: Callable[..., Page]) -> None:
    page = open_page("/admin/usage")
    plain = rows_of(page)
    added = 7_000_000_000  # of each row, in the API's input tokens too

    def answer(route: Any) -> None:
        found = route.fetch()
        body = found.json()
        for one in (one for bucket in body["data"] for one in bucket["results"]):
            one["embedding_tokens"] += added
            one["input_tokens"] += added
        route.fulfill(response=found, json=body)

    page.route("**/v1/organization/usage/completions?*", answer)
    page.reload()
    shown = rows_of(page)
    assert number(shown["Sum"][1]) == number(plain["Sum"][1])
    assert number(shown["Sum"][4]) > number(plain["Sum"][4])
    assert number(shown["Sum"][4]) % added == number(plain["Sum"][4])
    page.get_by_label("Show").select_option("Embedding tokens")
    page.get_by_role("table", name="Embedding tokens by tenant").wait_for()
    page.unroute_all(behavior="ignoreErrors")


def test_hundreds_of_keys_stay_legible_and_add_up(
    console: Console, open_page: Callable[..., Page], month: dict[str, int]
) -> None:
    page = open_page("/admin/usage?by=key")
    shown = rows_of(page)
    assert len(shown) == 7 + 2
    assert page.locator(".legend-item").count() == 8
    [others] = [cells for name, cells in shown.items() if name.startswith("others (")]
    keys = asked(console, "usage/completions", **month, bucket_width="all", group_by="api_key_id")
    costs = sorted((one["cost_picos"] for one in keys), reverse=True)
    assert [number(cells[5]) for cells in shown.values()][:7] == [one * PICO for one in costs[:7]]
    assert number(others[5]) == sum(costs[7:]) * PICO > 0
    assert number(shown["Sum"][5]) == sum(costs) * PICO


def test_a_click_narrows_and_the_address_shows_it_again(console: Console, open_page: Callable[..., Page]) -> None:
    page = open_page("/admin/usage?range=90d")
    rows_of(page)
    page.get_by_role("button", name="hooli", exact=True).and_(page.locator(".into")).click()
    page.locator(".chip").wait_for()
    page.get_by_role("rowheader", name="search").wait_for()
    shown = rows_of(page)
    assert set(shown) == {"search", "mail", "Sum"}
    assert "tenant=hooli" in page.url
    assert "by=project" in page.url
    end = (int(time.time()) // DAY + 1) * DAY
    [only] = asked(console, "costs", start_time=end - 90 * DAY, end_time=end, bucket_width="all", tenants="hooli")
    assert number(shown["Sum"][5]) == only["amount"]["picos"] * PICO
    again = open_page(page.url)
    assert rows_of(again) == shown
    again.get_by_role("button", name="Remove the filter").click()
    again.get_by_role("rowheader", name="imports").wait_for()  # of the second tenant: among the largest, always


def test_local_days_are_those_of_the_clock(console: Console, open_page: Callable[..., Page]) -> None:
    page = open_page("/admin/usage?range=7d&table=time&show=requests", dark=True)
    rows_of(page)
    with page.expect_response(lambda answer: "bucket_width=1h" in answer.url):
        page.get_by_label("Clock").select_option("local")
    page.locator(".table-busy").wait_for(state="detached")
    local = rows_of(page)
    day, cells = list(local.items())[3]
    midnight = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo("Europe/Berlin"))
    start, end = (int(at.timestamp()) for at in (midnight, midnight + timedelta(days=1)))  # 23 to 25 hours
    found = asked(console, "usage/completions", start_time=start, end_time=end, bucket_width="all")
    assert number(cells[-1]) == sum(one["num_model_requests"] for one in found)


def test_a_tenants_admin_sees_its_own_alone(open_page: Callable[..., Page]) -> None:
    page = open_page("/admin/usage", role="tenant_admin", width=390)
    assert set(rows_of(page)) == {"search", "mail", "Sum"}
    assert page.locator(".reconcile-badge").count() == 0
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), "it must not scroll sideways"
