"""Adapters: files are checked and refused beside the file, uploaded, promoted, rolled back and removed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from adapters.files.check import BaseShape
from adapters.files.generate import Recipe, write_random
from support.waiting import eventually
from support.web.console import Console
from support.web.pages import serious_faults

if TYPE_CHECKING:
    from playwright.sync_api import Page

Opens = Callable[..., "Page"]


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> list[Path]:
    """Two that fit the base; the first says it is of another."""
    base = BaseShape.from_config(json.loads((model_dir / "config.json").read_text()))
    made = []
    for seed, named in ((1, "some-other-base"), (2, None)):
        directory = tmp_path_factory.mktemp("adapter")
        write_random(directory, base, Recipe(seed, rank=2, modules=("q_proj",)), named)
        made.append(directory)
    return made


def give(page: Page, directory: Path, config: bytes | None = None) -> None:
    """Dropped on the page, as one drags them there from a folder."""
    files = {
        "adapter_config.json": config or (directory / "adapter_config.json").read_bytes(),
        "adapter_model.safetensors": (directory / "adapter_model.safetensors").read_bytes(),
    }
    page.locator(".drop").evaluate(
        """(zone, files) => {
            const data = new DataTransfer();
            for (const [name, bytes] of Object.entries(files)) data.items.add(new File([new Uint8Array(bytes)], name));
            zone.dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true }));
        }""",
        {name: list(data) for name, data in files.items()},
    )


def versions(console: Console, adapter: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = console.api("GET", f"/v1/admin/adapters/{adapter}/versions").json()["data"]
    return found


def test_from_a_refusal_to_a_rollback(console: Console, open_page: Opens, contents: list[Path]) -> None:
    page = open_page("/admin/adapters")
    page.expected = [400]  # type: ignore[attr-defined]
    page.get_by_role("link", name="Upload an adapter").click()
    page.get_by_role("button", name="Check the files").click()
    page.get_by_text("The file adapter_config.json is missing.").wait_for()
    config = json.loads((contents[0] / "adapter_config.json").read_text())
    give(page, contents[0], json.dumps(config | {"use_dora": True}).encode())
    page.get_by_role("button", name="Check the files").click()
    refused = page.locator(".field", has=page.get_by_text("Configuration", exact=True)).locator(".field-error")
    assert refused.inner_text().startswith("use_dora: ")  # beside the file that has the key
    other = json.dumps(config | {"r": 1}).encode()
    give(page, contents[0], other)
    page.get_by_role("button", name="Check the files").click()
    refused = page.locator(".field", has=page.get_by_text("Weights", exact=True)).locator(".field-error")
    assert re.match(r"base_model\.\S+lora_\S+: ", refused.inner_text())  # and the tensor beside its own

    give(page, contents[0])
    page.get_by_role("button", name="Check the files").click()
    page.get_by_text("fits the base model").wait_for()
    page.get_by_text("it says 'some-other-base'").wait_for()
    assert console.api("GET", "/v1/admin/adapters", params={"search": "made-here"}).json()["data"] == []
    page.get_by_label("Name").fill("made-here")
    page.get_by_role("combobox", name="Owner").fill("acme")
    page.get_by_role("option", name="acme").click()
    page.get_by_role("button", name="Upload", exact=True).click()
    toast = page.get_by_role("status").get_by_text("Version 1 of made-here is served.")
    toast.wait_for()
    box, bar = toast.bounding_box(), page.locator(".top").bounding_box()
    assert box is not None
    assert bar is not None
    assert box["y"] + box["height"] <= bar["y"] + bar["height"], "it is over the top bar, and covers no table"
    [adapter] = console.api("GET", "/v1/admin/adapters", params={"search": "made-here"}).json()["data"]
    assert page.url.split("?")[0].endswith(f"/admin/adapters/{adapter['id']}")
    assert adapter["tenant_id"] == console.stack.tenants["acme"]

    expect(page.get_by_role("button", name="Roll back")).to_be_disabled()
    page.get_by_role("link", name="Upload a version").click()
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Choose both files").click()
    chooser.value.set_files([contents[1] / "adapter_config.json", contents[1] / "adapter_model.safetensors"])
    page.get_by_role("button", name="Check the files").click()
    page.get_by_text("fits the base model").wait_for()
    page.get_by_role("button", name="Upload", exact=True).click()
    _split(console, page)
    page.get_by_role("button", name="Promote version 2").click()
    remains = page.get_by_role("dialog").get_by_text("The alias made-here-split does not change")
    remains.get_by_text("served by made-here@1 (95 %) and made-here@2 (5 %)").wait_for()
    page.get_by_role("dialog").get_by_role("button", name="Promote").click()
    page.locator(".page-head").get_by_text("version 2 is served").wait_for()
    second, first = versions(console, adapter["id"])
    served = console.api("GET", f"/v1/admin/adapters/{adapter['id']}").json()
    assert (served["version"], served["digest"]) == (2, second["digest"])
    assert (first["rank_max"], len(first["warnings"]), len(second["warnings"])) == (2, 1, 0)
    page.get_by_role("button", name="Roll back").click()
    page.get_by_role("dialog").get_by_text("New requests get version 1 instead of version 2.").wait_for()
    page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
    page.locator(".page-head").get_by_text("version 1 is served").wait_for()
    page.get_by_role("table", name="Versions compared").get_by_role("row", name="made-here@1").wait_for()
    page.get_by_text("No settled request in this time: made-here@2.").wait_for()
    page.get_by_role("button", name="Remove made-here-split").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    page.get_by_role("table", name="Splits").wait_for(state="detached")
    assert console.api("GET", f"/v1/admin/adapters/{adapter['id']}").json()["digest"] == first["digest"]
    page.get_by_role("button", name="Remove version 2").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    page.get_by_role("button", name="Remove version 2").wait_for(state="detached")
    assert serious_faults(page) == []


def _split(console: Console, page: Page) -> None:
    """Version 2 gets 5 % of the requests of an alias, which is listed; a request settles while the page is open."""
    page.get_by_text("No settled request in 7 days").wait_for()
    page.get_by_role("button", name="Split requests with version 2").click()
    page.get_by_role("dialog").get_by_role("button", name="Split").click()
    split = page.get_by_role("table", name="Splits").get_by_role("row", name="made-here-split")
    split.get_by_role("img", name="made-here@1 95 %, made-here@2 5 %").wait_for()
    nothing: dict[str, Any] = {"object": "list", "data": [], "next_page": None, "has_more": False}
    first_page = re.compile(r"/v1/admin/aliases\?limit=50$")
    page.route(first_page, lambda route: route.fulfill(json=nothing))  # as if the alias were on a later page
    page.get_by_role("button", name="Split requests with version 2").click()
    page.get_by_role("dialog").get_by_label("Alias").fill("made-here-split")
    page.get_by_role("dialog").get_by_role("button", name="Split").click()
    page.get_by_text("The alias 'made-here-split' already exists").wait_for()
    page.keyboard.press("Escape")
    eventually(lambda: console.stack.chat("acme", model="made-here@1").status_code == 200)


def test_a_version_answers_in_the_playground_before_it_is_promoted(
    console: Console, open_page: Opens, contents: list[Path]
) -> None:
    [found] = console.api("GET", "/v1/admin/adapters", params={"search": "hooli-mail"}).json()["data"]
    adapter = found["id"]
    page = open_page(f"/admin/adapters/upload?of={adapter}")
    give(page, contents[1])
    page.get_by_role("button", name="Check the files").click()
    page.get_by_text("fits the base model").wait_for()
    page.get_by_role("button", name="Upload", exact=True).click()
    page.get_by_role("link", name="Try version 2").click()
    page.get_by_role("heading", name="Playground").wait_for()
    assert page.get_by_role("combobox", name="Call as").input_value() == "hooli"
    page.get_by_role("button", name="Create a key").click()
    page.get_by_role("button", name="Create key").click()
    expect(page.get_by_label("Model", exact=True)).to_have_value("hooli-mail@2")
    expect(page.get_by_label("Compare with")).to_have_value("hooli-mail")
    page.get_by_label("Prompt").fill("Dear customer")
    page.get_by_label("max_tokens", exact=True).fill("5")
    page.get_by_role("button", name="Send to both").click()
    for name in ("hooli-mail@2", "hooli-mail"):
        page.get_by_label(f"Response of {name}", exact=True).get_by_text(re.compile("^done: ")).wait_for()
    assert serious_faults(page) == []
    served = console.api("GET", f"/v1/admin/adapters/{adapter}").json()
    assert served["version"] == 1, "the version is not promoted"
    [second, first] = console.api("GET", f"/v1/admin/adapters/{adapter}/use").json()["data"][:2]
    assert {second["requests"], first["requests"]} >= {1}


def test_it_is_shared_and_removed(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/adapters?tenant=globex")
    page.get_by_role("link", name="globex-style").click()
    page.get_by_role("button", name="Edit").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Allowed tenants").select_option("some")
    form.get_by_role("combobox", name="Tenants", exact=True).fill("acme")
    form.get_by_role("option", name="acme").first.click()
    form.get_by_role("button", name="Save").click()
    page.locator(".facts").get_by_role("link", name="acme").wait_for()
    adapter = console.stack.adapters["globex-style"]
    found = console.api("GET", f"/v1/admin/adapters/{adapter}").json()
    assert found["shared"] == [console.stack.tenants["acme"]]
    page.get_by_role("button", name="Remove", exact=True).click()
    form = page.get_by_role("dialog")
    form.get_by_label("Type globex-style to confirm").fill("globex-style")
    form.get_by_role("button", name="Remove").click()
    page.get_by_role("heading", name="Adapters", exact=True).wait_for()
    names = [one["name"] for one in console.api("GET", "/v1/admin/adapters", params={"limit": "500"}).json()["data"]]
    assert "globex-style" not in names


def test_the_list_says_where_each_is_and_what_it_made(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/adapters", role="read_only", width=390, dark=True)
    page.get_by_role("img", name="Tokens per day").first.wait_for()
    row = page.get_by_role("row", name="hooli-mail")
    row.locator(".badge", has_text=re.compile("^(device|host|disk)$")).wait_for()
    assert page.get_by_role("link", name="Upload an adapter").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert serious_faults(page) == []


def test_a_name_that_is_there_is_not_replaced_unawares(
    console: Console, open_page: Opens, contents: list[Path]
) -> None:
    adapter = console.stack.adapters["shared-style"]
    before = console.api("GET", f"/v1/admin/adapters/{adapter}").json()
    console.api("PATCH", f"/v1/admin/adapters/{adapter}", json={"pinned": True}).raise_for_status()
    page = open_page("/admin/adapters/upload")

    def checked(directory: Path) -> None:
        give(page, directory)
        page.get_by_role("button", name="Check the files").click()
        page.get_by_text("fits the base model").wait_for()

    checked(contents[0])
    promote = page.get_by_label("Serve it immediately")
    assert promote.is_checked(), "a new name's first version is served"
    page.get_by_label("Name").fill("shared-style")
    warning = page.get_by_role("alert")
    warning.get_by_text("This upload becomes version 2; version 1 is served to every tenant now.").wait_for()
    expect(promote).not_to_be_checked()
    assert serious_faults(page) == []
    page.get_by_label("Name").fill("shared-styles")
    warning.wait_for(state="detached")
    expect(promote).to_be_checked()
    # The owner's names are apart: another's of the same name is not it.
    page.get_by_label("Name").fill("hooli-mail")
    page.wait_for_timeout(600)
    assert warning.count() == 0
    page.get_by_role("combobox", name="Owner").fill("hooli")
    page.get_by_role("option", name="hooli").click()
    warning.get_by_text("is served to hooli now").wait_for()
    page.goto("/admin/adapters/upload")
    checked(contents[0])
    page.get_by_label("Name").fill("shared-style")
    warning.get_by_text("every tenant").wait_for()

    page.get_by_role("button", name="Upload", exact=True).click()
    page.get_by_text("Version 2 of shared-style is uploaded and can be promoted.").wait_for()
    after = console.api("GET", f"/v1/admin/adapters/{adapter}").json()
    assert after == before | {"pinned": True}, "what is served, to whom, and its pin"

    page.goto("/admin/adapters/upload")
    checked(contents[1])
    page.get_by_label("Name").fill("shared-style")
    warning.get_by_text("This upload becomes version 3").wait_for()
    promote.check()
    page.get_by_role("button", name="Upload", exact=True).click()
    dialog = page.get_by_role("dialog", name="Serve version 3 of shared-style immediately?")
    dialog.get_by_text("Requests of every tenant that name shared-style get version 3 instead of version 1").wait_for()
    dialog.get_by_role("button", name="Cancel").click()
    dialog.wait_for(state="detached")
    assert [one["number"] for one in versions(console, adapter)] == [2, 1], "nothing was uploaded"
    page.get_by_role("button", name="Upload", exact=True).click()
    dialog.get_by_role("button", name="Upload and serve version 3").click()
    page.get_by_text("Version 3 of shared-style is served.").wait_for()
    assert console.api("GET", f"/v1/admin/adapters/{adapter}").json()["version"] == 3


def test_who_is_faster_than_the_look_up_is_told_all_the_same(
    console: Console, open_page: Opens, contents: list[Path]
) -> None:
    page = open_page("/admin/adapters/upload")
    give(page, contents[0])
    page.get_by_role("button", name="Check the files").click()
    page.get_by_text("fits the base model").wait_for()
    there = console.stack.adapters["acme-style"]
    owner = page.get_by_role("combobox", name="Owner")
    page.set_viewport_size({"width": 1280, "height": 500})
    owner.evaluate("(field) => scrollBy(0, field.getBoundingClientRect().bottom - innerHeight + 10)")
    owner.click()
    page.get_by_role("option", name="acme").wait_for()
    choices = page.get_by_role("listbox", name="Owner").bounding_box()
    assert choices is not None
    assert choices["y"] + choices["height"] <= 500, "near the window's edge the list opens upwards"
    owner.fill("acme")
    page.get_by_role("option", name="acme").click()
    page.get_by_label("Name").fill("acme-style")
    page.get_by_label("Name").press("Enter")
    page.get_by_text("acme-style already exists: this upload would be version 2 of it.").wait_for()
    expect(page.get_by_label("Serve it immediately")).not_to_be_checked()
    assert len(versions(console, there)) == 1
