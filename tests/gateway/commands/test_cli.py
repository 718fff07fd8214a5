"""The command line on both databases: what it prints for people and for scripts, and how it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import sqlalchemy as sa

from billing.database import Database
from gateway.access import audit_log as audit
from gateway.access import keys, people
from gateway.access.people import Identity
from gateway.cli import main
from gateway.commands.bench import install_line
from gateway.limits.overrides import NAMES
from gateway.tables import audit_log
from migrations.upgrade import upgrade
from support.gateway.command_line import Laneway
from support.paths import REPO

MODEL = "smollm2-135m-instruct"


@pytest.fixture
def make(tmp_path: Path) -> Callable[[str], Laneway]:
    return lambda toml: Laneway(tmp_path, toml)


@pytest.fixture
def laneway(make: Callable[[str], Laneway], database_url: str) -> Laneway:
    upgrade(database_url)
    return make(f'[gateway]\ndatabase_url = "{database_url}"\n')


def rows(database_url: str, query: sa.Select[Any]) -> list[sa.Row[Any]]:
    database = Database(database_url)
    try:
        return database.read_sync(lambda connection: list(connection.execute(query)))
    finally:
        database.close()


def test_the_commands_load_no_tensor_library() -> None:
    code = (
        "import sys, gateway.cli; "
        "print([m for m in ('torch', 'triton', 'transformers', 'kernels', 'engine.loop.worker') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_upgrade_is_safe_to_run_again(make: Callable[[str], Laneway], empty_database_url: str) -> None:
    laneway = make(f'[gateway]\ndatabase_url = "{empty_database_url}"\n')
    for _ in range(2):
        assert "the schema is the newest" in laneway.text("db", "upgrade")
    assert laneway.json("tenants", "list") == []


def test_tenants(laneway: Laneway, database_url: str) -> None:
    made = laneway.json("tenants", "create", "acme", "--tier", "premium", "--name", "Acme Ltd")
    assert (made["slug"], made["name"], made["tier"], made["status"]) == ("acme", "Acme Ltd", "premium", "active")
    assert laneway.json("tenants", "suspend", "acme")["status"] == "suspended"
    assert laneway.json("tenants", "resume", made["id"])["status"] == "active"
    table = laneway.text("tenants", "list").splitlines()
    assert table[0].split()[:3] == ["SLUG", "TIER", "STATUS"]
    assert table[1].split()[:3] == ["acme", "premium", "active"]
    assert "status" in laneway.text("tenants", "suspend", "acme")
    changed = laneway.json("tenants", "set", "acme", "--share-weight", "2.5", "--tier", "batch")
    assert (changed["share_weight"], changed["tier"], changed["name"]) == (2.5, "batch", "Acme Ltd")
    assert laneway.refusal("tenants", "set", "acme", "--share-weight", "-1").startswith("share_weight: is -1; it must")
    assert laneway.refusal("tenants", "set", "acme").startswith("nothing was given to change")
    assert "A new time zone begins new windows" in " ".join(laneway.text("tenants", "set", "--help").split())
    lines = rows(database_url, sa.select(audit_log).order_by(audit_log.c.id))
    assert laneway.json("tenants", "set", "acme", "--ip", "192.0.2.0/24")["allowed_ips"] == ["192.0.2.0/24"]
    assert laneway.json("tenants", "set", "acme", "--ip", "off")["allowed_ips"] is None
    assert laneway.refusal("tenants", "set", "acme", "--ip", "192.0.2.1/24").startswith("allowed_ips: '192.0.2.1/24'")
    assert [(line.actor, line.action) for line in lines] == [
        (audit.host_actor(), "tenant.create"),
        *[(audit.host_actor(), "tenant.update")] * 4,
    ]
    assert (lines[4].before["share_weight"], lines[4].after["share_weight"]) == (1.0, 2.5)
    assert (lines[1].before["status"], lines[1].after["status"]) == ("active", "suspended")


def test_archived_tenants_and_projects_are_out_of_lists_until_they_are_restored(laneway: Laneway) -> None:
    tenant_id = laneway.json("tenants", "create", "acme", "--tier", "standard")["id"]
    laneway.text("projects", "create", "acme", "search")
    key = laneway.json("keys", "create", "--tenant", "acme", "--project", "search")
    unasked = laneway("projects", "archive", "acme", "search")
    assert (unasked.exit_code, "Archive the project search of acme?" in unasked.stderr) == (2, True)
    assert laneway.refusal("projects", "archive", "acme", "search", "--yes").startswith("the project has 1 usable keys")
    laneway.text("keys", "revoke", key["id"])
    assert laneway.json("projects", "archive", "acme", "search", "--yes")["archived_at"]
    assert [row["name"] for row in laneway.json("projects", "list", "acme")] == ["default"]
    assert [row["name"] for row in laneway.json("projects", "list", "acme", "--archived")] == ["search"]
    assert laneway.json("projects", "restore", "acme", "search")["archived_at"] is None
    assert [row["name"] for row in laneway.json("projects", "list", "acme")] == ["default", "search"]
    assert laneway.refusal("projects", "archive", "acme", "absent", "--yes").startswith("project: the tenant has no")

    unasked = laneway("tenants", "archive", "acme")
    assert (unasked.exit_code, "nothing was changed" in unasked.stderr) == (2, True)
    assert [row["slug"] for row in laneway.json("tenants", "list")] == ["acme"]
    archived = laneway.json("tenants", "archive", tenant_id, "--yes")
    assert (archived["status"], archived["archived_at"] is None) == ("suspended", False)
    assert laneway.json("tenants", "list") == []
    assert [row["slug"] for row in laneway.json("tenants", "list", "--archived")] == ["acme"]
    assert laneway.refusal("tenants", "resume", "acme").endswith(
        "an archived tenant is not activated: restore it first"
    )
    restored = laneway.json("tenants", "restore", "acme")
    assert (restored["status"], restored["archived_at"]) == ("active", None)
    assert [row["slug"] for row in laneway.json("tenants", "list")] == ["acme"]


def test_limits(laneway: Laneway, database_url: str) -> None:
    tenant = laneway.json("tenants", "create", "acme", "--tier", "standard")
    key = laneway.json("keys", "create", "--tenant", "acme")
    own = laneway.json("limits", "set", "acme", "--requests-per-minute", "10", "--concurrency", "3")
    assert (own["subject_id"], own["scope"], own["tokens_per_minute"]) == (tenant["id"], "tenant", None)
    assert laneway.json("limits", "set", "acme", "--tokens-per-minute", "900")["requests_per_minute"] == 10
    quotas = ("--files", "50", "--total-file-bytes", str(2**40), "--batches", "2", "--enqueued-tokens", "1000000")
    assert laneway.json("limits", "set", "acme", *quotas)["total_file_bytes"] == 2**40
    of_key = laneway.json("limits", "set", "acme", "--key", key["id"], "--concurrency", "1")
    assert (of_key["subject_id"], of_key["scope"], of_key["concurrency"]) == (key["id"], "key", 1)
    table = laneway.text("limits", "list", "--tenant", "acme").splitlines()
    assert sorted(line.split() for line in table) == [
        ["ID", "TENANT", "SCOPE", "OF", *(name.upper() for name in NAMES)],
        *sorted(
            [
                [of_key["id"], "acme", "key", key["name"], "-", "-", "1", "-", "-", "-", "-"],
                [own["id"], "acme", "tenant", "acme", "10", "900", "3", "50", str(2**40), "2", "1000000"],
            ]
        ),
    ]
    assert "is removed" in laneway.text("limits", "remove", own["id"])
    assert laneway.refusal("limits", "remove", own["id"]) == f"there are no limits '{own['id']}'"
    assert laneway.refusal("limits", "set", "acme").startswith("no limit was given")
    assert laneway.refusal("limits", "set", "acme", "--key", "key_no", "--concurrency", "1").startswith("key_id: there")
    assert laneway.refusal("limits", "set", "acme", "--key", key["id"], "--files", "1").startswith("files: is a quota")
    lines = rows(database_url, sa.select(audit_log).order_by(audit_log.c.id))
    assert [line.action for line in lines][2:] == [*["limits.set"] * 4, "limits.remove"]


def test_people(laneway: Laneway, database_url: str) -> None:
    identity = Identity(issuer="https://sso", subject="ada", name="Ada", email="ada@example.com", groups=())
    database = Database(database_url)
    database.write_sync(lambda c: people.sign_in(c, identity, people.Grant("owner", None), "req_1"))
    database.close()
    [row] = laneway.json("people", "list")
    assert (row["subject"], row["role"], row["email"]) == ("ada", "owner", "ada@example.com")
    assert laneway.json("people", "list", "--search", "grace") == []
    laneway.text("tenants", "create", "acme", "--tier", "standard")
    tenant_id = laneway.json("tenants", "list")[0]["id"]
    grace = Identity(issuer="https://sso", subject="grace", name="Grace", email=None, groups=())
    database = Database(database_url)
    database.write_sync(lambda c: people.sign_in(c, grace, people.Grant("tenant_admin", tenant_id), "req_2"))
    database.close()
    header, *lines = laneway.text("people", "list").splitlines()
    assert header.split()[:3] == ["ID", "ROLE", "TENANT"]
    assert sorted(line.split()[1:3] for line in lines) == [["owner", "-"], ["tenant_admin", "acme"]]
    assert tenant_id not in laneway.text("audit")
    assert " acme " in laneway.text("audit", "--action", "tenant.create")
    root = laneway.json("keys", "create", "--admin", "--name", "cli:root")
    database = Database(database_url)
    refusal = {"actor": root["id"], "action": "session.refuse", "object_id": "192.0.2.1", "tenant_id": None}
    database.write_sync(lambda c: audit.add_audit_line(c, **refusal, after={"reason": "totp_invalid"}))
    database.close()
    [line] = laneway.text("audit", "--action", "session.refuse").splitlines()[1:]
    assert f"cli:root ({root['id']})" in line, "a key may have the name of a user of this host"
    assert line.endswith("reason: - → totp_invalid")


def test_break_glass_keys(laneway: Laneway) -> None:
    made = laneway.json("keys", "create", "--admin", "--break-glass")
    assert made["break_glass"] is True
    assert laneway.json("keys", "set", made["id"], "--no-break-glass")["break_glass"] is False
    laneway.text("tenants", "create", "acme", "--tier", "standard")
    refusal = laneway.refusal("keys", "create", "--tenant", "acme", "--break-glass")
    assert refusal == "break_glass is for admin keys: this key is of kind live"


def test_keys(laneway: Laneway) -> None:
    laneway.text("tenants", "create", "acme", "--tier", "standard")
    made = laneway.json("keys", "create", "--tenant", "acme", "--tier", "batch", "--expires-days", "1")
    assert keys.is_well_formed(made["secret"])
    assert made["expires_at"] - made["created_at"] == pytest.approx(86400, abs=5)
    assert (made["kind"], made["tier"], made["scopes"]) == ("live", "batch", ["inference"])
    project = laneway.json("projects", "create", "acme", "search")
    changed = laneway.json("keys", "set", made["id"], "--project", "search", "--default-max-tokens", "9")
    assert (changed["project_id"], changed["default_max_tokens"]) == (project["id"], 9)
    changed = laneway.json("keys", "set", made["id"], "--no-default-max-tokens")
    assert (changed["project_id"], changed["default_max_tokens"]) == (project["id"], None)
    assert laneway.refusal("keys", "set", made["id"]).startswith("nothing was given")
    assert laneway.refusal("keys", "set", made["id"], "--project", "none").startswith("project: ")
    assert laneway.refusal("keys", "set", made["id"], "--default-max-tokens", "0").startswith("default_max_tokens: ")
    assert "cannot both be" in laneway.refusal(
        "keys", "set", made["id"], "--default-max-tokens", "1", "--no-default-max-tokens"
    )
    limits = ("--model", "a", "--model", "b/c", "--ip", "192.0.2.1", "--tag", "team=search", "--tag", "cost=a=b")
    limited = laneway.json("keys", "create", "--tenant", "acme", *limits)
    assert (limited["models"], limited["allowed_ips"]) == (["a", "b/c"], ["192.0.2.1/32"])
    assert limited["tags"] == {"cost": "a=b", "team": "search"}
    changed = laneway.json("keys", "set", limited["id"], "--any-ip", "--model", "a", "--tag", "team=chat")
    assert (changed["models"], changed["allowed_ips"], changed["tags"]) == (["a"], None, {"team": "chat"})
    changed = laneway.json("keys", "set", limited["id"], "--all-models", "--no-tags")
    assert (changed["models"], changed["tags"]) == (None, {})
    both = ("--tag", "team=chat", "--no-tags")
    assert laneway.refusal("keys", "set", limited["id"], *both) == "--tag and --no-tags cannot both be"
    assert "is not NAME=VALUE" in laneway.refusal("keys", "set", limited["id"], "--tag", "team")
    assert laneway.refusal("keys", "set", limited["id"], "--ip", "x").startswith("allowed_ips: 'x' is no network")
    rotated = laneway.json("keys", "rotate", made["id"], "--overlap-s", "60")
    assert rotated["secret"] != made["secret"]
    admin = laneway.json("keys", "create", "--kind", "admin")
    assert (admin["tenant_id"], admin["scopes"]) == (None, ["admin"])
    assert admin["secret"].startswith("lw_admin_")
    listed = laneway.text("keys", "list") + laneway.text("keys", "list", "--json")
    for key in (made, rotated, admin):
        assert key["id"] in listed
        assert key["secret"] not in listed
    assert admin["id"] not in laneway.text("keys", "list", "--tenant", "acme")
    assert laneway.json("keys", "revoke", rotated["id"])["revoked_at"]
    assert "is revoked" in laneway.refusal("keys", "set", rotated["id"], "--default-max-tokens", "1")
    assert "an admin key" in laneway.refusal("keys", "set", admin["id"], "--project", "search")
    own = laneway.json("keys", "create", "--tenant", "acme")
    laneway.text("budgets", "set", "acme", "--key", own["id"], "--period", "total", "--tokens", "5")
    replacement = laneway.json("keys", "rotate", own["id"])
    assert replacement["first_key_id"] == own["id"]
    [budget] = laneway.json("budgets", "list", "--tenant", "acme")
    assert (budget["scope"], budget["scope_id"]) == ("key", replacement["id"])
    assert "secret" in laneway.text("keys", "create", "--tenant", "acme"), "people see it too, once"


def test_prices_are_exact(laneway: Laneway) -> None:
    arguments = ("--input", "0.10", "--cached-input", "0.05", "--output", "0.4")
    multipliers = ("--multiplier", "premium=3", "--multiplier", "batch=0.5")
    (version,) = laneway.json("prices", "publish", MODEL, *arguments, *multipliers)
    assert version["tiers"]["premium"] == {
        "input": 300_000, "cached_input": 150_000, "output": 1_200_000, "embedding": 300_000,
    }  # fmt: skip
    as_input = {"input": 100_000, "cached_input": 50_000, "output": 400_000, "embedding": 100_000}
    assert version["tiers"]["standard"] == as_input
    assert version["tiers"]["batch"] == {name: picos // 2 for name, picos in as_input.items()}
    assert laneway.json("prices", "list") == [version]
    (own,) = laneway.json("prices", "publish", MODEL, *arguments, *multipliers, "--embedding", "0.02")
    assert [own["tiers"][tier]["embedding"] for tier in ("premium", "standard", "batch")] == [60_000, 20_000, 10_000]
    assert "EMBEDDING" in laneway.text("prices", "list")
    table = laneway.text("prices", "list")
    for price in ("1.2 USD", "0.05 USD", "0.2 USD"):
        assert price in table


def test_budgets(laneway: Laneway) -> None:
    laneway.text("tenants", "create", "acme", "--tier", "standard")
    key = laneway.json("keys", "create", "--tenant", "acme")
    money = laneway.json("budgets", "set", "acme", "--period", "month", "--money", "12.50")
    assert (money["unit"], money["limit_amount"], money["left"]) == ("money", 12_500_000_000_000, 12_500_000_000_000)
    again = laneway.json("budgets", "set", "acme", "--period", "month", "--money", "0.000000000001")
    assert (again["id"], again["limit_amount"]) == (money["id"], 1)
    tokens = laneway.json("budgets", "set", "acme", "--period", "day", "--tokens", "0", "--key", key["id"])
    assert (tokens["scope"], tokens["scope_id"], tokens["limit_amount"]) == ("key", key["id"], 0)
    assert {row["id"] for row in laneway.json("budgets", "list", "--tenant", "acme")} == {money["id"], tokens["id"]}
    each = laneway.json("budgets", "set", "acme", "--period", "day", "--money", "3", "--per-end-user")
    assert laneway.text("budgets", "end-users", each["id"]).split()[1] == "LIMIT_AMOUNT"
    laneway.text("budgets", "remove", each["id"])
    laneway.text("budgets", "remove", money["id"])
    assert [row["id"] for row in laneway.json("budgets", "list")] == [tokens["id"]]


def test_adapters(make: Callable[[str], Laneway], sqlite_url: str, model_dir: Path) -> None:
    upgrade(sqlite_url)
    laneway = make(f'[gateway]\ndatabase_url = "{sqlite_url}"\n[[models]]\nname = "{MODEL}"\npath = "{model_dir}"\n')
    laneway.text("tenants", "create", "acme", "--tier", "standard")
    example = str(REPO / "examples" / "adapters" / "pirate")
    own = laneway.json("adapters", "add", example, "--tenant", "acme")
    shared = laneway.json("adapters", "add", example, "--name", "arr")
    assert own["digest"] == shared["digest"], "the store names content"
    assert (own["name"], shared["name"], shared["tenant_id"]) == ("pirate", "arr", None)
    assert laneway.json("adapters", "add", example, "--tenant", "acme") == own
    other = str(REPO / "examples" / "adapters" / "json-answers")
    waits = laneway.json("adapters", "add", other, "--name", "pirate", "--tenant", "acme", "--notes", "n", "--pinned")
    assert (waits["version"], waits["added"]["number"], waits["notes"], waits["pinned"]) == (1, 2, "n", True)
    assert laneway.json("adapters", "promote", "pirate", "2")["digest"] == waits["added"]["digest"]
    assert laneway.json("adapters", "rollback", "pirate")["digest"] == own["digest"]
    assert [row["served"] for row in laneway.json("adapters", "versions", "pirate")] == [False, True]
    assert "2 removed" in laneway.text("adapters", "remove", "pirate", "--version", waits["added"]["digest"][:8])
    assert laneway.refusal("adapters", "rollback", "pirate").endswith("there is nothing to roll back to")
    assert laneway.json("adapters", "check", other)["digest"] == waits["added"]["digest"]
    assert {row["name"] for row in laneway.json("adapters", "list")} == {"pirate", "arr"}
    assert laneway.refusal("adapters", "add", example, "--name", MODEL).endswith("is the name of a base model")
    assert "adapter_config.json" in laneway.refusal("adapters", "add", str(REPO / "docs"))
    laneway.text("adapters", "remove", "pirate")
    assert laneway.refusal("adapters", "versions", "pirate").endswith("there is no adapter 'pirate'")
    assert [row["name"] for row in laneway.json("adapters", "list")] == ["arr"]
    assert laneway.json("adapters", "set", "arr", "--shared", "acme")["shared"] == [own["tenant_id"]]
    header, line = laneway.text("adapters", "list").splitlines()
    assert header.split()[:3] == ["NAME", "TENANT", "SHARED"]
    assert line.split()[:3] == ["arr", "-", "acme"], "slugs, no ids"
    assert laneway.json("adapters", "set", "arr", "--not-shared")["shared"] == []
    assert laneway.refusal("adapters", "set", "arr").startswith("nothing was given to change")


def test_demo_adapters(make: Callable[[str], Laneway], sqlite_url: str, model_dir: Path, tmp_path: Path) -> None:
    upgrade(sqlite_url)
    laneway = make(f'[gateway]\ndatabase_url = "{sqlite_url}"\n[[models]]\nname = "{MODEL}"\npath = "{model_dir}"\n')
    laneway.text("tenants", "create", "acme", "--tier", "standard")
    made = laneway.json("demo", "adapters", "--count", "5", "--tenant", "acme")
    assert [row["name"] for row in made] == [f"random-{number:04}" for number in range(5)]
    assert {row["tenant_id"] for row in made} == {laneway.json("tenants", "list")[0]["id"]}
    assert len({row["digest"] for row in made}) == 5
    assert laneway.json("demo", "adapters", "--count", "5", "--tenant", "acme") == made, "the same seed, the same"
    other = laneway.json("demo", "adapters", "--count", "2", "--seed", "1", "--prefix", "mine")
    assert [(row["name"], row["shared"]) for row in other] == [("mine-0000", ["*"]), ("mine-0001", ["*"])]
    assert not list((tmp_path / ".laneway" / "adapters" / ".incoming").iterdir())


REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "tier": (("tenants", "create", "x", "--tier", "gold"), "tier: there is no tier 'gold'; there are premium"),
    "slug": (("tenants", "create", "A b", "--tier", "batch"), "slug: "),
    "tenant": (("tenants", "suspend", "nobody"), "tenant: there is no tenant 'nobody'"),
    "key's tenant": (("keys", "create", "--tenant", "nobody"), "tenant: there is no tenant 'nobody'"),
    "no tenant": (("keys", "create"), "only an admin key may be without a tenant"),
    "admin of a tenant": (("keys", "create", "--kind", "admin", "--tenant", "x"), "tenant: there is no tenant 'x'"),
    "kind": (("keys", "create", "--kind", "root"), "Invalid value for '--kind'"),
    "key": (("keys", "revoke", "key_0"), "key_id: there is no key 'key_0'"),
    "overlap": (("keys", "rotate", "key_0", "--overlap-s", "-1"), "Invalid value for '--overlap-s'"),
    "model": (("prices", "publish", "gpt", "--input", "1", "--output", "1"), "subject: there is no base model 'gpt'"),
    "fraction": (
        ("prices", "publish", MODEL, "--input", "0.0000001", "--output", "1"),
        "Invalid value for '--input': 0.0000001 is 0.1 picos, which is not a whole number",
    ),
    "fraction of a tier": (
        ("prices", "publish", MODEL, "--input", "0.000001", "--output", "1", "--multiplier", "batch=0.5"),
        "input: input × 0.5 for tier 'batch' is 0.5 picos a token: not integral",
    ),
    "no number": (("prices", "publish", MODEL, "--input", "cheap", "--output", "1"), "Invalid value for '--input'"),
    "infinite": (("prices", "publish", MODEL, "--input", "inf", "--output", "1"), "Invalid value for '--input'"),
    "endless": (("prices", "publish", MODEL, "--input", "1e999999999", "--output", "1"), "Invalid value for '--input'"),
    "tiny": (("prices", "publish", MODEL, "--input", "1e-999999999", "--output", "1"), "Invalid value for '--input'"),
    "beyond a decimal's precision": (
        ("prices", "publish", MODEL, "--input", "1.0000000000000000000000000000000001", "--output", "1"),
        "Invalid value for '--input': 1.0000000000000000000000000000000001 is 1e+06 picos, which is not a whole number",
    ),
    "multiplier": (
        ("prices", "publish", MODEL, "--input", "1", "--output", "1", "--multiplier", "batch"),
        "--multiplier 'batch': TIER=FACTOR is needed",
    ),
    "no limit": (("budgets", "set", "x", "--period", "day"), "one of --money and --tokens is needed"),
    "two limits": (
        ("budgets", "set", "x", "--period", "day", "--money", "1", "--tokens", "1"),
        "one of --money and --tokens is needed",
    ),
    "too much": (
        ("budgets", "set", "x", "--period", "day", "--money", "9300000"),
        "Invalid value for '--money': 9300000 is not from 0 to 9223372.036854775807",
    ),
    "budget": (("budgets", "remove", "bud_0"), "there is no budget 'bud_0'"),
    "no command": (("frobnicate",), "No such command 'frobnicate'"),
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Laneway:
    directory = tmp_path_factory.mktemp("cli")
    upgrade(f"sqlite:///{directory}/laneway.db")
    return Laneway(directory, f'[gateway]\ndatabase_url = "sqlite:///{directory}/laneway.db"\n')


@pytest.mark.parametrize(("arguments", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_a_refusal_is_one_sentence_and_exit_code_2(shared: Laneway, arguments: tuple[str, ...], says: str) -> None:
    assert shared.refusal(*arguments).startswith(says)
    assert shared.json("tenants", "list") == []


def test_a_database_that_cannot_be_used_is_said(
    make: Callable[[str], Laneway], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = make("").refusal("tenants", "list")
    assert says.endswith(f"(by {tmp_path}/laneway.toml); `laneway serve` makes it, or: laneway db upgrade")
    (tmp_path / "empty.db").touch()
    empty = make('[gateway]\ndatabase_url = "sqlite:///empty.db"')
    assert empty.refusal("tenants", "list").endswith("bring it up with: laneway db upgrade")
    (tmp_path / "text.db").write_text("this is no database" * 1000)
    assert "text.db cannot be used: " in make('[gateway]\ndatabase_url = "sqlite:///text.db"').refusal("keys", "list")
    monkeypatch.setenv("LANEWAY_DATABASE_URL", "postgresql://postgres:hunter2@127.0.0.1:1/none")
    refused = make("")
    for command in (("tenants", "list"), ("db", "upgrade")):
        says = refused.refusal(*command)
        assert "postgres:***@127.0.0.1:1/none" in says
        assert "hunter2" not in says


def test_a_database_without_tables_is_said(make: Callable[[str], Laneway], empty_postgres_url: str) -> None:
    says = make(f'[gateway]\ndatabase_url = "{empty_postgres_url}"').refusal("tenants", "list")
    assert says.endswith("bring it up with: laneway db upgrade")


def test_the_load_tools_install_line_works_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPO)
    assert install_line().endswith("pip install -e '.[bench]'")
    monkeypatch.chdir(tmp_path)
    assert install_line().endswith(f"pip install -e '{REPO}[bench]'")


def test_config_check(make: Callable[[str], Laneway], tmp_path: Path) -> None:
    good = make("[gateway]\nport = 1234")
    assert good.text("config", "check").startswith(f"{tmp_path}/laneway.toml: ok\n")
    assert good.json("config", "check")["gateway"]["port"] == 1234
    other = tmp_path / "other.toml"
    other.write_text("[gateway]\nport = 0")
    assert good.refusal("config", "check", str(other)) == f"{other}: gateway.port: Expected `int` >= 1"
    other.write_text("[gateway]\nport = 0\nhots = ''\n[limits]\nconcurrency = 'x'\n[[tiers]]\nname = 'a'\nfloor = 2")
    assert good("config", "check", str(other)).stderr.splitlines() == [
        f"Error: {other}: gateway.port: Expected `int` >= 1",
        f"{other}: gateway: Object contains unknown field `hots`",
        f"{other}: limits.concurrency: Expected `int`, got `str`",
        f"{other}: tiers[0].floor: Expected `float` <= 1.0",
    ]
    assert make("[nothing]").refusal("serve").endswith("Object contains unknown field `nothing`")
    assert good.refusal("config", "check", str(tmp_path / "absent.toml")).endswith("No such file or directory")
    assert "[[models]]" in (REPO / "laneway.toml").read_text()
    assert "laneway.toml: ok" in good.text("config", "check", str(REPO / "laneway.toml"))


FUTURE = ("--from", "2099-01-01T00:00:00")
# What commands write. A command that is in neither list is not tested here, and that fails.
WRITES: dict[str, list[tuple[str, ...]]] = {
    "tenants create": [("acme", "--tier", "premium", "--time-zone", "Europe/Berlin")],
    "tenants set": [("acme", "--default-max-tokens", "64")],
    "tenants suspend": [("acme",)],
    "tenants resume": [("acme",)],
    "projects create": [("acme", "search"), ("acme", "old")],
    "projects set": [("acme", "search", "--name", "find")],
    "keys create": [("--tenant", "acme", "--project", "find")],
    "keys set": [("{keys create}", "--default-max-tokens", "32")],
    "keys rotate": [("{keys create}",)],
    "keys revoke": [("{keys create}",)],
    "budgets set": [
        ("acme", "--period", "month", "--money", "5", "--kind", "soft", "--threshold", "50", "--threshold", "90"),
        ("acme", "--period", "day", "--tokens", "5", "--project", "find"),
        ("acme", "--period", "day", "--tokens", "5", "--project", "find", "--per-end-user"),
    ],
    "budgets remove": [("{budgets set}",)],
    "projects archive": [("acme", "old", "--yes")],
    "projects restore": [("acme", "old")],
    "limits set": [("acme", "--requests-per-minute", "5"), ("acme", "--concurrency", "5")],
    "limits remove": [("{limits set}",)],
    "webhooks add": [("https://example.org/hook", "--tenant", "acme", "--format", "slack")],
    "webhooks remove": [("{webhooks add}",)],
    "prices publish": [(MODEL, "--input", "1", "--output", "2"), (MODEL, "--input", "2", "--output", "2", *FUTURE)],
    "billing credit": [("acme", "0.5", "--reason", "goodwill", "--yes")],
    "tenants archive": [("acme", "--yes")],
    "tenants restore": [("acme",)],
}
READS = {
    "people list",
    *(
        "tenants list",
        "projects list",
        "keys list",
        "budgets list",
        "webhooks list",
        "webhooks alerts",
        "webhooks problems",
        "prices list",
    ),
    *(
        "adapters list",
        "adapters versions",
        "adapters check",
        "audit",
        "audit verify",
        "config check",
        "doctor",
        "limits list",
    ),
    *("prices preview", "billing periods", "billing invoices", "billing invoice", "billing corrections"),
    *("billing margin", "billing check", "connectors"),
}
ELSEWHERE = {
    # test_finance closes a month, corrects a request and pays an invoice
    *("billing close", "billing correct", "billing pay", "billing profile", "connectors release"),
    *("backup", "restore", "tenants erase"),  # test_restore_drill and test_archives type them
    "tenants export",  # test_tenant_files types it
    "budgets end-users",  # test_end_users types it
    "sla",  # test_sla_reports types it
    *("status", "requests", "usage", "tiers", "apply"),  # test_now and test_apply type them
    "billing export",  # tests/system/test_readme.py makes one
    "billing reconcile",  # it leaves a result of its own, which is not about an administrative write
    *("aliases list", "aliases set", "aliases remove"),  # test_aliases types them
    # test_model_commands does
    *("models list", "models show", "models add", "models set", "models remove", "models restore"),
    # test_adapters types them; administration's lines are in test_audit_log
    *("adapters add", "adapters promote", "adapters rollback", "adapters set", "adapters remove", "demo adapters"),
    *("secret show", "secret add", "secret promote", "secret drop", "secret adopt"),  # test_secret_commands types them
    "fleet certificates",  # test_fleet_certificates types it
    *("fleet up", "fleet down"),  # tests/programs/ray_faults.py types them
    *("fleet status", "drain engine"),  # test_fleet_pages types them
    # test_batch_commands types them
    *("batches list", "batches show", "batches cancel", "batches submit", "files list", "files show", "files delete"),
    "demo seed",  # tests/system/test_containers.py types it
    *("serve", "gateway", "engine", "bench", "simulate", "db upgrade"),  # no administrative writes
    *("drain gateway", "upgrade"),  # tests/system/test_rolling_upgrade.py types them
}


def commands(group: click.Group, prefix: str = "") -> set[str]:
    found: set[str] = set()
    for name, command in group.commands.items():
        assert command.name == name
        inner = commands(command, f"{prefix}{name} ") if isinstance(command, click.Group) else {prefix + name}
        found |= inner
        if isinstance(command, click.Group) and command.invoke_without_command:
            found.add(prefix + name)
    return found


def test_every_command_that_writes_leaves_its_line(laneway: Laneway, database_url: str) -> None:
    assert {*WRITES, *READS, *ELSEWHERE} == commands(main)
    made: dict[str, str] = {}
    for command, calls in WRITES.items():
        for call in calls:
            before = laneway.json("audit", "--limit", "1")
            arguments = [made.get(word.strip("{}"), word) if word.startswith("{") else word for word in call]
            shows = command not in ("budgets remove", "limits remove", "webhooks remove")
            answer = laneway.json(*command.split(), *arguments) if shows else {"id": arguments[0]}
            if not shows:
                laneway.text(*command.split(), *arguments)
            answer = answer[0] if isinstance(answer, list) else answer
            made[command] = answer["id"]
            lines = laneway.json("audit")
            new = [line for line in lines if not before or line["id"] > before[0]["id"]]
            assert {line["actor"] for line in new} == {audit.host_actor()}, command
            assert answer["id"] in {line["object_id"] for line in new}, command
            assert all(line["after"] is not None for line in new), command
            if "secret" in answer:
                assert answer["secret"] not in json.dumps(lines)
    table = laneway.text("audit", "--tenant", "acme")
    assert "time_zone" not in table, "made, not changed"
    assert "default_max_tokens: - → 64" in table
    assert MODEL not in laneway.text("audit", "--tenant", "acme", "--json"), "a price is the operator's"
    assert len(laneway.json("audit", "--action", "keys.none")) == 0
    assert len(laneway.json("audit", "--since", "2200-01-01")) == 0
    oldest = laneway.json("audit")[-1]["id"]
    assert laneway.json("audit", "--before", str(oldest)) == []
    assert laneway.json("budgets", "list")[0]["thresholds"] == [50, 90]
    assert laneway.json("webhooks", "list") == []
    assert laneway.json("webhooks", "alerts") == []
    assert [project["name"] for project in laneway.json("projects", "list", "acme")] == [
        *("default", "find", "old"),
    ]
    assert laneway.refusal("projects", "set", "acme", "find").startswith("nothing was given to change")


def test_a_routing_key_is_read_from_a_file_and_shown_nowhere(make: Callable[[str], Laneway], tmp_path: Path) -> None:
    upgrade(f"sqlite:///{tmp_path}/laneway.db")
    laneway = make(f'[gateway]\ndatabase_url = "sqlite:///{tmp_path}/laneway.db"\n')
    key = "k" * 32
    (tmp_path / "pagerduty.key").write_text(f"{key}\n")
    add = ("webhooks", "add", "https://events.example.org/v2/enqueue", "--event", "problems", "--format", "pagerduty")
    assert laneway.refusal(*add) == "routing_key: the format pagerduty needs a routing key"
    made = laneway.json(*add, "--routing-key-file", str(tmp_path / "pagerduty.key"))
    made = made[0] if isinstance(made, list) else made
    assert (made["format"], made["events"]) == ("pagerduty", ["problems"])
    shown = laneway.text("webhooks", "list") + laneway.text("audit", "--json") + laneway.text("webhooks", "problems")
    assert key not in shown
    assert key.encode() not in (tmp_path / "laneway.db").read_bytes()
    assert made["id"] in shown
    (tmp_path / "pagerduty.key").write_bytes(b"\xff")
    assert "utf-8" in laneway.refusal(*add, "--routing-key-file", str(tmp_path / "pagerduty.key"))
