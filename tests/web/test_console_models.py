"""Models, tiers and SLA reports: what they are as the API has them, and a price that is previewed and published."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from billing.books import sla
from support.stack import MODEL
from support.waiting import eventually
from support.web.console import Console
from support.web.pages import held_still, serious_faults

if TYPE_CHECKING:
    from playwright.sync_api import Page

Opens = Callable[..., "Page"]


def test_a_price_is_previewed_and_published(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/models")
    page.get_by_text("0.10 · 0.05 · 0.40 USD").wait_for()
    page.get_by_role("link", name=MODEL).click()
    page.get_by_role("tab", name="Prices").click()
    page.expected = [503]  # type: ignore[attr-defined]
    page.route("**/v1/admin/tiers", lambda route: route.fulfill(status=503, body="{}"))
    page.reload()  # the page has read the tiers already
    page.get_by_role("button", name="Publish a price").click()
    form = page.get_by_role("dialog")
    form.get_by_role("button", name="Try again").wait_for()
    assert form.get_by_role("button", name="Preview").count() == 0, (
        "without the tiers, each would have the multiplier 1"
    )
    page.unroute("**/v1/admin/tiers")
    form.get_by_role("button", name="Try again").click()
    form.get_by_label("Input", exact=True).fill("0.0000001")
    form.get_by_role("button", name="Preview").click()
    form.get_by_text("is finer than a pico per token").wait_for()
    form.get_by_label("Input", exact=True).fill("0.12")
    form.get_by_label("Output").fill("0.5")
    form.get_by_label("Embedding").fill("0.04")
    form.get_by_role("button", name="Preview").click()
    form.get_by_text("Cost with this price").wait_for()
    asked = {"subject": MODEL, "input": 120_000, "cached_input": 50_000, "output": 500_000, "embedding": 40_000}
    asked["multipliers"] = {"premium": "3", "batch": "0.5"}
    preview = console.api("POST", "/v1/admin/prices/preview", json=asked).json()
    assert preview["would_picos"] > preview["was_picos"] > 0
    for name in ("was_picos", "would_picos"):  # to the last pico
        whole, rest = divmod(preview[name], 10**12)
        form.locator(f'.tile-value [title="{f"{whole}.{rest:012}".rstrip("0")} USD"]').wait_for()
    assert form.locator("tbody > tr").count() == len(preview["tenants"])
    form.get_by_label("Output").fill("0.6")  # what was seen was of another price
    assert form.get_by_role("button", name="Publish").count() == 0
    form.get_by_label("Output").fill("0.5")
    form.get_by_label("In force from, UTC").fill("2090-01-01T00:00")
    form.get_by_role("button", name="Publish").click()
    page.get_by_text("then 1.50").wait_for()  # premium's output, three times
    newest = console.api("GET", "/v1/admin/prices", params={"subject": MODEL}).json()["data"][0]
    assert newest["effective_from"] == 3_786_912_000
    assert newest["tiers"]["batch"] == {
        "input": 60_000, "cached_input": 25_000, "output": 250_000, "embedding": 20_000,
    }  # fmt: skip
    assert serious_faults(page) == []


def test_tiers_as_the_api_has_them(console: Console, open_page: Opens) -> None:
    def known() -> bool:
        tiers = console.api("GET", "/v1/admin/tiers").json()["data"]
        return bool(tiers[0]["attainment"][0]["requests"])

    for _ in range(2):
        assert console.stack.chat("acme").status_code == 200
    eventually(known, timeout_s=30)
    page = open_page("/admin/tenants")
    tiers = held_still(page, "/v1/admin/tiers")  # requests leave its windows meanwhile
    page.get_by_role("link", name="Tiers").click()
    page.get_by_role("region", name="premium", exact=True).wait_for()
    for tier in tiers()["data"]:
        shown = page.get_by_role("region", name=tier["name"], exact=True)
        settings = shown.get_by_role("table", name=f"Settings of {tier['name']} in laneway.toml")
        assert f"ttft_base_ms\t{tier['targets']['ttft_base_ms']:g}" in settings.inner_text()
        day = shown.get_by_role("row", name="24 h")
        cells = day.get_by_role("cell").all_inner_texts()
        assert cells[-2:] == [str(tier["attainment"][2]["requests"]), "0"]
        assert cells[1] == ("100 %" if tier["attainment"][2]["requests"] else "–")
        assert "target 1.00 s" in (day.get_by_role("img").get_attribute("aria-label") or "")
    assert serious_faults(page) == []


def test_promises_as_the_api_has_them(console: Console, open_page: Opens) -> None:
    assert console.stack.chat("acme", max_tokens=4).status_code == 200
    console.stack.write(sla.fold_sla)
    report = console.api("GET", "/v1/admin/sla", params={"tenant": "acme"}).json()
    premium = report["data"][0]
    today = premium["days"][-1]
    assert (premium["tier"], len(premium["days"])) == ("premium", 30)
    page = open_page("/admin/sla?tenant=acme")
    shown = page.get_by_role("region", name="premium", exact=True)
    strip = shown.get_by_role("slider", name="Days of premium")
    said = strip.get_attribute("aria-valuetext") or ""
    assert said.startswith(f"{today['date']}: {today['verdict']}; first token ")
    shown.get_by_text(said).wait_for()
    strip.press("ArrowLeft")
    before = premium["days"][-2]["date"]
    shown.get_by_text(f"{before}: no requests.").wait_for()
    page.get_by_label("Time range").select_option("90 days")
    shown.get_by_text(said).wait_for()  # the last day with requests again, not the first day of the longer range
    page.get_by_label("Time range").select_option("30 days")
    strip.press("End")
    shown.get_by_text("Days of premium as a table").click()
    cells = shown.get_by_role("table").get_by_role("row").nth(1).get_by_role("cell").all_inner_texts()
    assert cells[:3] == [today["date"], today["verdict"], str(today["requests"])]
    assert serious_faults(page) == []
    with page.expect_download() as download:
        page.get_by_role("link", name="Export CSV").click()
    lines = download.value.path().read_text().splitlines()
    assert len(lines) == 1 + 30 * len(report["data"])
    assert download.value.suggested_filename.startswith("sla-acme-")
    page.get_by_label("Time range").select_option("Last month")
    page.get_by_text("No requests in this time range").wait_for()
    assert "period=last_month" in page.url


def test_a_tenant_sees_its_promises_by_month_and_by_day(console: Console, open_page: Opens) -> None:
    assert console.stack.chat("hooli", max_tokens=4).status_code == 200
    console.stack.write(sla.fold_sla)
    query = {"tenant": "hooli", "period": "this_month"}
    report = console.api("GET", "/v1/admin/sla", params=query).json()
    premium = report["data"][0]
    assert premium["tier"] == "premium"
    page = open_page("/admin/tenants/hooli", role="tenant_admin", width=390, dark=True)
    page.get_by_role("tab", name="SLA").click()
    month = page.get_by_role("table", name="Months of").get_by_role("row").filter(has_text="premium").first
    total = premium["total"]
    percentiles = " · ".join(re.escape(f"{total[f'ttft_p{rank}_ms']:.0f} ms") for rank in (50, 95, 99))
    month.wait_for()
    cells = month.get_by_role("cell").all_inner_texts()
    assert cells[:4] == [report["start_date"][:7], "premium", total["verdict"], str(total["requests"])]
    assert re.fullmatch(percentiles, cells[5]), cells
    days = page.get_by_role("region", name="premium", exact=True)
    today = premium["days"][-1]["date"]
    days.get_by_text(re.compile(f"{today}: {total['verdict']}; first token ")).wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert serious_faults(page) == []

    page = open_page("/admin/tenants/hooli?tab=sla&period=7d")
    page.get_by_text("Target now: first token within 1.00 s").first.wait_for()
    page.get_by_role("link", name="SLA by model, and files").click()
    page.wait_for_url("**/admin/sla?tenant=hooli&period=7d")
    page.get_by_role("region", name="premium", exact=True).wait_for()
    page.go_back()
    page.get_by_role("tab", name="Errors").click()  # refusals are one click away
    page.get_by_role("tabpanel", name="Errors").wait_for()


def test_on_a_phone_in_the_dark(open_page: Opens) -> None:
    for path, sign in (("tiers", "premium"), ("sla", "SLA"), (f"models/{MODEL}?tab=prices", "Price in USD")):
        page = open_page(f"/admin/{path}", role="read_only", width=390, dark=True)
        page.get_by_role("heading", name=sign).wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert serious_faults(page) == []
    assert page.get_by_role("button", name="Publish a price").count() == 0
