"""Keys: one is made, its secret is shown once and works, it is rotated and revoked."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx

from gateway.access import keys as key_rows
from support.web.console import Console
from support.web.pages import serious_faults

if TYPE_CHECKING:
    from playwright.sync_api import Page

Opens = Callable[..., "Page"]


def keys_of(console: Console, **query: str) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = console.api("GET", "/v1/admin/keys", params={"limit": "500", **query}).json()["data"]
    return data


def calls(console: Console, secret: str) -> int:
    return httpx.get(f"{console.stack.url}/v1/models", headers={"Authorization": f"Bearer {secret}"}).status_code


def test_a_key_is_made_rotated_and_revoked(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/keys")
    page.expected = [400]  # type: ignore[attr-defined]
    page.get_by_role("button", name="New key").first.click()
    form = page.get_by_role("dialog", name="New key")
    form.get_by_role("button", name="Create key").click()
    form.get_by_text("Enter a name: who or what uses the key").wait_for()
    form.get_by_label("Name").fill("made here")
    form.get_by_role("combobox", name="Tenant").fill("hoo")
    form.get_by_role("option", name="hooli").wait_for()
    page.keyboard.press("Escape")  # closes the list, and not the form
    form.get_by_role("option", name="hooli").wait_for(state="detached")
    form.get_by_role("combobox", name="Tenant").fill("hoo")
    form.get_by_role("option", name="hooli").click()
    form.get_by_label("Default max_tokens").fill("0")
    form.get_by_role("button", name="Create key").click()
    form.get_by_text("Expected `int` >= 1").wait_for()  # in the API's words, beside the field
    assert form.get_by_label("Name").input_value() == "made here"
    assert keys_of(console, search="made here") == []
    form.get_by_label("Default max_tokens").fill("64")
    form.get_by_label("Addresses").fill("127.0.0.1, 10.0.0.1/8")
    form.get_by_label("Tags").fill("team=search\ncost-centre = 4711")
    form.get_by_role("button", name="Create key").click()
    form.get_by_text("has bits after its prefix").wait_for()
    form.get_by_label("Addresses").fill("127.0.0.1, 10.0.0.0/8")
    form.get_by_role("button", name="30 days").click()
    form.get_by_role("button", name="Create key").click()

    shown = page.get_by_role("dialog", name="The secret of made here")
    secret = shown.get_by_role("region", name="The secret").inner_text().strip()
    assert key_rows.is_well_formed(secret)
    assert secret in shown.get_by_role("region", name="Call with it").inner_text()
    page.keyboard.press("Escape")
    shown.get_by_role("alert").wait_for()  # it stays until one says so
    assert calls(console, secret) == 200
    shown.get_by_role("button", name="I have stored it").click()
    shown.wait_for(state="detached")
    assert secret not in page.content()

    [key] = keys_of(console, search="made here")
    assert key["tenant_id"] == console.stack.tenants["hooli"]
    assert (key["models"], key["allowed_ips"]) == (None, ["127.0.0.1/32", "10.0.0.0/8"])
    assert key["tags"] == {"cost-centre": "4711", "team": "search"}
    assert 29 * 86_400 < key["expires_at"] - time.time() < 31 * 86_400
    page.get_by_role("link", name="made here").click()
    page.get_by_role("heading", name="made here").wait_for()
    assert page.url.endswith(f"/admin/keys/{key['id']}")
    page.get_by_text("cost-centre=4711 team=search").wait_for()
    page.get_by_role("button", name="Edit").click()
    form = page.get_by_role("dialog", name="Edit made here")
    assert form.get_by_label("Addresses").input_value() == "127.0.0.1/32 10.0.0.0/8"
    form.get_by_label("Addresses").fill("")
    form.get_by_role("combobox", name="Models").fill("hooli-chat")
    form.get_by_role("option", name="hooli-chat").first.click()
    form.get_by_role("button", name="Save").click()
    form.wait_for(state="detached")
    [key] = keys_of(console, search="made here")
    assert (key["models"], key["allowed_ips"], key["tags"]["team"]) == (["hooli-chat"], None, "search")
    page.get_by_role("button", name="Rotate").click()
    page.get_by_label("The old secret still works for").select_option(label="an hour")
    page.get_by_role("dialog").get_by_role("button", name="Rotate").click()
    shown = page.get_by_role("dialog", name=re.compile("The secret of made here"))
    successor = shown.get_by_role("region", name="The secret").inner_text().strip()
    assert successor != secret
    shown.get_by_role("button", name="I have stored it").click()
    page.get_by_text("rotated, ends soon").wait_for()
    assert [calls(console, one) for one in (secret, successor)] == [200, 200]

    page.get_by_role("button", name="Revoke").click()
    ask = page.get_by_role("dialog", name="Revoke made here?")
    assert ask.get_by_role("button", name="Revoke").is_disabled()
    ask.get_by_label("Type made here to confirm").fill("made here")
    ask.get_by_role("button", name="Revoke").click()
    page.locator("h1 ~ .note").get_by_text("revoked").wait_for()
    assert console.api("GET", f"/v1/admin/keys/{key['id']}").json()["revoked_at"] is not None


def test_a_key_rotated_without_an_overlap_is_refused_at_once(console: Console, open_page: Opens) -> None:
    made = console.api("POST", "/v1/admin/keys", json={"tenant": "hooli", "name": "leaked"}).json()
    budget = {"tenant": "hooli", "key_id": made["id"], "unit": "tokens", "period": "day", "limit_amount": 1000}
    console.api("POST", "/v1/admin/budgets", json=budget).raise_for_status()
    page = open_page(f"/admin/keys/{made['id']}?do=rotate")
    page.get_by_label("The old secret still works for").select_option("0")
    page.get_by_role("dialog").get_by_role("button", name="Rotate").click()
    page.get_by_role("button", name="I have stored it").click()
    page.locator("h1 ~ .note").get_by_text("rotated, refused now").wait_for()
    assert page.get_by_role("button", name="Revoke").count() == 0, "it has ended"
    page.get_by_role("tab", name="Budgets").click()
    page.get_by_text("count in the budgets of the key it was rotated to: leaked").wait_for()


def test_the_list_is_narrowed_by_its_address(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/keys?kind=admin&role=finance")
    page.get_by_role("link", name="the finance").wait_for()
    assert page.get_by_role("row").count() == 1 + len(keys_of(console, kind="admin", role="finance", status="active"))
    page.goto("/admin/keys?tenant=hooli")
    page.get_by_role("link", name="mail production").wait_for()
    assert page.get_by_role("row").count() == 1 + len(keys_of(console, tenant="hooli", status="active"))
    page.get_by_label("Keys: Name, id or last four").fill("mail st")
    page.get_by_text("1 row", exact=True).wait_for()
    assert "search=mail+st" in page.url
    assert serious_faults(page) == []


def test_several_keys_are_limited_and_revoked_at_once(console: Console, open_page: Opens) -> None:
    for name in ("bulk one", "bulk two"):
        console.api("POST", "/v1/admin/keys", json={"tenant": "hooli", "name": name})
    page = open_page("/admin/keys?search=bulk")
    page.get_by_role("checkbox", name="Choose all loaded rows of Keys").check()
    page.get_by_text("2 chosen").wait_for()
    page.get_by_role("button", name="Set limits").click()
    asked = page.get_by_role("dialog", name="Set the limits of 2 keys?")
    assert asked.get_by_role("list", name="Affected").get_by_role("listitem").count() == 2
    asked.get_by_label("Requests per minute").fill("7")
    asked.get_by_role("button", name="Set limits").click()
    asked.get_by_text("done", exact=True).nth(1).wait_for()
    asked.get_by_role("button", name="Close", exact=True).last.click()
    ids = {key["id"] for key in keys_of(console, search="bulk")}
    limits = console.api("GET", "/v1/admin/limits", params={"tenant": "hooli", "limit": "500"}).json()["data"]
    assert {one["subject_id"] for one in limits if one["requests_per_minute"] == 7} == ids

    page.get_by_role("checkbox", name="Choose all loaded rows of Keys").check()
    page.get_by_role("button", name="Revoke", exact=True).click()
    asked = page.get_by_role("dialog", name="Revoke 2 keys?")
    assert serious_faults(page) == []
    assert asked.get_by_role("button", name="Revoke").is_disabled()
    asked.get_by_label("Type revoke to confirm").fill("revoke")
    asked.get_by_role("button", name="Revoke").click()
    asked.get_by_text("done", exact=True).nth(1).wait_for()
    assert keys_of(console, search="bulk", status="active") == []


def test_who_reads_only_is_shown_no_deed(open_page: Opens) -> None:
    page = open_page("/admin/keys", role="read_only", width=390, dark=True)
    page.get_by_role("link", name="mail production").wait_for()
    assert page.get_by_role("button", name="New key").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert serious_faults(page) == []


def test_a_tenants_admin_stores_a_secret_on_a_phone(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/keys", role="tenant_admin", width=390, dark=True)
    page.get_by_role("button", name="New key").first.click()
    form = page.get_by_role("dialog", name="New key")
    form.get_by_label("Name").fill("on a phone")
    form.get_by_role("button", name="Create key").click()
    stored = page.get_by_role("button", name="I have stored it")
    box = stored.bounding_box()
    assert box is not None
    assert 0 <= box["x"] <= 390 - box["width"]
    assert serious_faults(page) == []
    stored.click()
    [key] = keys_of(console, search="on a phone")
    assert key["tenant_id"] == console.stack.tenants["hooli"]
