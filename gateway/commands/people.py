"""`laneway people list`."""

from __future__ import annotations

import click
import msgspec

from billing.clock import SECOND
from billing.lists import LIMIT_MAX, ListQuery
from gateway.access import people
from gateway.commands.console import Console, json_option, pass_console
from gateway.commands.database import read_database, show_named_rows

COLUMNS = ("id", "role", "tenant", "email", "signed_in_at", "subject", "name")


@click.group("people")
def people_group() -> None:
    """People who sign in at the provider of [oidc]."""


@people_group.command("list")
@click.option("--search", help="Part of a name, an address or an id.")
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=100, show_default=True)
@json_option
@pass_console
def list_command(console: Console, search: str | None, limit: int, as_json: bool) -> None:
    """People, the last sign-in first. A person whose groups have lost the role is listed without it."""
    query = ListQuery(sort="-signed_in_at", search=search, limit=limit)
    rows = [
        msgspec.structs.asdict(person)
        for person in read_database(console, lambda c: people.query_people(c, query)).items
    ]
    for row in rows:
        row |= {name: row[name] // SECOND for name in ("created_at", "signed_in_at")}
    show_named_rows(console, rows, COLUMNS, {"tenant": "tenant_id"}, as_json=as_json)
