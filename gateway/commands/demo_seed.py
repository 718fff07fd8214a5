"""`laneway serve --demo`: from an empty directory to served models, three tenants, their keys and curl lines to paste.
`laneway demo seed` does the same without starting the processes.

All writes go through `Administration`, so an operator can make each of them with the other commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import sqlalchemy as sa

import gateway as package
from adapters.files.store import AdapterStore
from billing.accounts import budgets, prices, tenants
from billing.accounts.prices import PICOS_PER_UNIT, unit_prices
from billing.accounts.tenants import Tenant
from billing.database import Database, DatabaseUnavailable
from gateway.access import keys
from gateway.admin.administration import Administration
from gateway.admin.refusals import REFUSALS
from gateway.admin.writes import Actor
from gateway.catalog import adapters as adapter_rows
from gateway.catalog.adapters import Registration
from gateway.catalog.base_models import configured_models
from gateway.commands.start_steps import StartProgress
from gateway.config.file import Config
from gateway.config.private_files import write_private
from gateway.config.settings import OWN_MODEL
from gateway.host import supervisor
from gateway.host.children import ChildSpec
from gateway.host.migrate import upgrade
from gateway.host.packaged_models import check_free, install_models, missing_models, size_of
from gateway.uploads.staged import AdapterBase, StagedAdapter, base_named, stage_directory

EXAMPLES = Path(package.__path__[0]).resolve().parent / "examples" / "adapters"
AGENT = EXAMPLES.parent / "agents" / "agent.py"  # an agent that calls tools …
AGENT_ADAPTER = "tool-agent"  # … with this adapter
TENANTS = {"acme": "premium", "globex": "standard", "initech": "batch"}
# Owning tenants of example adapters; the others are shared with everyone.
OWNERS = {"support-triage": "acme", "pirate": "globex"}
# For a million tokens 0.10, 0.05 and 0.40 of a currency unit, as picos per token.
PRICES = unit_prices(input=100_000, cached_input=50_000, output=400_000)
# The price of a smaller model: a tenth.
OWN_PRICES = {OWN_MODEL: unit_prices(input=10_000, cached_input=5_000, output=40_000)}
MULTIPLIERS = {"premium": "3", "batch": "0.5"}
# The question in the curl line of a model that cannot answer the usual one.
QUESTIONS = {OWN_MODEL: "Who are you?"}
BUDGET_PICOS = 100 * PICOS_PER_UNIT  # a month
KEY_NAME = "demo"
ACTOR = Actor("demo")

# Base model → its adapters, the default model first: the names that a caller may write as `model`.
Served = dict[str, list[str]]


class Secrets(msgspec.Struct):
    """The secrets of the demo's keys. They are written to a file before the keys are made in the database."""

    admin: str
    tenants: dict[str, str]


class Demo:
    """One run of the demo over `.laneway/`."""

    def __init__(
        self, config: Config, say: Callable[[str], None], log_dir: Path | None = None, examples: Path = EXAMPLES
    ) -> None:
        """`log_dir`: where the processes log; None: to the terminal. `examples`: a folder with a folder for each
        adapter."""
        self._config = config
        self._say = say
        self._log_dir = log_dir
        self._examples = examples
        self._file = config.data_dir / "demo.json"

    def run(self, specs: list[ChildSpec]) -> None:
        """Make the demo, start the processes and run until stopped. Raises CannotStart."""
        began = time.monotonic()
        supervisor.check_port(self._config.gateway.host, self._config.gateway.port)
        self._file.unlink(missing_ok=True)
        secrets, served, steps = self._prepare(processes=True)
        start = steps.begin_start_step("the engine and the gateway start")

        def changed(pids: dict[str, int]) -> None:
            self._write_file(secrets, served, pids)

        def ready() -> None:
            start.end_start_step(quiet=True)
            self._say(f"==> ready, {time.monotonic() - began:.1f} s after the start\n")
            self._say(welcome(self._config.base_url, secrets, served, self._file, self._log_dir))

        try:
            asyncio.run(supervisor.Supervisor(specs, self._say, changed, quick=True).run(ready))
        finally:
            start.end_start_step(quiet=True)
            self._file.unlink(missing_ok=True)  # it names processes that run no more

    def seed(self) -> None:
        """Make the demo without starting the processes. Raises CannotStart."""
        secrets, served, _ = self._prepare(processes=False)
        self._say("")
        self._say(welcome(self._config.base_url, secrets, served))

    def _prepare(self, *, processes: bool) -> tuple[Secrets, Served, StartProgress]:
        """Make the schema, the models' files and the demo's rows. `processes`: a further step will start them. Raises
        CannotStart."""
        missing = missing_models(self._config)
        check_free(missing)
        steps = StartProgress(self._say, 2 + bool(missing) + processes)
        with steps.step("the database"):
            upgrade(self._config)
        if missing:
            with steps.step(f"the models, once: {size_of(missing)} below {self._config.data_dir}"):
                install_models(self._config, self._say)
        secrets = self._secrets()
        with steps.step("tenants, keys, prices, budgets and adapters"):
            served = self._seed(secrets)
        return secrets, served, steps

    def _secrets(self) -> Secrets:
        """The secrets of the first run, from their file; new secrets if there is no file. Raises CannotStart when the
        file is invalid."""
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

    def _write_file(self, secrets: Secrets, served: Served, pids: dict[str, int]) -> None:
        content = {
            "base_url": self._config.base_url,
            "admin_key": secrets.admin,
            "keys": secrets.tenants,
            "models": [*served, *(name for adapters in served.values() for name in adapters)],
            "pids": {"gateway": pids["gateway"], "engine": pids["engine"]},
        }
        write_private(self._file, json.dumps(content, indent=2) + "\n", replace=True)

    def _seed(self, secrets: Secrets) -> Served:
        """Make the rows that do not exist yet. Raises CannotStart."""
        database = Database(self._config.database_url)
        try:
            return Seed(self._config, secrets, self._examples).apply(database)
        except (*REFUSALS, OSError, ValueError) as error:
            raise supervisor.CannotStart(f"the demo cannot be set up: {error}") from error
        except DatabaseUnavailable as error:
            raise supervisor.CannotStart(f"the database cannot be used: {error}") from error
        finally:
            database.close()


@dataclass(frozen=True, slots=True)
class Example:
    """An example adapter, checked, with the name of its base model."""

    base: str
    staged: StagedAdapter


class Seed:
    """Writes the demo's rows into the database. Existing rows are not changed."""

    def __init__(self, config: Config, secrets: Secrets, examples: Path) -> None:
        self._config = config
        self._secrets = secrets
        self._examples = examples
        self._administration = Administration(config, ACTOR)

    def apply(self, database: Database) -> Served:
        store = AdapterStore(self._config.adapters_dir)
        with contextlib.ExitStack() as held:
            examples = {
                path.name: Example(base.name, held.enter_context(stage_directory(store, base, path)))
                for path, base in example_adapters(self._config, self._examples).items()
            }
            return database.write_sync(lambda connection: self._write(connection, examples))

    def _write(self, connection: sa.Connection, examples: dict[str, Example]) -> Served:
        owners = {slug: self._tenant(connection, slug, tier) for slug, tier in TENANTS.items()}
        self._key(connection, None, "admin", self._secrets.admin)
        for slug, tenant in owners.items():
            self._key(connection, tenant.id, "live", self._secrets.tenants[slug])
            if not budgets.list_budgets(connection, scope_id=tenant.id):
                self._administration.budgets.set(
                    connection, tenant_id=tenant.id, unit="money", period="month", limit_amount=BUDGET_PICOS
                )
        for model in self._config.models:
            price = OWN_PRICES.get(model.name, PRICES)
            if not prices.list_price_versions(connection, subject=model.name, limit=1):
                self._administration.prices.publish(
                    connection,
                    subject=model.name,
                    input=price.input,
                    cached_input=price.cached_input,
                    output=price.output,
                    multipliers=self._multipliers(),
                )
        for name, example in examples.items():
            self._adapter(connection, name, owners.get(OWNERS.get(name, "")), example)
        return {
            model.name: [name for name, example in examples.items() if example.base == model.name]
            for model in self._config.models
        }

    def _tenant(self, connection: sa.Connection, slug: str, tier: str) -> Tenant:
        found = tenants.by_slug(connection, slug)
        return found or self._administration.tenants.create(connection, slug=slug, tier=tier)

    def _key(self, connection: sa.Connection, tenant_id: str | None, kind: keys.Kind, secret: str) -> None:
        if not keys.exists(connection, secret):
            self._administration.keys.create(connection, name=KEY_NAME, tenant_id=tenant_id, kind=kind, secret=secret)

    def _adapter(self, connection: sa.Connection, name: str, owner: Tenant | None, example: Example) -> None:
        """Register and serve the example, unless a version of its name has this content already."""
        tenant_id = None if owner is None else owner.id
        found = adapter_rows.named(connection, tenant_id, name)
        versions = adapter_rows.versions(connection, found.id) if found is not None and found.active else []
        facts = example.staged.facts
        if facts.digest in {version.digest for version in versions}:
            return
        registration = Registration(name=name, tenant_id=tenant_id, base_model=example.base, promote=True)
        self._administration.adapters.register(connection, registration, facts, example.staged.keep_content)

    def _multipliers(self) -> dict[str, str]:
        return {tier: factor for tier, factor in MULTIPLIERS.items() if self._config.tier(tier) is not None}


def example_adapters(config: Config, examples: Path) -> dict[Path, AdapterBase]:
    """Directory → base model, of the example adapters whose base model is served."""
    paths = sorted(path.parent for path in examples.glob("*/adapter_config.json"))
    bases = {path: base_named(config, configured_models(config), path) for path in paths}
    return {path: base for path, base in bases.items() if base is not None}


def welcome(
    base_url: str, secrets: Secrets, served: Served, file: Path | None = None, log_dir: Path | None = None
) -> str:
    """The text that greets a newcomer: address, keys and curl lines to paste. `file`: demo.json of the running demo;
    None: the processes are started separately."""
    console = base_url.removesuffix("/v1") + "/admin"
    lines = [
        f"Laneway {'serves' if file else 'will serve'} at {base_url}",
        f"The console: {console} (sign in with the admin key)",
        "",
    ]
    for slug, tier in TENANTS.items():
        lines.append(f"  {slug:<8} {tier:<9} {secrets.tenants[slug]}")
    lines += [f"  {'admin':<18} {secrets.admin}", ""]
    for base, adapters in served.items():
        lines.append(f"  {base}" + (f", and of it {', '.join(adapters)}" if adapters else ""))
    base, *further = served
    question = "Why is the sky blue?"
    lines += ["", "# A base model, streamed:", chat(base_url, secrets.tenants["globex"], base, question)]
    for model in further:
        lines += ["", "# Another model, in the same engine:"]
        lines.append(chat(base_url, secrets.tenants["globex"], model, QUESTIONS.get(model, question)))
    example = next((name for name in OWNERS if any(name in adapters for adapters in served.values())), None)
    if example is not None:
        owner = OWNERS[example]
        lines += ["", f"# The adapter that {owner} owns; with another tenant's key it does not exist:"]
        lines.append(chat(base_url, secrets.tenants[owner], example, "Where is my parcel? I ordered it last week."))
    if AGENT.exists() and any(AGENT_ADAPTER in adapters for adapters in served.values()):
        lines += ["", "# An agent: the model calls functions of a script, and answers from their results:"]
        lines.append(agent(base_url, secrets.tenants["globex"], "What is the weather in Lisbon?"))
    bearer = f"-H 'Authorization: Bearer {secrets.tenants['acme']}'"
    lines += ["", "# The models that acme may call:", f"curl -s {base_url}/models {bearer}"]
    bearer = f"-H 'Authorization: Bearer {secrets.admin}'"
    lines += ["", "# Usage and its cost (in picos):", f"curl -s {base_url}/admin/usage {bearer}"]
    if file is None:
        return "\n".join(lines)
    lines += ["", f"Address, keys and models as JSON, for scripts: {file}"]
    if log_dir is not None:
        lines.append(f"The log, a JSON object a line: {log_dir}")
    if (activate := activation()) is not None:
        lines.append(f"In another terminal, for the command `laneway`: . {activate}")
    return "\n".join([*lines, "Ctrl-C stops it."])


def activation() -> Path | None:
    """The activation script of this virtual environment, relative to the current directory if it is inside. None:
    `laneway` is on PATH already, or this Python has no virtual environment."""
    script = Path(sys.prefix, "bin", "activate")
    if shutil.which("laneway") is not None or not script.exists():
        return None
    return shown_path(script)


def shown_path(path: Path) -> Path:
    """Relative to the current directory if it is inside."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def agent(base_url: str, key: str, question: str) -> str:
    """A line that runs the example agent; any Python will do, as it imports the standard library alone."""
    return (
        f"LANEWAY_URL={base_url.removesuffix('/v1')} LANEWAY_KEY={key} \\\n"
        f"  python3 {shlex.quote(str(shown_path(AGENT)))} {shlex.quote(question)}"
    )


def chat(base_url: str, key: str, model: str, question: str) -> str:
    """A curl line of a streamed chat completion."""
    body = {"model": model, "stream": True, "max_tokens": 64, "messages": [{"role": "user", "content": question}]}
    return (
        f"curl -N {base_url}/chat/completions -H 'Authorization: Bearer {key}' \\\n"
        f"  -H 'Content-Type: application/json' -d '{json.dumps(body)}'"
    )
