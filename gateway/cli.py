"""The command line `laneway`: the root command over the commands of gateway/commands.

It loads no torch: engine, migrations and the load tool run as `python -m ROOM`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from gateway.commands.console import Console

# Each command's module in gateway/commands, and its variable there.
COMMANDS: Mapping[str, str] = {
    "adapters": "adapters:adapters_group",
    "aliases": "aliases:aliases_group",
    "apply": "apply:apply_command",
    "audit": "alerts:audit_group",
    "backup": "backup:backup_command",
    "batches": "batches:batches_group",
    "bench": "bench:bench_command",
    "billing": "billing:billing_group",
    "budgets": "money:budgets_group",
    "config": "config:config_group",
    "connectors": "connectors:connectors_group",
    "db": "database:db_group",
    "demo": "demo:demo_group",
    "doctor": "doctor:doctor_command",
    "drain": "drain_and_upgrade:drain_group",
    "engine": "run:engine_command",
    "files": "batches:files_group",
    "fleet": "fleet:fleet_group",
    "gateway": "run:gateway_command",
    "keys": "keys:keys_group",
    "limits": "limits:limits_group",
    "models": "models:models_group",
    "people": "people:people_group",
    "prices": "money:prices_group",
    "projects": "tenants:projects_group",
    "requests": "now:requests_command",
    "restore": "backup:restore_command",
    "secret": "secret:secret_group",
    "serve": "run:serve_command",
    "simulate": "simulate:simulate_command",
    "sla": "sla:sla_command",
    "status": "now:status_command",
    "tenants": "tenants:tenants_group",
    "tiers": "now:tiers_command",
    "upgrade": "drain_and_upgrade:upgrade_command",
    "usage": "now:usage_command",
    "webhooks": "alerts:webhooks_group",
}


class ImportedCommands(Mapping[str, click.Command]):
    """Imports a command's module when the command is looked up: all modules together take half a second."""

    def __getitem__(self, name: str) -> click.Command:
        module, variable = COMMANDS[name].split(":")
        command: click.Command = getattr(import_module(f"gateway.commands.{module}"), variable)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class ImportedGroup(click.Group):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = ImportedCommands()  # type: ignore[assignment]


@click.group(cls=ImportedGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The configuration file. Default: $LANEWAY_CONFIG, else ./laneway.toml, else built-in defaults.",
)
@click.version_option(package_name="laneway")
@click.pass_context
def main(context: click.Context, file: Path | None) -> None:
    """Laneway: a multi-tenant, OpenAI-compatible gateway and the engine behind it."""
    context.obj = Console(file)
    # A command reports a lost engine itself; the client's log line would repeat it on stderr.
    if not (log := logging.getLogger("engine")).handlers:
        log.addHandler(logging.NullHandler())


if __name__ == "__main__":
    main()
