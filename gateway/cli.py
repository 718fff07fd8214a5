"""The command line `laneway`: the root command over the commands of gateway/commands.

It loads no torch: engine, migrations and the load tool run as `python -m ROOM`.
"""

from __future__ import annotations

import logging
from pathlib import Path

import click

from gateway.commands.adapters import adapters_group
from gateway.commands.alerts import audit_group, webhooks_group
from gateway.commands.aliases import aliases_group
from gateway.commands.apply import apply_command
from gateway.commands.backup import backup_command, restore_command
from gateway.commands.batches import batches_group, files_group
from gateway.commands.bench import bench_command
from gateway.commands.billing import billing_group
from gateway.commands.config import config_group
from gateway.commands.connectors import connectors_group
from gateway.commands.console import Console
from gateway.commands.database import db_group
from gateway.commands.demo import demo_group
from gateway.commands.doctor import doctor_command
from gateway.commands.drain_and_upgrade import drain_group, upgrade_command
from gateway.commands.exports import check_command, export_command
from gateway.commands.fleet import fleet_group
from gateway.commands.keys import keys_group
from gateway.commands.limits import limits_group
from gateway.commands.models import models_group
from gateway.commands.money import budgets_group, prices_group
from gateway.commands.now import requests_command, status_command, tiers_command, usage_command
from gateway.commands.people import people_group
from gateway.commands.run import engine_command, gateway_command, serve_command
from gateway.commands.secret import secret_group
from gateway.commands.simulate import simulate_command
from gateway.commands.sla import sla_command
from gateway.commands.tenants import projects_group, tenants_group


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
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


for command in (
    serve_command,
    gateway_command,
    engine_command,
    drain_group,
    upgrade_command,
    db_group,
    backup_command,
    restore_command,
    status_command,
    requests_command,
    usage_command,
    tiers_command,
    apply_command,
    tenants_group,
    projects_group,
    keys_group,
    people_group,
    budgets_group,
    webhooks_group,
    limits_group,
    prices_group,
    billing_group,
    sla_command,
    connectors_group,
    models_group,
    adapters_group,
    aliases_group,
    batches_group,
    files_group,
    audit_group,
    config_group,
    secret_group,
    doctor_command,
    bench_command,
    simulate_command,
    fleet_group,
    demo_group,
):
    main.add_command(command)
for command in (export_command, check_command):
    billing_group.add_command(command)


if __name__ == "__main__":
    main()
