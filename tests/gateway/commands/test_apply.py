"""`laneway apply`: a state file makes tenants and what they have, once; a plan changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from billing.database import Database
from gateway.access import keys
from gateway.tables import audit_log
from migrations.upgrade import upgrade
from support.gateway.command_line import Laneway

MODEL = "smollm2-135m-instruct"
STATE = f"""
tenants:
  - slug: acme
    name: Acme
    tier: premium
    time_zone: Europe/Berlin
    allowed_ips: [192.0.2.7]
    limits: {{requests_per_minute: 60, files: 50, total_file_bytes: 1000000, batches: 2, enqueued_tokens: 5000}}
    budgets: [{{period: month, money: "50.25", thresholds: [80, 100]}}, {{period: day, tokens: 1000}}]
    projects: [{{name: search, budgets: [{{period: total, tokens: 5}}]}}]
    keys:
      - {{name: ci, project: search, tier: standard, models: [{MODEL}], tags: {{team: a}}, limits: {{concurrency: 2}}}}
  - {{slug: globex, tier: batch}}
aliases:
  - {{name: fast, models: [{{model: {MODEL}}}], tenants: [acme]}}
prices:
  - {{model: {MODEL}, input: "0.30", output: 1.2, multipliers: {{premium: 3}}}}
"""


@pytest.fixture
def laneway(tmp_path: Path, database_url: str) -> Laneway:
    upgrade(database_url)
    return Laneway(tmp_path, f'[gateway]\ndatabase_url = "{database_url}"\n')


@pytest.fixture
def audit_lines(database_url: str) -> Callable[[], int]:
    def count() -> int:
        database = Database(database_url)
        try:
            query = sa.select(sa.func.count()).select_from(audit_log)
            return int(database.read_sync(lambda c: c.execute(query).scalar_one()))
        finally:
            database.close()

    return count


def written(laneway: Laneway, text: str) -> str:
    file = laneway.file.with_name("state.yaml")
    file.write_text(text)
    return str(file)


def test_apply(laneway: Laneway, audit_lines: Callable[[], int]) -> None:
    file = written(laneway, STATE)
    planned = laneway("apply", "-f", file, "--plan")
    assert planned.exit_code == 2, planned.output
    assert "+ tenant acme" in planned.stdout
    assert "    limit: 50.25 USD" in planned.stdout
    assert "lw_live_" not in planned.stdout
    assert (audit_lines(), laneway.json("tenants", "list")) == (0, [])

    secrets = laneway.file.with_name("secrets.jsonl")
    made = laneway.text("apply", "-f", file, "--secrets", str(secrets))
    assert "lw_live_" not in made
    assert made.splitlines()[:-1] == planned.stdout.splitlines()[:-1]
    assert secrets.stat().st_mode & 0o777 == 0o600
    [secret] = [json.loads(line) for line in secrets.read_text().splitlines()]
    assert (secret["tenant"], secret["name"]) == ("acme", "ci")
    assert keys.is_well_formed(secret["key"])
    count = audit_lines()

    for arguments in (("--plan",), (), ("--prune",)):
        assert laneway.text("apply", "-f", file, *arguments).startswith("no change"), arguments
    assert audit_lines() == count

    changed = STATE.replace('money: "50.25"', "money: 60").replace("name: Acme", "name: Acme & Co")
    shown = laneway("apply", "-f", written(laneway, changed), "--plan", "--json")
    assert shown.exit_code == 2
    found = {(change["kind"], change["action"]): change["fields"] for change in json.loads(shown.stdout)["changes"]}
    assert found == {
        ("tenant", "change"): {"name": ["Acme", "Acme & Co"]},
        ("budget of", "change"): {"limit": ["50.25 USD", "60 USD"]},
    }
    assert "~ tenant acme\n    name: Acme → Acme & Co\n" in laneway.text("apply", "-f", file)


@pytest.mark.parametrize(
    ("left_out", "reason"),
    [
        ("cached_input: 0.05, ", "the price in force has its own cached_input: write cached_input"),
        ("embedding: 0.02, ", "the price in force has its own price of embeddings: write embedding"),
        (", multipliers: {batch: '0.5'}", "the prices in force differ between tiers: write multipliers"),
    ],
)
def test_a_price_in_force_is_not_replaced_by_a_default(laneway: Laneway, left_out: str, reason: str) -> None:
    price = (
        f"cached_input: 0.05, embedding: 0.02, model: {MODEL}, input: 0.1, output: 0.4, multipliers: {{batch: '0.5'}}"
    )
    laneway.text("apply", "-f", written(laneway, f"prices: [{{{price}}}]"))
    listed = laneway.json("prices", "list")
    without = written(laneway, f"prices: [{{{price.replace(left_out, '')}}}]")
    refused = laneway("apply", "-f", without)
    assert (refused.exit_code, reason in refused.stderr) == (1, True), refused.output
    assert laneway.json("prices", "list") == listed
    assert laneway.text("apply", "-f", written(laneway, f"prices: [{{{price}}}]")).startswith("no change")


def test_prune_ends_what_the_file_does_not_name(laneway: Laneway) -> None:
    laneway.text("apply", "-f", written(laneway, STATE))
    file = written(laneway, "tenants: [{slug: acme, budgets: [], projects: [], keys: []}]\naliases: []\n")
    assert laneway.text("apply", "-f", file).startswith("no change")
    shown = laneway.text("apply", "-f", file, "--prune")
    assert shown.splitlines()[-1] == "0 were added, 0 changed, 6 ended"
    for line in ("- key acme/ci", "- project acme/search", "- budget of acme (day, tokens)", "- alias fast"):
        assert line in shown
    assert laneway.json("budgets", "list", "--tenant", "acme")[0]["scope"] == "project", "its own budgets are not named"
    assert [tenant["archived_at"] is None for tenant in laneway.json("tenants", "list")] == [True]
    assert [tenant["archived_at"] is None for tenant in laneway.json("tenants", "list", "--archived")] == [False]
    assert "no change" in laneway.text("apply", "-f", file, "--prune")
    assert "    archived: true → false" in laneway.text("apply", "-f", written(laneway, STATE))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tenants: [{slug: a, tier: gold}]", "tenant a: tier: there is no tier 'gold'"),
        ("tenants: [{slug: a}]", "tenant a: tier: a new tenant needs a tier"),
        ("tenants: [{slug: a, tier: batch, colour: red}]", "Object contains unknown field `colour`"),
        ("tenants: [{slug: a, tier: batch}, {slug: a}]", "tenants: 'a' is there 2 times"),
        ("tenants: [{slug: a, tier: batch, budgets: [{period: day}]}]", "it has either tokens or money"),
        ("tenants: [{slug: a, tier: batch, budgets: [{period: day, money: x}]}]", "'x' is no decimal number"),
        ("prices: [{input: 1, output: 1}]", "a price is of a model or of an adapter"),
        ("tenants: {", "the file is no YAML"),
    ],
)
def test_a_file_that_cannot_be_applied_changes_nothing(laneway: Laneway, text: str, reason: str) -> None:
    laneway.text("tenants", "create", "before", "--tier", "batch")
    refused = laneway("apply", "-f", written(laneway, f"{text}\n"))
    assert refused.exit_code == 1
    assert reason in refused.stderr
    assert [tenant["slug"] for tenant in laneway.json("tenants", "list")] == ["before"]
