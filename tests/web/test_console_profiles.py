"""Billing profiles and connectors: a tenant's next document has what the form saved, and the usage that waits for an
account is pushed, retried and released."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from billing.finance_tables import billing_profiles, connector_hours, connectors
from support.gateway.usage_receivers import KEY, UsageReceiver
from support.stack import Stack
from support.waiting import eventually
from support.web.console import BILLING, Console
from support.web.pages import serious_faults

if TYPE_CHECKING:
    from playwright.sync_api import Page

Opens = Callable[..., "Page"]
SETTINGS = """issuer_name = "Cloud GmbH"
issuer_address = ["Am Hang 1", "Berlin"]
payment_days = 21
[[connectors]]
name = "stripe"
kind = "stripe"
url = "{url}"
key_file = "{key_file}"
after_s = 0
poll_s = 0.2
retry_s = 2
timeout_s = 1
"""


@pytest.fixture(scope="module")
def stripe() -> Iterator[UsageReceiver]:
    receiver = UsageReceiver("stripe")
    yield receiver
    receiver.stop()


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, model_dir: Path, stripe: UsageReceiver) -> Iterator[Console]:
    directory = tmp_path_factory.mktemp("profiles")
    (directory / "stripe.key").write_text(f"{KEY}\n")
    toml = BILLING + SETTINGS.format(url=stripe.url, key_file=directory / "stripe.key")
    stack = Stack(directory, f"sqlite:///{directory}/laneway.db", model_dir.absolute(), toml=toml)
    made = Console.over(stack, days=3)
    yield made
    stack.stop()


def connector(console: Console) -> dict[str, Any]:
    [found] = console.api("GET", "/v1/admin/connectors").json()["data"]
    return dict(found)


def change(console: Console, update: sa.Update) -> None:
    console.stack.write(lambda connection: connection.execute(update))


def test_a_profile_is_corrected_saved_and_on_the_tenants_page(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/billing-profiles", role="finance", dark=True)
    page.expected = [400]  # type: ignore[attr-defined]
    issuer = page.get_by_role("region", name="Issuer")
    issuer.get_by_text("Cloud GmbH").wait_for()
    issuer.get_by_text("21 days").wait_for()
    row = page.get_by_role("row").filter(has_text="acme")
    row.get_by_text("not set").wait_for()
    row.get_by_role("button", name="Edit the profile of acme").focus()
    page.keyboard.press("Enter")
    form = page.get_by_role("dialog")
    form.get_by_label("Legal name").fill("Acme Corporation")
    form.get_by_label("Address").fill("1 Road\n\n  Springfield \n")
    form.get_by_label("Due after").fill("366")
    form.get_by_role("button", name="Add a tax").click()
    form.get_by_label("Name of tax 1").fill("VAT")
    form.get_by_role("button", name="Save").click()
    form.get_by_text("A tax has a name and a rate.").wait_for()
    form.get_by_label("Rate of tax 1").fill("19")
    form.get_by_role("button", name="Save").click()
    form.get_by_text("must be 0 to 365").wait_for()
    assert serious_faults(page) == []
    form.get_by_label("Due after").fill("14")
    form.get_by_role("button", name="Add a tax").click()  # a blank row is left out
    form.get_by_label("Account of stripe").fill("cus_acme")
    form.get_by_role("button", name="Save").click()
    row.get_by_text("complete").wait_for()
    assert console.api("GET", "/v1/admin/tenants/acme/billing_profile").json() == {
        "tenant_id": console.stack.tenants["acme"],
        "legal_name": "Acme Corporation",
        "address": ["1 Road", "Springfield"],
        "tax_id": None,
        "taxes": [{"name": "VAT", "rate": "19"}],
        "payment_days": 14,
        "accounts": {"stripe": "cus_acme"},
    }
    retired = {"stripe": "cus_acme", "retired": "acct_7"}  # of a connector that laneway.toml had once
    mine = billing_profiles.c.tenant_id == console.stack.tenants["acme"]
    change(console, sa.update(billing_profiles).where(mine).values(accounts=retired))
    row.get_by_role("link", name="acme").click()
    panel = page.get_by_role("tabpanel", name="Billing profile")
    panel.get_by_text("VAT 19 %").wait_for()
    page.get_by_role("tab", name="Invoices").click()
    page.get_by_role("tab", name="Billing profile").click()  # one click from the invoices
    panel.get_by_text("cus_acme").wait_for()
    panel.get_by_role("button", name="Edit profile").click()
    form.get_by_role("button", name="Remove tax 1").click()
    form.get_by_role("button", name="Save").click()
    panel.get_by_text("VAT 19 %").wait_for(state="detached")
    assert console.api("GET", "/v1/admin/tenants/acme/billing_profile").json()["accounts"] == retired
    for accounts in (retired | {"retired": "acct_8"}, retired | {"unknown": "1"}):
        answer = console.api("PUT", "/v1/admin/tenants/acme/billing_profile", json={"accounts": accounts})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "accounts")
    assert serious_faults(page) == []


@pytest.mark.parametrize("role", ["operator", "tenant_admin"])
def test_a_role_without_the_permission_reads_a_profile(console: Console, open_page: Opens, role: str) -> None:
    page = open_page("/admin/tenants/hooli?tab=profile", role=role, width=390)
    panel = page.get_by_role("tabpanel", name="Billing profile")
    panel.get_by_text("the tenant's name").wait_for()
    assert page.get_by_role("button", name="Edit profile").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert serious_faults(page) == []


def test_usage_that_waits_is_pushed_retried_and_released(
    console: Console, open_page: Opens, stripe: UsageReceiver
) -> None:
    stripe.behaviour = "busy"
    eventually(lambda: connector(console)["gateway_id"] is not None)
    for slug in ("soylent", "hooli"):
        profile = {"accounts": {"stripe": f"cus_{slug}"}}
        console.api("PUT", f"/v1/admin/tenants/{slug}/billing_profile", json=profile).raise_for_status()
    change(console, sa.update(connectors).values(sequence=0, start_sequence=0))  # all usage so far
    page = open_page("/admin/connectors", role="finance", width=390)
    own = page.get_by_role("region", name="stripe")
    own.get_by_text("failing").wait_for()
    own.get_by_text(re.compile("it answered 503")).wait_for()
    own.get_by_text(re.compile("next attempt")).wait_for()
    own.get_by_text(re.compile(r"\d+ tenants with usage that is not pushed")).wait_for()
    assert connector(console)["retrying"] > 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert serious_faults(page) == []

    tenant = connector_hours.c.tenant_id == console.stack.tenants["soylent"]
    unsent = sa.and_(tenant, connector_hours.c.sent < connector_hours.c.recorded)
    change(console, sa.update(connector_hours).where(unsent).values(stuck="an attempt without an answer"))
    stripe.behaviour = "accept"
    others = sa.update(connector_hours).where(connector_hours.c.stuck.is_(None))
    change(console, others.values(next_attempt_at=0))
    own.get_by_text("stuck", exact=True).wait_for()
    own.get_by_role("button", name="Release…").click()
    dialog = page.get_by_role("dialog")
    assert dialog.get_by_role("button", name="Release").is_disabled()
    dialog.get_by_label("to confirm").fill("stripe")
    dialog.get_by_role("button", name="Release").click()
    page.get_by_text(re.compile(r"stripe sends [1-9]\d* events again\.")).wait_for()
    eventually(lambda: {account for account, _ in stripe.counted} == {"cus_soylent", "cus_hooli"})
    eventually(lambda: (connector(console)["retrying"], connector(console)["stuck"]) == (0, 0))
    own.get_by_text("accounts missing").wait_for()
    assert sum(stripe.counted.values()) == connector(console)["sent_tokens"] > 0
