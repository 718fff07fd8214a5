"""`laneway status`, `requests`, `usage` and `tiers`, and the tables that name what JSON has as ids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from billing.accounts import budgets
from gateway.cli import main
from gateway.limits import overrides
from gateway.limits.overrides import LimitsChange
from support.stack import MODEL, Stack
from support.waiting import eventually


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("now")
    stack = Stack(directory, f"sqlite:///{directory}/laneway.db", model_dir)
    try:
        stack.start()
        for tenant in ("acme", "globex"):
            assert stack.chat(tenant, max_tokens=5).status_code == 200
        eventually(lambda: stack.open_holds() == 0)
        yield stack
    finally:
        stack.stop()


def run(stack: Stack, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["--config", str(stack.config_file), *arguments], catch_exceptions=False)


def shown(stack: Stack, *arguments: str) -> str:
    result = run(stack, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def as_json(stack: Stack, *arguments: str) -> Any:
    return json.loads(shown(stack, *arguments, "--json"))


def test_what_the_deployment_does(used: Stack) -> None:
    table = shown(used, "requests")
    lines = table.splitlines()
    assert lines[0].split()[:3] == ["ENDED_AT", "TENANT", "KEY"]
    assert len(lines) == 3
    assert " acme " in table
    assert used.tenants["acme"] not in table
    assert used.key_ids["acme"] not in table
    [one] = as_json(used, "requests", "--tenant", "acme", "--model", MODEL)
    assert (one["tenant_id"], one["ending"]) == (used.tenants["acme"], "length")
    whole = shown(used, "requests", one["request_id"])
    assert "picos" not in whole
    assert ["request_id", one["request_id"]] in [line.split() for line in whole.splitlines()]
    assert as_json(used, "requests", one["request_id"])["hold"]["settled_picos"] == one["cost_picos"]
    assert run(used, "requests", "absent").exit_code == 2
    assert "no time such as 90m" in run(used, "requests", "--since", "soon").stderr
    assert as_json(used, "requests", "--tier", "absent") == []

    usage = shown(used, "usage", "--by", "tenant", "--by", "key")
    assert [line.split()[:3] for line in usage.splitlines()[1:]] == [["acme", "test", "1"], ["globex", "test", "1"]]
    by_source = shown(used, "usage", "--by", "source", "--by", "key")
    assert [line.split()[:3] for line in by_source.splitlines()[1:]] == [["request", "test", "1"]] * 2
    [of_source] = as_json(used, "usage", "--tenant", "acme", "--by", "source")
    assert of_source["groups"] == {"source": "request"}
    [mine] = as_json(used, "usage", "--tenant", "acme", "--since", "1h")
    assert (mine["groups"]["tenant_id"], mine["cost_picos"]) == (used.tenants["acme"], one["cost_picos"])

    tiers = shown(used, "tiers").splitlines()
    assert [line.split()[0] for line in tiers[1::3]] == ["premium", "standard", "batch"]
    assert as_json(used, "tiers")[0]["rank"] == 0

    status = as_json(used, "status")
    assert (status["gateways"], status["running_requests"], status["active_tenants"]) == (1, 0, 3)
    assert status["problems"] == []
    assert "gateways" in shown(used, "status")


def test_tables_have_names_and_decimals(used: Stack) -> None:
    tenant, key = used.tenants["acme"], used.key_ids["acme"]

    def seed(connection: Any) -> None:
        total: dict[str, Any] = {"tenant_id": tenant, "period": "total"}
        budgets.create_budget(connection, **total, scope="key", scope_id=key, unit="money", limit_amount=5 * 10**12)
        budgets.create_budget(connection, **total, scope="tenant", scope_id=tenant, unit="tokens", limit_amount=7)
        overrides.change_own_limits(
            connection, scope="key", subject_id=key, tenant_id=tenant, change=LimitsChange(concurrency=900)
        )

    used.write(seed)
    for command in (("budgets", "list"), ("limits", "list"), ("keys", "list")):
        table = shown(used, *command)
        assert tenant not in table, command
        assert " acme " in table, command
    table = shown(used, "budgets", "list")
    assert " 5 USD " in table
    assert " 7 tokens" in table
    assert as_json(used, "budgets", "list")[0]["limit_amount"] == 5 * 10**12
    reconciled = run(used, "billing", "reconcile").stdout
    assert "{" not in reconciled
    assert "transactions, owed" in reconciled
