"""Takes pictures of every page of the console for its documentation:

    python tests/programs/screenshots.py [--only usage live]

By hand, not in CI: a gateway with weeks of history and an hour of busy traffic, live load meanwhile on three models of
which two fit on the device, every route of src/routes.ts light, dark and at a phone's width, as small PNGs in
docs/img/console/.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # beside support/, and beside the packages where those are not installed
    sys.path[:0] = [str(directory) for directory in Path(__file__).resolve().parents[1:3]]

import httpx
from playwright.sync_api import Browser, Page, sync_playwright

from support.paths import MODEL_DIR, REPO
from support.stack import MODEL, TIERS
from support.web.console import Console
from support.web.routes import routes
from support.web.subjects import SUBJECTS
from support.web.traffic import TENANTS

FOLDER = REPO / "docs" / "img" / "console"
BYTES_MAX = 150_000
CALLERS = 40
MODELS = ("laneway-tiny", "laneway-tiny-next")  # beside the first
MIB = 1024 * 1024
ENGINE = {"weights_bytes": 640 * MIB, "weights_host_bytes": 1024 * MIB}
FAKE = {"step_ms": 60.0, "pages": 1200, "weights_bytes": 256 * MIB, "weights_host_ms": 900.0}
SETTLE_MS = 1_500  # time for charts to be drawn and for streams to receive their first events
CHROMIUM = "/usr/bin/chromium"
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 860}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 860}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}
# Views of a route that its query selects: name → path and query.
MORE = {
    "billing-invoices": "/billing?tab=invoices",
    "billing-corrections": "/billing?tab=corrections",
    "billing-exports": "/billing?tab=exports&open={export}",
    "billing-margins": "/billing?tab=margins",
    "usage-keys": "/usage?by=key&top=15&range=90d&table=time",
    "tenant-budgets": "/tenants/hooli?tab=budgets",
    "tenant-profile": "/tenants/hooli?tab=profile",
    "tenant-sla": "/tenants/hooli?tab=sla",
}


class Load:
    """CALLERS callers of all tenants, within the block. Their answers are discarded."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> Load:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.thread.join(timeout=60)

    async def _run(self) -> None:
        async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=CALLERS)) as client:
            await asyncio.gather(*(self._caller(client, random.Random(seed)) for seed in range(CALLERS)))

    async def _caller(self, client: httpx.AsyncClient, random: random.Random) -> None:
        stack = self.console.stack
        slugs = [slug for slug in (*TENANTS, *TIERS) if slug in stack.keys]
        while not self.stopping.is_set():
            slug = random.choice(slugs)
            own = TENANTS[slug][5] if slug in TENANTS else ()
            # Two of the three models fit on the device. Few requests name the third: the two are seldom evicted.
            model = MODELS[1] if random.random() < 0.01 else random.choice([MODEL, MODEL, MODELS[0], *own])
            words = " ".join(
                random.choice(("a", "lane", "of", "tokens", "is", "wide")) for _ in range(random.randint(8, 700))
            )
            body = {
                "model": model,
                "messages": [{"role": "user", "content": words}],
                "max_tokens": random.randint(16, 300),
            }
            headers = {"Authorization": f"Bearer {stack.keys[slug]}"}
            with contextlib.suppress(httpx.HTTPError):
                await client.post(f"{stack.url}/v1/chat/completions", json=body, headers=headers)
            await asyncio.sleep(random.uniform(0, 0.6))


def add_models(console: Console) -> None:
    """Add MODELS with their prices, and aliases of them."""
    console.more_models(*MODELS)
    for name in MODELS:
        price = {"subject": name, "subject_kind": "model", "ahead": True, "input": 20_000, "output": 80_000}
        console.api("POST", "/v1/admin/prices", json=price).raise_for_status()
        model = {"name": name, "fallbacks": [MODEL], "tenants": ["hooli", "acme"] if name.endswith("next") else None}
        console.api("POST", "/v1/admin/models", json=model).raise_for_status()
    for alias, shares, rest in (
        ("chat", {MODEL: 1, MODELS[0]: 1}, {"cheapest": True}),
        ("tiny", {MODELS[0]: 95, MODELS[1]: 5}, {"fallbacks": [MODEL], "tenants": ["hooli"]}),
    ):
        models = [{"model": name, "weight": weight} for name, weight in shares.items()]
        console.api("PUT", f"/v1/admin/aliases/{alias}", json={"models": models, **rest}).raise_for_status()


def prepared(console: Console) -> dict[str, str]:
    """Write a corrected, closed and exported month, and add models. Returns the values of the routes' parameters."""
    add_models(console)
    found = {name: subject(console) for name, subject in SUBJECTS.items()}
    invoice = console.api("GET", f"/v1/admin/invoices/{found['invoice']}").json()
    month = invoice["period"]["month"]
    credit = {"tenant": "hooli", "picos": -25_000_000_000, "reason": "Credit for Sunday's slow hour"}
    console.api("POST", "/v1/admin/corrections", json=credit)
    for slug in ("vandelay", "soylent", "tyrell"):
        console.api("POST", "/v1/admin/periods/close", json={"tenant": slug, "month": month})
    found["export"] = console.api("POST", "/v1/admin/exports", json={"month": month, "tenant": "hooli"}).json()["id"]
    console.api("POST", "/v1/admin/exports", json={"month": month, "kind": "events", "format": "jsonl"})
    console.api("POST", "/v1/admin/reconciliations")
    until = time.monotonic() + 60
    while console.api("GET", f"/v1/admin/exports/{found['export']}").json()["state"] != "done":
        assert time.monotonic() < until, "the export is not done"
        time.sleep(0.5)
    return found


def addresses(found: dict[str, str], only: list[str]) -> dict[str, str]:
    pages = {}
    for route in routes():
        name = "-".join(part.removeprefix("$") for part in route.path.split("/") if part) or "overview"
        pages[name] = route.at(None if route.parameter is None else found[route.parameter])
    pages |= {name: "/admin" + path.format(**found) for name, path in MORE.items()}
    return {name: path for name, path in pages.items() if not only or any(one in name for one in only)}


def take(browser: Browser, console: Console, pages: dict[str, str]) -> None:
    for look, settings in LOOKS.items():
        context = browser.new_context(
            base_url=console.stack.url, reduced_motion="reduce", locale="en-GB", timezone_id="UTC", **settings
        )
        context.add_cookies([console.cookie("owner")])
        page = context.new_page()
        for name, path in pages.items():
            page.goto(path)
            page.locator("main h1").wait_for()
            with contextlib.suppress(Exception):  # a page with a stream may always have a part that is loading
                page.wait_for_function("() => document.querySelector('main .skeleton') === null", timeout=8_000)
            page.wait_for_timeout(SETTLE_MS)
            size = small(page, FOLDER / f"{name}-{look}.png")
            print(f"{name}-{look}: {size // 1000} kB")
        context.close()


def small(page: Page, path: Path) -> int:
    """Write the picture with as many colours as fit into BYTES_MAX. Without Pillow all colours are written, as a JPEG
    if the PNG is larger than BYTES_MAX. Returns the number of bytes."""
    path.unlink(missing_ok=True)
    path.with_suffix(".jpg").unlink(missing_ok=True)
    png = page.screenshot()
    try:
        from PIL import Image
    except ImportError:
        if len(png) > BYTES_MAX:
            png, path = page.screenshot(type="jpeg", quality=60), path.with_suffix(".jpg")
        path.write_bytes(png)
        return len(png)
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    for colours in (256, 128, 64, 32, 16):
        out = io.BytesIO()
        picture.quantize(colours, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
        if out.tell() <= BYTES_MAX:
            break
    path.write_bytes(out.getvalue())
    return out.tell()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="pages whose name has one of these in it")
    only = parser.parse_args().only
    if not (MODEL_DIR / "tokenizer.json").exists():
        sys.exit(f"There is no model at {MODEL_DIR}: `make run` puts the demo's there.")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="laneway-console-") as directory:
        shown = Path(directory) / MODEL  # the console shows this path instead of the path of this checkout
        shown.symlink_to(MODEL_DIR.resolve())
        console = Console.started(Path(directory) / "run", shown, fake=FAKE, engine_json=ENGINE, last_hour=200)
        try:
            pages = addresses(prepared(console), only)
            with sync_playwright() as playwright, Load(console):
                browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
                time.sleep(5)  # the queues fill
                take(browser, console, pages)
                browser.close()
        finally:
            console.stack.stop()


if __name__ == "__main__":
    main()
