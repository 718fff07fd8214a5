"""A real gateway with weeks of traffic behind it, and Chromium before it.

A page that says anything at error level on its console, breaks the content security policy or asks for what is not
there fails its test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.paths import REPO
from support.services import missing_service
from support.web.chromium import open_browser
from support.web.console import Console

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

BUILT = REPO / "admin_ui" / "dist" / "index.html"
WAIT_MS = 30_000  # pages ask again each 15 s at most; a machine may stand still


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Console]:
    if not BUILT.exists():
        missing_service("the console", "it is not built; `make admin-ui` builds it (npm is needed)")
    made = Console.started(tmp_path_factory.mktemp("console"), model_dir)
    yield made
    made.stack.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        from playwright.sync_api import expect

        expect.set_options(timeout=WAIT_MS)  # 5 s by default
        yield opened


@pytest.fixture
def open_page(console: Console, browser: Browser) -> Iterator[Callable[..., Page]]:
    """`open_page(path, role="owner", width=1280, dark=False)`: a page below /admin, signed in as that role."""
    contexts, wrongs = [], []

    def open_(
        path: str = "/admin/", *, role: str | None = "owner", width: int = 1280, height: int = 900, dark: bool = False
    ) -> Page:
        context = browser.new_context(
            base_url=console.stack.url,
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            timezone_id="Europe/Berlin",
            locale="en-GB",
        )
        contexts.append(context)
        if role is not None:
            context.add_cookies([console.cookie(role)])
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.expected = []  # type: ignore[attr-defined]  # statuses that the test means to see
        page.on("console", lambda message: _listen(page, message, wrongs))
        page.on("pageerror", lambda error: wrongs.append(f"{page.url}: {error}"))
        page.goto(path)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert wrongs == []


def _listen(page: Any, message: Any, wrongs: list[str]) -> None:
    """Chromium says each answer ≥ 400 as an error: those that a test expects are none."""
    if message.type == "error" and not any(f"status of {status}" in message.text for status in page.expected):
        wrongs.append(f"{page.url}: {message.text}")
