"""Chromium for tests. Without it they are skipped, or fail where services are required."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from support.services import missing_service

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = os.environ.get("LANEWAY_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    """A headless browser, closed at the end of the block."""
    if CHROMIUM is None:
        missing_service("Chromium", "there is no chromium in the path")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()
