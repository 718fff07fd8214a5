"""Every route of the console by every role: what it may see opens without a word of complaint, what it may not is
neither shown nor asked for, and axe finds no serious fault on any page. A new route needs no line here."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from gateway.access import keys
from support.web.console import ROLES, Console
from support.web.pages import serious_faults
from support.web.routes import Route, routes
from support.web.subjects import SUBJECTS

if TYPE_CHECKING:
    from playwright.sync_api import Page, Response

ROUTES = routes()
# Within the page, as a link does it: only the first page of a role is loaded whole.
GO = """(path) => {
    document.querySelectorAll("main h1").forEach((old) => old.setAttribute("data-before", ""));
    history.pushState({}, "", path);
    dispatchEvent(new PopStateEvent("popstate", { state: {} }));
}"""
THERE = """() => document.querySelector("main h1:not([data-before])") !== null
    && document.querySelector("main .skeleton, main [aria-busy=true]") === null"""


@pytest.fixture(scope="module")
def addresses(console: Console) -> dict[str, str]:
    return {
        route.path: route.at(None if route.parameter is None else SUBJECTS[route.parameter](console))
        for route in ROUTES
    }


OWN_KEYS = "/authenticator"  # each role sets up the app of its own key


def session(console: Console, role: str) -> dict[str, Any]:
    cookies = {console.cookie_name: console.cookie(role)["value"]}
    return dict(httpx.get(f"{console.stack.url}/v1/admin/session", cookies=cookies).json())


def refusals(page: Page) -> list[str]:
    found: list[str] = []

    def note(answer: Response) -> None:
        if answer.status >= 400:
            found.append(f"{answer.status} {answer.url}")

    page.on("response", note)
    return found


def opened(page: Page, path: str) -> None:
    page.evaluate(GO, path)
    page.wait_for_function(THERE)


def wrong_on(page: Page, route: Route) -> list[str]:
    """What a page that opened must not have."""
    problems = [one.inner_text() for one in page.locator("main .problem").all()]
    failed = page.get_by_role("heading", name=re.compile("^(This page failed|Page not found)$"))
    sideways = page.evaluate("() => document.documentElement.scrollWidth > innerWidth")
    return [
        f"{route.path}: {what}"
        for what in [*problems, *(["failed"] if failed.count() else []), *(["scrolls sideways"] if sideways else [])]
    ]


@pytest.mark.parametrize("role", ROLES)
def test_each_role_opens_what_it_may_and_is_shown_nothing_else(
    role: str, console: Console, open_page: Callable[..., Page], addresses: dict[str, str]
) -> None:
    permissions = session(console, role)["permissions"]
    # From nowhere, so that every page is come to.
    page = open_page("/admin/there/is/nothing", role=role, width=390 if role == "read_only" else 1280)
    refused, wrong = refusals(page), []
    page.locator("main h1").wait_for()
    page.wait_for_function(THERE)
    may = {route.path: route.needs is None or route.needs in permissions for route in ROUTES}
    page.get_by_text("There is no page at this address").wait_for()
    named = [link.inner_text() for link in page.locator("#navigation .side-link").all()]
    if role == "read_only":  # in its drawer, which has no inner text while it is away
        named = [str(link.text_content()) for link in page.locator("#navigation .side-link").all()]
    assert sorted(named) == sorted(route.title for route in ROUTES if route.in_navigation and may[route.path])
    for route in ROUTES:
        opened(page, addresses[route.path])
        closed = page.get_by_text("Your role cannot open this page").count() == 1
        if closed == may[route.path]:
            wrong.append(f"{route.path}: {'not shown' if may[route.path] else 'shown'} to {role}")
        wrong += wrong_on(page, route)
        if (
            role == "read_only"
            and route.path != OWN_KEYS
            and (deeds := page.locator("main .button-main, main .button-bad").all_inner_texts())
        ):
            wrong.append(f"{route.path}: who only reads is offered {deeds}")
    assert wrong == []
    assert refused == []


def test_axe_finds_no_serious_fault_and_the_policy_holds(
    console: Console, open_page: Callable[..., Page], addresses: dict[str, str]
) -> None:
    page = open_page(addresses[ROUTES[0].path], dark=True)
    faults = []
    for route in ROUTES:
        page.goto(addresses[route.path])  # whole: its styles and scripts are asked for anew
        page.wait_for_function(THERE)
        faults += [f"{route.path}: {fault}" for fault in serious_faults(page)]
    assert faults == []


def test_without_a_session_nothing_is_shown_but_the_way_in(
    open_page: Callable[..., Page], addresses: dict[str, str]
) -> None:
    page = open_page("/admin/", role=None)
    page.expected.append(401)  # type: ignore[attr-defined]
    for path in list(addresses.values())[:3]:
        page.goto(path)
        page.get_by_role("button", name="Sign in").wait_for()
        assert page.locator("#navigation").count() == 0


@pytest.mark.parametrize(
    ("width", "paths"),
    [
        (1280, ("/admin/requests?tenant=hooli", "/admin/keys", "/admin/billing?tab=invoices", "/admin/budgets")),
        (390, ("/admin/usage?tenant=hooli", "/admin/billing?tab=margins", "an invoice")),
    ],
)
def test_no_column_of_a_table_is_cut_off(
    width: int, paths: tuple[str, ...], console: Console, open_page: Callable[..., Page], addresses: dict[str, str]
) -> None:
    acme = console.stack.tenants["acme"]
    name = "nightly evaluation of the search team"
    console.stack.write(lambda c: keys.create_key(c, tenant_id=acme, name=name, kind="live"))
    page = open_page(addresses["/billing/invoices/$invoice"], width=width)
    cut = {}
    for path in paths:
        if path != "an invoice":
            page.goto(path)
        else:
            page.goto(addresses["/billing/invoices/$invoice"])
        page.locator("main .table tbody tr:not(.skeleton)").first.wait_for()
        page.wait_for_function(THERE)
        hidden = page.locator("main .table-scroll").first.evaluate("(one) => one.scrollWidth - one.clientWidth")
        if hidden > 0:
            cut[path] = f"{hidden} px are hidden"
    assert cut == {}
