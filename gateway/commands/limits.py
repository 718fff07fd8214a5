"""`laneway limits set|list|remove`: rate limits of single tenants and keys, and quotas of tenants."""

from __future__ import annotations

from typing import Any

import click
import msgspec
import sqlalchemy as sa

from gateway.admin.writes import tenant_of
from gateway.commands.console import Console, fail, json_option, pass_console, show_row, show_rows
from gateway.commands.database import read_database, write_database
from gateway.config.allowance import LIMIT_MAX
from gateway.limits import overrides
from gateway.limits.overrides import MAXIMA, NAMES, LimitsChange, OwnLimits
from gateway.views.names import names_of

Count = click.IntRange(1, LIMIT_MAX)


@click.group("limits")
def limits_group() -> None:
    """Rate limits of single tenants and keys: requests and tokens a minute, concurrent requests; and quotas of a
    tenant's files and batches. Tenants and keys without limits of their own have the limits of laneway.toml."""


@limits_group.command("set")
@click.argument("tenant")
@click.option("--key", "key_id", help="Limit only this key of the tenant.")
@click.option("--requests-per-minute", type=Count)
@click.option("--tokens-per-minute", type=Count)
@click.option("--concurrency", type=Count, help="Concurrent requests.")
@click.option("--files", type=Count, help="Files of /v1/files. Of a tenant only.")
@click.option(
    "--total-file-bytes",
    type=click.IntRange(1, MAXIMA["total_file_bytes"]),
    help="Bytes of all files of the tenant together; files.file_bytes_max limits one upload. Of a tenant only.",
)
@click.option("--batches", type=Count, help="Batches that have not ended. Of a tenant only.")
@click.option(
    "--enqueued-tokens",
    type=click.IntRange(1, MAXIMA["enqueued_tokens"]),
    help="Enqueued tokens of the tenant's batches that have not ended; a token is estimated as 4 bytes of a request's "
    "body. Of a tenant only.",
)
@json_option
@pass_console
def set_command(console: Console, /, tenant: str, key_id: str | None, as_json: bool, **limits: int | None) -> None:
    """Limit TENANT (a slug or an id) over all its keys, or one of its keys. A limit that is not given does not
    change."""
    change = LimitsChange(**{name: value for name, value in limits.items() if value is not None})
    if change == LimitsChange():
        fail("no limit was given; see: laneway limits set --help")
    own = write_database(
        console,
        lambda c: console.administration.limits.set(c, tenant_id=tenant_of(c, tenant).id, key_id=key_id, change=change),
    )
    show_row(msgspec.to_builtins(own), as_json=as_json)


@limits_group.command("list")
@click.option("--tenant", help="A slug or an id; without it: all.")
@json_option
@pass_console
def list_command(console: Console, tenant: str | None, as_json: bool) -> None:
    """Tenants and keys with their own limits; -: the limit of laneway.toml."""

    def query(connection: sa.Connection) -> tuple[list[OwnLimits], dict[str | None, str]]:
        found = overrides.list_own_limits(connection, None if tenant is None else tenant_of(connection, tenant).id)
        return found, names_of(connection, [one for own in found for one in (own.tenant_id, own.subject_id)])

    found, names = read_database(console, query)
    rows: list[dict[str, Any]] = [msgspec.to_builtins(own) for own in found]
    if not as_json:
        rows = [row | {"tenant": names[row["tenant_id"]], "of": names[row["subject_id"]]} for row in rows]
    show_rows(rows, ("id", "tenant", "scope", "of", *NAMES), as_json=as_json)


@limits_group.command("remove")
@click.argument("limits_id")
@pass_console
def remove_command(console: Console, limits_id: str) -> None:
    """Remove limits: the limits of laneway.toml apply again."""
    write_database(console, lambda c: console.administration.limits.remove(c, limits_id))
    click.echo(f"{limits_id} is removed")
