"""Quantised models on the console: formats and quality beside the gate's limits, a refusal, and a model that is added
with formats of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from engine.protocol.config import QualityLimits
from engine.protocol.frames import ModelInfo
from engine.protocol.quality import ModelQuality, find_quality_fault
from support.gateway.scripted_engine import ScriptedStack
from support.stack import MODEL
from support.web.console import BILLING, TINY, Console
from support.web.pages import serious_faults

if TYPE_CHECKING:
    from playwright.sync_api import Page

Opens = Callable[..., "Page"]
QUALITY = ModelQuality(20_480, 0.0123, 0.9714, 11.25, 11.0, 7, 0.0456, 3, 1_790_000_000.0)
WRONG = ModelQuality(20_480, 0.31, 0.71, 19.5, 11.0, 2, 0.4, 0, 1_790_000_000.0)
FAULT = find_quality_fault(WRONG, QualityLimits())


class QuantisedStack(ScriptedStack):
    """One model has a report, one none, and one was refused by the gate."""

    def start_engine(self) -> None:
        super().start_engine()
        shape = ("d" * 64, 2048, 49152, 16, 1000, 7)
        self.scripted.models = [
            ModelInfo(MODEL, *shape, weights_format="int4 g128 (awq)", kv_format="fp8", quality=QUALITY),
            ModelInfo("octet", *shape, weights_format="fp8", kv_format="float32"),
        ]
        assert FAULT is not None
        self.scripted.refused = {"wrong": f"int4: {FAULT}"}


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Console]:
    directory = tmp_path_factory.mktemp("quality")
    toml = BILLING + "".join(
        f'[[models]]\nname = "{name}"\npath = "{TINY}"\nquantize = "{format_}"\n'
        for name, format_ in (("octet", "fp8"), ("wrong", "int4"))
    )
    stack = QuantisedStack(directory, f"sqlite:///{directory}/laneway.db", model_dir.absolute(), toml=toml)
    made = Console.over(stack, days=1, last_hour=10)
    yield made
    made.stack.stop()


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_quality_of_each_quantised_model(open_page: Opens, width: int, dark: bool) -> None:
    page = open_page("/admin/models", width=width, dark=dark)
    page.get_by_text(f"The engine refuses wrong: int4: {FAULT}").wait_for()
    table = page.get_by_role("region", name="Quality of quantised models").get_by_role("table")
    row = table.get_by_role("row", name=MODEL)
    for label in (
        f"KL divergence of {MODEL}: 0.0123, limit ≤ 0.1",
        f"Top-1 agreement of {MODEL}: 97.1 %, limit ≥ 80.0 %",
        f"Error of layer 7 of {MODEL}: layer 7, 4.6 %, limit ≤ 20.0 %",
    ):
        row.get_by_role("img", name=label).wait_for()
    said = row.inner_text()
    assert all(text in said for text in ("int4 g128 (awq)", "3 matrices in 16 bits", "11.25", "11.00 unquantised"))
    assert "not measured" in table.get_by_role("row", name="octet").inner_text()
    assert "refused" in table.get_by_role("row", name="wrong").inner_text()
    assert table.locator("tbody > tr").count() == 3
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert serious_faults(page) == []


def test_a_models_own_page_has_its_formats(open_page: Opens) -> None:
    page = open_page(f"/admin/models/{MODEL}")
    page.get_by_role("img", name=f"KL divergence of {MODEL}: 0.0123").wait_for()
    facts = page.locator("dl.facts").inner_text()
    assert "Weights\nint4 g128 (awq)" in facts
    assert "KV\nfp8" in facts
    assert serious_faults(page) == []


def test_the_formats_of_a_model_that_is_added_are_sent(open_page: Opens) -> None:
    page = open_page("/admin/models")
    page.expected.append(400)  # type: ignore[attr-defined]
    page.get_by_role("button", name="Add a model").click()
    form = page.get_by_role("dialog", name="Add a model")
    form.get_by_label("Name", exact=True).fill("added")
    form.get_by_label("Quantise weights").select_option("int8")
    form.get_by_label("Type of KV").select_option("fp8")
    assert serious_faults(page) == []
    with page.expect_request(lambda request: request.method == "POST" and "/models" in request.url) as sent:
        form.get_by_role("button", name="Add model").click()
    body = json.loads(sent.value.post_data or "{}")
    assert (body["quantize"], body["kv_dtype"], body["dtype"]) == ("int8", "fp8", None)
    form.get_by_text("has no directory 'added'").wait_for()
