"""Several base models and their aliases: one is added to a running gateway, called, pinned, shared out behind an alias,
removed and restored, all from the console."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import serious_faults
from console import Console
from gateway_stack import MODEL, eventually

if TYPE_CHECKING:
    from playwright.sync_api import Page

Opens = Callable[..., "Page"]
SECOND = "lab/second"  # a name with a slash in it, as many have
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Console]:
    made = Console.started(
        tmp_path_factory.mktemp("models"),
        model_dir,
        fake={"weights_bytes": MIB, "weights_host_ms": 20.0},
        engine_json={"weights_bytes": 4 * MIB},
    )
    made.more_models("second")
    yield made
    made.stack.stop()


def view(console: Console, name: str = SECOND) -> dict[str, object]:
    answer = console.api("GET", f"/v1/admin/models/{name}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_model_is_added_called_and_pinned(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/models")
    page.expected.append(400)  # type: ignore[attr-defined]
    page.get_by_role("img", name=f"Weights on the device: {MODEL} 25 %").wait_for()
    page.get_by_role("button", name="Add a model").click()
    form = page.get_by_role("dialog", name="Add a model")
    form.get_by_label("Name", exact=True).fill(SECOND)
    form.get_by_text("needs one before it is added").wait_for()
    form.get_by_role("button", name="Publish its price").click()
    price = page.get_by_role("dialog", name=f"A price of {SECOND}")
    price.get_by_label("Input", exact=True).fill("0.02")
    price.get_by_label("Output").fill("0.08")
    price.get_by_role("button", name="Publish").click()
    price.wait_for(state="hidden")
    form.get_by_text("needs one before it is added").wait_for(state="hidden")
    form.get_by_label("Directory").fill("away")
    form.get_by_role("button", name="Add the model").click()
    form.get_by_text("has no directory 'away'").wait_for()
    assert form.get_by_label("Directory").get_attribute("aria-invalid") == "true"
    form.get_by_label("Directory").fill("second")
    form.get_by_label("Fallbacks").select_option(MODEL)
    assert serious_faults(page) == []
    form.get_by_role("button", name="Add the model").click()
    form.wait_for(state="hidden")
    page.get_by_role("link", name=SECOND).first.wait_for()
    assert view(console)["fallbacks"] == [MODEL]
    answer = console.stack.chat("acme", model=SECOND)
    assert (answer.status_code, answer.json()["model"]) == (200, SECOND)
    page.get_by_role("img", name=f"{SECOND} 25 %").wait_for()  # its weights came
    page.get_by_role("cell", name=SECOND).get_by_role("link").click()
    page.get_by_role("button", name="Pin", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Pin", exact=True).click()
    page.get_by_role("button", name="Unpin").wait_for()
    assert view(console)["pinned"] is True
    page.get_by_role("button", name="Change").click()
    change = page.get_by_role("dialog", name=f"Change {SECOND}")
    change.get_by_label("May call it").select_option("some")
    change.get_by_role("combobox", name="Tenant", exact=True).fill("acme")
    change.get_by_role("option", name="acme").click()
    change.get_by_role("button", name="Save").click()
    change.wait_for(state="hidden")
    assert view(console)["tenants"] == [console.stack.tenants["acme"]]
    eventually(lambda: console.stack.chat("globex", model=SECOND).status_code == 404)


def test_an_alias_shares_requests_out(console: Console, open_page: Opens) -> None:
    page = open_page("/admin/aliases")
    page.get_by_role("button", name="New alias").first.click()
    form = page.get_by_role("dialog", name="New alias")
    form.get_by_label("Name", exact=True).fill("canary")
    form.get_by_label("Models behind it").select_option(MODEL)
    form.get_by_label("Weight of model 1").fill("90")
    form.get_by_role("button", name="Another model").click()
    form.get_by_label("Model 2", exact=True).select_option(SECOND)
    form.get_by_label("Weight of model 2").fill("30")
    form.get_by_role("img", name=f"Requests for canary: {MODEL} 75 %, {SECOND} 25 %").wait_for()
    form.get_by_label("Weight of model 2").fill("10")
    form.get_by_role("img", name=f"Requests for canary: {MODEL} 90 %, {SECOND} 10 %").wait_for()
    form.get_by_label("The cheapest, for tenants").check()
    assert serious_faults(page) == []
    form.get_by_role("button", name="Create alias").click()
    row = page.get_by_role("row", name="canary")
    row.get_by_role("img", name=f"{MODEL} 90 %, {SECOND} 10 %").wait_for()
    alias = console.api("GET", "/v1/admin/aliases/canary").json()
    assert [(one["model"], one["weight"]) for one in alias["models"]] == [(MODEL, 90), (SECOND, 10)]
    assert alias["cheapest"] is True
    page.goto("/admin/tenants/acme")  # which opts in: the second model is the cheaper one
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("The cheapest model, where an alias allows it").check()
    page.get_by_role("button", name="Save").click()
    page.get_by_text("the cheapest model that can serve").wait_for()
    eventually(lambda: console.stack.chat("acme", model="canary").json()["model"] == SECOND)
    page.goto("/admin/aliases")
    page.get_by_role("button", name="Remove canary").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    page.get_by_text("No alias yet").wait_for()
    assert console.api("GET", "/v1/admin/aliases/canary").status_code == 404


def test_a_model_is_removed_and_restored(console: Console, open_page: Opens) -> None:
    page = open_page(f"/admin/models/{SECOND.replace('/', '%2F')}", width=390, dark=True)
    page.get_by_role("button", name="Remove").click()
    ask = page.get_by_role("dialog", name=f"Remove {SECOND}?")
    ask.get_by_label("to go on").fill(SECOND)
    ask.get_by_role("button", name="Remove").click()
    page.get_by_role("button", name="Restore").wait_for()
    assert console.stack.chat("acme", model=SECOND).status_code == 404
    page.goto("/admin/models")
    page.get_by_role("heading", name="Removed").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert serious_faults(page) == []
    page.get_by_role("link", name=SECOND).click()
    page.get_by_role("button", name="Restore").click()
    page.get_by_role("dialog").get_by_role("button", name="Restore").click()
    page.get_by_role("button", name="Remove").wait_for()
    assert console.stack.chat("acme", model=SECOND).status_code == 200


def test_who_only_reads_is_offered_nothing(open_page: Opens) -> None:
    page = open_page("/admin/models", role="read_only")
    for path in ("models", f"models/{MODEL}", "aliases"):
        page.goto(f"/admin/{path}")
        page.locator("main h1").wait_for()
        page.wait_for_function("() => document.querySelector('main .skeleton') === null")
        assert (
            page.get_by_role("button", name="Add a model").or_(page.get_by_role("button", name="New alias")).count()
            == 0
        )
        assert page.get_by_role("button", name="Remove").or_(page.get_by_role("button", name="Change")).count() == 0
