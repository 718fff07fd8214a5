"""People sign in to the console in Chromium, at npm's oidc-provider on another site."""

from __future__ import annotations

import re
from base64 import b32decode
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

from billing.clock import SECOND, database_now
from gateway.access import keys
from gateway.access.totp import STEP_S, code_at
from gateway.tables import key_totp, person_sessions
from support.paths import REPO
from support.people.people_stack import start_people_stack
from support.people.providers import NodeProvider
from support.services import missing_service
from support.stack import Stack
from support.web.pages import serious_faults

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


class Place:
    def __init__(self, stack: Stack, provider: NodeProvider) -> None:
        self.stack, self.provider = stack, provider


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Place]:
    if not (REPO / "admin_ui" / "dist" / "index.html").exists():
        missing_service("the console", "it is not built; `make admin-ui` builds it (npm is needed)")
    directory = tmp_path_factory.mktemp("people")
    made = Place(Stack(directory, f"sqlite:///{directory}/laneway.db", model_dir), NodeProvider())
    try:
        start_people_stack(made.stack, made.provider)
        yield made
    finally:
        made.stack.stop()
        made.provider.stop()


@pytest.fixture
def page(place: Place, browser: Browser) -> Iterator[Page]:
    context = browser.new_context(base_url=place.stack.url, reduced_motion="reduce")
    wrongs: list[str] = []
    opened = context.new_page()
    opened.set_default_timeout(30_000)
    opened.on("pageerror", lambda error: wrongs.append(str(error)))
    opened.on("console", lambda message: wrongs.append(message.text) if "Content Security" in message.text else None)
    yield opened
    context.close()
    assert wrongs == []


def sign_in(page: Page, sub: str) -> None:
    """From the sign-in page of the console, through the provider's login form."""
    page.get_by_role("link", name="Sign in with Example SSO").click()
    page.wait_for_url(re.compile(r"http://localhost:"))
    page.fill("input[name=login]", sub)
    page.fill("input[name=password]", "any")
    page.get_by_role("button", name="Sign-in").click()


def test_a_person_signs_in_and_returns_to_the_page(place: Place, page: Page) -> None:
    place.provider.set_person("ada", ["gpu-owners"], name="Ada Lovelace")
    page.goto("/admin/people?sort=name")
    assert serious_faults(page) == []
    sign_in(page, "ada")
    page.get_by_role("heading", name="People").wait_for()
    url = urlsplit(page.url)
    assert (url.netloc, url.path, url.query) == (urlsplit(place.stack.url).netloc, "/admin/people", "sort=name")
    assert "Ada Lovelace" in page.locator(".who").inner_text()
    row: Any = page.get_by_role("row").filter(has_text="ada@example.com")
    assert "owner" in row.inner_text()
    page.goto("/admin/audit")
    assert "Ada Lovelace" in page.get_by_role("row").filter(has_text="session.begin").first.inner_text()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("link", name="Sign in with Example SSO").wait_for()


def test_a_person_without_a_role_sees_why(place: Place, page: Page) -> None:
    place.provider.set_person("eve", ["chess-club"])
    page.goto("/admin/")
    sign_in(page, "eve")
    page.get_by_role("heading", name="You have no role in Laneway").wait_for()
    assert "none of your groups has a role" in page.locator("main").inner_text()
    assert serious_faults(page) == []
    page.get_by_role("link", name="Back to the sign-in").click()
    page.get_by_label("Admin key").wait_for()


def test_a_role_that_shrinks_while_the_page_is_open(place: Place, page: Page) -> None:
    place.provider.set_person("mary", ["gpu-owners"])
    page.goto("/admin/keys")
    sign_in(page, "mary")
    page.get_by_role("button", name="New key").wait_for()
    place.provider.set_person("mary", ["viewers"])
    make_due(place)
    page.reload()
    page.get_by_role("heading", name="Keys").wait_for()
    page.locator(".who").get_by_text("read only").wait_for()
    assert page.get_by_role("button", name="New key").count() == 0
    place.provider.set_person("mary", [])
    make_due(place)
    page.reload()
    page.get_by_role("link", name="Sign in with Example SSO").wait_for()


def test_an_admin_key_signs_in_with_an_authenticator_app(place: Place, page: Page) -> None:
    key = place.stack.write(lambda c: keys.create_key(c, tenant_id=None, name="with an app", kind="admin"))

    def code() -> str:
        """As if the codes before were of earlier time steps."""
        place.stack.write(lambda c: c.execute(sa.update(key_totp).values(last_counter=0)))
        return code_at(b32decode(secret), place.stack.read(database_now) // (STEP_S * SECOND))

    page.goto("/admin/authenticator")
    page.get_by_label("Admin key").fill(key.secret)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name="Set up").click()
    secret = page.locator("pre").inner_text()
    page.get_by_label("Code").fill(code())
    page.get_by_role("button", name="Confirm").click()
    page.get_by_text("recovery codes").wait_for()
    assert len(page.locator("pre").inner_text().split()) == 10
    assert serious_faults(page) == []
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("Admin key").fill(key.secret)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_label("Code of the authenticator app").fill(code())
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name="Sign out").wait_for()


def make_due(place: Place) -> None:
    """As if the last check of every session were `recheck_s` ago."""
    past = person_sessions.c.checked_at - round(place.stack.config.oidc.recheck_s * SECOND)
    place.stack.write(lambda c: c.execute(sa.update(person_sessions).values(checked_at=past)))
