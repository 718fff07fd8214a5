"""`laneway adapters add|check|list|versions|promote|rollback|set|remove`."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec
import sqlalchemy as sa

from adapters.files.store import FILES, AdapterStore
from billing.texts import visible
from gateway.admin.refusals import REFUSALS
from gateway.admin.writes import tenant_of
from gateway.catalog import adapters
from gateway.catalog.adapters import Adapter, Registration
from gateway.commands.console import Console, fail, json_option, pass_console, show_row, show_rows
from gateway.commands.database import base_models, read_database, sentence, show_named_rows, write_database
from gateway.uploads.staged import StagedAdapter, base_for, stage_directory
from gateway.views.accounts import AddedAdapterView

COLUMNS = ("name", "tenant", "shared", "base_model", "version", "pinned", "created_at", "id", "digest")
VERSION_COLUMNS = ("number", "served", "replaced", "rank_max", "targets", "bytes", "created_at", "digest", "warnings")
DIGEST_CHARS_SHOWN = 12

model_option = click.option(
    "--model",
    "base_model",
    help="The base model. Default: the only served model, or the model that adapter_config.json names.",
)
owner_option = click.option("--tenant", help="The owning tenant, a slug or an id, if several have this name.")


@click.group("adapters")
def adapters_group() -> None:
    """LoRA adapters, their versions and who may call them."""


@adapters_group.command("add")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--name", help="The name that callers write as `model`. Default: the directory's name.")
@click.option("--tenant", help="The owning tenant, a slug or an id. Default: none; all tenants may call the adapter.")
@click.option("--shared", multiple=True, help="A further tenant that may call it, or '*' for all; repeatable.")
@click.option("--notes", help="For operators.")
@click.option("--pinned/--not-pinned", default=None, help="Never evict it from the engine's memory.")
@click.option("--promote/--no-promote", default=None, help="Serve the version at once. Default: if the name is new.")
@model_option
@json_option
@pass_console
def add_command(
    console: Console,
    directory: Path,
    name: str | None,
    tenant: str | None,
    shared: tuple[str, ...],
    notes: str | None,
    pinned: bool | None,
    promote: bool | None,
    base_model: str | None,
    as_json: bool,
) -> None:
    """Check the PEFT adapter in DIRECTORY, copy it into the store, and register it: as a new adapter, or as a further
    version of the adapter that has the name."""
    with _staged(console, directory, base_model) as staged:
        wanted = Registration(
            name=name or directory.resolve().name,
            tenant_id=tenant,
            base_model=base_for(console.config, base_models(console), base_model, directory).name,
            shared=shared or None,
            pinned=pinned,
            notes=notes,
            promote=promote,
        )
        administration = console.administration
        made = write_database(
            console, lambda c: administration.adapters.register(c, wanted, staged.facts, staged.keep_content)
        )
    _warn(staged)
    shown = msgspec.to_builtins(AddedAdapterView.of(made))
    show_row(shown if as_json else shown | {"added": made[1].number}, as_json=as_json)


@adapters_group.command("check")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@model_option
@json_option
@pass_console
def check_command(console: Console, directory: Path, base_model: str | None, as_json: bool) -> None:
    """Check the PEFT adapter in DIRECTORY, and change nothing."""
    with _staged(console, directory, base_model) as staged:
        _warn(staged)
        show_row(msgspec.to_builtins(staged.facts), as_json=as_json)


@adapters_group.command("list")
@click.option("--tenant", help="Only adapters that this tenant owns: a slug or an id.")
@json_option
@pass_console
def list_command(console: Console, tenant: str | None, as_json: bool) -> None:
    """All adapters, by name."""

    def query(connection: sa.Connection) -> list[Adapter]:
        owner = None if tenant is None else tenant_of(connection, tenant).id
        found = adapters.list_adapters(connection, active=True)
        return [adapter for adapter in found if owner in (None, adapter.tenant_id)]

    rows = [_shown(adapter, as_json) for adapter in read_database(console, query)]
    show_named_rows(console, rows, COLUMNS, {"tenant": "tenant_id", "shared": "shared"}, as_json=as_json)


@adapters_group.command("versions")
@click.argument("adapter")
@owner_option
@json_option
@pass_console
def versions_command(console: Console, adapter: str, tenant: str | None, as_json: bool) -> None:
    """The versions of ADAPTER (a name or an id), newest first."""

    def query(connection: sa.Connection) -> list[dict[str, object]]:
        found = _adapter(connection, adapter, tenant)
        listed = adapters.versions(connection, found.id)
        return [msgspec.to_builtins(version) | {"served": version.number == found.version} for version in listed]

    show_rows(read_database(console, query), VERSION_COLUMNS, as_json=as_json)


@adapters_group.command("promote")
@click.argument("adapter")
@click.argument("version")
@owner_option
@json_option
@pass_console
def promote_command(console: Console, adapter: str, version: str, tenant: str | None, as_json: bool) -> None:
    """Serve VERSION (a number, or the beginning of a digest) of ADAPTER to all new requests."""
    administration = console.administration
    after = write_database(
        console, lambda c: administration.adapters.promote(c, _adapter(c, adapter, tenant).id, version)
    )
    show_row(_shown(after, as_json), as_json=as_json)


@adapters_group.command("rollback")
@click.argument("adapter")
@owner_option
@json_option
@pass_console
def rollback_command(console: Console, adapter: str, tenant: str | None, as_json: bool) -> None:
    """Serve the version again that the served version of ADAPTER replaced."""
    administration = console.administration
    after = write_database(console, lambda c: administration.adapters.roll_back(c, _adapter(c, adapter, tenant).id))
    show_row(_shown(after, as_json), as_json=as_json)


@adapters_group.command("set")
@click.argument("adapter")
@owner_option
@click.option("--shared", multiple=True, help="A further tenant that may call it, or '*' for all; repeatable.")
@click.option("--not-shared", is_flag=True, help="Only its owner may call it.")
@click.option("--notes", help="For operators; '' removes them.")
@click.option("--pinned/--not-pinned", default=None, help="Never evict it from the engine's memory.")
@json_option
@pass_console
def set_command(
    console: Console,
    adapter: str,
    tenant: str | None,
    shared: tuple[str, ...],
    not_shared: bool,
    notes: str | None,
    pinned: bool | None,
    as_json: bool,
) -> None:
    """Change the tenants that may call ADAPTER, its notes, or whether it is pinned. A setting that is not given does
    not change."""
    if shared and not_shared:
        fail("--shared and --not-shared exclude each other")
    if not (shared or not_shared) and notes is None and pinned is None:
        fail("nothing was given to change; see: laneway adapters set --help")
    listed = () if not_shared else shared or None
    administration = console.administration
    after = write_database(
        console,
        lambda c: administration.adapters.update(
            c, _adapter(c, adapter, tenant).id, shared=listed, notes=notes, pinned=pinned
        ),
    )
    show_row(_shown(after, as_json), as_json=as_json)


@adapters_group.command("remove")
@click.argument("adapter")
@click.option("--version", help="Remove only this version, which must not be the served one.")
@owner_option
@pass_console
def remove_command(console: Console, adapter: str, version: str | None, tenant: str | None) -> None:
    """Remove ADAPTER. New requests for it are refused; a running gateway deletes its files when the last request has
    ended."""
    administration = console.administration

    def change(connection: sa.Connection) -> str:
        found = _adapter(connection, adapter, tenant).id
        if version is None:
            return f"{administration.adapters.remove(connection, found).id}: removed"
        return f"{found}: version {administration.adapters.remove_version(connection, found, version).number} removed"

    click.echo(write_database(console, change))


def _adapter(connection: sa.Connection, adapter: str, tenant: str | None) -> Adapter:
    owner = None if tenant is None else tenant_of(connection, tenant).id
    return adapters.adapter_of(connection, adapter, owner)


def _staged(console: Console, directory: Path, base_model: str | None) -> StagedAdapter:
    """Copy and check an adapter, with a progress bar on a terminal."""
    config = console.config
    try:
        base = base_for(config, base_models(console), base_model, directory)
        sizes = sum((directory / name).stat().st_size for name in FILES if (directory / name).is_file())
        with click.progressbar(
            length=2 * sizes, label=f"checking {directory.name}", file=sys.stderr, hidden=not sys.stderr.isatty()
        ) as bar:
            return stage_directory(AdapterStore(config.adapters_dir), base, directory, bar.update)
    except REFUSALS as error:
        fail(f"{directory}: {sentence(error)}")
    except (OSError, ValueError, KeyError) as error:
        fail(f"the adapter or its base model cannot be read: {error}")


def _warn(staged: StagedAdapter) -> None:
    for warning in staged.facts.warnings:
        click.echo(f"warning: {visible(warning)}", err=True)


def _shown(adapter: Adapter, as_json: bool) -> dict[str, object]:
    row: dict[str, object] = msgspec.to_builtins(adapter)
    return row if as_json else row | {"digest": adapter.digest[:DIGEST_CHARS_SHOWN]}
