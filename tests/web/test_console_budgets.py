"""Budgets and limits: what the page says of them is what the API says, and what is set there holds."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from support.stack import MODEL
from support.web.console import Console
from support.web.pages import serious_faults

if TYPE_CHECKING:
    from playwright.sync_api import Page

Opens = Callable[..., "Page"]


@pytest.fixture(scope="module")
def listener() -> Iterator[str]:
    """A webhook that has no time."""

    class Busy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(500)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Busy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/alerts"
    server.shutdown()
    server.server_close()


def found(console: Console, path: str, **query: str) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = console.api("GET", f"/v1/admin/{path}", params=query).json()["data"]
    return data


def test_a_budget_is_set_changed_and_removed(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/budgets?tenant=acme")
    page.expected = [400]  # type: ignore[attr-defined]
    page.get_by_role("button", name="New budget").click()
    form = page.get_by_role("dialog", name="New budget")
    form.get_by_label("Limit").fill("1,234.000000000001")
    form.get_by_label("Alerts at").fill("50, 0")
    form.get_by_role("button", name="Set budget").click()
    form.get_by_text("Expected `int` >= 1").wait_for()  # in the API's words, beside the field
    form.get_by_label("Alerts at").fill("50, 90 %")
    form.get_by_role("button", name="Set budget").click()
    page.get_by_role("cell", name="1,234.00 USD").wait_for()
    [budget] = found(console, "budgets", tenant="acme")
    assert budget["limit_amount"] == 1_234_000_000_000_001  # to the last pico
    assert (budget["thresholds"], budget["kind"], budget["period"]) == ([50, 90], "hard", "month")

    page.get_by_role("button", name="Edit month's budget in money").click()
    form = page.get_by_role("dialog", name="Edit the budget")
    assert form.get_by_label("Limit").input_value() == "1,234.000000000001"
    form.get_by_label("Limit").fill("20")
    form.get_by_label("Kind").select_option("soft")
    form.get_by_role("button", name="Save").click()
    page.get_by_role("cell", name="20.00 USD").wait_for()
    [budget] = found(console, "budgets", tenant="acme")
    assert (budget["limit_amount"], budget["kind"]) == (20 * 10**12, "soft")
    page.get_by_role("button", name="Remove month's budget in money").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    page.get_by_text("Nothing matches").wait_for()
    assert found(console, "budgets", tenant="acme") == []


def test_all_budgets_as_the_api_has_them(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/budgets")
    page.get_by_role("img", name="posted").first.wait_for()
    every = found(console, "budgets")
    assert page.locator("tbody > tr").count() == len(every)
    [hooli] = [one for one in every if one["scope"] == "tenant" and one["tenant_id"] == console.stack.tenants["hooli"]]
    row = page.locator("tbody > tr", has=page.locator("b a", has_text="hooli"))
    whole, rest = divmod(hooli["left"], 10**12)
    left = f"left {whole}.{rest:012}".rstrip("0")
    assert left in (row.locator(".budget-use").get_attribute("title") or "")
    if hooli["run_out_at"] is None:
        share = 100 * hooli["projected"] / hooli["limit_amount"]
        said = re.search(r"(\d+) % at window end", row.inner_text())
        assert said is not None
        assert abs(int(said[1]) - share) <= 1
    else:
        assert "runs out" in row.inner_text()
    assert serious_faults(page) == []
    narrow = open_page("/admin/budgets", role="read_only", width=390, dark=True)
    narrow.get_by_role("img", name="posted").first.wait_for()
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 390
    assert narrow.get_by_role("button", name="Edit").count() == 0


def test_rate_limits_are_set_and_removed(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/budgets?tab=limits&tenant=acme")
    page.get_by_role("button", name="Set limits").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Requests per minute").fill("120")
    form.get_by_label("Enqueued tokens").fill("5000000")
    form.get_by_role("button", name="Set limits").click()
    page.get_by_role("cell", name="120", exact=True).wait_for()
    [limits] = found(console, "limits", tenant="acme")
    assert (limits["requests_per_minute"], limits["tokens_per_minute"]) == (120, None)
    assert (limits["enqueued_tokens"], limits["files"]) == (5_000_000, None)
    page.get_by_role("cell", name="5,000,000", exact=True).wait_for()
    page.get_by_role("button", name="Edit the limits of").click()
    form.get_by_label("Enqueued tokens").fill("")
    form.get_by_label("Unended batches").fill("7")
    form.get_by_role("button", name="Set limits").click()
    page.get_by_role("cell", name="7", exact=True).wait_for()
    [limits] = found(console, "limits", tenant="acme")
    assert (limits["requests_per_minute"], limits["enqueued_tokens"], limits["batches"]) == (120, None, 7)
    page.get_by_role("button", name="Remove the limits of").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    page.get_by_text("Nothing matches").wait_for()
    assert found(console, "limits", tenant="acme") == []


def test_a_webhook_is_told_and_how_that_went_is_shown(console: Console, open_page: Opens, listener: str) -> None:
    page = open_page("/admin/budgets?tab=webhooks")
    page.get_by_role("button", name="New webhook").click()
    form = page.get_by_role("dialog", name="New webhook")
    form.get_by_label("URL").fill(listener)
    form.get_by_role("button", name="Create webhook").click()
    shown = page.get_by_role("dialog", name="The webhook's secret")
    assert shown.get_by_role("region", name="The secret").inner_text().strip()
    shown.get_by_role("button", name="I have stored it").click()
    body = {"tenant": "globex", "unit": "tokens", "period": "total", "limit_amount": 100_000, "thresholds": [1]}
    assert console.api("POST", "/v1/admin/budgets", json=body | {"kind": "soft"}).status_code == 200
    long = [{"role": "user", "content": "word " * 1500}]
    assert console.stack.chat("globex", model=MODEL, messages=long).status_code == 200
    page.goto("/admin/budgets?tab=alerts&tenant=globex")
    page.get_by_role("button", name="Details of").first.click()
    page.get_by_role("row", name=listener).wait_for()
    [alert] = found(console, "alerts", tenant="globex")
    assert page.get_by_role("cell", name="1 %", exact=True).count() == 1
    assert alert["threshold"] == 1
    page.goto("/admin/budgets?tab=webhooks")
    page.get_by_role("cell", name="1 %").wait_for()
    assert serious_faults(page) == []


def test_a_webhook_for_problems_in_the_format_of_pagerduty(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/budgets?tab=webhooks")
    page.get_by_role("button", name="New webhook").click()
    form = page.get_by_role("dialog", name="New webhook")
    form.get_by_label("URL").fill("https://events.example.org/v2/enqueue")
    form.get_by_label("Alerts of budgets").uncheck()
    form.get_by_label("Problems of the deployment").check()
    form.get_by_label("Format").select_option("pagerduty")
    page.expected = [400]  # type: ignore[attr-defined]
    form.get_by_role("button", name="Create webhook").click()
    form.get_by_text("32 letters and digits").wait_for()
    form.get_by_label("Routing key").fill("k" * 32)
    form.get_by_role("button", name="Create webhook").click()
    page.get_by_role("dialog", name="The webhook's secret").get_by_role("button", name="I have stored it").click()
    page.get_by_role("row", name="https://events.example.org/v2/enqueue").get_by_text("problems").wait_for()
    made = next(one for one in found(console, "webhooks") if one["url"].startswith("https://events."))
    assert (made["format"], made["events"], made["tenant_id"]) == ("pagerduty", ["problems"], None)
    assert "routing_key" not in made
    assert serious_faults(page) == []
