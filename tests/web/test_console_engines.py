"""The engines of a fleet in the console: both are seen, drained and served again, lost and found; and each is watched
on the live page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from support.fleet_stack import TwoEngines
from support.stack import MODEL
from support.waiting import eventually
from support.web.console import BILLING, Asked, Console
from support.web.pages import serious_faults

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

Opens = Callable[..., "Page"]
OPEN = "/admin/engines"
LASTING = 4000  # tokens, at 20 ms each: until it is closed


@pytest.fixture(scope="module")
def fleet_of_two(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[TwoEngines]:
    stack = TwoEngines.prepared(
        tmp_path_factory.mktemp("engines"), model_dir.absolute(), toml=BILLING, fake={"step_ms": 20.0}
    )
    yield stack
    stack.stop()


@pytest.fixture(scope="module")
def console(fleet_of_two: TwoEngines) -> Console:
    return Console.over(fleet_of_two, days=1, last_hour=60)


def engines(console: Console) -> dict[str, Any]:
    return {engine["name"]: engine for engine in console.api("GET", "/v1/admin/engines").json()["data"]}


def panel(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=f"Engine {name}", exact=True)


def state(page: Page, name: str, said: str) -> None:
    """Wait until the page says it, without a reload."""
    panel(page, name).locator(".badge").get_by_text(said, exact=True).first.wait_for()


def test_both_engines_are_seen_with_their_load(console: Console, open_page: Opens) -> None:
    page = open_page(OPEN)
    for name in ("a", "b"):
        state(page, name, "ready")
    asked = Asked(console, "acme", words=50, max_tokens=LASTING)
    try:
        eventually(lambda: sum(engine["streams"] for engine in engines(console).values()) == 1)
        [busy] = [name for name, engine in engines(console).items() if engine["streams"]]
        box = panel(page, busy)
        box.get_by_role("img", name=f"Requests of {busy}: 1 running, 0 waiting").wait_for()
        box.get_by_text("1 text of this gateway").wait_for()
        queue = box.get_by_role("table", name=f"Queue of {busy} by tier")
        assert queue.get_by_role("rowheader").all_inner_texts() == ["premium", "standard", "batch"]
        assert re.search(r"premium\s+0\s+[\d.]+ m?s", queue.get_by_role("row").nth(1).inner_text())
    finally:
        asked.close()
    for name, engine in engines(console).items():
        text = panel(page, name).inner_text()
        assert engine["address"] in text
        assert engine["build"] in text
        assert f"version {engine['protocol_version']}" in text
        assert re.search(rf"{MODEL}\s+resident", text)
    assert page.locator(".tile").filter(has_text="Ready").get_by_text("2 of 2").is_visible()
    assert serious_faults(page) == []
    page.get_by_role("button", name="Go to…").click()
    page.get_by_role("combobox", name="Page, action, name or id").fill("engines")
    assert page.get_by_role("option", name="Engines").first.is_visible()


def test_an_engine_is_drained_and_serves_again(console: Console, open_page: Opens) -> None:
    page = open_page(OPEN)
    state(page, "a", "ready")
    page.get_by_role("button", name="Drain a").click()
    asks = page.get_by_role("dialog", name="Drain a?")
    asks.get_by_text("Other engines serve new requests").wait_for()
    assert serious_faults(page) == []
    asks.get_by_role("button", name="Cancel").click()
    assert engines(console)["a"]["state"] == "ready"
    page.get_by_role("button", name="Drain a").click()
    asks.get_by_role("button", name="Drain", exact=True).click()
    asks.wait_for(state="detached")
    state(page, "a", "draining")
    assert engines(console)["a"]["state"] == "draining"
    state(page, "b", "ready")
    page.locator(".tile").filter(has_text="Ready").get_by_text("1 of 2").wait_for()
    page.get_by_role("button", name="Drain b").click()
    page.get_by_role("dialog", name="Drain b?").get_by_text("No other engine is ready").wait_for()
    page.keyboard.press("Escape")

    overview = open_page("/admin/")
    overview.get_by_role("link", name="1 of 2 engines ready").wait_for()
    told = overview.locator(".attention").get_by_text("1 of 2 engines is ready. Not ready: a (draining).")
    assert told.get_attribute("href") == OPEN

    page.get_by_role("button", name="Serve again a").click()
    page.get_by_role("dialog", name="Let a serve again?").get_by_role("button", name="Serve again").click()
    state(page, "a", "ready")
    assert engines(console)["a"]["state"] == "ready"


def test_who_only_reads_may_not_drain(console: Console, open_page: Opens) -> None:
    page = open_page(OPEN, role="read_only", width=390)
    state(page, "a", "ready")
    assert page.locator("main").get_by_role("button", name=re.compile("Drain|Serve")).count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_killed_engine_is_connecting_and_returns(
    fleet_of_two: TwoEngines, console: Console, open_page: Opens
) -> None:
    page = open_page(OPEN, dark=True)
    state(page, "b", "ready")
    lost = engines(console)["b"]["epoch"]
    fleet_of_two.kill_named_engine("b")
    state(page, "b", "connecting")
    assert page.get_by_role("button", name="Drain b").is_disabled()
    state(page, "a", "ready")
    assert serious_faults(page) == []
    assert httpx.get(f"{console.stack.url}/health/ready", timeout=30).status_code == 200
    fleet_of_two.processes["b"].start()
    state(page, "b", "ready")
    assert engines(console)["b"]["epoch"] != lost


def test_the_live_page_shows_the_chosen_engine(console: Console, open_page: Opens) -> None:
    listed = engines(console)
    page = open_page(OPEN)
    panel(page, "b").get_by_role("link", name="b", exact=True).click()
    page.get_by_role("heading", name="Live engine b").wait_for()
    page.get_by_text("Live", exact=True).wait_for()
    page.get_by_text(listed["b"]["epoch"]).wait_for()
    page.get_by_role("combobox", name="Engine").select_option("a")
    page.get_by_role("heading", name="Live engine a").wait_for()
    page.get_by_text(listed["a"]["epoch"]).wait_for()
    assert page.get_by_text(listed["b"]["epoch"]).count() == 0
    assert page.url.endswith("/admin/live?engine=a")
    assert serious_faults(page) == []

    page.goto("/admin/live")
    page.get_by_role("heading", name="Live engine a").wait_for()  # the first ready one
    page.goto("/admin/live?engine=z")
    page.get_by_text("There is no engine z").wait_for()
    page.get_by_role("combobox", name="Engine").select_option("b")
    page.get_by_text(listed["b"]["epoch"]).wait_for()


def test_a_stale_list_is_told(console: Console, open_page: Opens) -> None:
    """As the gateway says it, in an answer that is changed on its way."""
    answer = console.api("GET", "/v1/admin/engines").json() | {"roster_stale_s": 75.0, "lost": 2}
    page = open_page("/admin/tenants")
    page.route("**/v1/admin/engines", lambda route: route.fulfill(json=answer))
    page.get_by_role("link", name="Engines").click()
    page.get_by_text("its source has not responded for 1 min 15 s").wait_for()
    assert page.locator(".tile-bad").filter(has_text="Texts lost").get_by_text("2", exact=True).is_visible()
    page.route("**/v1/admin/engines", lambda route: route.fulfill(json=answer | {"data": []}))
    page.get_by_text("The list of engines is empty").wait_for()
