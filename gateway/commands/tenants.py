"""`laneway tenants list|create|set|suspend|resume|archive|restore|export|erase` and `laneway projects
list|create|set|archive|restore`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec
import sqlalchemy as sa

from adapters.files.store import AdapterStore
from billing.accounts import tenants
from gateway.admin.erasure_file import ErasuresUnreadable
from gateway.admin.writes import project_of, tenant_of
from gateway.commands.console import (
    Command,
    Console,
    ask,
    fail,
    json_option,
    pass_console,
    show_row,
    show_rows,
    yes_option,
)
from gateway.commands.database import read_database, write_database
from gateway.config.file import ConfigError
from gateway.config.server_secrets import read_server_secrets
from gateway.files.backends import open_backend
from gateway.files.contents import FileContents
from gateway.recovery.tenant_files import FolderTaken, write_files
from gateway.stored.texts import TextKeys
from gateway.views.accounts import ProjectView, TenantView

COLUMNS = (
    *("slug", "tier", "status", "currency", "time_zone", "default_max_tokens", "share_weight"),
    *("cheapest", "store_responses_s", "on_budget", "created_at", "id", "name"),
)
PROJECT_COLUMNS = ("name", "default_max_tokens", "created_at", "id")

WEIGHT_HELP = "Weight of its share in a tier: twice the weight, twice the service while both wait."


OFF = object()  # an option that clears its setting
_SECONDS = {"h": 3600, "d": 24 * 3600}


def _duration(_context: click.Context, _option: click.Parameter, value: str | None) -> object:
    """Seconds of a text such as 12h or 30d; OFF; None without the option."""
    if value is None or value == "off":
        return value and OFF
    number, unit = value[:-1], value[-1:]
    if unit not in _SECONDS or not number.isascii() or not number.isdigit():
        raise click.BadParameter(f"{value!r} is neither off nor a time such as 12h or 30d")
    return int(number) * _SECONDS[unit]


def _networks(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> object:
    """The networks of the options; OFF; None without an option."""
    return OFF if texts == ("off",) else list(texts) or None


def _archived_option(command: Command) -> Command:
    return click.option("--archived", is_flag=True, help="List only archived tenants or projects.")(command)


@click.group("tenants")
def tenants_group() -> None:
    """Tenants: customers with their own keys, budgets and invoices."""


@tenants_group.command("list")
@_archived_option
@json_option
@pass_console
def list_command(console: Console, archived: bool, as_json: bool) -> None:
    """All tenants that are not archived, by slug."""
    found = [tenant for tenant in read_database(console, _all) if (tenant.archived_at is not None) == archived]
    show_rows([msgspec.to_builtins(TenantView.of(tenant)) for tenant in found], COLUMNS, as_json=as_json)


def _all(connection: sa.Connection) -> list[tenants.Tenant]:
    found: list[tenants.Tenant] = []
    while page := tenants.list_tenants(connection, after=found[-1].slug if found else "", limit=tenants.LIST_MAX):
        found += page
    return found


@tenants_group.command("create")
@click.argument("slug")
@click.option("--tier", required=True, help="The highest tier that its keys may have.")
@click.option("--name", help="Default: the slug.")
@click.option("--currency", default="USD", show_default=True, help="Cannot be changed later.")
@click.option("--default-max-tokens", type=int, help="For requests without max_tokens.")
@click.option("--share-weight", type=float, default=1.0, show_default=True, help=WEIGHT_HELP)
@click.option("--time-zone", default="UTC", show_default=True, help="Where the days and months of its budgets begin.")
@json_option
@pass_console
def create_command(
    console: Console,
    slug: str,
    tier: str,
    name: str | None,
    currency: str,
    default_max_tokens: int | None,
    share_weight: float,
    time_zone: str,
    as_json: bool,
) -> None:
    """Make a tenant. SLUG is its name in /t/<slug>/v1."""
    administration = console.administration
    tenant = write_database(
        console,
        lambda c: administration.tenants.create(
            c,
            slug=slug,
            tier=tier,
            name=name,
            currency=currency,
            default_max_tokens=default_max_tokens,
            share_weight=share_weight,
            time_zone=time_zone,
        ),
    )
    show_row(msgspec.to_builtins(TenantView.of(tenant)), as_json=as_json)


def _on_budget(_context: click.Context, _option: click.Parameter, value: str | None) -> object:
    return OFF if value == "default" else value


@tenants_group.command("set")
@click.argument("tenant")
@click.option("--name")
@click.option("--tier", help="The highest tier that its keys may have.")
@click.option("--default-max-tokens", type=int, help="For requests without max_tokens.")
@click.option("--share-weight", type=float, help=WEIGHT_HELP)
@click.option(
    "--time-zone",
    help="Where the days and months of its budgets begin. A new time zone begins new windows: amounts used in the old "
    "windows do not count in them.",
)
@click.option(
    "--cheapest/--no-cheapest",
    default=None,
    help="An alias that allows it is served by the cheapest model that can serve the request, whatever the weights.",
)
@click.option(
    "--store-responses",
    "store_responses_s",
    callback=_duration,
    help="For how long responses of /v1/responses are stored, such as 12h or 30d. off: no response is stored, and "
    "those stored already cannot be read any more.",
)
@click.option(
    "--ip",
    "allowed_ips",
    multiple=True,
    callback=_networks,
    help="Replaces the list of networks and addresses from which its keys may be used. Repeatable. off: every address.",
)
@click.option(
    "--on-budget",
    type=click.Choice(["wait", "fail", "default"]),
    callback=_on_budget,
    help="Handling of batch lines that no budget covers: wait (until the batch's window ends) or fail. "
    "default: the value of laneway.toml.",
)
@json_option
@pass_console
def set_command(console: Console, /, tenant: str, as_json: bool, **options: Any) -> None:
    """Change settings of TENANT (a slug or an id). A setting that is not given does not change. Gateways follow within
    a second."""
    changes = {name: None if value is OFF else value for name, value in _given(options).items()}
    administration = console.administration
    changed = write_database(console, lambda c: administration.tenants.update(c, tenant_of(c, tenant).id, **changes))
    show_row(msgspec.to_builtins(TenantView.of(changed)), as_json=as_json)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value is not None}
    return given or fail("nothing was given to change; see --help")


@tenants_group.command("suspend")
@click.argument("tenant")
@json_option
@pass_console
def suspend_command(console: Console, tenant: str, as_json: bool) -> None:
    """Refuse the keys of TENANT (a slug or an id) from now on."""
    _set_status(console, tenant, "suspended", as_json)


@tenants_group.command("resume")
@click.argument("tenant")
@json_option
@pass_console
def resume_command(console: Console, tenant: str, as_json: bool) -> None:
    """Accept the keys of TENANT (a slug or an id) again."""
    _set_status(console, tenant, "active", as_json)


def _set_status(console: Console, tenant: str, status: tenants.Status, as_json: bool) -> None:
    administration = console.administration
    changed = write_database(
        console, lambda c: administration.tenants.update(c, tenant_of(c, tenant).id, status=status)
    )
    show_row(msgspec.to_builtins(TenantView.of(changed)), as_json=as_json)


@tenants_group.command("archive")
@click.argument("tenant")
@yes_option
@json_option
@pass_console
def archive_command(console: Console, tenant: str, yes: bool, as_json: bool) -> None:
    """Refuse the keys of TENANT (a slug or an id) from now on, and leave it out of lists. Its slug, its books and its
    open periods remain. `laneway tenants restore` ends it."""
    administration = console.administration
    if not yes:
        ask(f"Archive the tenant {tenant}, and refuse its keys?")
    archived = write_database(console, lambda c: administration.tenants.archive(c, tenant_of(c, tenant).id))
    show_row(msgspec.to_builtins(TenantView.of(archived)), as_json=as_json)


@tenants_group.command("restore")
@click.argument("tenant")
@json_option
@pass_console
def restore_command(console: Console, tenant: str, as_json: bool) -> None:
    """End the archiving of TENANT (a slug or an id): it is active, and its keys are accepted again."""
    administration = console.administration
    restored = write_database(console, lambda c: administration.tenants.restore(c, tenant_of(c, tenant).id))
    show_row(msgspec.to_builtins(TenantView.of(restored)), as_json=as_json)


@tenants_group.command("export")
@click.argument("tenant")
@click.argument("folder", type=click.Path(path_type=Path))
@json_option
@pass_console
def export_tenant_command(console: Console, tenant: str, folder: Path, as_json: bool) -> None:
    """Write all data of TENANT (a slug or an id) to the new FOLDER: a file for each table, its adapters, its files, and
    a manifest with digests. Stored texts are in plain text; secrets of keys and webhooks are left out."""
    config = console.config
    found = read_database(console, lambda c: tenant_of(c, tenant))
    try:
        manifest = write_files(
            config.database_url,
            found.id,
            folder,
            AdapterStore(config.adapters_dir),
            FileContents(open_backend(config.files.store, config.files_dir, config.upload_free_min_bytes)),
            TextKeys(read_server_secrets(config)),
            lambda line: click.echo(line, err=True),
        )
    except (FolderTaken, ConfigError, OSError) as error:
        fail(str(error))
    shown = {"folder": str(folder), "files": len(manifest.files), "unreadable": manifest.unreadable}
    show_row({**shown, "tenant_id": found.id, "slug": found.slug}, as_json=as_json)


@tenants_group.command("erase")
@click.argument("tenant")
@click.option("--confirm", required=True, metavar="SLUG", help="The tenant's slug once more. Nothing brings it back.")
@pass_console
def erase_command(console: Console, tenant: str, confirm: str) -> None:
    """Erase names, keys, stored texts, adapters and audited changes of TENANT (a slug or an id) permanently. Usage,
    ledger and invoices keep their amounts, under the tenant's id. A restore from an older backup erases it again."""
    administration = console.administration
    try:
        erasure = write_database(
            console, lambda c: administration.tenants.erase(c, tenant_of(c, tenant).id, confirm=confirm)
        )
    except (ErasuresUnreadable, OSError) as error:
        fail(f"{console.config.erasures_file}: {error}")
    click.echo(f"{erasure.tenant_id} is erased ({erasure.id})")


@click.group("projects")
def projects_group() -> None:
    """Groups of a tenant's keys, with their own budgets."""


@projects_group.command("list")
@click.argument("tenant")
@_archived_option
@json_option
@pass_console
def list_projects_command(console: Console, tenant: str, archived: bool, as_json: bool) -> None:
    """The projects of TENANT (a slug or an id) that are not archived, by name."""
    found = read_database(console, lambda c: tenants.projects(c, tenant_of(c, tenant).id))
    listed = [project for project in found if (project.archived_at is not None) == archived]
    rows = [msgspec.to_builtins(ProjectView.of(project)) for project in listed]
    show_rows(rows, PROJECT_COLUMNS, as_json=as_json)


@projects_group.command("create")
@click.argument("tenant")
@click.argument("name")
@click.option("--default-max-tokens", type=int, help="For requests without max_tokens.")
@json_option
@pass_console
def create_project_command(
    console: Console, tenant: str, name: str, default_max_tokens: int | None, as_json: bool
) -> None:
    """Make the project NAME of TENANT (a slug or an id)."""
    administration = console.administration
    project = write_database(
        console,
        lambda c: administration.projects.create(
            c, tenant_id=tenant_of(c, tenant).id, name=name, default_max_tokens=default_max_tokens
        ),
    )
    show_row(msgspec.to_builtins(ProjectView.of(project)), as_json=as_json)


@projects_group.command("set")
@click.argument("tenant")
@click.argument("project")
@click.option("--name")
@click.option("--default-max-tokens", type=int, help="For requests without max_tokens.")
@json_option
@pass_console
def set_project_command(console: Console, /, tenant: str, project: str, as_json: bool, **options: Any) -> None:
    """Change settings of the PROJECT (an id or a name) of TENANT (a slug or an id). A setting that is not given does
    not change."""
    changes = _given(options)
    administration = console.administration

    def change(connection: sa.Connection) -> tenants.Project:
        found = project_of(connection, tenant_of(connection, tenant).id, project)
        return administration.projects.update(connection, found.id, **changes)

    show_row(msgspec.to_builtins(ProjectView.of(write_database(console, change))), as_json=as_json)


@projects_group.command("archive")
@click.argument("tenant")
@click.argument("project")
@yes_option
@json_option
@pass_console
def archive_project_command(console: Console, tenant: str, project: str, yes: bool, as_json: bool) -> None:
    """Leave the PROJECT (an id or a name) of TENANT (a slug or an id) out of lists. No key can be created in it. A
    project with a usable key is not archived."""
    administration = console.administration
    if not yes:
        ask(f"Archive the project {project} of {tenant}?")

    def archive(connection: sa.Connection) -> tenants.Project:
        found = project_of(connection, tenant_of(connection, tenant).id, project)
        return administration.projects.archive(connection, found.id)

    show_row(msgspec.to_builtins(ProjectView.of(write_database(console, archive))), as_json=as_json)


@projects_group.command("restore")
@click.argument("tenant")
@click.argument("project")
@json_option
@pass_console
def restore_project_command(console: Console, tenant: str, project: str, as_json: bool) -> None:
    """End the archiving of the PROJECT (an id or a name) of TENANT (a slug or an id)."""
    administration = console.administration

    def restore(connection: sa.Connection) -> tenants.Project:
        found = project_of(connection, tenant_of(connection, tenant).id, project)
        return administration.projects.restore(connection, found.id)

    show_row(msgspec.to_builtins(ProjectView.of(write_database(console, restore))), as_json=as_json)
