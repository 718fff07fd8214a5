"""`laneway connectors`: the systems that usage is pushed to, with waiting and stuck amounts."""

from __future__ import annotations

import click
import msgspec

from gateway.commands.console import Console, ask, json_option, pass_console, show_row, show_rows, yes_option
from gateway.commands.database import read_database, write_database
from gateway.views.finance import ConnectorView

COLUMNS = (
    "name", "kind", "gateway_id", "waiting", "waiting_tokens", "lag_s", "sent_tokens", "retrying", "next_attempt_at",
    "stuck", "without_account", "sent_at", "last_error",
)  # fmt: skip


@click.group("connectors", invoke_without_command=True)
@json_option
@click.pass_context
def connectors_group(context: click.Context, as_json: bool) -> None:
    """Connectors of laneway.toml and their state: usage that waits, its lag, and the last error."""
    if context.invoked_subcommand is not None:
        return
    console = context.find_object(Console)
    assert console is not None
    found = read_database(console, lambda c: ConnectorView.read_all(c, console.config.connectors))
    rows = [msgspec.to_builtins(view) for view in found]
    show_rows(rows, COLUMNS, as_json=as_json)


@connectors_group.command("release")
@click.argument("name")
@yes_option
@json_option
@pass_console
def release_command(console: Console, name: str, yes: bool, as_json: bool) -> None:
    """Send the stuck events of the connector NAME again, with the same identifiers and amounts."""
    if not yes:
        ask(f"The other system may have forgotten the identifiers of {name}. Are its stuck events missing there?")
    administration = console.administration
    made = write_database(console, lambda c: administration.documents.release_connector(c, name=name))
    show_row(msgspec.to_builtins(made), as_json=as_json)
