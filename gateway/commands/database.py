"""`laneway db upgrade`, and the functions by which every command reads and writes the database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import click
import sqlalchemy as sa

from billing.database import Database, DatabaseUnavailable
from billing.tables import tenants
from gateway.admin.refusals import REFUSALS
from gateway.catalog.base_models import BaseModel, active_models, configured_models
from gateway.commands.console import CHECKOUT_FILE, Console, Row, checkout_config, fail, pass_console, show_rows
from gateway.config.file import Config
from gateway.config.settings import safe_url
from gateway.host.migrate import upgrade
from gateway.host.supervisor import CannotStart
from gateway.views.names import names_of

T = TypeVar("T")


@click.group("db")
def db_group() -> None:
    """The database."""


@db_group.command("upgrade")
@pass_console
def upgrade_command(console: Console) -> None:
    """Bring the schema to the newest version. Safe to run again."""
    try:
        upgrade(console.config)
    except CannotStart as error:
        fail(str(error))
    click.echo(f"{safe_url(console.config.database_url)}: the schema is the newest")


def write_database(console: Console, change: Callable[[sa.Connection], T]) -> T:
    """Run `change` in one transaction. A refusal ends the command with its sentence."""
    return with_database(console.config, lambda database: database.write_sync(change))


def read_database(console: Console, query: Callable[[sa.Connection], T]) -> T:
    return with_database(console.config, lambda database: database.read_sync(query))


def currencies_of(connection: sa.Connection) -> dict[str, str]:
    """The currencies of all tenants by id."""
    return {row.id: row.currency for row in connection.execute(sa.select(tenants.c.id, tenants.c.currency))}


def show_named_rows(
    console: Console, rows: Sequence[Row], columns: Sequence[str], named: Mapping[str, str], *, as_json: bool
) -> None:
    """As `show_rows`. The table has names in place of ids: `named` maps a column to the field with the id, or the ids,
    of a tenant, project, key or adapter."""
    if not as_json:
        ids = [one for row in rows for field in named.values() for one in _ids(row[field])]
        names = read_database(console, lambda connection: names_of(connection, ids))
        rows = [
            {**row, **{column: [names[one] for one in _ids(row[field])] for column, field in named.items()}}
            for row in rows
        ]
    show_rows(rows, columns, as_json=as_json)


def _ids(value: object) -> list[str]:
    if value is None:
        return []
    return [str(one) for one in value] if isinstance(value, list | tuple) else [str(value)]


def base_models(console: Console) -> list[BaseModel]:
    """The active base models; without a database, the models of laneway.toml."""
    config = console.config
    database = Database(config.database_url)
    try:
        if database.sqlite_path is not None and not database.sqlite_path.exists():
            return configured_models(config)
    finally:
        database.close()
    return read_database(console, lambda connection: active_models(connection, config))


def with_database(config: Config, work: Callable[[Database], T]) -> T:
    """Run `work`, which may use several transactions. A refusal ends the command as in `write_database`."""
    database = Database(config.database_url)
    try:
        if database.sqlite_path is not None and not database.sqlite_path.exists():
            fail(_no_database(database.sqlite_path))
        return work(database)
    except REFUSALS as error:
        fail(sentence(error))
    except DatabaseUnavailable as error:
        fail(_unavailable(config, str(error)))
    except sa.exc.DatabaseError as error:  # e.g. a table is missing, or the file is no database
        fail(_unavailable(config, str(error.orig)))
    finally:
        database.close()


def _no_database(path: Path) -> str:
    """The message depends on the cause: no database was made yet, or the command runs in another directory than that of
    laneway.toml."""
    context = click.get_current_context(silent=True)
    console = context.find_object(Console) if context is not None else None
    located = console.located if console is not None else None
    if located is not None:
        return f"there is no database at {path} (by {located}); `laneway serve` makes it, or: laneway db upgrade"
    here = "no laneway.toml is in this directory, and no --config was given"
    checkout = checkout_config()
    if checkout is not None and Path(checkout.database_url.removeprefix("sqlite:///")).exists():
        return f"there is no database at {path}: {here}. There is one of: laneway --config {CHECKOUT_FILE} …"
    return f"there is no database at {path}: {here}; change to the directory of laneway.toml, or: laneway --config FILE"


def _unavailable(config: Config, reason: str) -> str:
    first = reason.splitlines()[0]
    if "no such table" in reason or "does not exist" in reason:
        return f"{safe_url(config.database_url)} lacks tables ({first}); bring it up with: laneway db upgrade"
    return f"{safe_url(config.database_url)} cannot be used: {first}"


def sentence(error: Exception) -> str:
    """A refusal as one sentence, with the name of the wrong argument."""
    param = getattr(error, "param", None)
    return f"{param}: {error}" if param else str(error)
