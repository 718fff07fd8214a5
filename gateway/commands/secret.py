"""`laneway secret show|add|promote|drop|adopt`: the server secret of a deployment, and its rotation."""

from __future__ import annotations

import click
import sqlalchemy as sa

from gateway.access.deployment_secret import adopt_secrets
from gateway.access.end_users import delete_unreadable_key, rewrap_end_user_key
from gateway.access.routing_keys import rewrap_routing_keys
from gateway.commands.console import Console, fail, pass_console
from gateway.commands.database import write_database
from gateway.config.file import ConfigError
from gateway.config.server_secrets import (
    ServerSecrets,
    new_secret,
    read_server_secrets,
    write_server_secrets,
)
from gateway.stored.texts import TextKeys

RESTART = "Copy the file to every gateway host, and restart each gateway before the next step."


@click.group("secret")
def secret_group() -> None:
    """The server secret, which decrypts stored texts. Rotate it with add, promote and drop."""


@secret_group.command("show")
@pass_console
def show_command(console: Console) -> None:
    """Show the fingerprints of the secrets, the current one first. Not the secrets."""
    secrets = _read(console)
    for fingerprint, use in zip(secrets.fingerprints(), ("encrypts and decrypts", "decrypts"), strict=False):
        click.echo(f"{fingerprint}  {use}")


@secret_group.command("add")
@pass_console
def add_command(console: Console) -> None:
    """Step 1 of a rotation: add a new secret, which decrypts only."""
    secrets = _read(console)
    if secrets.other is not None:
        fail("the file has two secrets already; finish that rotation with promote and drop")
    _write(console, ServerSecrets(secrets.current, new_secret()), RESTART)


@secret_group.command("promote")
@pass_console
def promote_command(console: Console) -> None:
    """Step 2 of a rotation: the new secret encrypts, the old one decrypts."""
    secrets = _read(console)
    if secrets.other is None:
        fail("the file has one secret; begin with add")
    _write(console, ServerSecrets(secrets.other, secrets.current), RESTART)


@secret_group.command("drop")
@pass_console
def drop_command(console: Console) -> None:
    """Step 3 of a rotation: remove the old secret. Texts that only it decrypts become unreadable."""
    secrets = _read(console)
    if secrets.other is None:
        fail("the file has one secret")

    def rewrap(connection: sa.Connection) -> tuple[int, int]:
        rewrap_end_user_key(connection, secrets)
        return TextKeys(secrets).rewrap(connection), rewrap_routing_keys(connection, secrets)

    tenants, webhooks = write_database(console, rewrap)
    click.echo(f"{tenants} tenants' keys of stored texts are encrypted with the new secret now")
    click.echo(f"{webhooks} routing keys of webhooks are encrypted with the new secret now")
    _write(console, ServerSecrets(secrets.current), "Copy the file to every gateway host, and restart each gateway.")


@secret_group.command("adopt")
@pass_console
def adopt_command(console: Console) -> None:
    """Replace the secret of the database by this file's secret, after the old secret was lost."""
    secrets = _read(console)

    def adopt(connection: sa.Connection) -> tuple[int, bool]:
        adopt_secrets(connection, secrets)
        return TextKeys(secrets).delete_unreadable_keys(connection), delete_unreadable_key(connection, secrets)

    deleted, end_users = write_database(console, adopt)
    click.echo(f"{deleted} tenants' keys of stored texts could not be decrypted and are deleted")
    if end_users:
        click.echo("the key of end users' names could not be decrypted: every end user begins a new budget")
    click.echo(f"{secrets.fingerprints()[0]} is the secret of this database")


def _read(console: Console) -> ServerSecrets:
    try:
        return read_server_secrets(console.config)
    except (ConfigError, OSError) as error:
        fail(str(error))


def _write(console: Console, secrets: ServerSecrets, advice: str) -> None:
    try:
        write_server_secrets(console.config, secrets)
    except OSError as error:
        fail(str(error))
    click.echo(f"{console.config.gateway.secret_file} is changed. {advice}")
