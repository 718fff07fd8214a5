"""SLA reports of a real gateway: over HTTP, on the command line and as files they say what the usage rows, the log and
the console's pages say, and a tenant's admin sees its own."""

from __future__ import annotations

import csv
import io
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from billing.books import sla
from gateway.access import keys
from gateway.cli import main
from support.gateway.admin_client import Operator
from support.gateway.batch_client import BatchClient, chat_lines, usage_of
from support.stack import MODEL, Stack, body
from support.waiting import eventually

# Premium's first token comes in time and its others do not; batch's first token does not.
LINES = 12  # of a batch of globex's
TIERS = "".join(
    f'[[tiers]]\nname = "{name}"\nservice_tier = "{service_tier}"\nttft_base_ms = {ttft}\n'
    f"ttft_per_1k_prompt_tokens_ms = 0.001\ninter_token_ms = {itl}\n"
    for name, service_tier, ttft, itl in (
        ("premium", "priority", 60_000, 6),
        ("standard", "default", 60_000, 60_000),
        ("batch", "flex", 6, 60_000),
    )
)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("sla")
    stack = Stack(directory, f"sqlite:///{directory}/laneway.db", model_dir, toml=TIERS, fake={"step_ms": 8.0})
    try:
        stack.start()
        for slug, tokens in (("acme", 12), ("acme", 1), ("globex", 6), ("initech", 6)):
            assert stack.chat(slug, max_tokens=tokens).status_code == 200
        with BatchClient(stack, stack.keys["globex"]) as client:
            assert client.finish(client.create(chat_lines(LINES)))["status"] == "completed"
        yield stack
    finally:
        stack.stop()


def figures(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {group["tier"]: group["total"] for group in answer["data"]}


def test_reports_agree_with_every_other_place(shop: Stack) -> None:
    operator = Operator(shop)

    def report(**query: Any) -> dict[str, Any]:
        found: dict[str, Any] = operator.ok("GET", "sla", **query)
        return found

    assert shop.engine is not None
    shop.engine.send_signal(signal.SIGSTOP)
    with pytest.raises(httpx.ReadTimeout):  # a caller that leaves before its first token, late
        leave(shop, "initech")
    shop.kill_engine()
    assert shop.chat("acme", max_tokens=3).status_code == 503
    for _ in range(2):  # of which the second finds nothing left
        shop.write(sla.fold_sla)
    eventually(lambda: figures(report())["premium"]["refused"] == 1, 30)
    eventually(lambda: figures(report())["batch"]["unanswered"] == 1, 30)
    found = figures(report())
    assert {tier: each["requests"] for tier, each in found.items()} == {"premium": 2, "standard": 1, "batch": 1}
    assert {tier: each["verdict"] for tier, each in found.items()} == {
        "premium": "missed",
        "standard": "kept",
        "batch": "missed",
    }
    premium = found["premium"]
    assert (premium["ttft_measured"], premium["ttft_within"], premium["unanswered"]) == (2, 2, 0)
    assert (premium["itl_measured"], premium["itl_within"]) == (1, 0), "a single token has no second one"
    assert figures(report(tenant="globex"))["premium"]["verdict"] == "no_traffic"

    # One definition of the first token: in usage, in requests, in the log, in metrics, and in the percentiles.
    usage = operator.ok("GET", "usage/requests", tenant="acme")["data"]
    [first, _] = usage
    whole, _, _ = shop.log_file.read_text().rpartition("\n")  # the last line may be half written
    log = [json.loads(line) for line in whole.splitlines() if '"request_id"' in line]
    logged = {line["request_id"]: line for line in log if "ttft_s" in line}
    for row in usage:
        line = logged[row["request_id"]]
        listed = operator.ok("GET", f"requests/{row['request_id']}")
        assert row["ttft_s"] == line["ttft_s"] == listed["ttft_s"] > 0
        assert row["ttft_target_s"] == line["ttft_target_s"] == pytest.approx(60, rel=1e-6)
        assert row["itl_s"] == line.get("itl_s")
    assert first["pause_s"] >= first["itl_s"] >= 0.006
    assert premium["itl_p99_ms"] == pytest.approx(first["itl_s"] * 1000, rel=0.0101)
    waits = sorted(row["ttft_s"] * 1000 for row in usage)
    assert premium["ttft_p50_ms"] == pytest.approx(waits[0], rel=0.0101)
    assert premium["ttft_p99_ms"] == pytest.approx(waits[1], rel=0.0101)
    summed = sum(row["ttft_s"] for row in usage)
    lines = [line.rpartition(" ") for line in shop.metrics().splitlines() if not line.startswith("#")]
    metrics = {name: float(value) for name, _, value in lines}
    assert metrics['laneway_time_to_first_token_seconds_sum{tier="premium"}'] == pytest.approx(summed)
    [per_token] = [name for name in metrics if "time_per_output_token_seconds_sum" in name and "premium" in name]
    assert metrics[per_token] == pytest.approx(first["itl_s"])

    # Files and the command line.
    query = {"tenant": "acme", "by": "model", "period": "this_month"}
    view = report(**query)
    headers = {"Authorization": f"Bearer {operator.key.secret}"}
    for form in ("csv", "json"):
        file = httpx.get(f"{shop.url}/v1/admin/sla/export", params=query | {"format": form}, headers=headers)
        name = f'attachment; filename="sla-acme-{view["start_date"]}-{view["end_date"]}.{form}"'
        assert file.headers["content-disposition"] == name
        if form == "json":
            assert file.json() | {"as_of": 0} == view | {"as_of": 0}
        else:
            assert file.headers["content-type"] == "text/csv; charset=utf-8"
            rows = list(csv.DictReader(io.StringIO(file.text)))
    [group] = view["data"]
    assert (group["tier"], group["model"]) == ("premium", MODEL)
    assert [row["date"] for row in rows] == [day["date"] for day in group["days"]]
    assert [(row["tenant"], row["requests"], row["verdict"]) for row in rows if row["requests"] != "0"] == [
        ("acme", "2", "missed")
    ]
    shown = command(shop, "--tenant", "acme", "--period", "this-month", "--by-model", "--json")
    assert json.loads(shown) | {"as_of": 0} == view | {"as_of": 0}
    table = command(shop, "--period", "7d", "--days").splitlines()
    assert [line.split()[:4] for line in table[2:4]] == [
        ["premium", "-", view["end_date"], "missed"],
        ["premium", "-", "all", "missed"],
    ]
    assert command(shop, "--tenant", "acme", "--csv", "--by-model", "--period", "this-month") == file_text(rows)
    for path in ("sla", "sla/export"):
        assert operator.refused(400, "GET", path, start_date="2026-02-30")["param"] == "start_date"
        assert operator.refused(404, "GET", path, tenant="umbrella")["param"] == "tenant"


def test_lines_of_batches_have_no_target_and_are_in_no_report(shop: Stack) -> None:
    operator = Operator(shop)
    with BatchClient(shop, shop.keys["globex"]) as client:
        [batch] = client.http.get("/batches").json()["data"]
    rows = usage_of(shop, batch["id"])
    assert len(rows) == LINES
    for row in rows:
        assert row.ttft_s > 0.006, "longer than the tier's target"
        assert (row.ttft_target_s, row.itl_target_s) == (None, None)
        assert row.itl_s is not None
    whole = operator.ok("GET", f"requests/{rows[0].request_id}")
    assert whole["batch_id"] == batch["id"]
    assert whole["slowness"]["phases"]
    assert whole["slowness"]["verdict"] is None
    shop.write(sla.fold_sla)
    found = figures(operator.ok("GET", "sla", tenant="globex"))
    assert (found["batch"]["requests"], found["batch"]["verdict"]) == (0, "no_traffic")
    assert figures(operator.ok("GET", "sla"))["batch"]["requests"] == 1, "initech's"

    def attained() -> int:
        [tier] = [tier for tier in operator.ok("GET", "tiers")["data"] if tier["name"] == "batch"]
        return int(next(each["requests"] for each in tier["attainment"] if each["window"] == "24h"))

    eventually(lambda: attained() > 0)
    assert attained() == 1
    counts = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in shop.metrics().splitlines()}
    assert counts['laneway_first_tokens_total{target="missed",tier="batch"}'] == "1.0"
    assert counts['laneway_first_tokens_total{target="met",tier="batch"}'] == "0.0"
    assert counts['laneway_time_to_first_token_seconds_count{tier="batch"}'] == "1.0"


def leave(shop: Stack, tenant: str) -> None:
    url = f"{shop.url}/v1/chat/completions"
    httpx.post(url, headers=shop.headers(tenant), json=body(max_tokens=3), timeout=httpx.Timeout(30, read=0.5))


def file_text(rows: list[dict[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def command(shop: Stack, *arguments: str) -> str:
    result = CliRunner().invoke(main, ["--config", str(shop.config_file), "sla", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout_bytes.decode()


def test_a_tenants_admin_sees_its_own_promises(shop: Stack) -> None:
    shop.write(sla.fold_sla)
    made = shop.write(
        lambda c: keys.create_key(c, tenant_id=shop.tenants["globex"], name="a", kind="admin", role="tenant_admin")
    )
    headers = {"Authorization": f"Bearer {made.secret}"}
    answer = httpx.get(f"{shop.url}/v1/admin/sla", headers=headers).json()
    assert answer["tenant"] == "globex"
    assert {tier: each["requests"] for tier, each in figures(answer).items()} == {
        "premium": 0,
        "standard": 1,
        "batch": 0,
    }
    for path in ("sla", "sla/export"):
        assert httpx.get(f"{shop.url}/v1/admin/{path}?tenant=acme", headers=headers).status_code == 404
