"""The page Connect: the snippets of docs/users/clients.md, responses.md and agents.md with this gateway's address
and a model, ready to run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import httpx
import pytest

from gateway.field_tables import ENDPOINTS, rows
from support import clients_page as connect_page
from support.clients_page import Snippet
from support.stack import MODEL
from support.web.console import Console

if TYPE_CHECKING:
    from playwright.sync_api import Page

Opens = Callable[..., "Page"]
SNIPPETS = connect_page.snippets()
ALIAS = "chat-of-connect"


def shown(page: Page, snippet: Snippet) -> str:
    page.get_by_role("tab", name=snippet.title, exact=True).click()
    return str(page.get_by_role("region", name=f"Snippet of {snippet.title}", exact=True).text_content())


@pytest.fixture(scope="module")
def alias(console: Console) -> str:
    body = {"models": [{"model": MODEL, "weight": 1}]}
    answer = console.api("PUT", f"/v1/admin/aliases/{ALIAS}", json=body)
    assert answer.status_code < 300, answer.text
    return ALIAS


def test_the_snippets_are_the_documents_with_this_gateways_address(
    console: Console, open_page: Opens, alias: str
) -> None:
    page = open_page("/admin/connect")
    model = page.get_by_label("Model", exact=True)
    page.locator("option", has_text=alias).wait_for(state="attached")
    for name in (MODEL, alias):
        model.select_option(name)
        for snippet in SNIPPETS:
            assert shown(page, snippet) == snippet.filled(console.stack.url, name)
            assert page.get_by_role("region", name=f"Install for {snippet.title}").text_content() == snippet.install


@pytest.mark.parametrize("wanted", ["openai-python", "curl-a-stream"])
def test_what_is_copied_runs(console: Console, open_page: Opens, wanted: str) -> None:
    [snippet] = [one for one in SNIPPETS if one.id == wanted]
    page = open_page("/admin/connect")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("option", has_text=MODEL).wait_for(state="attached")
    page.get_by_label("Model", exact=True).select_option(MODEL)
    shown(page, snippet)
    page.locator(".connect-snippet .copy").last.click()
    page.get_by_text("Copied").wait_for()
    copied = page.evaluate("() => navigator.clipboard.readText()")
    secret = console.stack.new_key("acme").secret
    console.stack.known()
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("LANEWAY_", "MODEL"))}
    environ["LANEWAY_KEY"] = secret
    argv = [sys.executable, "-c", copied] if snippet.language == "python" else ["sh", "-c", copied]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    usage = httpx.get(f"{console.stack.url}/v1/usage", headers={"Authorization": f"Bearer {secret}"}, timeout=30).json()
    assert usage["requests"] == 1


def test_the_tables_are_those_of_the_wire_types(open_page: Opens) -> None:
    page = open_page("/admin/connect")
    for endpoint in ENDPOINTS:
        page.get_by_label("Endpoint").select_option(endpoint.path)
        table = page.get_by_role("table", name=f"Fields of {endpoint.path}", exact=True)
        table.wait_for()
        fields = table.locator("tbody tr td:first-child code").all_inner_texts()
        assert fields == [row.field for row in rows(endpoint)]
    page.get_by_label("Endpoint").select_option("/v1/messages")
    page.get_by_label("State").select_option("refused")
    page.get_by_text("container").wait_for()
    assert page.get_by_text("max_tokens", exact=True).count() == 0


def test_who_may_make_a_key_is_led_to_it(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/connect", role="tenant_admin", width=390)
    page.get_by_role("link", name="Create a key").click()
    page.get_by_role("heading", name="Keys", exact=True).wait_for()
    page = open_page("/admin/connect", role="read_only", width=390)
    page.get_by_role("region", name="Snippet of curl", exact=True).wait_for()
    assert page.get_by_role("link", name="Create a key").count() == 0
