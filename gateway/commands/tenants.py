"""`laneway tenants list|create|suspend|resume`."""

from __future__ import annotations

import click
import msgspec
import sqlalchemy as sa

from billing import tenants
from gateway import audit
from gateway.administration import Actor, Administration, tenant_of
from gateway.commands.console import Console, json_option, pass_console, show_row, show_rows
from gateway.commands.database import read, write
from gateway.views import TenantView

COLUMNS = ("slug", "tier", "status", "currency", "default_max_tokens", "created_at", "id", "name")


@click.group("tenants")
def tenants_group() -> None:
    """Who may use Laneway."""


@tenants_group.command("list")
@json_option
@pass_console
def list_command(console: Console, as_json: bool) -> None:
    """All tenants, by slug."""
    found = read(console, _all)
    show_rows([msgspec.to_builtins(TenantView.of(tenant)) for tenant in found], COLUMNS, as_json=as_json)


def _all(connection: sa.Connection) -> list[tenants.Tenant]:
    found: list[tenants.Tenant] = []
    while page := tenants.listing(connection, after=found[-1].slug if found else "", limit=tenants.LIST_MAX):
        found += page
    return found


@tenants_group.command("create")
@click.argument("slug")
@click.option("--tier", required=True, help="The highest tier that its keys may have.")
@click.option("--name", help="Without it: the slug.")
@click.option("--currency", default="USD", show_default=True, help="For ever.")
@click.option("--default-max-tokens", type=int, help="For requests that name none.")
@json_option
@pass_console
def create_command(
    console: Console,
    slug: str,
    tier: str,
    name: str | None,
    currency: str,
    default_max_tokens: int | None,
    as_json: bool,
) -> None:
    """Make a tenant. SLUG is its name in /t/<slug>/v1."""
    administration = Administration(console.config, Actor(audit.CLI))
    tenant = write(
        console,
        lambda c: administration.create_tenant(
            c, slug=slug, tier=tier, name=name, currency=currency, default_max_tokens=default_max_tokens
        ),
    )
    show_row(msgspec.to_builtins(TenantView.of(tenant)), as_json=as_json)


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
    administration = Administration(console.config, Actor(audit.CLI))
    changed = write(console, lambda c: administration.update_tenant(c, tenant_of(c, tenant).id, status=status))
    show_row(msgspec.to_builtins(TenantView.of(changed)), as_json=as_json)
