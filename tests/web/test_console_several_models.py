"""Several base models and their aliases: one is added to a running gateway, called, pinned, shared out behind an alias,
removed under a stream, restored and refused, all from the console."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.stack import MODEL
from support.waiting import eventually
from support.web.console import TINY, Asked, Console
from support.web.pages import serious_faults

if TYPE_CHECKING:
    from playwright.sync_api import Page

Opens = Callable[..., "Page"]
SECOND = "lab/second"  # a name with a slash in it, as many have
MIB = 1024 * 1024
LASTING = 1500  # tokens, at 30 ms each: until it is closed


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Console]:
    made = Console.started(
        tmp_path_factory.mktemp("models"),
        model_dir,
        days=1,
        last_hour=60,
        fake={"step_ms": 30.0, "weights_bytes": MIB, "weights_host_ms": 20.0},
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
    form.get_by_text("Publish one before you add the model").wait_for()
    form.get_by_role("button", name="Publish its price").click()
    price = page.get_by_role("dialog", name=f"Publish a price of {SECOND}")
    price.get_by_label("Input", exact=True).fill("0.02")
    price.get_by_label("Output").fill("0.08")
    price.get_by_role("button", name="Publish").click()
    price.wait_for(state="hidden")
    form.get_by_text("Publish one before you add the model").wait_for(state="hidden")
    form.get_by_label("Directory").fill("away")
    form.get_by_role("button", name="Add model").click()
    form.get_by_text("has no directory 'away'").wait_for()
    assert form.get_by_label("Directory").get_attribute("aria-invalid") == "true"
    form.get_by_label("Directory").fill("second")
    form.get_by_label("Fallbacks").select_option(MODEL)
    assert serious_faults(page) == []
    form.get_by_role("button", name="Add model").click()
    form.wait_for(state="hidden")
    page.get_by_role("link", name=SECOND).first.wait_for()
    assert view(console)["fallbacks"] == [MODEL]
    eventually(lambda: console.stack.chat("acme", model=SECOND).json().get("model") == SECOND)
    page.get_by_role("img", name=f"{SECOND} 25 %").wait_for()  # its weights came
    page.get_by_role("cell", name=SECOND).get_by_role("link").click()
    page.get_by_role("button", name="Pin", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Pin", exact=True).click()
    page.get_by_role("button", name="Unpin").wait_for()
    assert view(console)["pinned"] is True
    page.get_by_role("button", name="Change").click()
    change = page.get_by_role("dialog", name=f"Change {SECOND}")
    change.get_by_label("Allowed tenants").select_option("some")
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
    form.get_by_label("Models").select_option(MODEL)
    form.get_by_label("Weight of model 1").fill("90")
    form.get_by_role("button", name="Add a model").click()
    form.get_by_label("Model 2", exact=True).select_option(SECOND)
    form.get_by_label("Weight of model 2").fill("30")
    form.get_by_role("img", name=f"Requests for canary: {MODEL} 75 %, {SECOND} 25 %").wait_for()
    form.get_by_label("Weight of model 2").fill("10")
    form.get_by_role("img", name=f"Requests for canary: {MODEL} 90 %, {SECOND} 10 %").wait_for()
    form.get_by_label("Cheapest model for tenants").check()
    assert serious_faults(page) == []
    form.get_by_role("button", name="Create alias").click()
    row = page.get_by_role("row", name="canary")
    row.get_by_role("img", name=f"{MODEL} 90 %, {SECOND} 10 %").wait_for()
    alias = console.api("GET", "/v1/admin/aliases/canary").json()
    assert [(one["model"], one["weight"]) for one in alias["models"]] == [(MODEL, 90), (SECOND, 10)]
    assert alias["cheapest"] is True
    page.goto("/admin/tenants/acme")  # which opts in: the second model is the cheaper one
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Use the cheapest model where an alias allows it").check()
    page.get_by_role("button", name="Save").click()
    page.get_by_text("the cheapest model that can serve").wait_for()
    eventually(lambda: console.stack.chat("acme", model="canary").json().get("model") == SECOND)
    page.goto("/admin/aliases")
    page.get_by_role("button", name="Remove canary").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    page.get_by_text("No alias yet").wait_for()
    assert console.api("GET", "/v1/admin/aliases/canary").status_code == 404


def test_a_model_is_removed_and_restored(console: Console, open_page: Opens) -> None:
    for name, models in (("alone", [SECOND]), ("shared", [SECOND, MODEL])):
        arms = [{"model": model, "weight": 1} for model in models]
        console.api("PUT", f"/v1/admin/aliases/{name}", json={"models": arms}).raise_for_status()
    page = open_page(f"/admin/models/{SECOND.replace('/', '%2F')}", width=390, dark=True)
    page.get_by_role("button", name="Drain and remove").click()
    ask = page.get_by_role("dialog", name=f"Drain and remove {SECOND}?")
    ask.get_by_text("Requests for the alias alone get 404").wait_for()
    ask.get_by_text(f"Requests for the alias shared are then served by {MODEL}").wait_for()
    ask.get_by_label("to confirm").fill(SECOND)
    ask.get_by_role("button", name="Remove").click()
    page.get_by_role("button", name="Restore").wait_for()
    eventually(lambda: console.stack.chat("acme", model=SECOND).status_code == 404)
    assert console.stack.chat("acme", model="alone").status_code == 404
    assert console.stack.chat("acme", model="shared").json()["model"] == MODEL
    for name in ("alone", "shared"):
        console.api("DELETE", f"/v1/admin/aliases/{name}").raise_for_status()
    page.goto("/admin/models")
    page.get_by_role("heading", name="Removed").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert serious_faults(page) == []
    page.get_by_role("link", name=SECOND).click()
    page.get_by_role("button", name="Restore").click()
    page.get_by_role("dialog").get_by_role("button", name="Restore").click()
    page.get_by_role("button", name="Remove").wait_for()
    eventually(lambda: console.stack.chat("acme", model=SECOND).status_code == 200)


def test_its_changes_are_on_its_page(console: Console, open_page: Opens) -> None:
    page = open_page(f"/admin/models/{SECOND.replace('/', '%2F')}")
    page.get_by_role("tab", name="Changes").click()
    model = str(view(console)["id"])
    lines = console.api("GET", "/v1/admin/audit_log", params={"object_id": model}).json()["data"]
    assert {line["action"] for line in lines} == {"model.add", "model.set", "model.remove", "model.restore"}
    rows = page.get_by_role("table", name="Audit log").locator("tbody tr")
    rows.nth(len(lines) - 1).wait_for()
    assert rows.locator("td:nth-child(3) b").all_inner_texts() == [line["action"] for line in lines]
    assert "tab=changes" in page.url
    assert serious_faults(page) == []
    page.goto(f"/admin/models/{MODEL}?tab=changes")
    page.get_by_text("The model is as laneway.toml defines it").wait_for()


def test_the_map_tells_models_apart_and_tiers(console: Console, open_page: Opens) -> None:
    streams = [Asked(console, "acme", words=50, max_tokens=LASTING, model=model) for model in (MODEL, SECOND)]
    try:
        page = open_page("/admin/live")
        owners = page.get_by_role("list", name="Pages by owner")
        for model in (MODEL, SECOND):
            owners.get_by_role("button", name=model).wait_for()
        assert owners.get_by_role("button", name="KV premium").count() == 0
        fills = owners.locator(".swatch").evaluate_all("(all) => all.map((one) => one.getAttribute('fill'))")
        assert len(set(fills)) == len(fills)
        # A mark in its cells, too, for who cannot tell the colours.
        assert owners.get_by_role("button", name=SECOND).locator("svg path").count() == 1
        owners.get_by_role("button", name=SECOND).click()
        page.get_by_role("button", name="by tier").click()
        owners.get_by_role("button", name="KV premium").wait_for()
        assert owners.get_by_role("button", name=SECOND).count() == 0
        assert "by=tier" in page.url
        assert serious_faults(page) == []
    finally:
        for stream in streams:
            stream.close()


def test_one_that_is_removed_under_a_stream_drains(console: Console, open_page: Opens) -> None:
    path = f"/admin/models/{SECOND.replace('/', '%2F')}"
    stream = Asked(console, "acme", words=5, max_tokens=LASTING, model=SECOND)
    try:
        page = open_page(path)
        page.locator(".tile", has_text="Running").get_by_text("1", exact=True).wait_for()
        page.get_by_role("button", name="Remove").click()
        ask = page.get_by_role("dialog", name=f"Remove {SECOND}?")
        ask.get_by_text("The request that runs or waits on it finishes normally.").wait_for()
        ask.get_by_label("to confirm").fill(SECOND)
        ask.get_by_role("button", name="Remove").click()
        page.get_by_text(f"{SECOND} is draining: its requests finish first.").wait_for()
        page.locator(".tile", has_text="State").get_by_text("draining", exact=True).wait_for()
        page.get_by_text("new requests are refused; 1 request finishes first").wait_for()
        assert serious_faults(page) == []
        narrow = open_page("/admin/models", width=390, dark=True)
        row = narrow.get_by_role("row", name=SECOND)
        row.get_by_text("draining", exact=True).wait_for()
        assert narrow.evaluate("document.documentElement.scrollWidth") <= 390
        assert serious_faults(narrow) == []
        assert view(console)["state"] == "draining"
    finally:
        stream.close()
    page.locator(".tile", has_text="State").get_by_text("removed", exact=True).wait_for()
    console.api("POST", f"{path.replace('/admin', '/v1/admin')}/restore").raise_for_status()
    page.get_by_role("button", name="Remove").wait_for()


def test_one_that_the_engine_refuses_says_why(console: Console, open_page: Opens) -> None:
    """Its files were spoilt after it was added: the next engine refuses it, the one after they were mended does not."""
    path, config = f"/admin/models/{SECOND.replace('/', '%2F')}", console.stack.config.models_dir / "second/config.json"
    page = open_page(path)
    state = page.locator(".tile", has_text="State")
    state.get_by_text("serving", exact=True).wait_for()
    config.write_text("{")
    console.stack.kill_engine()
    page.get_by_text("The engine is unavailable").wait_for()
    console.stack.start_engine()
    state.get_by_text("refused", exact=True).wait_for()
    reason = str(view(console)["reason"])
    assert "config.json" in reason
    page.get_by_text(reason).wait_for()
    assert serious_faults(page) == []
    narrow = open_page("/admin/models", width=390, dark=True)
    narrow.get_by_role("row", name=SECOND).get_by_text("refused", exact=True).wait_for()
    narrow.get_by_role("status").filter(has_text=reason).get_by_role("link", name=SECOND).wait_for()
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 390
    assert serious_faults(narrow) == []
    # Another one of such files is refused where it is added.
    narrow.expected.append(400)  # type: ignore[attr-defined]
    shutil.copytree(config.parent, config.parent.with_name("spoilt"))
    price = {"subject": "spoilt", "subject_kind": "model", "ahead": True, "input": 20_000, "output": 80_000}
    console.api("POST", "/v1/admin/prices", json=price).raise_for_status()
    narrow.get_by_role("button", name="Add a model").click()
    form = narrow.get_by_role("dialog", name="Add a model")
    form.get_by_label("Name", exact=True).fill("spoilt")
    form.get_by_role("button", name="Add model").click()
    form.get_by_text("the engine refuses 'spoilt'").wait_for()
    shutil.copy(TINY / "config.json", config)
    console.stack.kill_engine()
    console.stack.start_engine()
    state.get_by_text("serving", exact=True).wait_for()


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
