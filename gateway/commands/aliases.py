"""`laneway aliases list|set|remove`: names that stand for models."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from gateway.catalog import aliases
from gateway.catalog.aliases import Alias
from gateway.commands.console import Console, fail, json_option, pass_console, show_row, show_rows
from gateway.commands.database import read_database, write_database
from gateway.config.settings import TargetSection

COLUMNS = ("name", "models", "cheapest", "fallbacks", "tenants", "active", "source")


@click.group("aliases")
def aliases_group() -> None:
    """Names that stand for models: another name, a canary, or the cheapest of several."""


@aliases_group.command("list")
@json_option
@pass_console
def list_command(console: Console, as_json: bool) -> None:
    """List the aliases in force, by name: aliases that were set, then the aliases of laneway.toml."""
    found = read_database(console, lambda c: aliases.in_force(c, console.config))
    show_rows([_row(alias, as_json) for alias in found.values()], COLUMNS, as_json=as_json)


@aliases_group.command("set")
@click.argument("name")
@click.argument("models", nargs=-1, required=True)
@click.option("--cheapest", is_flag=True, help="Tenants that opted in get the cheapest model that can serve a request.")
@click.option(
    "--fallback", "fallbacks", multiple=True, help="A model to try when the chosen one is saturated or unavailable."
)
@click.option(
    "--tenant", "tenants", multiple=True, help="Only these tenants may call it: a slug or an id. Default: all."
)
@click.option("--off", is_flag=True, help="Switch the alias off, also one of laneway.toml.")
@json_option
@pass_console
def set_command(
    console: Console,
    name: str,
    models: tuple[str, ...],
    cheapest: bool,
    fallbacks: tuple[str, ...],
    tenants: tuple[str, ...],
    off: bool,
    as_json: bool,
) -> None:
    """Let NAME stand for MODELS, each a name or NAME=WEIGHT. They replace the models that NAME stood for. Gateways
    follow within a second."""
    targets = [_target(model) for model in models]
    alias = write_database(
        console,
        lambda c: console.administration.aliases.set(
            c,
            name,
            models=targets,
            cheapest=cheapest,
            fallbacks=fallbacks,
            tenants=tenants or None,
            active=not off,
        ),
    )
    show_row(_row(alias, as_json), as_json=as_json)


@aliases_group.command("remove")
@click.argument("name")
@pass_console
def remove_command(console: Console, name: str) -> None:
    """Remove the alias NAME; an alias NAME of laneway.toml is in force again."""
    write_database(console, lambda c: console.administration.aliases.remove(c, name))
    click.echo(f"{name} is removed")


def _target(model: str) -> TargetSection:
    name, _, weight = model.partition("=")
    try:
        return msgspec.convert({"model": name} | ({"weight": float(weight)} if weight else {}), TargetSection)
    except ValueError:
        fail(f"{model!r} is neither a model's name nor MODEL=WEIGHT, with a weight of 0 or more")


def _row(alias: Alias, as_json: bool) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(alias)
    if not as_json:
        row["models"] = [f"{target.model}={target.weight:g}" for target in alias.models]
        row["tenants"] = alias.tenants or "all"
    return row
