"""An operator's first day: signing in, a tenant and its key, a call with it seen within seconds, a budget of nothing;
and a session that ends in the middle of it all."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING

import httpx

from support.stack import MODEL, body
from support.web.console import Console
from support.web.pages import serious_faults
from support.web.subjects import closed

if TYPE_CHECKING:
    from playwright.sync_api import Page

Opens = Callable[..., "Page"]


def sign_in(page: Page, secret: str) -> None:
    page.get_by_label("Admin key").fill(secret)
    page.get_by_role("button", name="Sign in").click()


def call(console: Console, secret: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {secret}"}
    return httpx.post(f"{console.stack.url}/v1/chat/completions", headers=headers, json=body(max_tokens=12), timeout=30)


def new_key(page: Page, tenant: str) -> str:
    page.goto("/admin/keys")
    page.get_by_role("button", name="New key").first.click()
    form = page.get_by_role("dialog", name="New key")
    form.get_by_label("Name").fill("first")
    form.get_by_role("combobox", name="Tenant").fill(tenant)
    form.get_by_role("option", name=tenant).click()
    form.get_by_role("button", name="Create key").click()
    shown = page.get_by_role("dialog", name="The secret of first")
    secret = shown.get_by_role("region", name="The secret").inner_text().strip()
    shown.get_by_role("button", name="I have stored it").click()
    shown.wait_for(state="detached")
    return secret


def budget_of_nothing(page: Page, tenant: str) -> None:
    page.goto("/admin/budgets")
    page.get_by_role("button", name="New budget").click()
    form = page.get_by_role("dialog", name=re.compile("budget"))
    form.get_by_role("combobox", name="Tenant").fill(tenant)
    form.get_by_role("option", name=tenant).click()
    form.get_by_label("Limit").fill("0")
    form.get_by_role("button", name=re.compile("budget")).click()
    form.wait_for(state="detached")


def test_from_signing_in_to_a_refusal(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/tenants", role=None)
    page.expected = [401, 409]  # type: ignore[attr-defined]
    sign_in(page, console.secrets["finance"][:-1] + "x")
    page.get_by_role("alert").wait_for()  # one message for every wrong key
    assert serious_faults(page) == []
    sign_in(page, console.secrets["owner"])
    page.get_by_role("button", name="New tenant").click()
    form = page.get_by_role("dialog", name="New tenant")
    form.get_by_label("Slug").fill("hooli")
    form.get_by_role("combobox", name="Tier").select_option("premium")
    form.get_by_role("button", name="Create tenant").click()
    form.get_by_text("there is a tenant 'hooli' already").wait_for()  # in the API's words, and nothing is lost
    form.get_by_label("Slug").fill("pied-piper")
    assert form.get_by_label("Tier").input_value() == "premium"
    form.get_by_role("button", name="Create tenant").click()
    page.get_by_role("heading", name="pied-piper").wait_for()
    assert console.api("GET", "/v1/admin/tenants/pied-piper").json()["tier"] == "premium"

    secret = new_key(page, "pied-piper")
    answer = call(console, secret)
    assert answer.status_code == 200, answer.text
    used = answer.json()["usage"]
    page.goto("/admin/usage?tenant=pied-piper")
    page.get_by_text(str(used["prompt_tokens"] + used["completion_tokens"]), exact=True).first.wait_for()
    [row] = console.api("GET", "/v1/admin/usage/requests", params={"tenant": "pied-piper"}).json()["data"]
    page.get_by_role("table").get_by_text(str(row["prompt_tokens"] - row["cached_tokens"]), exact=True).first.wait_for()
    cost = f"{Decimal(row['cost_picos']).scaleb(-12):f}".rstrip("0")
    page.get_by_text(cost).first.wait_for()

    budget_of_nothing(page, "pied-piper")
    refused = call(console, secret)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "tenant_budget_exceeded")
    page.goto("/admin/audit?tenant=pied-piper")
    for deed in ("tenant.create", "key.create", "budget.set"):
        page.get_by_text(deed).first.wait_for()
    assert serious_faults(page) == []


def test_a_new_customer_in_eight_clicks(console: Console, open_page: Opens) -> None:
    """From the first page to the answer of a test call, left half way and continued."""
    page = open_page("/admin/")
    page.expected = [400]  # type: ignore[attr-defined]
    clicks = 0

    def click(name: str) -> None:
        nonlocal clicks
        page.get_by_role("link", name=name, exact=True).or_(page.get_by_role("button", name=name, exact=True)).click()
        clicks += 1

    click("New customer")
    page.get_by_label("Name").fill("Stark Industries")
    assert page.get_by_label("Slug").input_value() == "stark-industries"
    zone = page.get_by_role("combobox", name="Time zone")
    zone.fill("kathm")
    zone.press("Enter")
    assert zone.input_value() == "Asia/Kathmandu"
    page.get_by_label("Slug").fill("Stark Industries")
    page.get_by_label("Name").fill("n" * 201)
    page.get_by_role("button", name="Create tenant").click()
    page.get_by_text("a slug is 1 to 63 of a-z").wait_for()
    assert page.locator("[aria-invalid=true]").count() == 2, "both fields at fault at once"
    page.get_by_label("Slug").fill("stark-industries")
    page.get_by_label("Name").fill("Stark Industries")
    click("Create tenant")
    page.get_by_role("button", name="Create project").wait_for()
    steps = page.locator(".setup-steps")
    assert steps.evaluate("(list) => getComputedStyle(list).listStyleType") == "none", "each step has its own number"
    page.get_by_label("Name").fill("production")
    click("Create project")
    page.get_by_role("button", name="Create key").wait_for()

    page.goto("/admin/tenants/stark-industries")  # left half way
    page.get_by_role("link", name="Continue the setup").click()
    page.get_by_role("listitem").filter(has_text="production").first.wait_for()
    page.get_by_label("Name").fill("jarvis")
    assert serious_faults(page) == []
    click("Create key")
    secret = page.get_by_role("region", name="The secret").inner_text().strip()
    page.get_by_label("Budget per month").fill("50")
    page.get_by_label("Requests per minute").fill("60")
    click("Set budget and limits")
    click("Send a test call")
    page.get_by_text("It works").wait_for()
    assert secret in page.get_by_role("region", name="Snippet").inner_text()
    assert call(console, secret).status_code == 200
    assert serious_faults(page) == []
    page.get_by_role("link", name="Open the tenant's page").click()
    page.get_by_text("Confirm that you have stored the secret").wait_for()  # it is not lost
    click("I have stored it")
    assert secret not in page.content()
    assert clicks <= 8
    page.get_by_role("link", name="Open the tenant's page").click()
    page.get_by_role("heading", name="Stark Industries", level=1).wait_for()
    page.get_by_text("Last request").wait_for()
    assert page.get_by_role("link", name="Continue the setup").count() == 0
    for tab, shown in (("Requests", "length"), ("Keys", "jarvis"), ("Budgets", "50.00"), ("Limits", "60")):
        page.get_by_role("tab", name=tab).click()
        page.get_by_role("tabpanel").get_by_text(shown).first.wait_for()
    assert serious_faults(page) == []
    [budget] = console.api("GET", "/v1/admin/budgets", params={"tenant": "stark-industries"}).json()["data"]
    assert (budget["limit_amount"], budget["period"], budget["kind"]) == (50 * 10**12, "month", "hard")


def test_the_palette_finds_objects_by_keyboard_alone(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/")
    page.get_by_role("heading", name="Overview").wait_for()

    def go(text: str, option: str) -> None:
        page.keyboard.press("Control+k")
        page.get_by_role("combobox", name="Page, action, name or id").wait_for()
        page.keyboard.type(text)
        found = page.get_by_role("option", name=re.compile(option))
        found.first.wait_for()
        for _ in range(20):
            if found.first.get_attribute("aria-selected") == "true":
                break
            page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")

    go("mail production", "mail production key, hooli")
    page.get_by_role("heading", name="mail production").wait_for()
    go("hooli", "tenant, hooli")
    page.get_by_role("tab", name="Invoices").wait_for()
    [row] = console.api("GET", "/v1/admin/requests", params={"tenant": "hooli", "limit": 1}).json()["data"]
    go(row["request_id"], row["request_id"])
    page.wait_for_url(f"**/admin/requests/{row['request_id']}")
    go("new key", "New key Action")
    page.get_by_role("dialog", name="New key").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    page.keyboard.type("there is nothing of this name")
    page.get_by_text("No match.", exact=True).wait_for()
    page.keyboard.press("Escape")
    go("drain", "Drain and remove a model Action")
    page.get_by_role("combobox", name="Which model").fill(MODEL)
    page.get_by_role("option", name=MODEL).click()
    page.get_by_role("dialog", name=f"Drain and remove {MODEL}?").wait_for()
    page.keyboard.press("Escape")
    go("credit", "New credit, charge or correction Action")
    page.get_by_role("dialog", name="New correction").wait_for()
    assert serious_faults(page) == []


def test_the_palette_acts_by_keyboard_alone(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/")
    page.get_by_role("heading", name="Overview").wait_for()
    palette = page.get_by_role("combobox", name=re.compile("^(Page, action|Which key|Of which model)"))

    def choose(action: str, option: str, text: str = "") -> None:
        page.keyboard.press("Control+k")
        palette.wait_for()
        page.keyboard.type(action)
        page.get_by_role("option", name=f"{action} Action").and_(page.locator("[aria-selected=true]")).wait_for()
        page.keyboard.press("Enter")
        if text:
            page.get_by_text("Type 2 letters of the name or id.").wait_for()
            page.keyboard.type(text)
            page.get_by_role("option", name=re.compile(option)).first.wait_for()
            assert page.get_by_role("option").count() == page.get_by_role("option", name=re.compile(option)).count()
            assert serious_faults(page) == []
            page.keyboard.press("Enter")

    choose("Rotate a key", "^mail production key, hooli", "mail production")
    page.get_by_role("dialog", name="Rotate mail production").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("heading", name="mail production", level=1).wait_for()
    choose("Publish a price", f"^{MODEL} model", MODEL)
    page.get_by_role("dialog", name=f"Publish a price of {MODEL}").wait_for()
    page.keyboard.press("Escape")
    choose("Close a month", "")
    page.get_by_role("dialog", name="Close a month for all tenants permanently?").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    choose("New customer", "")
    page.get_by_role("heading", name="New customer", level=1).wait_for()
    page.get_by_label("Slug").wait_for()
    invoice = console.api("GET", f"/v1/admin/invoices/{closed(console)}").json()
    [adapter] = console.api("GET", "/v1/admin/adapters", params={"search": "hooli-mail"}).json()["data"]
    for text, option, path in (
        (invoice["document"]["number"], "invoice", f"/admin/billing/invoices/{invoice['id']}"),
        ("hooli-mail", "^hooli-mail adapter", f"/admin/adapters/{adapter['id']}"),
    ):
        page.keyboard.press("Control+k")
        palette.wait_for()
        page.keyboard.type(text)
        page.get_by_role("option", name=re.compile(option)).and_(page.locator("[aria-selected=true]")).wait_for()
        page.keyboard.press("Enter")
        page.wait_for_url(f"**{path}")
    # An action that the role may not do is not found, by its address neither.
    page = open_page("/admin/billing?do=close_month", role="read_only")
    page.get_by_role("heading", name="Billing").wait_for()
    page.get_by_role("table", name="Periods").wait_for()
    assert page.get_by_role("dialog").count() == 0
    page.keyboard.press("Control+k")
    page.keyboard.type("rotate a key")
    page.get_by_text("No match.").wait_for()


def test_an_ended_session_comes_back_to_where_one_was(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/tenants?search=hoo", role=None)
    page.expected = [401]  # type: ignore[attr-defined]
    sign_in(page, console.secrets["owner"])
    page.get_by_role("button", name="New tenant").click()
    form = page.get_by_role("dialog", name="New tenant")
    form.get_by_label("Slug").fill("typed-before")
    form.get_by_role("combobox", name="Tier").select_option("batch")
    page.context.clear_cookies()
    # Whatever the page asks for by itself may find out first, and then the way in lies over the form already.
    form.get_by_role("button", name="Create tenant").dispatch_event("click")
    again = page.get_by_role("dialog", name="Your session has ended")
    again.get_by_label("Admin key").fill(console.secrets["owner"])
    again.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="typed-before").wait_for()  # what was being saved is sent
    assert console.api("GET", "/v1/admin/tenants/typed-before").json()["tier"] == "batch"
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("Admin key").wait_for()


def test_another_tab_that_signs_in_does_not_spoil_what_is_typed_here(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/tenants")
    page.expected = [403]  # type: ignore[attr-defined]
    page.get_by_role("button", name="New tenant").click()
    form = page.get_by_role("dialog", name="New tenant")
    form.get_by_label("Slug").fill("two-tabs")
    form.get_by_role("combobox", name="Tier").select_option("batch")
    del console.cookies["owner"]
    # A session of its own, with another token, in the place of this page's: at no time is there none.
    page.context.add_cookies([console.cookie("owner")])
    form.get_by_role("button", name="Create tenant").click()
    page.get_by_role("heading", name="two-tabs").wait_for()
    assert console.api("GET", "/v1/admin/tenants/two-tabs").status_code == 200
