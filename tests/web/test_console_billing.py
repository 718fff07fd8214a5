"""Billing: a month is closed into an invoice whose lines add up, corrected, exported with the invoice's sum, and
reconciled."""

from __future__ import annotations

import contextlib
import hashlib
import re
import zlib
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from support.waiting import eventually
from support.web.console import Console
from support.web.pages import serious_faults
from support.web.subjects import closed

if TYPE_CHECKING:
    from playwright.sync_api import Page

PICO = Decimal(1).scaleb(-12)


def number(text: str) -> Decimal:
    return Decimal(text.split()[0].replace(",", "").replace("−", "-"))


def test_a_month_is_corrected_closed_invoiced_and_exported(
    console: Console, open_page: Callable[..., Page], tmp_path: Path
) -> None:
    page = open_page("/admin/billing?tab=corrections", role="finance")
    page.get_by_role("button", name="New correction").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Amount").fill("-0.00000000000x")
    form.get_by_label("Reason").fill("An hour away")
    form.get_by_role("button", name="Continue").click()
    form.get_by_text("is not an amount").wait_for()
    form.get_by_label("Amount").fill("−0.000000000007")
    months = form.get_by_label("Month").locator("option")
    assert months.all_inner_texts() == ["Current month"], "no tenant is chosen: the months of others are not offered"
    form.get_by_role("combobox", name="Tenant").fill("hool")
    form.get_by_role("option", name="hooli").click()
    query = {"tenant": "hooli", "state": "open", "limit": 100}
    *before, current = [one["month"] for one in console.api("GET", "/v1/admin/periods", params=query).json()["data"]]
    expect(months).to_have_text([f"Current month, {current}", *before])
    form.get_by_role("button", name="Continue").click()
    form.get_by_text("an amount above 0").wait_for()
    form.get_by_label("Amount").fill("0.000000000007")
    form.get_by_role("button", name="Continue").click()
    form.get_by_text(f"Credit hooli with 0.000000000007 USD in {current}?").wait_for()
    form.get_by_role("button", name="Confirm permanently").click()
    page.get_by_role("heading", name=re.compile("Credit note CN-")).wait_for()
    assert serious_faults(page) == []
    [made] = console.api("GET", "/v1/admin/corrections", params={"tenant": "hooli"}).json()["data"]
    assert (made["picos"], made["reason"]) == (-7, "An hour away")
    page.get_by_role("link", name="Corrections").click()
    page.get_by_role("link", name=made["number"]).wait_for()

    month = _close_the_first(page)
    page.get_by_role("heading", name=re.compile(f"Invoice INV-.* of hooli, {month}")).wait_for()
    [invoice] = console.api("GET", "/v1/admin/invoices", params={"tenant": "hooli"}).json()["data"]
    assert page.url.endswith(invoice["id"])
    amounts = [number(one.inner_text()) for one in page.locator(".invoice-lines tbody tr td:last-child").all()]
    assert sum(amounts) == invoice["total_picos"] * PICO > 0
    assert number(page.locator(".invoice-lines .grand td").inner_text()) == invoice["total_picos"] * PICO
    page.get_by_text("the sum of its").wait_for()
    assert serious_faults(page) == []

    paper = invoice["document"]
    to_pay = page.get_by_role("table", name="Amounts").locator(".grand td")
    assert number(to_pay.inner_text()) == Decimal(paper["total_minor"]).scaleb(-paper["decimals"])
    page.get_by_text("Nothing was received").wait_for()
    _export(page, month, invoice, tmp_path)


def _close_the_first(page: Page) -> str:
    """Of hooli's months the first one; `Close…` is at that alone."""
    page.get_by_role("tab", name="Periods").click()
    page.get_by_role("combobox", name="Tenant").fill("hool")
    page.get_by_role("option", name="hooli").click()
    page.get_by_role("row").filter(has_text="soylent").first.wait_for(state="detached")
    # The rows of the other tenants leave the table with the next answer.
    eventually(lambda: page.get_by_role("button", name="Close…").count() == 1)
    row = page.get_by_role("row").filter(has_text="can be closed")
    month = row.locator("td").nth(2).inner_text()
    row.get_by_role("button", name="Close…").click()
    dialog = page.get_by_role("dialog")
    button = dialog.get_by_role("button", name="Close permanently")
    assert button.is_disabled()
    dialog.get_by_label("to confirm").fill(f"hooli {month}")
    button.click()
    return month


def _export(page: Page, month: str, invoice: dict[str, int], tmp_path: Path) -> None:
    page.goto("/admin/billing?tab=exports")
    page.get_by_role("button", name="New export").first.click()
    form = page.get_by_role("dialog")
    form.get_by_label("Month").select_option(month)
    form.get_by_role("combobox", name="Tenant").fill("hool")
    form.get_by_role("option", name="hooli").click()
    form.get_by_role("button", name="Create export").click()
    with page.expect_download() as saved:
        page.get_by_role("link", name="Download").click()
    file = tmp_path / saved.value.suggested_filename
    saved.value.save_as(file)
    check = page.get_by_role("region", name="Command that checks the file").inner_text()
    assert check == f"echo '{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}' | sha256sum -c"
    table = page.get_by_role("region", name="The file compared with its invoices")
    beside = table.get_by_role("row").filter(has_text=str(invoice["id"]))
    beside.get_by_text("equal", exact=True).wait_for()
    assert number(beside.locator("td").nth(1).inner_text()) == invoice["total_picos"] * PICO
    page.get_by_text("equal to its invoices").wait_for()


def test_an_invoice_marks_its_corrections(console: Console, open_page: Callable[..., Page]) -> None:
    invoice = console.api("GET", f"/v1/admin/invoices/{closed(console, 'wernham')}").json()
    [line] = [one for one in invoice["lines"] if one["kind"] == "correction"]
    page = open_page(f"/admin/billing/invoices/{invoice['id']}", role="finance")
    row = page.locator(".invoice-lines tr.correction")
    row.get_by_text("The outage of the 14th").wait_for()
    assert number(row.locator("td").last.inner_text()) == line["picos"] * PICO < 0
    amounts = [number(one.inner_text()) for one in page.locator(".invoice-lines tbody tr td:last-child").all()]
    assert sum(amounts) == invoice["total_picos"] * PICO


def test_the_books_are_reconciled_and_both_sums_are_shown(console: Console, open_page: Callable[..., Page]) -> None:
    page = open_page("/admin/billing?tab=margins", role="finance")
    page.get_by_role("button", name="Ledger balanced").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Reconcile everything now").click()
    dialog.get_by_text("exactly equal").wait_for()
    results = console.api("GET", "/v1/admin/reconciliations").json()["data"]
    whole = next(one for one in results if one["kind"] == "whole")
    [sums] = whole["sums"]
    shown = dialog.locator(".both-sums .num").all_inner_texts()
    assert {number(one) for one in shown[:2]} == {sums["owed_picos"] * PICO}
    assert sums["owed_picos"] == sums["entered_picos"]
    assert serious_faults(page) == []


def test_what_a_tier_earns_is_the_apis(console: Console, open_page: Callable[..., Page]) -> None:
    page = open_page("/admin/billing?tab=margins", dark=True)
    page.get_by_role("rowheader", name="premium").wait_for()
    tiers = {one["tier"]: one for one in console.api("GET", "/v1/admin/margins").json()["tiers"]}
    for name, tier in tiers.items():
        cells = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=name)).locator("td")
        exact = cells.nth(1).locator(".num").get_attribute("title")
        assert exact is not None
        assert number(exact) == tier["usage_picos"] * PICO
        assert cells.nth(7).locator(".num").get_attribute("title") is not None
    assert serious_faults(page) == []


def test_closing_for_all_shows_what_it_would_close(console: Console, open_page: Callable[..., Page]) -> None:
    page = open_page("/admin/billing", role="finance")
    page.get_by_role("button", name="Close a month for all").click()
    dialog = page.get_by_role("dialog")
    month = dialog.get_by_label("Month").input_value()
    opened = console.api("GET", "/v1/admin/periods", params={"state": "open", "limit": 1}).json()["data"]
    assert month == opened[0]["month"], "months are closed in order"
    ready = console.api("GET", "/v1/admin/periods/closable", params={"month": month, "limit": 500}).json()["data"]
    closable = [one for one in ready if one["reason"] is None]
    if ready:
        dialog.get_by_text(f"{len(closable)} tenant").first.wait_for()
    assert dialog.get_by_role("button", name=f"Close {month} permanently").is_disabled()
    assert serious_faults(page) == []


def test_usage_of_a_tenant_is_by_its_clock(console: Console, open_page: Callable[..., Page]) -> None:
    tenants = console.api("GET", "/v1/admin/tenants", params={"limit": 500}).json()["data"]
    tenant = next(one for one in tenants if one["slug"] == "hooli")
    page = open_page("/admin/usage?tenant=hooli&range=last", role="finance")
    page.get_by_text(f"Days and months are those of {tenant['time_zone']}").wait_for()
    page.get_by_label("Time zone of days").select_option("utc")
    page.get_by_text("Days and months are those of UTC").wait_for()
    page.goto("/admin/usage?range=last")
    page.get_by_text("have the months of its own time zone").wait_for()


def test_who_only_reads_closes_and_corrects_nothing(open_page: Callable[..., Page]) -> None:
    page = open_page("/admin/billing", role="read_only", width=390)
    page.get_by_text("current").first.wait_for()
    assert page.get_by_role("button", name="Close…").count() == 0
    page.goto("/admin/billing?tab=corrections")
    page.get_by_role("status").get_by_text("row").wait_for()
    assert page.get_by_role("button", name="New correction").count() == 0
    page.goto("/admin/billing?tab=exports")
    page.get_by_role("status").get_by_text("row").wait_for()
    assert page.get_by_role("button", name="New export").count() == 0
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), "it must not scroll sideways"


def drawn(pdf: bytes, colour: bytes) -> list[int]:
    """How often each content stream of a PDF sets this colour ("1 0 1") to fill with, in the order of its pages."""
    texts = []
    for packed in re.findall(rb"stream\r?\n(.*?)endstream", pdf, re.DOTALL):
        with contextlib.suppress(zlib.error):  # fonts and pictures are packed otherwise
            texts.append(zlib.decompressobj().decompress(packed))
    return [text.count(colour + b" rg") for text in texts if b" rg" in text]


def test_a_printed_invoice_has_its_total_once_at_the_end(
    console: Console, open_page: Callable[..., Page], tmp_path: Path
) -> None:
    page = open_page(f"/admin/billing/invoices/{closed(console, 'wernham')}", role="finance")
    page.locator(".invoice-lines .grand").wait_for()
    # As long an invoice as fills three sheets, its own lines again and again; a colour marks what is looked for.
    page.locator(".invoice-lines tbody").evaluate(
        """(body) => {
            const rows = [...body.rows];
            while (body.rows.length < 120) body.append(rows[body.rows.length % rows.length].cloneNode(true));
            document.querySelector(".invoice-lines .grand td").style.background = "#ff00ff";
            document.querySelector(".invoice-lines thead th").style.background = "#00ffff";
        }"""
    )
    pdf = page.pdf(format="A4", print_background=True)
    heads, totals = drawn(pdf, b"0 1 1"), drawn(pdf, b"1 0 1")
    sheets = len(re.findall(rb"/Type\s*/Page\b", pdf))
    assert sheets >= 3
    assert heads == [1] * sheets, "the table's head is on each sheet"
    assert totals == [0] * (sheets - 1) + [1], "its foot is at the end"
