"""`laneway serve --demo`: from an empty directory to a served model, three tenants, their keys and curl lines to paste.

Everything it does an operator can do with the other commands; it must never do anything that they cannot.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import sqlalchemy as sa

from adapters.header import AdapterRefused
from adapters.store import AdapterStore
from billing import budgets, prices, tenants
from billing.database import Database, DatabaseUnavailable
from billing.errors import BillingRefused
from billing.prices import PICOS_PER_UNIT, UnitPrices
from billing.tenants import Tenant
from gateway import adapter_rows, keys, supervisor
from gateway.adapter_rows import Registration
from gateway.administration import Actor, Administration
from gateway.commands.database import upgrade
from gateway.config import DEMO_MODEL, Config, write_private
from gateway.staging import Staged, base_of, stage_directory

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "adapters"
TENANTS = {"acme": "premium", "globex": "standard", "initech": "batch"}
# Who owns an example adapter; one that is not named here is shared by all.
OWNERS = {"support-triage": "acme", "pirate": "globex"}
# For a million tokens 0.10, 0.05 and 0.40 of a currency unit, as picos per token.
PRICES = UnitPrices(input=100_000, cached_input=50_000, output=400_000)
MULTIPLIERS = {"premium": "3", "batch": "0.5"}
BUDGET_PICOS = 100 * PICOS_PER_UNIT  # a month
KEY_NAME = "demo"
ACTOR = Actor("demo")


class Secrets(msgspec.Struct):
    """What the demo's keys are. Made once, and kept before the database hears of them."""

    admin: str
    tenants: dict[str, str]


class Demo:
    """One run of the demo over `.laneway/`."""

    def __init__(self, config: Config, say: Callable[[str], None]) -> None:
        self._config = config
        self._say = say
        self._file = config.data_dir / "demo.json"

    def run(self, specs: list[supervisor.ChildSpec]) -> None:
        """Until stopped. Raises CannotStart."""
        began = time.monotonic()
        supervisor.check_port(self._config.gateway.host, self._config.gateway.port)
        self._file.unlink(missing_ok=True)
        with self._stage("database"):
            upgrade(self._config)
        self._convert_model()
        secrets = self._secrets()
        with self._stage("tenants, keys, prices, budgets, adapters"):
            models = self._seed(secrets)
        self._say("==> the engine and the gateway start")

        def changed(pids: dict[str, int]) -> None:
            self._write_file(secrets, models, pids)

        def ready() -> None:
            self._say(f"==> ready, {time.monotonic() - began:.1f} s after the start\n")
            self._say(welcome(self._config.base_url, secrets, models, self._file))

        try:
            asyncio.run(supervisor.Supervisor(specs, self._say, changed).run(ready))
        finally:
            self._file.unlink(missing_ok=True)  # what it says is true only while they run

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._say(f"==> {name}: {time.monotonic() - began:.1f} s")

    def _convert_model(self) -> None:
        """Make the demo model where the configuration expects it, showing what the conversion says."""
        model = self._config.model(DEMO_MODEL)
        if model is None or (Path(model.path) / "model.safetensors").exists():
            return
        self._say("==> the model, converted once:")
        with self._stage("model"):
            argv = [sys.executable, "-m", "engine.models.convert", model.path]
            with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
                assert process.stdout is not None
                last = ""
                for line in process.stdout:
                    last = line.strip()
                    self._say(f"    {last}")
        if process.returncode:
            raise supervisor.CannotStart(f"the model could not be converted: {last}")

    def _secrets(self) -> Secrets:
        """Those of the first run. Raises CannotStart when the file is not what it was."""
        path = self._config.data_dir / "secrets.json"
        if not path.exists():
            made = Secrets(
                admin=keys.make_secret("admin"), tenants={slug: keys.make_secret("live") for slug in TENANTS}
            )
            write_private(path, msgspec.json.format(msgspec.json.encode(made)).decode(), replace=False)
        try:
            secrets = msgspec.json.decode(path.read_bytes(), type=Secrets)
        except msgspec.MsgspecError as error:
            raise supervisor.CannotStart(f"{path} is not the demo's: {error}; remove it for new keys") from error
        broken = [s for s in (secrets.admin, *secrets.tenants.values()) if not keys.is_well_formed(s)]
        if broken or set(secrets.tenants) != set(TENANTS):
            raise supervisor.CannotStart(f"{path} lacks a key or holds a broken one; remove it for new keys")
        return secrets

    def _write_file(self, secrets: Secrets, models: list[str], pids: dict[str, int]) -> None:
        content = {
            "base_url": self._config.base_url,
            "admin_key": secrets.admin,
            "keys": secrets.tenants,
            "models": models,
            "pids": {"gateway": pids["gateway"], "engine": pids["engine"]},
        }
        write_private(self._file, json.dumps(content, indent=2) + "\n", replace=True)

    def _seed(self, secrets: Secrets) -> list[str]:
        """Make what is not there yet; return the names that a caller may write as `model`. Raises CannotStart."""
        database = Database(self._config.database_url)
        try:
            return Seed(self._config, secrets).apply(database)
        except (BillingRefused, AdapterRefused, keys.KeyRefused, OSError, ValueError) as error:
            raise supervisor.CannotStart(f"the demo cannot be set up: {error}") from error
        except DatabaseUnavailable as error:
            raise supervisor.CannotStart(f"the database cannot be used: {error}") from error
        finally:
            database.close()


class Seed:
    """What the demo puts into the database. What is there already, changed by somebody or not, is left alone."""

    def __init__(self, config: Config, secrets: Secrets) -> None:
        self._config = config
        self._secrets = secrets
        self._administration = Administration(config, ACTOR)

    def apply(self, database: Database) -> list[str]:
        """Base models first, then the adapters' names."""
        with contextlib.ExitStack() as held:
            staged = {path.name: held.enter_context(self._stage(path)) for path in example_adapters(self._config)}
            return database.write_sync(lambda connection: self._write(connection, staged))

    def _stage(self, path: Path) -> Staged:
        return stage_directory(AdapterStore(self._config.adapters_dir), base_of(self._config, DEMO_MODEL), path)

    def _write(self, connection: sa.Connection, examples: dict[str, Staged]) -> list[str]:
        owners = {slug: self._tenant(connection, slug, tier) for slug, tier in TENANTS.items()}
        self._key(connection, None, "admin", self._secrets.admin)
        for slug, tenant in owners.items():
            self._key(connection, tenant.id, "live", self._secrets.tenants[slug])
            if not budgets.listing(connection, scope_id=tenant.id):
                self._administration.set_budget(
                    connection, tenant_id=tenant.id, unit="money", period="month", limit_amount=BUDGET_PICOS
                )
        for model in self._config.models:
            if not prices.listing(connection, subject=model.name, limit=1):
                self._administration.publish_price(
                    connection,
                    subject=model.name,
                    input=PRICES.input,
                    cached_input=PRICES.cached_input,
                    output=PRICES.output,
                    multipliers=self._multipliers(),
                )
        for name, staged in examples.items():
            self._adapter(connection, name, owners.get(OWNERS.get(name, "")), staged)
        return [*(model.name for model in self._config.models), *examples]

    def _tenant(self, connection: sa.Connection, slug: str, tier: str) -> Tenant:
        found = tenants.by_slug(connection, slug)
        return found or self._administration.create_tenant(connection, slug=slug, tier=tier)

    def _key(self, connection: sa.Connection, tenant_id: str | None, kind: keys.Kind, secret: str) -> None:
        if not keys.exists(connection, secret):
            self._administration.create_key(connection, name=KEY_NAME, tenant_id=tenant_id, kind=kind, secret=secret)

    def _adapter(self, connection: sa.Connection, name: str, owner: Tenant | None, staged: Staged) -> None:
        """Register a content that its name has never had, and serve it; else leave what somebody made of it."""
        tenant_id = None if owner is None else owner.id
        found = adapter_rows.named(connection, tenant_id, name)
        had = adapter_rows.versions(connection, found.id) if found is not None and found.active else []
        if staged.facts.digest in {version.digest for version in had}:
            return
        wanted = Registration(name=name, tenant_id=tenant_id, base_model=DEMO_MODEL, promote=True)
        self._administration.register_adapter(connection, wanted, staged.facts, staged.keep)

    def _multipliers(self) -> dict[str, str]:
        return {tier: factor for tier, factor in MULTIPLIERS.items() if self._config.tier(tier) is not None}


def example_adapters(config: Config) -> list[Path]:
    """The example adapters' directories; none where there are no examples, or their base model is not served."""
    if config.model(DEMO_MODEL) is None:
        return []
    return sorted(path.parent for path in EXAMPLES.glob("*/adapter_config.json"))


def welcome(base_url: str, secrets: Secrets, models: list[str], file: Path) -> str:
    """What a newcomer sees when everything serves: the address, the keys, and lines to paste."""
    console = base_url.removesuffix("/v1") + "/admin"
    lines = [f"Laneway serves at {base_url}", f"The console: {console} (sign in with the admin key)", ""]
    for slug, tier in TENANTS.items():
        lines.append(f"  {slug:<8} {tier:<9} {secrets.tenants[slug]}")
    lines += [f"  {'admin':<18} {secrets.admin}", ""]
    base, adapters = models[0], models[1:]
    lines += ["# The base model, streamed:", chat(base_url, secrets.tenants["globex"], base, "Why is the sky blue?")]
    example = next((name for name in OWNERS if name in adapters), None)
    if example is not None:
        owner = OWNERS[example]
        lines += ["", f"# The adapter that {owner} owns; with another tenant's key it does not exist:"]
        lines.append(chat(base_url, secrets.tenants[owner], example, "Where is my parcel? I ordered it last week."))
    bearer = f"-H 'Authorization: Bearer {secrets.tenants['acme']}'"
    lines += ["", "# What acme may call:", f"curl -s {base_url}/models {bearer}"]
    bearer = f"-H 'Authorization: Bearer {secrets.admin}'"
    lines += ["", "# What was used, and what it cost (picos):", f"curl -s {base_url}/admin/usage {bearer}"]
    return "\n".join([*lines, "", f"The same, for scripts: {file}", "Ctrl-C stops it."])


def chat(base_url: str, key: str, model: str, question: str) -> str:
    """A curl line that streams."""
    body = {"model": model, "stream": True, "max_tokens": 64, "messages": [{"role": "user", "content": question}]}
    return (
        f"curl -N {base_url}/chat/completions -H 'Authorization: Bearer {key}' \\\n"
        f"  -H 'Content-Type: application/json' -d '{json.dumps(body)}'"
    )
