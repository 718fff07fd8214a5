"""What lists and charts say of many rows, long names and lists that fail."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx
from playwright.sync_api import expect

from support.stack import MODEL
from support.web.console import Console
from support.web.pages import serious_faults

if TYPE_CHECKING:
    from playwright.sync_api import Page

Opens = Callable[..., "Page"]
ROW_PX_MAX = 70  # two lines of text and a meter
LONG = "a name that somebody wrote as a whole sentence of many words " * 2


def test_the_audit_log_has_names_and_choices(console: Console, open_page: Opens) -> None:
    made = console.api("POST", "/v1/admin/keys", json={"tenant": "hooli", "name": "audited"}).json()
    httpx.post(f"{console.stack.url}/v1/admin/session", json={"key": made["secret"]})
    page = open_page("/admin/audit")
    table = page.get_by_role("table", name="Audit log")
    created = table.get_by_role("row", name=re.compile("key.create"))
    expect(created.get_by_role("link", name="audited")).to_have_attribute("href", f"/admin/keys/{made['id']}")
    assert created.get_by_role("cell").all_inner_texts()[-2:] == ["the owner", "created"]
    assert table.get_by_role("row", name=re.compile("session.refuse")).get_by_text("127.0.0.1").is_visible()
    page.get_by_role("combobox", name="Action").fill("refuse")
    page.get_by_role("option", name="session.refuse").click()
    page.wait_for_url("**action=session.refuse*")
    expect(table.locator("tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Clear", exact=True).click()
    page.get_by_role("combobox", name="By").fill("the owner")
    page.get_by_role("option", name=re.compile("the owner …")).click()
    page.wait_for_url("**actor=key_*")
    expect(created).to_be_visible()
    assert serious_faults(page) == []


def test_a_list_that_fails_has_no_number_of_rows(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/health")
    page.evaluate("() => { window.fetch = () => Promise.reject(new TypeError()) }")  # as if offline
    page.get_by_role("link", name="Keys").click()
    page.get_by_role("alert").get_by_text("The gateway cannot be reached").wait_for()
    assert page.get_by_text(re.compile(r"\d rows")).count() == 0


def test_each_of_many_series_looks_different_and_keys_have_their_tenant(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/usage?by=key&top=15&range=90d")
    page.locator(".legend-item").first.wait_for()
    page.get_by_role("region", name=re.compile("by key$")).get_by_text("hooli: search production").wait_for()
    looks = page.locator(".legend-item .swatch").evaluate_all("all => all.map(one => one.innerHTML)")
    assert len(looks) > 8
    assert len(set(looks)) == len(looks)


def test_long_names_have_one_line_each(console: Console, open_page: Opens) -> None:
    key = console.api("POST", "/v1/admin/keys", json={"tenant": "hooli", "name": LONG}).json()
    limit: dict[str, Any] = {"tenant": "hooli", "key_id": key["id"], "unit": "tokens", "period": "day"}
    console.api("POST", "/v1/admin/budgets", json=limit | {"limit_amount": 9}).raise_for_status()
    for path, table in (("keys", "Keys"), ("budgets", "Budgets")):
        page = open_page(f"/admin/{path}", width=1440)
        rows = page.get_by_role("table", name=table).get_by_role("row")
        row = rows.filter(has=page.get_by_title(LONG.strip())).first.bounding_box()
        assert row is not None
        assert row["height"] <= ROW_PX_MAX, path


def test_the_numbers_of_configured_limits_are_shown(console: Console, open_page: Opens) -> None:
    console.api("POST", "/v1/admin/limits", json={"tenant": "hooli", "concurrency": 77}).raise_for_status()
    page = open_page("/admin/budgets?tab=limits")
    configured = console.stack.config.tenant_limits
    row = page.get_by_role("table", name="Limits").get_by_role("row", name=re.compile("hooli"))
    row.get_by_text(f"{configured.requests_per_minute:,} (default)").wait_for()
    assert row.get_by_text("77", exact=True).is_visible()
    page.get_by_text(f"a key has {console.stack.config.limits.requests_per_minute:,} requests").wait_for()


def test_slow_requests_are_found(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/requests")
    page.get_by_label("TTFT from, seconds").fill("0.5")
    page.get_by_label("TTFT from, seconds").press("Enter")
    page.get_by_text("Settled requests of the last 7 days").wait_for()
    slow = console.api("GET", "/v1/admin/requests", params={"min_ttft_s": 0.5, "limit": 50}).json()["data"]
    assert slow
    table = page.get_by_role("table", name="Requests")
    expect(table.locator("tbody tr")).to_have_count(len(slow))
    ended = table.locator("tbody tr").first.locator("time").last
    expect(ended).to_have_text(re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$"))


def test_each_part_of_the_health_report_has_its_words(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/health")
    page.locator(".health-part").first.wait_for()
    parts = console.api("GET", "/v1/admin/health").json()["data"]
    assert len(page.locator(".health-name span").all_inner_texts()) == len(parts)
    assert all(page.locator(".health-name span").all_inner_texts())
    assert page.get_by_text("telemetry.endpoint is not set").is_visible()


def test_a_price_has_a_field_and_a_line_for_each_tier(console: Console, open_page: Opens) -> None:
    page = open_page(f"/admin/models/{MODEL}?tab=prices")
    versions = page.get_by_role("table", name=f"Prices of {MODEL}").locator("tbody tr").first
    tiers = versions.get_by_role("cell").nth(2).locator("div")
    expect(tiers).to_have_count(3)
    assert sorted(tiers.all_inner_texts()) == ["batch", "premium", "standard"]
    page.get_by_role("button", name="Publish a price").click()
    form = page.get_by_role("dialog")
    assert form.get_by_label("Multiplier of premium").input_value() == "3"
    assert form.get_by_role("combobox", name="Currency").input_value().startswith("USD")


def test_tenants_have_their_cost_and_are_listed_by_status(console: Console, open_page: Opens) -> None:
    console.api("PATCH", "/v1/admin/tenants/initech", json={"status": "suspended"}).raise_for_status()
    page = open_page("/admin/tenants")
    table = page.get_by_role("table", name="Tenants")
    table.get_by_role("row", name=re.compile("hooli")).get_by_text(
        re.compile(r"^0\.[1-9]\d* USD$|^\d\.\d\d")
    ).wait_for()
    page.get_by_label("Status").select_option("suspended")
    expect(table.locator("tbody tr")).to_have_count(1)
    assert table.get_by_role("row", name=re.compile("initech")).get_by_text("suspended").is_visible()
    console.api("PATCH", "/v1/admin/tenants/initech", json={"status": "active"}).raise_for_status()


def test_amounts_are_in_sight_on_a_phone(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/billing?tab=margins", width=390)
    margin = page.locator('td[data-label="Margin"]').first
    margin.wait_for()
    for box in (margin.bounding_box(), page.get_by_role("tab", name="Margins").bounding_box()):
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
