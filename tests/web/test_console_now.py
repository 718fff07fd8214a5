"""Overview, requests, health and playground: they say what the API says, and a tenant's call is made and paid."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from playwright.sync_api import expect

from billing.books import rollups
from support.stack import MODEL, body
from support.waiting import eventually
from support.web.console import Console
from support.web.pages import held_still, serious_faults

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Console]:
    made = Console.started(tmp_path_factory.mktemp("now"), model_dir, fake={"step_ms": 20.0}, days=10, last_hour=60)
    yield made
    made.stack.stop()


def money(picos: int) -> str:
    """As the console writes it: exact, at least two places."""
    whole, rest = divmod(picos, 10**12)
    return f"{whole:,}.{f'{rest:012d}'.rstrip('0').ljust(2, '0')}"


def test_the_overview_says_what_the_api_says_and_leads_on(console: Console, open_page: Callable[..., Page]) -> None:
    assert console.stack.chat("hooli", max_tokens=2).status_code == 200  # the UTC day may be a minute old
    console.stack.write(rollups.fold_all)
    page = open_page("/admin/tenants")
    overview = held_still(page, "/v1/admin/overview")
    page.get_by_role("link", name="Overview").click()
    page.get_by_role("heading", name="Overview").wait_for()
    page.get_by_text("Up", exact=True).wait_for()
    said = overview()
    tile = page.locator(".tile", has_text="Requests today")
    tile.get_by_text(f"{said['today']['requests']:,}", exact=True).wait_for()
    cost = money(said["today"]["cost_picos"]["USD"])
    page.locator(".tile", has_text="Cost today").get_by_text(f"{cost} USD").wait_for()
    expect(page.locator(".spends li")).to_have_count(len(said["spend"]))
    assert len(said["spend"]) > 2
    first = page.locator(".spends li").first
    assert first.get_by_role("link", name=said["spend"][0]["tenant"]).is_visible()
    tiers = page.get_by_role("table", name=re.compile("Time to first token"))
    expect(tiers.locator("tbody tr")).to_have_count(3)
    assert serious_faults(page) == []
    page.get_by_role("link", name="Health of each part").click()
    page.get_by_text("All parts are up").wait_for()


def test_requests_are_found_and_one_is_shown_whole(console: Console, open_page: Callable[..., Page]) -> None:
    page = open_page("/admin/requests")
    page.get_by_label("Ending").select_option("client_left")
    page.get_by_role("combobox", name="Tier").select_option("premium")
    query = {"ending": "client_left", "tier": "premium"}
    rows: list[Any] = console.api("GET", "/v1/admin/requests", params=query).json()["data"]
    assert rows, "the history has such"
    table = page.get_by_role("table", name="Requests")
    table.locator(f'code[title="{rows[0]["request_id"]}"]').wait_for()
    assert "ending=client_left" in page.url
    expect(table.locator("tbody tr")).to_have_count(len(rows))  # those of the first filter alone are more
    # A short id is on one line, its row no higher than that of its badges.
    assert table.locator("td code").first.bounding_box()["height"] < 24  # type: ignore[index]
    assert serious_faults(page) == []
    key = console.api("GET", f"/v1/admin/keys/{rows[0]['key_id']}").json()
    page.get_by_role("combobox", name="Key").fill(key["id"])
    page.get_by_role("option", name=key["id"]).click()
    page.get_by_role("combobox", name=re.compile("^Model")).select_option(rows[0]["model"])
    page.wait_for_url(f"**key_id={key['id']}&model={rows[0]['model']}*")
    narrowed = query | {"key_id": key["id"], "model": rows[0]["model"]}
    own: list[Any] = console.api("GET", "/v1/admin/requests", params=narrowed).json()["data"]
    table.locator("tbody tr").nth(len(own) - 1).wait_for()
    page.reload()
    table.locator(f'code[title="{own[-1]["request_id"]}"]').wait_for()
    expect(table.locator("tbody tr")).to_have_count(len(own))
    assert page.get_by_role("combobox", name="Key").input_value() == f"{key['name']} …{key['last4']}"
    table.locator(f'code[title="{rows[0]["request_id"]}"]').click()
    page.get_by_text("First token after").wait_for()
    one = console.api("GET", f"/v1/admin/requests/{rows[0]['request_id']}").json()
    assert page.get_by_text(money(one["cost_picos"])).first.is_visible()
    assert page.get_by_text("Not stored: Laneway keeps neither prompts nor completions").is_visible()
    ledger = page.get_by_role("table", name="Ledger entries").locator("tbody tr")
    assert ledger.count() == len(one["entries"]) > 1
    assert page.get_by_text("Sum: 0.00").is_visible()
    link = page.get_by_role("link", name=key["name"], exact=True)
    assert link.get_attribute("href") == f"/admin/keys/{one['key_id']}"
    assert serious_faults(page) == []


def test_a_short_request_s_times_are_its_own(console: Console, open_page: Callable[..., Page]) -> None:
    answer = console.stack.chat("hooli", max_tokens=6)
    line = console.stack.request_line(answer.headers["x-request-id"])
    one = console.api("GET", f"/v1/admin/requests/{line['request_id']}").json()
    page = open_page(f"/admin/requests/{line['request_id']}")
    caption = page.locator(".timings figcaption")
    caption.wait_for()
    told = re.findall(r"([\d.]+) (ms|s)\b", caption.inner_text())
    times = [float(number) * (0.001 if unit == "ms" else 1) for number, unit in told]
    assert times == pytest.approx([line["ttft_s"], one["duration_s"]], rel=0.01, abs=0.0006)
    parts = page.locator(".timings li .num").all_inner_texts()
    seconds = [float(text.split()[0]) * (0.001 if text.endswith("ms") else 1) for text in parts]
    assert sum(seconds) == pytest.approx(one["duration_s"], rel=0.01, abs=0.002)


def test_a_refused_request_is_found_and_the_errors_are_drawn(console: Console, open_page: Callable[..., Page]) -> None:
    answer = console.stack.chat("hooli", model="absent")
    request_id = answer.headers["x-request-id"]
    eventually(lambda: console.api("GET", f"/v1/admin/requests/{request_id}").status_code == 200)
    page = open_page(f"/admin/requests?search={request_id}")
    page.locator(f'code[title="{request_id}"]').click()
    page.get_by_text("refused: model_not_found").wait_for()
    facts = page.get_by_role("region", name="Error")
    assert facts.get_by_text("404", exact=True).is_visible()
    assert page.get_by_text("absent").is_visible()
    assert serious_faults(page) == []
    page.get_by_role("link", name="Errors", exact=True).click()
    page.get_by_role("heading", name="Refused and failed requests by code").wait_for()
    total = console.api("GET", "/v1/admin/error_rates").json()["total"]
    tile = page.locator(".tile", has_text="Refused")
    assert tile.get_by_role("link").inner_text() == f"{total['refused']:,} refused"
    assert serious_faults(page) == []
    page.get_by_role("table", name="Requests by code").get_by_role("link", name="model_not_found").click()
    page.wait_for_url("**code=model_not_found*")
    page.locator(f'code[title="{request_id}"]').wait_for()
    page.get_by_label("Outcome").select_option("served")
    page.get_by_text("Nothing matches these filters").wait_for()


def test_the_page_of_a_request_says_whether_its_targets_were_met(
    console: Console, open_page: Callable[..., Page]
) -> None:
    answer = console.stack.chat("hooli", max_tokens=6)
    line = console.stack.request_line(answer.headers["x-request-id"])
    one = console.api("GET", f"/v1/admin/requests/{line['request_id']}").json()
    verdict = one["slowness"]["verdict"]
    page = open_page(f"/admin/requests/{line['request_id']}")
    page.locator(".timings-verdicts").wait_for()
    badges = page.locator(".timings-verdicts .badge").all_inner_texts()
    met = [verdict["ttft_met"], verdict["inter_token_met"]]
    assert badges == ["target met" if one else "target missed" for one in met]
    assert len(page.locator(".timings > svg rect").all()) == len(one["slowness"]["phases"])


def test_the_page_of_a_request_names_the_tiers_before_it_in_the_queue(
    console: Console, open_page: Callable[..., Page]
) -> None:
    rows = console.api("GET", "/v1/admin/requests?tier=batch&status=settled&limit=50").json()["data"]
    found = (console.api("GET", f"/v1/admin/requests/{row['request_id']}").json() for row in rows)
    one = next(one for one in found if one["slowness"]["queued_behind"])
    assert [cause["tier"] for cause in one["slowness"]["queued_behind"]] == ["premium"]
    page = open_page(f"/admin/requests/{one['request_id']}")
    queue = page.locator(".timings li", has_text="in the queue")
    expect(queue).to_contain_text(re.compile(r"in the queue\s*, behind premium [0-9.,]+ m?s$"))
    assert serious_faults(page) == []


def test_the_page_of_a_request_shows_its_trace(console: Console, open_page: Callable[..., Page]) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    headers = console.stack.headers("hooli") | {"traceparent": f"00-{trace_id}-b7ad6b7169203331-00"}
    url = f"{console.stack.url}/v1/chat/completions"
    answer = httpx.post(url, headers=headers, json=body(max_tokens=2), timeout=60)
    page = open_page(f"/admin/requests/{answer.headers['x-request-id']}")
    page.get_by_title(trace_id).wait_for()


def test_a_tenants_admin_sees_its_own(console: Console, open_page: Callable[..., Page]) -> None:
    page = open_page("/admin/requests", role="tenant_admin")
    links = page.get_by_role("table", name="Requests").locator("a[href^='/admin/tenants/']")
    links.first.wait_for()
    assert set(links.all_inner_texts()) == {"hooli"}
    page.get_by_role("link", name="Overview").click()
    page.get_by_text("Spend against budgets").wait_for()
    assert set(page.locator(".spends b").all_inner_texts()) == {"hooli"}
    assert page.get_by_role("link", name="Live engine").count() == 0


def call_as_hooli(page: Page) -> None:
    page.get_by_role("combobox", name="Call as").click()
    page.get_by_role("option", name="hooli").click()
    page.get_by_role("button", name="Create a key").click()
    page.get_by_role("button", name="Create key").click()


def test_a_tenants_call_is_made_beside_its_adapter_and_its_key_does_not_stay(
    console: Console, open_page: Callable[..., Page]
) -> None:
    console.api("PUT", "/v1/admin/aliases/chat", json={"models": [{"model": MODEL}]}).raise_for_status()
    page = open_page("/admin/playground", dark=True)
    call_as_hooli(page)
    page.get_by_label("Prompt").fill("Say something.")
    page.get_by_label("Model").select_option("chat")
    page.get_by_label("Compare with").select_option("hooli-mail")
    page.get_by_label("max_tokens").fill("12")
    page.get_by_role("button", name="Send to both").click()
    for name, served in (("chat", MODEL), ("hooli-mail", "hooli-mail")):
        answer = page.get_by_label(f"Response of {name}")
        answer.get_by_text("done: length").wait_for()
        answer.locator("div", has_text="Served by").get_by_text(served, exact=True).wait_for()
        answer.get_by_text("USD").wait_for()
        request_id = answer.get_by_role("link", name="View request").get_attribute("href").rsplit("/", 1)[1]  # type: ignore[union-attr]
        one = console.api("GET", f"/v1/admin/requests/{request_id}").json()
        assert (one["tenant_id"], one["completion_tokens"]) == (console.stack.tenants["hooli"], 12)
        assert answer.get_by_text(money(one["cost_picos"])).is_visible()
    assert serious_faults(page) == []

    # Stopped, and refused in the API's words.
    page.get_by_label("max_tokens").fill("2000")
    page.get_by_label("Compare with").select_option("")
    page.get_by_role("button", name="Send", exact=True).click()
    page.get_by_text("answering").wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("stopped", exact=True).wait_for()
    page.expected.append(400)  # type: ignore[attr-defined]
    page.get_by_label("temperature").fill("9")
    page.get_by_role("button", name="Send", exact=True).click()
    assert "temperature" in page.get_by_role("alert").inner_text()

    def ours() -> Any:
        rows = console.api("GET", "/v1/admin/keys", params={"tenant": "hooli", "search": "playground"}).json()["data"]
        return rows[-1]

    assert ours()["revoked_at"] is None
    assert ours()["expires_at"] <= time.time() + 3600
    page.get_by_role("link", name="Health").click()
    eventually(lambda: ours()["revoked_at"] is not None, timeout_s=30)


def test_a_late_answer_about_one_run_is_not_shown_of_the_next(console: Console, open_page: Callable[..., Page]) -> None:
    page = open_page("/admin/playground")
    late: list[Any] = []  # what is asked of the first request: its answer comes when the second is there
    page.route("**/v1/admin/requests/*", lambda route: late.append(route) if not late else route.continue_())
    call_as_hooli(page)
    page.get_by_label("Model").select_option(MODEL)
    page.get_by_label("Compare with").select_option("")
    page.get_by_label("max_tokens").fill("3")
    page.get_by_label("Prompt").fill("A long prompt. " * 20)
    page.get_by_role("button", name="Send", exact=True).click()
    answer = page.get_by_label(f"Response of {MODEL}")
    answer.get_by_text("done: length").wait_for()
    page.get_by_label("Prompt").fill("A short one.")
    page.get_by_label("max_tokens").fill("5")
    page.get_by_role("button", name="Send", exact=True).click()
    answer.get_by_text("USD").wait_for()
    said = answer.inner_text()
    with page.expect_response(late[0].request.url):
        late[0].continue_()
    page.get_by_label("Prompt").fill("Since then it was drawn again.")
    assert answer.inner_text() == said
    request_id = answer.get_by_role("link", name="View request").get_attribute("href").rsplit("/", 1)[1]  # type: ignore[union-attr]
    assert console.api("GET", f"/v1/admin/requests/{request_id}").json()["completion_tokens"] == 5


def test_a_key_that_cannot_be_revoked_is_named(console: Console, open_page: Callable[..., Page]) -> None:
    page = open_page("/admin/playground")
    call_as_hooli(page)
    page.expected.append(503)  # type: ignore[attr-defined]
    body = '{"error": {"message": "The database does not answer.", "code": "ledger_unavailable"}}'
    page.route("**/v1/admin/keys/*/revoke", lambda route: route.fulfill(status=503, body=body))
    page.get_by_role("button", name="Revoke it now").click()
    told = page.get_by_text("could not be revoked").inner_text()
    assert "The database does not answer." in told
    [key_id] = re.findall(r"key_\w+", told)
    assert console.api("GET", f"/v1/admin/keys/{key_id}").json()["revoked_at"] is None


def test_what_is_down_is_said_with_what_to_do(console: Console, open_page: Callable[..., Page]) -> None:
    page = open_page("/admin/health", width=390)
    page.get_by_text("All parts are up").wait_for()
    console.stack.kill_engine()
    part = page.locator(".health-part").filter(has=page.get_by_role("heading", name="Engine"))
    part.get_by_text("down", exact=True).wait_for()
    assert part.get_by_text("What to do:").is_visible()
    assert page.locator(".health-part").first.get_by_role("heading").inner_text() == "Engines"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert serious_faults(page) == []
    page.goto("/admin/")
    page.get_by_text("Down", exact=True).wait_for()
    page.locator(".attention-critical").get_by_text("No engine is connected").wait_for()
