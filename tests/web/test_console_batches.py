"""The pages of batches and files: progress, cost, errors by code, cancellation, and who may download a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from support.gateway.batch_client import BatchClient, chat_lines
from support.web.console import Console
from support.web.pages import serious_faults

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture
def client(console: Console) -> Iterator[BatchClient]:
    with BatchClient(console.stack, console.stack.keys["hooli"]) as made:
        yield made


def facts(page: Page, label: str) -> str:
    return page.locator("dt", has_text=label).first.locator("xpath=following-sibling::dd[1]").inner_text()


def test_an_ended_batch_is_listed_and_shown(
    client: BatchClient, open_page: Callable[..., Page], console: Console
) -> None:
    lines = chat_lines(5)
    lines[0]["body"]["nonsense"] = 1
    batch = client.finish(client.create(lines))
    page = open_page("/admin/batches")
    row = page.get_by_role("row").filter(has_text="5 / 5")
    row.get_by_text("completed").wait_for()
    assert "hooli" in row.inner_text()
    page.get_by_label("Status").select_option("failed")
    row.wait_for(state="detached")
    page.get_by_label("Status").select_option("completed")
    row.get_by_role("link").first.click()
    page.get_by_role("heading", name="Batch", exact=True, level=1).wait_for()
    assert page.url.endswith(f"/admin/batches/{batch['id']}")
    assert (facts(page, "Succeeded"), facts(page, "Failed"), facts(page, "Not run")) == ("4", "1", "0")
    assert page.locator("dt", has_text="Expected end").count() == 0
    assert page.get_by_role("heading", name="Cost", exact=True).count() == 1
    assert page.get_by_role("progressbar").get_attribute("aria-valuenow") == "100"
    page.get_by_role("row").filter(has_text="unknown_parameter").wait_for()
    assert page.get_by_role("link", name="Download").count() == 0, "an operator reads no text"
    assert page.get_by_role("button", name="Cancel the batch").count() == 0
    own = open_page(f"/admin/batches/{batch['id']}", role="tenant_admin", width=390, dark=True)
    with own.expect_download() as downloading:
        own.get_by_role("link", name=f"Download {batch['id']}_output").click()
    assert downloading.value.suggested_filename == f"{batch['id']}_output.jsonl"
    found = [json.loads(line) for line in downloading.value.path().read_text().splitlines()]
    assert {line["custom_id"] for line in found} == {line["custom_id"] for line in lines[1:]}
    assert serious_faults(own) == []
    own.get_by_role("link", name=f"{batch['id']}_output.jsonl", exact=True).click()
    own.get_by_role("link", name=f"View batches of {batch['id']}_output.jsonl").click()
    own.get_by_role("row").filter(has_text="5 / 5").wait_for()
    assert own.get_by_role("row").filter(has_text="completed").count() == 1


def test_a_running_batch_is_cancelled(client: BatchClient, open_page: Callable[..., Page]) -> None:
    batch_id = client.create(chat_lines(2000, max_tokens=64))
    client.until(batch_id, completed=1)
    page = open_page(f"/admin/batches/{batch_id}")
    page.get_by_role("button", name="Cancel the batch").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the batch").click()
    page.get_by_text("The batch is being cancelled.").wait_for()
    page.locator(".badge", has_text="cancelled").first.wait_for()
    assert client.finish(batch_id)["status"] == "cancelled"
    page.get_by_role("row").filter(has_text="batch_cancelled").wait_for()
    assert (facts(page, "Failed"), facts(page, "Not run") != "0") == ("0", True)
    tenant = open_page("/admin/tenants/hooli?tab=batches")
    tenant.get_by_role("row").filter(has_text="cancelled").first.wait_for()


def test_a_refused_file_says_the_field_and_nothing_of_lines(
    client: BatchClient, open_page: Callable[..., Page]
) -> None:
    line = chat_lines(1)[0] | {"url": "/v1/nonsense"}
    batch = client.finish(client.create(json.dumps(line).encode(), metadata={"night": "eval"}))
    page = open_page(f"/admin/batches/{batch['id']}")
    row = page.get_by_role("row").filter(has_text="mismatched_url")
    row.get_by_role("cell", name="url", exact=True).wait_for()
    assert page.get_by_text("No line has an error").count() == 0
    assert page.locator("dt", has_text="Metadata").count() == 0, "an operator reads no metadata"
    own = open_page(f"/admin/batches/{batch['id']}", role="tenant_admin")
    own.get_by_text("night: eval").wait_for()


def test_names_of_files_wrap_beside_their_actions(client: BatchClient, open_page: Callable[..., Page]) -> None:
    batch = client.finish(client.create(chat_lines(1)))
    name = f"{batch['id']}_output.jsonl"
    for width in (1280, 390):
        page = open_page("/admin/files", role="tenant_admin", width=width)
        page.get_by_role("row").filter(has_text=name).wait_for()
        hidden = page.locator("main .table-scroll").first.evaluate("(one) => one.scrollWidth - one.clientWidth")
        assert hidden <= 0, f"{hidden} px are hidden at {width} px"
        box = page.get_by_text(name, exact=True).bounding_box()
        button = page.get_by_role("button", name=f"Delete {name}").bounding_box()
        assert box is not None
        assert button is not None
        assert box["x"] + box["width"] <= width
        assert button["x"] + button["width"] <= width


def test_requests_are_listed_without_lines_of_batches(client: BatchClient, open_page: Callable[..., Page]) -> None:
    batch = client.finish(client.create(chat_lines(2)))
    client.stack.chat("hooli", max_tokens=2)
    page = open_page("/admin/requests?tenant=hooli")
    page.locator("main .table tbody tr:not(.skeleton)").first.wait_for()
    page.get_by_label("Batch lines").select_option("without")
    page.get_by_text("Requests of the last 7 days.").wait_for()
    assert page.get_by_label("Batch", exact=True).count() == 0
    page.goto(f"/admin/requests?batch={batch['id']}")
    page.wait_for_function("() => document.querySelectorAll('main .table tbody tr:not(.skeleton)').length === 2")
    assert page.get_by_label("Batch lines").input_value() == batch["id"]


def test_usage_is_shown_by_source(client: BatchClient, open_page: Callable[..., Page]) -> None:
    client.finish(client.create(chat_lines(2)))
    client.stack.chat("hooli", max_tokens=2)
    page = open_page("/admin/usage?tenant=hooli&by=source&show=requests")
    row = page.locator(".usage-block tbody tr")
    row.filter(has_text="other requests").wait_for()
    row.filter(has_text="batch lines").get_by_role("button").click()
    page.get_by_role("button", name="Remove the filter source batch lines").wait_for()
    row.filter(has_text="other requests").wait_for(state="detached")
    page.goto(page.url)
    page.get_by_role("button", name="Remove the filter source batch lines").wait_for()
    row.filter(has_text="hooli").wait_for()  # of one source, by tenant
    assert row.count() == 1


def test_the_policy_of_budgets_is_a_setting_of_the_tenant(console: Console, open_page: Callable[..., Page]) -> None:
    page = open_page("/admin/tenants/hooli")
    page.get_by_role("button", name="Edit", exact=True).click()
    page.get_by_role("dialog").get_by_label("Batch lines that no budget covers").select_option("fail")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    page.get_by_role("dialog").wait_for(state="detached")
    assert facts(page, "Batch lines that no budget covers") == "fail"
    assert console.api("GET", "/v1/admin/tenants/hooli").json()["on_budget"] == "fail"
    console.api("PATCH", "/v1/admin/tenants/hooli", json={"on_budget": None}).raise_for_status()


def test_a_file_is_deleted(client: BatchClient, open_page: Callable[..., Page]) -> None:
    file_id = client.upload(chat_lines(1))
    reader = open_page("/admin/files", role="read_only")
    reader.get_by_role("row").filter(has_text="input.jsonl").first.wait_for()
    assert reader.get_by_role("button", name="Delete").count() == 0
    page = open_page(f"/admin/files?search={file_id}", role="tenant_admin")
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Download input.jsonl").click()
    assert downloading.value.path().read_bytes() == json.dumps(chat_lines(1)[0]).encode()
    page.get_by_role("button", name="Delete input.jsonl").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete the file").click()
    page.get_by_text("The file is deleted.").wait_for()
    page.get_by_role("row").filter(has_text="input.jsonl").wait_for(state="detached")
    assert client.http.get(f"/files/{file_id}").status_code == 404
