"""`laneway config check`: whether the configuration is valid."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.commands.console import Console, fail, pass_console, show_row
from gateway.config import file as configuration
from gateway.config.settings import safe_url


@click.group("config")
def config_group() -> None:
    """The configuration file."""


@config_group.command("check")
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the whole configuration as JSON.")
@pass_console
def check(console: Console, file: Path | None, as_json: bool) -> None:
    """Check FILE and report all errors. Default: the file that the other commands would use."""
    try:
        config = configuration.load_gateway_config(file or console.file)
    except configuration.ConfigError as error:
        fail(str(error))
    if as_json:
        show_row(configuration.as_dict(config), as_json=True)
        return
    click.echo(f"{configuration.locate(file or console.file) or 'the defaults'}: ok")
    click.echo(f"  gateway  {config.gateway.host}:{config.gateway.port}, {safe_url(config.database_url)}")
    click.echo(f"  models   {', '.join(model.name for model in config.models)}")
    click.echo(f"  tiers    {', '.join(tier.name for tier in config.tiers)}")
