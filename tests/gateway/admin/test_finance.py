"""A month of finance over HTTP and on the command line of a real gateway: it is used, corrected, closed, invoiced,
reported in OpenAI's shapes and reconciled, and every figure is the others'."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result
from openai import OpenAI

from billing import tables
from billing.books import invoices, periods, rollups
from billing.clock import SECOND
from billing.proofs import reconcile
from gateway.cli import main
from gateway.tables import audit_log
from support.gateway.admin_client import Operator
from support.stack import MODEL, Stack
from support.waiting import eventually

BEFORE = int(time.time()) - 3600  # the import of this file, which is hours before its tests in a long run
FINANCE = """[billing]
reconcile_s = 1.0
device_second_picos = 1000000000000
issuer_name = "Cloud GmbH"
issuer_address = ["Am Hang 1", "Berlin"]
[[connectors]]
name = "meter"
kind = "openmeter"
url = "http://127.0.0.1:9/"
key_file = "absent.key"
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    """Six requests of two tenants, one of them of an adapter."""
    directory = tmp_path_factory.mktemp("finance")
    stack = Stack(directory, f"sqlite:///{directory}/laneway.db", model_dir, toml=FINANCE)
    try:
        stack.start()
        for slug, model in (("acme", MODEL), ("acme", "acme-style"), ("acme", MODEL), ("globex", MODEL)):
            assert stack.chat(slug, model=model, max_tokens=6).status_code == 200
        for tier in ("default", "flex"):
            assert stack.chat("acme", max_tokens=4, service_tier=tier).status_code == 200
        yield stack
    finally:
        stack.stop()


@pytest.fixture(scope="module")
def admin(shop: Stack) -> Operator:
    return Operator(shop)


def organization(admin: Operator, path: str, status: int = 200, **query: Any) -> dict[str, Any]:
    answer = httpx.get(
        f"{admin.stack.url}/v1/organization/{path}",
        params={"start_time": BEFORE, **query},
        headers={"Authorization": f"Bearer {admin.key.secret}"},
        timeout=30,
    )
    assert answer.status_code == status, answer.text
    return dict(answer.json())


def laneway(stack: Stack, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["--config", str(stack.config_file), *arguments], catch_exceptions=False)


def shown(stack: Stack, *arguments: str) -> Any:
    result = laneway(stack, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def spent(stack: Stack, **names: str) -> int:
    usage = tables.usage
    query = sa.select(sa.func.coalesce(sa.func.sum(usage.c.cost_picos), 0))
    for name, value in names.items():
        query = query.where(usage.c[name] == value)
    return int(stack.read(lambda c: c.execute(query).scalar_one()))


def two_hours() -> dict[str, int]:
    """Of which the first has every request of the shop."""
    now = int(time.time())
    return {"start_time": now - 3600, "end_time": now + 3600}


def results(page: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for bucket in page["data"] for one in bucket["results"]]


def test_usage_in_openais_shape(shop: Stack, admin: Operator) -> None:
    page = organization(admin, "usage/completions", tenants="acme", group_by=["model", "service_tier"])
    assert (page["object"], page["has_more"], page["next_page"]) == ("page", False, None)
    assert all(bucket["object"] == "bucket" and bucket["end_time"] > bucket["start_time"] for bucket in page["data"])
    found = {one["service_tier"]: one for one in results(page)}
    assert {tier: one["num_model_requests"] for tier, one in found.items()} == {"priority": 3, "default": 1, "flex": 1}
    assert sum(one["cost_picos"] for one in found.values()) == spent(shop, tenant_id=shop.tenants["acme"])
    assert {one["model"] for one in found.values()} == {MODEL}
    totals = admin.ok("GET", "usage", tenant="acme")
    assert sum(one["input_tokens"] for one in found.values()) == totals["prompt_tokens"]
    assert sum(one["input_cached_tokens"] for one in found.values()) == totals["cached_tokens"]
    assert sum(one["output_tokens"] for one in found.values()) == totals["completion_tokens"]
    key = shop.key_ids["globex"]
    of_key: dict[str, Any] = {"api_key_ids[]": key, "group_by[]": "api_key_id"}
    [only] = results(organization(admin, "usage/completions", **of_key))
    assert (only["api_key_id"], only["num_model_requests"]) == (key, 1)
    adapters = results(organization(admin, "usage/completions", tenants="acme", group_by="adapter"))
    assert {one["adapter"]: one["num_model_requests"] for one in adapters} == {None: 4, shop.adapters["acme-style"]: 1}


def test_costs_by_line_item_as_openai_has_them(shop: Stack, admin: Operator) -> None:
    asked: dict[str, Any] = {"tenants": "acme", "group_by": ["line_item"]}
    found = {one["line_item"]: one for one in results(organization(admin, "costs", **asked))}
    called = (MODEL, "acme-style")  # names, no ids
    assert found.keys() >= {f"{name}, {meter}" for name in called for meter in ("input", "output")}
    assert {item.rpartition(", ")[2] for item in found} <= {"input", "cached input", "output"}
    assert sum(one["amount"]["picos"] for one in found.values()) == spent(shop, tenant_id=shop.tenants["acme"])
    totals = admin.ok("GET", "usage", tenant="acme")
    tokens = totals["prompt_tokens"] + totals["completion_tokens"]
    assert sum(one["quantity"] for one in found.values()) == tokens
    pages: list[dict[str, Any]] = []
    token = None
    while not pages or token:
        page = organization(admin, "costs", **(asked | ({"page": token} if token else {})))
        pages, token = [*pages, page], page["next_page"]
    assert [one["line_item"] for page in pages for one in results(page)] == sorted(found)
    [whole] = results(organization(admin, "costs", tenants="acme"))
    assert (whole["line_item"], whole["quantity"]) == (None, None)
    refused = organization(admin, "usage/completions", 400, group_by="line_item")
    assert refused["error"]["param"] == "group_by"


def test_all_of_a_time_in_one_bucket_and_what_has_no_such_name(shop: Stack, admin: Operator) -> None:
    span = two_hours()
    asked: dict[str, Any] = {"tenants": "acme", "group_by": "adapter", **span}
    page = organization(admin, "usage/completions", bucket_width="all", **asked)
    [bucket] = page["data"]
    assert (bucket["start_time"], bucket["end_time"], page["has_more"]) == (*span.values(), False)
    by_adapter = {one["adapter"]: one for one in bucket["results"]}
    assert {adapter: one["num_model_requests"] for adapter, one in by_adapter.items()} == {
        None: 4,
        shop.adapters["acme-style"]: 1,
    }
    for width, limit in (("all", 1), ("1m", 120), ("1d", 2)):
        for adapters, number in (("", 4), (["", shop.adapters["acme-style"]], 5)):
            narrowed = asked | {"bucket_width": width, "limit": limit, "adapters": adapters}
            found = results(organization(admin, "usage/completions", **narrowed))
            assert sum(one["num_model_requests"] for one in found) == number
    costs = results(organization(admin, "costs", bucket_width="all", **asked))
    assert {one["adapter"]: one["amount"]["picos"] for one in costs} == {
        adapter: one["cost_picos"] for adapter, one in by_adapter.items()
    }
    assert organization(admin, "costs", 400, bucket_width="all", limit=2)["error"]["param"] == "limit"


def test_pages_of_buckets_follow_each_other(shop: Stack, admin: Operator) -> None:
    pages, token, span = [], None, two_hours()
    while True:
        asked: dict[str, Any] = {"bucket_width": "1m", "limit": 13, "group_by": "tenant_id", **span}
        asked |= {"page": token} if token else {}
        page = organization(admin, "usage/completions", **asked)
        pages.append(page)
        token = page["next_page"]
        if token is None:
            break
        assert page["has_more"]
    buckets = [bucket for page in pages for bucket in page["data"]]
    assert len(pages) == 10
    assert [one["start_time"] for one in buckets[1:]] == [one["end_time"] for one in buckets[:-1]]
    assert (buckets[0]["start_time"], buckets[-1]["end_time"]) == tuple(span.values())
    assert sum(one["num_model_requests"] for page in pages for one in results(page)) == 6
    wrong = organization(admin, "usage/completions", 400, bucket_width="1h", page=pages[0]["next_page"] + "x")
    assert wrong["error"]["param"] == "page"


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"end_time": BEFORE}, "end_time"),
        ({"limit": 32}, "limit"),
        ({"bucket_width": "1w"}, "bucket_width"),
        ({"group_by": "user_id"}, "group_by"),
        ({"group_by[]": "user_id"}, "group_by"),
        ({"models[]": ["m"] * 101}, "models"),
        ({"page": "page_bm90IGpzb24"}, "page"),
        ({"page": "page_WzAsW11d"}, "page"),
        ({"tenants": "nobody"}, "tenant"),
        ({"start_time": "yesterday"}, "start_time"),
    ],
)
def test_what_is_refused_names_its_field(admin: Operator, query: dict[str, Any], param: str) -> None:
    status = 404 if "tenants" in query else 400
    assert organization(admin, "usage/completions", status, **query)["error"]["param"] == param


def test_openais_own_client_reads_it(shop: Stack, admin: Operator) -> None:
    client = OpenAI(base_url=f"{shop.url}/v1", api_key=admin.key.secret)
    raw = client.get(
        "/organization/costs",
        cast_to=httpx.Response,
        options={"params": {"start_time": BEFORE, "group_by": ["model"]}},
    )
    assert raw.json()["object"] == "page"


def test_a_price_is_previewed_and_published_for_later(shop: Stack, admin: Operator) -> None:
    label = time.strftime("%Y-%m", time.gmtime())
    price = {"subject": MODEL, "input": 0, "cached_input": 0, "output": 1_000_000, "multipliers": {"batch": "0.5"}}
    eventually(lambda: shop.read(rollups.read_cursor).requests == 6)
    preview = admin.ok("POST", "prices/preview", price | {"month": label})
    assert preview["was_picos"] == spent(shop)
    made = {slug: admin.ok("GET", "usage", tenant=slug)["completion_tokens"] for slug in ("acme", "globex")}
    batch = admin.ok("GET", "usage", tenant="acme", tier="batch")["completion_tokens"]
    would = {one["tenant_id"]: one["would_picos"] for one in preview["tenants"]}
    assert would == {
        shop.tenants["acme"]: (made["acme"] - batch) * 10**6 + batch * 500_000,
        shop.tenants["globex"]: made["globex"] * 10**6,
    }
    assert preview["would_picos"] == sum(would.values())
    adapter = {"subject": shop.adapters["acme-style"], "subject_kind": "adapter", "month": label}
    one = admin.ok("POST", "prices/preview", price | adapter)
    assert [line["requests"] for line in one["tenants"]] == [1]
    assert admin.ok("POST", "prices/preview", price)["tenants"] == [], "the month before had no usage"
    assert admin.refused(400, "POST", "prices/preview", price | {"month": "2026-1"})["param"] == "month"
    assert admin.refused(404, "POST", "prices/preview", price | {"subject": "none"})["param"] == "subject"
    command = ("prices", "preview", MODEL, "--input", "0", "--output", "1", "--multiplier", "batch=0.5")
    assert shown(shop, *command, "--month", label)["would_picos"] == preview["would_picos"]
    before = spent(shop)
    later = admin.ok("POST", "prices", price | {"effective_from": int(time.time()) + 3600})
    assert later["effective_from"] > time.time()
    assert shop.chat("globex", max_tokens=2).status_code == 200
    assert spent(shop) - before not in (0, 2 * 10**6), "it is not in force yet"


def test_a_month_is_corrected_closed_and_invoiced(make_stack: Callable[..., Stack], database_url: str) -> None:
    shop = make_stack(database_url=database_url, toml=FINANCE)
    admin = Operator(shop)
    for model in (MODEL, "acme-style"):
        assert shop.chat("acme", model=model, max_tokens=6).status_code == 200
    row = admin.ok("GET", "usage/requests", tenant="acme", limit=1)["data"][0]
    asked = {"request_id": row["request_id"], "meter": "output", "tokens": -2, "reason": "garbled"}
    correction = admin.ok("POST", "corrections", asked)
    assert correction["picos"] == -2 * 3 * 400_000
    assert admin.refused(400, "POST", "corrections", asked | {"tokens": -5})["param"] == "tokens"
    shown(shop, "billing", "credit", "acme", "0.5", "--reason", "goodwill", "--tier", "premium", "--yes")
    assert correction["month"] == time.strftime("%Y-%m", time.gmtime(correction["counted_at"]))
    unasked = laneway(shop, "billing", "credit", "acme", "0.25", "--reason", "goodwill")
    assert (unasked.exit_code, "Credit acme 0.25" in unasked.stderr) == (2, True), "nobody can answer here"
    credit = admin.ok("POST", "credits", {"tenant": "acme", "picos": 25 * 10**10, "reason": "outage"})
    assert (credit["picos"], credit["number"][:3]) == (-25 * 10**10, "CN-")
    assert admin.ok("GET", f"corrections/{credit['id']}") == credit
    assert credit["document"]["total_minor"] == 25
    assert admin.refused(400, "POST", "credits", {"tenant": "acme", "picos": -1, "reason": "r"})["param"] == "picos"
    later = {"tenant": "acme", "picos": 10**12, "reason": "support", "month": credit["month"]}
    charge = admin.ok("POST", "corrections", later)
    assert (charge["number"], charge["month"]) == (None, credit["month"])
    profile = {"legal_name": "Acme Ltd", "address": ["1 Road"], "taxes": [{"name": "VAT", "rate": "20"}]}
    assert admin.ok("PUT", "tenants/acme/billing_profile", profile)["legal_name"] == "Acme Ltd"
    assert shown(shop, "billing", "profile", "acme")["taxes"] == profile["taxes"]
    listed_profiles = admin.ok("GET", "billing_profiles")["data"]
    assert [(one["slug"], one["legal_name"], one["is_set"]) for one in listed_profiles] == [
        ("acme", "Acme Ltd", True),
        ("globex", None, False),
        ("initech", None, False),
    ]
    assert admin.ok("GET", "billing_profiles", search="glob")["data"] == [listed_profiles[1]]
    last = admin.ok("GET", "billing_profiles", sort="-slug", limit="1")
    assert last["data"] == [listed_profiles[2]]
    following = admin.ok("GET", "billing_profiles", sort="-slug", limit="1", page=last["next_page"])
    assert following["data"] == [listed_profiles[1]]
    issuer = admin.ok("GET", "issuer")
    assert (issuer["name"], issuer["address"]) == ("Cloud GmbH", ["Am Hang 1", "Berlin"])
    assert (issuer["tax_id"], issuer["invoice_series"], issuer["payment_days"]) == (None, "INV", 30)
    wrong_tax = {"taxes": [{"name": "VAT", "rate": "x"}]}
    assert admin.refused(400, "PUT", "tenants/acme/billing_profile", wrong_tax)["param"] == "taxes"
    for wrong, param in (({"tenant": "acme"}, "tenant"), ({"meter": None}, "meter"), ({"tokens": None}, "tokens")):
        assert admin.refused(400, "POST", "corrections", asked | wrong)["param"] == param
    lacking = (
        ({"tenant": "acme"}, "picos"),
        ({"picos": 1}, "tenant"),
        ({"tenant": "acme", "picos": 1, "tokens": 1}, "tokens"),
    )
    for free, param in lacking:
        assert admin.refused(400, "POST", "corrections", free | {"reason": "r"})["param"] == param

    [period] = admin.ok("GET", "periods", tenant="acme")["data"]
    early = admin.refused(409, "POST", "periods/close", {"tenant": "acme", "month": period["month"]})
    assert "has not ended" in early["message"]
    assert laneway(shop, "billing", "close", period["month"], "--yes").exit_code == 2
    [open_month] = admin.ok("GET", "periods/closable", month=period["month"])["data"]
    assert "has not ended" in open_month["reason"]
    refused = admin.ok("POST", "periods/close_all", {"month": period["month"]})
    assert (refused["closed"], refused["refused"][0]["tenant_id"]) == ([], shop.tenants["acme"])
    assert "1 tenants" in laneway(shop, "billing", "close", period["month"]).stderr, "it asks"
    # The calendar cannot be turned for a running gateway; what closes is the same function.
    closing = lambda _connection: period["end_at"] * SECOND  # noqa: E731
    tenant_id = shop.tenants["acme"]
    made = shop.write(lambda c: invoices.close(c, tenant_id, period["month"], actor="me", clock=closing))
    [listed] = admin.ok("GET", "invoices", tenant="acme")["data"]
    assert listed["usage_picos"] == spent(shop) == made.usage_picos
    assert listed["correction_picos"] == correction["picos"] - 75 * 10**10 + 10**12
    paper = listed["document"]
    assert (paper["customer"]["name"], paper["net_minor"] * 10**10 - listed["total_picos"] < 10**10) == (
        "Acme Ltd",
        True,
    )
    assert paper["total_minor"] == paper["net_minor"] + paper["taxes"][0]["minor"] > 0
    assert listed["payment"] == "unpaid"
    [hit] = admin.ok("GET", "search", q=paper["number"].lower())["data"]
    assert (hit["kind"], hit["id"], hit["note"]) == ("invoice", listed["id"], f"acme {paper['number']}")
    assert admin.ok("GET", "search", q="INV-1999-000001")["data"] == []
    paid = {"amount_minor": paper["total_minor"], "reference": "a transfer"}
    assert admin.refused(400, "POST", f"invoices/{paper['number']}/payments", paid | {"amount_minor": 10**6})["param"]
    admin.ok("POST", f"invoices/{paper['number']}/payments", paid | {"amount_minor": 1})
    shown(shop, "billing", "pay", paper["number"], str(paper["total_minor"] - 1), "--reference", "the rest")
    assert admin.ok("GET", "invoices", tenant="acme")["data"][0]["payment"] == "paid"
    [connector] = admin.ok("GET", "connectors")["data"]
    assert (connector["name"], connector["kind"], connector["url"]) == ("meter", "openmeter", "http://127.0.0.1:9")
    assert shown(shop, "connectors") == [connector | {"gateway_id": shown(shop, "connectors")[0]["gateway_id"]}]
    assert (connector["waiting"], connector["retrying"], connector["next_attempt_at"]) == (0, 0, None)
    one = admin.ok("GET", "connectors/meter")
    assert one == connector | {"gateway_id": one["gateway_id"]}
    unknown = admin.refused(404, "GET", "connectors/absent")
    assert (unknown["message"], unknown["param"]) == ("there is no connector 'absent'", "name")
    whole = admin.ok("GET", f"invoices/{listed['id']}")
    assert sum(line["picos"] for line in whole["lines"]) == listed["total_picos"]
    assert {line["adapter_name"] for line in whole["lines"]} == {None, "acme-style"}
    assert shown(shop, "billing", "invoice", listed["id"]) == whole
    assert "acme-style" in laneway(shop, "billing", "invoice", listed["id"]).stdout
    admin.refused(404, "GET", "invoices/inv_none")
    assert shown(shop, "billing", "invoices", "--month", period["month"])[0]["id"] == listed["id"]
    assert shop.chat("acme", max_tokens=3).status_code == 200, "late for the month that is closed"
    eventually(lambda: shop.read(rollups.read_cursor).requests == 3)
    months = shop.read(lambda c: periods.list_periods(c, tenant_id=tenant_id))
    late = sa.select(sa.func.sum(tables.usage_hours.c.requests)).where(tables.usage_hours.c.period_id == months[1].id)
    assert shop.read(lambda c: c.execute(late).scalar_one()) == 1

    costs = results(organization(admin, "costs", group_by="tenant_id", tenants="acme"))
    assert sum(one["amount"]["picos"] for one in costs) == spent(shop) + listed["correction_picos"]
    margins = {tier["tier"]: tier for tier in shown(shop, "billing", "margin", "--month", period["month"])["tiers"]}
    premium = margins["premium"]
    assert premium["usage_picos"] == listed["usage_picos"]
    assert premium["margin_picos"] == listed["usage_picos"] - 5 * 10**11 + correction["picos"] - premium["cost_picos"]
    assert premium["cost_picos"] == round(premium["device_s"] * 10**12) > 0

    assert shown(shop, "billing", "reconcile")["sound"] is True
    assert admin.ok("POST", "reconciliations", month=period["month"])["sound"] is True
    actions = shop.read(lambda c: list(c.execute(sa.select(audit_log.c.action)).scalars()))
    assert actions.count("correction.make") == 4


def test_the_gateway_reconciles_by_itself(shop: Stack, admin: Operator) -> None:
    first = shop.read(lambda c: reconcile.newest_result(c, "minute"))

    def newer() -> bool:
        newest = shop.read(lambda c: reconcile.newest_result(c, "minute"))
        return newest is not None and newest.number > (first.number if first else 0)

    eventually(newer, 20.0)
    eventually(lambda: any(one["engine_gap"] == 0 for one in admin.ok("GET", "reconciliations")["data"]), 20.0)
    assert admin.ok("GET", "reconciliations/standing")["imbalances"] == 0
    metrics = shop.metrics()
    assert "laneway_ledger_imbalances 0.0" in metrics
    assert "laneway_budget_overshoot 0.0" in metrics


def test_what_is_wrong_is_told(make_stack: Callable[..., Stack]) -> None:
    """Somebody changes the ledger past its triggers; the next minute says so, and goes on saying so."""
    shop = make_stack(toml=FINANCE)
    eventually(lambda: shop.read(lambda c: reconcile.newest_result(c, "minute")) is not None, 20.0)

    def unprotect(connection: sa.Connection) -> None:
        connection.exec_driver_sql("DROP TRIGGER entries_no_update")
        connection.exec_driver_sql(
            "CREATE TRIGGER wrong AFTER INSERT ON entries WHEN NEW.account = 'receivable' BEGIN "
            "UPDATE entries SET amount_picos = amount_picos + 1 WHERE sequence = NEW.sequence; END"
        )

    shop.write(unprotect)
    assert shop.chat("acme", max_tokens=3).status_code == 200
    told = "laneway_ledger_imbalances 2.0"
    eventually(lambda: told in shop.metrics(), 20.0)
    assert "books.imbalance" in shop.log_file.read_text()
    result = laneway(shop, "billing", "reconcile")
    assert result.exit_code == 1
    assert "receivable" in result.stdout
