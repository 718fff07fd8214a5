"""The overview: exact sums from the roll-ups, the tightest budgets and when they run out, what needs attention."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from billing import sla_tables, tables
from billing.accounts import budgets, tenants
from billing.accounts.budgets import Budget, BudgetState
from billing.books import projections, rollups
from billing.books.projections import DAY, PACE_DAYS, UsageRate
from billing.books.rollups import HOUR
from billing.clock import SECOND, database_now
from billing.database import Database
from gateway import tables as tables_of_keys
from gateway.access import keys
from gateway.config.settings import TierSection
from gateway.error_tables import request_error_counts
from gateway.generation.first_tokens import FirstTokenSummary
from gateway.routes.admin.overview import health_attention
from gateway.upkeep.health_checks import HealthItem, HealthReport
from gateway.views import overview, tier_attention
from gateway.views.overview import SPEND_MAX, Overviews
from support.gateway.session_client import Browser
from support.stack import Stack
from support.waiting import eventually


def state(limit: int, used: int, *, held: int = 0, resets_at: int | None = None, unit: Any = "money") -> BudgetState:
    budget = Budget("bud_1", "ten_1", "tenant", "ten_1", unit, "month" if resets_at else "total", limit, True, 0)
    return BudgetState(budget, 0, resets_at, used, held, limit - used - held)


@pytest.mark.parametrize(
    ("given", "pace", "at_end", "run_out_in_s"),
    [
        (state(1000, 400, held=100), UsageRate(0, 5.0), None, 100),
        (state(1000, 400, held=100, resets_at=50 * SECOND), UsageRate(0, 5.0), 750, None),
        (state(1000, 400, held=100, resets_at=200 * SECOND), UsageRate(0, 5.0), 1500, 100),
        (state(1000, 1100), UsageRate(0, 5.0), None, 0),
        (state(1000, 0), None, None, None),
        (state(10**18, 0), UsageRate(0, 0.001), None, None),  # in longer than anybody plans
        (state(1000, 500, unit="tokens"), UsageRate(10.0, 5.0), None, 50),
    ],
)
def test_a_projection(given: BudgetState, pace: UsageRate | None, at_end: int | None, run_out_in_s: int | None) -> None:
    found = projections.project(given, pace, 0)
    assert found.at_end == at_end
    assert found.run_out_at == (None if run_out_in_s is None else run_out_in_s * SECOND)


def hour_row(
    tenant_id: str, hour: int, picos: int, *, key_id: str = "key_a", project_id: str = "prj_a"
) -> dict[str, Any]:
    counts = ("made_tokens", "discarded_tokens", "preemptions", "swapped_tokens", "sequence_min", "sequence_max")
    return dict.fromkeys(counts, 0) | {
        "tenant_id": tenant_id, "hour": hour, "key_id": key_id, "model": "m", "adapter": "", "tier": "batch",
        "price_version_id": "prv_1", "period_id": "per_1", "project_id": project_id, "currency": "USD", "requests": 2,
        "input_tokens": 3, "cached_input_tokens": 4, "output_tokens": 5, "cost_picos": picos, "device_s": 0.0,
    }  # fmt: skip


def test_a_pace_is_of_the_last_days(database: Database) -> None:
    def fill(connection: sa.Connection) -> tuple[int, list[Budget]]:
        now = database_now(connection)
        hour = now - now % HOUR
        tenant = tenants.create_tenant(connection, slug="acme", name="Acme", tier="batch").id
        rows = [
            hour_row(tenant, hour - 2 * HOUR, 700),
            hour_row(tenant, hour - HOUR, 300, key_id="key_b", project_id="prj_b"),
            hour_row(tenant, hour - (PACE_DAYS + 1) * DAY, 10**9),  # too long ago
        ]
        connection.execute(sa.insert(tables.usage_hours), rows)
        scopes = (("tenant", tenant), ("project", "prj_b"), ("key", "key_a"), ("key", "key_z"))
        return now, [Budget("b", tenant, scope, one, "money", "month", 1, True, 0) for scope, one in scopes]  # type: ignore[arg-type]

    now, wanted = database.write_sync(fill)
    found = database.read_sync(lambda c: projections.paces(c, wanted, now))
    since = now % HOUR + 2 * HOUR
    assert set(found) == {wanted[0].tenant_id, "prj_b", "key_a"}
    assert found[wanted[0].tenant_id] == UsageRate(24 / (since / SECOND), 1000 / (since / SECOND))
    assert found["key_a"].money == pytest.approx(700 * SECOND / since)
    assert found["prj_b"].money == pytest.approx(300 * SECOND / (since - HOUR))


def test_the_tightest_first_and_no_usage_row_read(database: Database) -> None:
    def fill(connection: sa.Connection) -> dict[str, str]:
        now = database_now(connection)
        made: dict[str, str] = {}
        for number in range(SPEND_MAX + 2):
            tenant = tenants.create_tenant(connection, slug=f"t{number}", name="t", tier="batch").id
            made[f"t{number}"] = tenant
            budget = budgets.create_budget(
                connection, tenant_id=tenant, scope="tenant", scope_id=tenant, unit="money", period="month",
                limit_amount=1000,
            )  # fmt: skip
            (present,) = budgets.list_budget_states(connection, tenant_id=tenant)
            window = {"budget_id": budget.id, "window_start": present.window_start, "held": 0, "posted": 100 * number}
            connection.execute(sa.insert(tables.budget_windows).values(window))
            connection.execute(sa.insert(tables.usage_hours).values(hour_row(tenant, now - now % HOUR, 50)))
        budgets.create_budget(
            connection, tenant_id=made["t0"], scope="tenant", scope_id=made["t0"], unit="money", period="day",
            limit_amount=1000,
        )  # fmt: skip
        return made

    made = database.write_sync(fill)
    statements: list[str] = []
    sa.event.listen(database._read_engine, "before_cursor_execute", lambda *found: statements.append(found[2]))
    found = database.read_sync(lambda c: overview.read_overview(c, None))
    assert [one.tenant for one in found.spend] == [f"t{number}" for number in range(SPEND_MAX + 1, 1, -1)]
    assert [one.posted_picos for one in found.spend] == [100 * number for number in range(SPEND_MAX + 1, 1, -1)]
    assert (found.today.requests, found.today.tokens) == (2 * len(made), 12 * len(made))
    assert found.today.cost_picos == {"USD": 50 * len(made)}
    assert [one.cost_picos for one in found.today.series] == [{"USD": 50 * len(made)}]
    assert statements
    assert not [one for one in statements if re.search(r"\b(usage|holds|entries)\b", one)], (
        "roll-ups and counters alone"
    )
    own = database.read_sync(lambda c: overview.read_overview(c, made["t3"]))
    assert [one.tenant for one in own.spend] == ["t3"]
    assert own.today.cost_picos == {"USD": 50}


def test_a_promise_that_was_missed_in_the_last_whole_hour(database: Database) -> None:
    def fill(connection: sa.Connection) -> str:
        hour = database_now(connection) // HOUR * HOUR
        tenant = tenants.create_tenant(connection, slug="acme", name="Acme", tier="batch").id
        counts = dict.fromkeys(sla_tables.SLA_COUNTS, 0) | {"requests": 4, "ttft_measured": 3, "itl_measured": 4}
        for tenant_id in (tenant, tables.NONE):
            for tier, quarter in (("premium", hour - HOUR), ("batch", hour - 5 * HOUR // 4), ("standard", hour)):
                key = {"tenant_id": tenant_id, "quarter": quarter, "tier": tier, "model": "m"}
                values = key | counts | {"itl_within": 3, "refused": 1}
                connection.execute(sa.insert(sla_tables.sla_quarters).values(values))
        return tenant

    tenant_id = database.write_sync(fill)
    of_all, own = (database.read_sync(lambda c, t=t: overview.read_overview(c, t)).attention for t in (None, tenant_id))
    between = "1 request of 4 had tokens later than the target"
    kept = "The tier premium did not keep its promise in the last whole hour: "
    assert [one.message for one in of_all if one.kind == "tiers"] == [f"{kept}{between}."]
    first = "4 requests of 4 had no first token within the target"
    assert [one.message for one in own if one.kind == "tiers"] == [f"{kept}{first}, and {between}."]
    assert {one.link for one in own if one.kind == "tiers"} == {"/admin/sla?tier=premium"}


def test_refused_and_failed_requests_of_the_last_whole_hour(database: Database) -> None:
    def fill(connection: sa.Connection) -> str:
        hour = database_now(connection) // HOUR * HOUR - HOUR
        tenant = tenants.create_tenant(connection, slug="acme", name="Acme", tier="batch").id
        connection.execute(sa.insert(tables.usage_hours).values(hour_row(tenant, hour, 5) | {"requests": 300}))
        for quarter, outcome, code, count in (
            (hour, "refused", "rate_limit_exceeded", 15),
            (hour + HOUR // 2, "refused", "rate_limit_exceeded", 10),
            (hour, "refused", "model_not_found", 5),
            (hour, "failed", "server_error", 19),
            (hour + HOUR, "failed", "server_error", 1),
        ):
            row = {"quarter": quarter, "tenant_id": tenant, "key_id": "k", "outcome": outcome, "code": code}
            connection.execute(
                sa.insert(request_error_counts).values(row | {"gateway_id": "g", "requests": count, "settled": 0})
            )
        return tenant

    tenant_id = database.write_sync(fill)
    for scope in (None, tenant_id):
        found = database.read_sync(lambda c, t=scope: overview.read_overview(c, t)).attention
        errors = [
            (one.kind, one.severity, one.message, one.link) for one in found if one.kind in ("refusals", "failures")
        ]
        message = "30 of 349 requests of the last whole hour were refused, most often with rate_limit_exceeded."
        assert errors == [("refusals", "warning", message, "/admin/requests?outcome=refused")]


def test_faults_of_the_health_report_need_attention() -> None:
    def item(name: str, status: Any) -> HealthItem:
        return HealthItem(name=name, status=status, since=0, detail=f"the {name} is {status}")

    parts = [item("disk", "down"), item("certificates", "degraded"), item("drain", "ok"), item("books", "down")]
    found = health_attention(HealthReport(status="down", at=0, data=parts))
    assert [(one.kind, one.severity, one.message, one.link) for one in found] == [
        ("disk", "critical", "Disk: the disk is down.", "/admin/health"),
        ("certificates", "warning", "Certificates: the certificates is degraded.", "/admin/health"),
    ]


def test_a_disk_that_fills_needs_attention(make_stack: Callable[..., Stack], tmp_path: Path) -> None:
    least = int(shutil.disk_usage(tmp_path).free / 1.5)  # a disk with less than twice this is degraded
    stack = make_stack(toml=f"[journal]\ndisk_free_min_bytes = {least}\n")
    owner = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="looks", kind="admin"))
    browser = Browser(stack.url)
    browser.headers["Authorization"] = f"Bearer {owner.secret}"
    found = browser.get("/v1/admin/overview").json()["attention"]
    assert [one["severity"] for one in found if one["kind"] == "disk"] == ["warning"], found


def test_a_budget_without_use_is_a_budget(database: Database) -> None:
    def fill(connection: sa.Connection) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for slug, limit in (("nothing", 0), ("idle", 1000), ("busy", 1000)):
            made[slug] = tenants.create_tenant(connection, slug=slug, name=slug, tier="batch").id
            budget = budgets.create_budget(
                connection, tenant_id=made[slug], scope="tenant", scope_id=made[slug], unit="money", period="month",
                limit_amount=limit,
            )  # fmt: skip
            budgets.create_budget(
                connection, tenant_id=made[slug], scope="tenant", scope_id=made[slug], unit="tokens", period="day",
                limit_amount=7,
            )  # fmt: skip
        (present,) = [
            one for one in budgets.list_budget_states(connection, tenant_id=made["busy"]) if one.budget.id == budget.id
        ]
        window = {"budget_id": budget.id, "window_start": present.window_start, "held": 0, "posted": 10}
        connection.execute(sa.insert(tables.budget_windows).values(window))
        removed = budgets.create_budget(
            connection, tenant_id=made["idle"], scope="tenant", scope_id=made["idle"], unit="money", period="day",
            limit_amount=5,
        )  # fmt: skip
        budgets.deactivate_budget(connection, removed.id)
        return made

    made = database.write_sync(fill)
    found = database.read_sync(lambda c: overview.read_overview(c, None))
    assert [(one.tenant, one.posted_picos, one.left_picos) for one in found.spend] == [
        ("nothing", 0, 0),
        ("busy", 10, 990),
        ("idle", 0, 1000),
    ]
    assert found.money_budgets == 3
    assert found.today.as_of is None, "nothing was ever summed"
    own = database.read_sync(lambda c: overview.read_overview(c, made["idle"]))
    assert ([one.tenant for one in own.spend], own.money_budgets) == (["idle"], 1)

    def many(connection: sa.Connection) -> None:
        for number in range(SPEND_MAX):
            tenant = tenants.create_tenant(connection, slug=f"t{number}", name="t", tier="batch").id
            budgets.create_budget(
                connection, tenant_id=tenant, scope="tenant", scope_id=tenant, unit="money", period="total",
                limit_amount=1,
            )  # fmt: skip
        rollups.fold_all(connection)

    database.write_sync(many)
    found = database.read_sync(lambda c: overview.read_overview(c, None))
    assert [one.tenant for one in found.spend[:2]] == ["nothing", "busy"]
    assert (len(found.spend), found.money_budgets) == (SPEND_MAX, 3 + SPEND_MAX)


def test_a_key_that_ends_soon_needs_attention_unless_it_was_made_to(database: Database) -> None:
    def fill(connection: sa.Connection) -> None:
        now = database_now(connection)
        for name, lives_days, ends_in_days in (
            ("long", 90, 3),
            ("later", 90, 8),
            ("ended", 90, -1),
            ("brief", 0.9, 0.5),
        ):
            ends = now + int(ends_in_days * DAY)
            made = keys.create_key(connection, tenant_id=None, name=name, kind="admin")
            values = {"expires_at": ends, "created_at": ends - int(lives_days * DAY)}
            connection.execute(
                sa.update(tables_of_keys.keys).where(tables_of_keys.keys.c.id == made.key.id).values(values)
            )

    database.write_sync(fill)
    found = [
        one for one in database.read_sync(lambda c: overview.read_overview(c, None)).attention if one.kind == "keys"
    ]
    assert [(one.message, one.link) for one in found] == [
        ("1 key will expire within 7 days and was not rotated.", "/admin/keys?status=expiring&sort=expires_at")
    ]


async def test_it_is_read_once_a_second(database: Database) -> None:
    now = [100.0]
    overviews = Overviews(database, lambda: now[0])
    first = await overviews.get(None)
    assert await overviews.get(None) is first
    assert await overviews.get("ten_1") is not first
    now[0] += 0.9
    assert await overviews.get(None) is first
    now[0] += 0.2
    assert await overviews.get(None) is not first


def test_it_says_what_needs_attention(stack: Stack) -> None:
    browser = Browser(stack.url)
    owner = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="looks", kind="admin"))
    browser.headers["Authorization"] = f"Bearer {owner.secret}"
    made = stack.new_key("globex")
    budget = stack.budget(made.key, "money", 10**9)
    stack.keys["spender"] = made.secret
    assert stack.chat("spender", max_tokens=5).status_code == 200
    stack.write(lambda c: budgets.change_budget(c, budget.id, limit_amount=1))
    stack.write(rollups.fold_all)

    def told() -> bool:
        body = browser.get("/v1/admin/overview").json()
        assert body["status"] == "ok"
        return any(one["kind"] == "budget" and made.key.id in one["message"] for one in body["attention"])

    eventually(told)
    body = browser.get("/v1/admin/overview").json()
    (spent,) = [one for one in body["spend"] if one["budget"] == budget.id]
    assert spent["left_picos"] < 0
    assert spent["run_out_at"] is not None
    assert body["today"]["requests"] >= 1
    listed = browser.get("/v1/admin/budgets", params={"search": budget.id}).json()["data"]
    assert (listed[0]["posted"], listed[0]["projected"]) == (spent["posted_picos"], None)
    assert listed[0]["run_out_at"] is not None
    stack.write(lambda c: budgets.deactivate_budget(c, budget.id))


def test_a_tier_that_misses_its_target_needs_attention(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack(fake={"step_ms": 20.0}, engine_json={"sequences_max": 1})
    browser = Browser(stack.url)
    owner = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="looks", kind="admin"))
    browser.headers["Authorization"] = f"Bearer {owner.secret}"
    own = Browser(stack.url)
    admin = stack.write(
        lambda c: keys.create_key(c, tenant_id=stack.tenants["acme"], name="own", kind="admin", role="tenant_admin")
    )
    own.headers["Authorization"] = f"Bearer {admin.secret}"
    target_s = stack.config.tiers[0].ttft_base_ms / 1000

    def told(kind: str) -> list[dict[str, Any]]:
        body = browser.get("/v1/admin/overview").json()
        assert body["status"] == "ok", "what is slow is served"
        return [one for one in body["attention"] if one["kind"] == kind]

    assert stack.chat("globex", max_tokens=1).status_code == 200
    assert told("queue") == told("tiers") == []
    steps = int((target_s + 4) / 0.02)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(stack.chat, "acme", max_tokens=steps)
        eventually(lambda: browser.get("/v1/admin/engine").json()["running"] == 1)
        waits = [pool.submit(stack.chat, "acme", max_tokens=1) for _ in range(2)]
        eventually(lambda: any("has 2 requests" in one["message"] for one in told("queue")), target_s + 3)
        [queue] = told("queue")
        assert re.match(
            r"The tier premium has 2 requests waiting in the engine's queue, the oldest for \d+(\.\d+)? m?s\.",
            queue["message"],
        )
        assert (queue["severity"], queue["link"]) == ("warning", "/admin/live")
        assert not [
            one for one in own.get("/v1/admin/overview").json()["attention"] if one["kind"] in ("queue", "tiers")
        ]
        assert all(one.result().status_code == 200 for one in (first, *waits))
    eventually(lambda: bool(told("tiers")), 30)
    [tier] = told("tiers")
    assert "33.3 % of 3 requests met it, and the p99 was" in tier["message"]
    assert tier["message"].startswith("The tier premium misses its target for the first token. In the last hour")
    assert (tier["severity"], tier["link"]) == ("warning", "/admin/tiers")
    assert told("queue") == []
    assert not [one for one in own.get("/v1/admin/overview").json()["attention"] if one["kind"] == "tiers"]


def test_what_a_tier_came_to_is_held_to_its_target() -> None:
    tiers = [
        TierSection(name="premium", service_tier="priority", ttft_base_ms=250.0, ttft_per_1k_prompt_tokens_ms=750.0)
    ]

    def summary(requests: int, within: int, refused: int = 0) -> FirstTokenSummary:
        quantile = 1500.0 if requests else None
        return FirstTokenSummary(
            requests=requests, within_target=within, refused=refused, p50_ms=quantile, p95_ms=quantile, p99_ms=quantile
        )

    def told(found: FirstTokenSummary) -> str | None:
        attention = tier_attention.missed_targets(tiers, {"premium": found})
        return attention[0].message if attention else None

    assert tier_attention.missed_targets(tiers, {}) == []
    assert told(summary(100, 99)) is None
    assert told(summary(0, 0)) is None
    ends = "The target is 99 % within 250 ms plus 750 ms per 1,000 prompt tokens."
    begins = "The tier premium misses its target for the first token. In the last hour"
    assert told(summary(100, 98)) == f"{begins}, 98.0 % of 100 requests met it, and the p99 was 1.5 s. {ends}"
    assert (
        told(summary(100, 100, 2))
        == f"{begins}, 100.0 % of 100 requests met it, and the p99 was 1.5 s; 2 requests got a 503. {ends}"
    )
    assert told(summary(0, 0, 3)) == f"{begins}, 3 requests got a 503. {ends}"
