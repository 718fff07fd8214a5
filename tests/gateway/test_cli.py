"""The command line on both databases: what it prints for people and for scripts, and how it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result

from billing.database import Database
from gateway import keys
from gateway.cli import main
from gateway.tables import audit_log
from migrations.upgrade import upgrade

REPO = Path(__file__).resolve().parents[2]
MODEL = "smollm2-135m-instruct"


class Laneway:
    """Runs commands against one configuration file."""

    def __init__(self, directory: Path, toml: str) -> None:
        self.file = directory / "laneway.toml"
        self.file.write_text(toml)

    def __call__(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, ["--config", str(self.file), *arguments], catch_exceptions=False)

    def text(self, *arguments: str) -> str:
        result = self(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.text(*arguments, "--json"))

    def refusal(self, *arguments: str) -> str:
        """The one sentence of a refused command."""
        result = self(*arguments)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        last = result.stderr.strip().splitlines()[-1]
        assert last.startswith("Error: ")
        return last.removeprefix("Error: ")


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
        "print([m for m in ('torch', 'triton', 'transformers', 'kernels', 'engine.worker') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_upgrade_is_safe_to_run_again(make: Callable[[str], Laneway], database_url: str) -> None:
    laneway = make(f'[gateway]\ndatabase_url = "{database_url}"\n')
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
    lines = rows(database_url, sa.select(audit_log).order_by(audit_log.c.id))
    assert [(line.actor, line.action) for line in lines] == [
        ("cli", "tenant.create"),
        *[("cli", "tenant.update")] * 3,
    ]
    assert (lines[1].before["status"], lines[1].after["status"]) == ("active", "suspended")


def test_keys(laneway: Laneway) -> None:
    laneway.text("tenants", "create", "acme", "--tier", "standard")
    made = laneway.json("keys", "create", "--tenant", "acme", "--tier", "batch", "--expires-days", "1")
    assert keys.is_well_formed(made["secret"])
    assert made["expires_at"] - made["created_at"] == pytest.approx(86400, abs=5)
    assert (made["kind"], made["tier"], made["scopes"]) == ("live", "batch", ["inference"])
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
    assert "secret" in laneway.text("keys", "create", "--tenant", "acme"), "people see it too, once"


def test_prices_are_exact(laneway: Laneway) -> None:
    arguments = ("--input", "0.10", "--cached-input", "0.05", "--output", "0.4")
    multipliers = ("--multiplier", "premium=3", "--multiplier", "batch=0.5")
    (version,) = laneway.json("prices", "publish", MODEL, *arguments, *multipliers)
    assert version["tiers"]["premium"] == {"input": 300_000, "cached_input": 150_000, "output": 1_200_000}
    assert version["tiers"]["standard"] == {"input": 100_000, "cached_input": 50_000, "output": 400_000}
    assert version["tiers"]["batch"] == {"input": 50_000, "cached_input": 25_000, "output": 200_000}
    assert laneway.json("prices", "list") == [version]
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
    assert {row["name"] for row in laneway.json("adapters", "list")} == {"pirate", "arr"}
    assert laneway.refusal("adapters", "add", example, "--name", MODEL).endswith("is the name of a base model")
    assert "adapter_config.json" in laneway.refusal("adapters", "add", str(REPO / "docs"))


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
    assert make("").refusal("tenants", "list").endswith("make it with: laneway db upgrade")
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


def test_a_database_without_tables_is_said(make: Callable[[str], Laneway], postgres_url: str) -> None:
    says = make(f'[gateway]\ndatabase_url = "{postgres_url}"').refusal("tenants", "list")
    assert says.endswith("bring it up with: laneway db upgrade")


def test_config_check(make: Callable[[str], Laneway], tmp_path: Path) -> None:
    good = make("[gateway]\nport = 1234")
    assert good.text("config", "check").startswith(f"{tmp_path}/laneway.toml: ok\n")
    assert good.json("config", "check")["gateway"]["port"] == 1234
    other = tmp_path / "other.toml"
    other.write_text("[gateway]\nport = 0")
    assert good.refusal("config", "check", str(other)) == f"{other}: gateway.port: Expected `int` >= 1"
    assert make("[nothing]").refusal("serve").endswith("Object contains unknown field `nothing`")
    assert good.refusal("config", "check", str(tmp_path / "absent.toml")).endswith("No such file or directory")
    assert "[[models]]" in (REPO / "laneway.toml").read_text()
    assert "laneway.toml: ok" in good.text("config", "check", str(REPO / "laneway.toml"))
