"""`laneway keys create|list|set|rotate|revoke`."""

from __future__ import annotations

import time
from typing import Any

import click
import msgspec
import sqlalchemy as sa

from gateway.access import keys
from gateway.access.keys import Key, Kind
from gateway.access.roles import ROLES, Role
from gateway.admin.writes import tenant_of
from gateway.commands.console import Console, fail, json_option, pass_console, show_row, show_rows
from gateway.commands.database import read_database, write_database
from gateway.views.accounts import NewKeyView
from gateway.views.names import names_of

COLUMNS = (
    "id",
    "tenant",
    "kind",
    "role",
    "prefix",
    "last4",
    "tier",
    "created_at",
    "last_used_at",
    "expires_at",
    "revoked_at",
    "name",
)
DAY_S = 24 * 3600


def _tags(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    tags: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name in tags:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE" if not equals else f"{name!r} is given twice")
        tags[name] = value
    return tags


@click.group("keys")
def keys_group() -> None:
    """API keys."""


@keys_group.command("create")
@click.option("--tenant", help="A slug or an id. Only an admin key may be without a tenant.")
@click.option("--project", help="A project of the tenant, an id or a name. Default: its default project.")
@click.option("--name", default="cli", show_default=True)
@click.option("--kind", type=click.Choice(keys.KINDS), default="live", show_default=True)
@click.option("--admin", is_flag=True, help="The same as --kind admin.")
@click.option(
    "--role", type=click.Choice(ROLES), help="Role of an admin key. Default: owner. tenant_admin needs a tenant."
)
@click.option("--tier", help="A tier below the tenant's. Default: the tenant's.")
@click.option("--scope", "scopes", multiple=True, type=click.Choice(keys.SCOPES), help="Repeatable.")
@click.option("--expires-days", type=click.FloatRange(min=0, min_open=True, max=36500))
@click.option("--default-max-tokens", type=int, help="For requests without max_tokens.")
@click.option("--break-glass", is_flag=True, help="An admin key for emergencies: its use raises an alert.")
@click.option("--model", "models", multiple=True, help="A model, adapter or alias that it may call. Default: all.")
@click.option("--ip", "allowed_ips", multiple=True, help="A network or address from which it may be used.")
@click.option("--tag", "tags", multiple=True, callback=_tags, help="NAME=VALUE: marks its usage. Repeatable.")
@json_option
@pass_console
def create_command(
    console: Console,
    tenant: str | None,
    project: str | None,
    name: str,
    kind: Kind,
    admin: bool,
    role: Role | None,
    tier: str | None,
    scopes: tuple[str, ...],
    expires_days: float | None,
    default_max_tokens: int | None,
    break_glass: bool,
    models: tuple[str, ...],
    allowed_ips: tuple[str, ...],
    tags: dict[str, str],
    as_json: bool,
) -> None:
    """Make a key. Its secret is shown only now."""
    administration = console.administration
    made = write_database(
        console,
        lambda c: administration.keys.create(
            c,
            name=name,
            tenant_id=None if tenant is None else tenant_of(c, tenant).id,
            project=project,
            kind="admin" if admin else kind,
            role=role,
            tier=tier,
            scopes=list(scopes) or None,
            expires_at=None if expires_days is None else int(time.time() + expires_days * DAY_S),
            default_max_tokens=default_max_tokens,
            break_glass=break_glass,
            models=models or None,
            allowed_ips=allowed_ips or None,
            tags=tags,
        ),
    )
    show_row(msgspec.to_builtins(NewKeyView.of(made)), as_json=as_json)


@keys_group.command("list")
@click.option("--tenant", help="A slug or an id; without it: all keys.")
@json_option
@pass_console
def list_command(console: Console, tenant: str | None, as_json: bool) -> None:
    """Keys, oldest first, without their secrets; revoked keys too."""

    def query(connection: sa.Connection) -> tuple[list[Key], dict[str | None, str]]:
        found = keys.list_keys(connection, None if tenant is None else tenant_of(connection, tenant).id)
        return found, names_of(connection, [key.tenant_id for key in found])

    found, names = read_database(console, query)
    rows: list[dict[str, Any]] = [msgspec.to_builtins(key) for key in found]
    if not as_json:
        rows = [row | {"tenant": names.get(row["tenant_id"])} for row in rows]
    show_rows(rows, COLUMNS, as_json=as_json)


@keys_group.command("set")
@click.argument("key_id")
@click.option(
    "--project", help="A project of its tenant, an id or a name. New requests count in that project's budgets."
)
@click.option("--default-max-tokens", type=int, help="For requests without max_tokens.")
@click.option("--no-default-max-tokens", is_flag=True, help="Use the default of the project, tenant or model.")
@click.option("--break-glass/--no-break-glass", default=None, help="Whether the use of this admin key raises an alert.")
@click.option("--model", "models", multiple=True, help="Replaces its list of models, adapters and aliases. Repeatable.")
@click.option("--all-models", is_flag=True, help="It may call all names of its tenant.")
@click.option("--ip", "allowed_ips", multiple=True, help="Replaces its list of networks and addresses. Repeatable.")
@click.option("--any-ip", is_flag=True, help="It may be used from every address.")
@click.option("--tag", "tags", multiple=True, callback=_tags, help="NAME=VALUE: replaces its tags. Repeatable.")
@click.option("--no-tags", is_flag=True, help="Remove its tags.")
@json_option
@pass_console
def set_command(
    console: Console,
    key_id: str,
    project: str | None,
    default_max_tokens: int | None,
    no_default_max_tokens: bool,
    break_glass: bool | None,
    models: tuple[str, ...],
    all_models: bool,
    allowed_ips: tuple[str, ...],
    any_ip: bool,
    tags: dict[str, str],
    no_tags: bool,
    as_json: bool,
) -> None:
    """Change settings of KEY_ID. A setting that is not given does not change. Gateways follow within a second."""
    if default_max_tokens is not None and no_default_max_tokens:
        fail("--default-max-tokens and --no-default-max-tokens cannot both be")
    changes: dict[str, Any] = {} if project is None else {"project": project}
    if default_max_tokens is not None or no_default_max_tokens:
        changes["default_max_tokens"] = default_max_tokens
    if break_glass is not None:
        changes["break_glass"] = break_glass
    for name, given, option, clears, flag in (
        ("models", models, "--model", all_models, "--all-models"),
        ("allowed_ips", allowed_ips, "--ip", any_ip, "--any-ip"),
        ("tags", tags, "--tag", no_tags, "--no-tags"),
    ):
        if given and clears:
            fail(f"{option} and {flag} cannot both be")
        if given or clears:
            changes[name] = given or ({} if name == "tags" else None)
    if not changes:
        fail("nothing was given to change; see --help")
    administration = console.administration
    key = write_database(console, lambda c: administration.keys.update(c, key_id, **changes))
    show_row(msgspec.to_builtins(key), as_json=as_json)


@keys_group.command("rotate")
@click.argument("key_id")
@click.option(
    "--overlap-s",
    type=click.IntRange(0, keys.OVERLAP_S_MAX),
    default=DAY_S,
    show_default=True,
    help="Seconds for which the old key still works.",
)
@json_option
@pass_console
def rotate_command(console: Console, key_id: str, overlap_s: int, as_json: bool) -> None:
    """Replace KEY_ID by a new key with the same settings, show its secret, and let the old key expire.

    Both keys share the budgets and rate limits of KEY_ID until the old key expires; the new key then keeps them, with
    the amounts already used.
    """
    administration = console.administration
    made = write_database(console, lambda c: administration.keys.rotate(c, key_id, overlap_s=overlap_s))
    show_row(msgspec.to_builtins(NewKeyView.of(made)), as_json=as_json)


@keys_group.command("revoke")
@click.argument("key_id")
@json_option
@pass_console
def revoke_command(console: Console, key_id: str, as_json: bool) -> None:
    """Revoke a key. Gateways refuse it within a second."""
    administration = console.administration
    key = write_database(console, lambda c: administration.keys.revoke(c, key_id))
    show_row(msgspec.to_builtins(key), as_json=as_json)
