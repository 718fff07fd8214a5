"""Every page of the console over millions of usage rows, in Chromium, and what opening pages costs the data path.

    python -m benchmarks.console_pages [--rows 10000000] [--keys 10000] [--repeats 3] [--seconds 20]

Makes a database of its own on PostgreSQL and drops it: a month of usage that ends now, folded into roll-ups and SLA
counts. Then a gateway with a fake engine serves the console. For each route of admin_ui/src/routes.ts the figure is the
time from a full load until the page has its heading and no part of it is loading. Afterwards the load tool runs alone
and beside an operator who opens a page a second (the requests of all pages, without Chromium, whose CPU time is not the
gateway's), in turn. Appends rows to benchmarks/results/console_pages.csv.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import sqlalchemy as sa

from benchmarks.billing_reports import ADMIN, CHUNK, TENANTS, fill, own_database, seed, without_indexes
from benchmarks.rows import REPO, append_rows

sys.path.insert(0, str(REPO / "tests"))

from billing.books.rollups import fold_usage
from billing.books.sla import fold_sla
from billing.clock import DAY, SECOND, database_now
from billing.database import Database
from gateway.access import keys as access_keys
from migrations.upgrade import upgrade
from support.paths import MODEL_DIR
from support.stack import MODEL, Stack
from support.web.chromium import open_browser
from support.web.routes import Route, routes

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MONTH = 30 * DAY
AIM_MS = 1000.0
PAGE_WAIT_MS = 60_000
PAIRS = 3  # pairs of turns: with and without an operator
LOAD_RATE = 20.0  # requests a second
LOADED = """() => document.querySelector("main h1") !== null
    && document.querySelector("main .skeleton, main [aria-busy=true]") === null"""
SUBJECTS = {"tenant": "t3", "model": MODEL, "key": "key_3_1", "request": "req_1003", "tier": "premium"}
INSERT_KEYS = """
INSERT INTO keys (id, tenant_id, name, kind, hash, prefix, last4, scopes, created_at)
SELECT 'key_' || t || '_' || k, 'ten_' || t, 'key ' || k, 'live', md5(t || '-' || k), 'lw_live_' || k % 10000, 'abcd',
    '["inference"]', {now} FROM generate_series(0, {tenants} - 1) AS t, generate_series(0, {keys} - 1) AS k
"""


def fill_database(url: str, rows: int, keys: int) -> dict[str, float]:
    """`keys`: of each tenant. Returns figures of the folding."""
    database = Database(url)
    database.write_sync(seed)
    now = database.read_sync(database_now)
    began = time.perf_counter()
    with without_indexes(url):
        for first in range(0, rows, CHUNK):
            last = min(first + CHUNK, rows) - 1
            values: dict[str, Any] = {"rows": rows, "start": now - MONTH, "span": MONTH - SECOND, "keys": keys}
            database.write_sync(lambda c, f=first, t=last, v=values: fill(c, f, t, **v))  # type: ignore[misc]
    insert = INSERT_KEYS.format(now=now - MONTH, tenants=TENANTS, keys=keys).replace("%", "%%")
    database.write_sync(lambda c: c.exec_driver_sql(insert).rowcount)
    print(f"{rows} rows are there after {time.perf_counter() - began:.0f} s", flush=True)
    found = {}
    for name, fold in (("fold_usage", fold_usage), ("fold_sla", fold_sla)):
        began = time.perf_counter()
        while database.write_sync(fold).more:
            pass
        found[f"{name}_rows_per_s"] = rows / (time.perf_counter() - began)
        print(f"{name}: {found[f'{name}_rows_per_s']:.0f} rows a second", flush=True)
    database.close()
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql("VACUUM ANALYZE")
    return found


class Pages:
    """The pages of the console, opened as the owner."""

    def __init__(self, stack: Stack, browser: Browser, secret: str) -> None:
        self.requests: dict[str, list[str]] = {}  # route → paths of the API that its page reads
        context = browser.new_context(base_url=stack.url, viewport={"width": 1280, "height": 900})
        answer = httpx.post(f"{stack.url}/v1/admin/session", json={"key": secret})
        answer.raise_for_status()
        [(name, value)] = answer.cookies.items()
        context.add_cookies([{"name": name, "value": value, "url": stack.url, "httpOnly": True}])
        self._page: Page = context.new_page()
        self._page.set_default_timeout(PAGE_WAIT_MS)
        self._reads: list[str] = []
        self._page.on("request", lambda request: self._note(request.method, request.url))

    def open_ms(self, route: Route) -> float:
        """Milliseconds from the start of a full load until LOADED holds."""
        self._reads = self.requests[route.path] = []
        began = time.perf_counter()
        self._page.goto(route.at(SUBJECTS.get(route.parameter or "")), wait_until="commit")
        self._page.wait_for_function(LOADED)
        took = 1000 * (time.perf_counter() - began)
        problems = [problem.inner_text() for problem in self._page.locator("main .problem").all()]
        assert not problems, f"{route.path}: {problems}"
        return took

    def _note(self, method: str, url: str) -> None:
        if method == "GET" and "/v1/" in url and "/live" not in url:
            self._reads.append(url[url.index("/v1/") :])


def open_pages(pages: Pages, repeats: int) -> dict[str, float]:
    """Medians by route."""
    found = {}
    for route in routes():
        if route.parameter is not None and route.parameter not in SUBJECTS:
            continue
        found[route.path] = statistics.median([pages.open_ms(route) for _ in range(repeats)])
        print(
            f"{route.path:32} {found[route.path]:7.0f} ms{'  over the aim' * (found[route.path] > AIM_MS)}", flush=True
        )
    return found


@contextmanager
def operator(url: str, secret: str, requests: Sequence[list[str]]) -> Iterator[None]:
    """Opens a page a second within the block: sends the requests of one page after another."""
    done = threading.Event()

    def open_in_turn() -> None:
        headers = {"Authorization": f"Bearer {secret}"}
        number = 0
        with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
            while not done.wait(1.0):
                for path in requests[number % len(requests)]:
                    client.get(path)
                number += 1

    thread = threading.Thread(target=open_in_turn)
    thread.start()
    yield
    done.set()
    thread.join()


def load_p99_ms(stack: Stack, seconds: float, seed: int) -> float:
    """The p99 of the time to the first token over HTTP, in milliseconds."""
    file = stack.directory / "load.json"
    argv = [sys.executable, "-m", "benchmarks.load", "--base-url", stack.url, "--quiet", "--json", str(file)]
    argv += ["--key", f"acme={stack.keys['acme']}", "--models", MODEL, "--rate", str(LOAD_RATE), "--seed", str(seed)]
    argv += ["--duration", str(seconds), "--prompt-tokens", "64", "--max-tokens", "16", "--warmup", "10"]
    subprocess.run(argv, cwd=REPO, check=True, stdout=subprocess.DEVNULL)
    report = json.loads(file.read_bytes())
    assert not report["errors"], report["errors"]
    return float(report["total"]["ttft_ms"]["p99"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=10_000, help="of all tenants")
    parser.add_argument("--repeats", type=int, default=3, help="loads of each page")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each turn of the load tool")
    parser.add_argument("--admin", default=ADMIN, help="a PostgreSQL whose user may create databases")
    parser.add_argument("--machine", default="x86_64 2 cores, PostgreSQL 15, its defaults")
    parser.add_argument("--note", default="")
    options = parser.parse_args()
    with own_database(options.admin) as url, tempfile.TemporaryDirectory() as scratch:
        upgrade(url)
        found = fill_database(url, options.rows, options.keys // TENANTS)
        limits = "[limits]\nrequests_per_minute = 1000000\n"
        stack = Stack(Path(scratch), url, MODEL_DIR.absolute(), toml=limits)
        stack.prepare()
        made = stack.write(
            lambda c: access_keys.create_key(c, tenant_id=None, name="owner", kind="admin", role="owner")
        )
        stack.start_engine()
        stack.start_gateway()
        try:
            stack.wait_ready()
            with open_browser() as browser:
                pages = Pages(stack, browser, made.secret)
                found |= {f"page {path} ms": took for path, took in open_pages(pages, options.repeats).items()}
            reads = [paths for paths in pages.requests.values() if paths]
            alone, beside = [], []
            for turn in range(PAIRS):
                alone.append(load_p99_ms(stack, options.seconds, turn))
                with operator(stack.url, made.secret, reads):
                    beside.append(load_p99_ms(stack, options.seconds, turn))
            found["ttft_p99_alone_ms"], found["ttft_p99_beside_pages_ms"] = map(statistics.median, (alone, beside))
            print(f"TTFT p99 alone {alone} ms, beside an operator {beside} ms", flush=True)
        finally:
            stack.stop()
    workload = f"{options.rows} usage rows of a month, {TENANTS} tenants, {options.keys} keys"
    append_rows("console_pages", found, options.machine, workload, options.note)


if __name__ == "__main__":
    main()
