"""The overview of a Laneway that is hardly used, and of one that misses a tier's target."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from billing.accounts import budgets
from support.waiting import eventually
from support.web.console import Asked, Console
from support.web.pages import serious_faults

if TYPE_CHECKING:
    from playwright.sync_api import Page

Opens = Callable[..., "Page"]


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Console]:
    """A few requests, and a budget of a tenant that never called; its engine runs one at a time."""
    made = Console.started(
        tmp_path_factory.mktemp("overview"),
        model_dir,
        fake={"step_ms": 20.0},
        engine_json={"sequences_max": 1},
        days=0,
        last_hour=0,
    )
    acme = made.stack.tenants["acme"]
    made.stack.write(
        lambda connection: budgets.create_budget(
            connection, tenant_id=acme, scope="tenant", scope_id=acme, unit="money", period="month", limit_amount=10**14
        )
    )
    yield made
    made.stack.stop()


def test_budgets_without_use_are_listed(console: Console, open_page: Opens) -> None:
    said = console.api("GET", "/v1/admin/overview").json()
    listed = console.api("GET", "/v1/admin/budgets", params={"limit": "500"}).json()["data"]
    money = [one for one in listed if one["unit"] == "money"]
    assert len(said["spend"]) == said["money_budgets"] == len(money) > 2
    page = open_page("/admin/")
    page.locator(".spends li").nth(len(money) - 1).wait_for()
    assert page.locator(".spends").get_by_role("link", name="acme").is_visible()
    assert page.get_by_text("No money budgets").count() == 0
    assert page.get_by_text(re.compile(r"\d+ yr\. ago")).count() == 0
    assert serious_faults(page) == []


def test_what_was_never_summed_is_not_old(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/tenants")

    def never(route: Any) -> None:
        body = route.fetch().json()
        body["today"]["as_of"] = None
        route.fulfill(json=body)

    page.route("**/v1/admin/overview", never)
    page.get_by_role("link", name="Overview").click()
    page.get_by_text("Ended requests, not rolled up yet").wait_for()


def test_costs_that_cannot_be_read_are_named(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/")
    page.expected = [503]  # type: ignore[attr-defined]
    page.route("**/v1/organization/costs?*", lambda route: route.fulfill(status=503, body="{}"))
    page.get_by_role("link", name="Tenants").first.click()
    page.get_by_role("row").filter(has_text="acme").get_by_text("not available").wait_for()


def test_a_missed_target_and_a_long_queue_need_attention(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/")
    page.get_by_text("Nothing needs attention").wait_for()
    running = Asked(console, "hooli", words=4, max_tokens=1500)
    eventually(lambda: console.api("GET", "/v1/admin/engine").json()["running"] == 1)
    waits = Asked(console, "hooli", words=4, max_tokens=1)
    attention = page.locator(".attention")
    queue = attention.get_by_text(
        re.compile(r"The tier premium has 1 request waiting in the engine's queue, the oldest for")
    )
    queue.wait_for()
    assert queue.get_attribute("href") == "/admin/live"
    assert page.get_by_text("Nothing needs attention").count() == 0
    running.close()
    waits.close()
    tier = attention.get_by_text(
        re.compile(r"The tier premium misses its target for the first token\. In the last hour")
    )
    tier.wait_for()
    assert "50.0 % of 2 requests met it, and the p99 was" in tier.inner_text()
    assert serious_faults(page) == []
    tier.click()
    page.get_by_role("heading", name="Tiers").wait_for()
