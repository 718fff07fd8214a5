"""Shared by tests of the console's pages: axe's findings, and a repeated answer of the API."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from support.paths import REPO

if TYPE_CHECKING:
    from playwright.sync_api import Page

AXE = REPO / "admin_ui" / "node_modules" / "axe-core" / "axe.min.js"


def held_still(page: Page, path: str) -> Callable[[], Any]:
    """Repeat the API's first answer at `path` as every later answer to the page, and return it: a changing page could
    not be compared otherwise."""
    answers: list[Any] = []

    def answer(route: Any) -> None:
        if not answers:
            answers.append(route.fetch())
        route.fulfill(response=answers[0])

    page.route(f"**{path}", answer)
    return lambda: answers[0].json()


def serious_faults(page: Page) -> list[str]:
    """Axe's findings of the kinds serious and critical. Run from the page's own world, as its policy forbids strangers'
    scripts."""
    page.evaluate(AXE.read_text() + "; 0")
    found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {one['help']}: {json.dumps([node['html'][:200] for node in one['nodes']][:3])}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]
