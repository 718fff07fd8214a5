"""`laneway batches list|show|cancel`, `laneway batches submit` and `laneway files list|show|delete`.

`submit` is a client of a gateway, with an API key; the others read and change this deployment's database.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import click
import msgspec
import sqlalchemy as sa

from billing.accounts.prices import format_picos
from billing.lists import ListQuery
from gateway.admin.jobs.batches import batch_seen, file_seen
from gateway.admin.writes import tenant_of
from gateway.batches.endpoints import OPENAI_ENDPOINTS
from gateway.batches.progress_cache import ProgressCache
from gateway.commands.batch_client import BatchClient, BatchFailed, SubmittedBatch, first_endpoint
from gateway.commands.console import (
    Console,
    ask,
    fail,
    json_option,
    pass_console,
    show_json,
    show_row,
    show_rows,
    yes_option,
)
from gateway.commands.database import read_database, write_database
from gateway.views.batches import (
    BatchStatus,
    BatchView,
    FilePurpose,
    FileView,
    batch_views,
    list_batch_rows,
    list_tenant_files,
)
from gateway.views.names import names_of

BATCH_COLUMNS = (
    *("created_at", "tenant", "status", "endpoint", "lines", "succeeded", "failed", "lines_per_s", "expected_end_at"),
    *("deadline_at", "cost", "id"),
)
FILE_COLUMNS = ("created_at", "tenant", "purpose", "bytes", "in_use", "expires_at", "id", "filename")
LISTED_MAX = 500
EXIT_UNCOMPLETED = 1
CLIENT_VARIABLES = "Default: ${}."

_limit = click.option("--limit", type=click.IntRange(1, LISTED_MAX), default=50, show_default=True)
_tenant = click.option("--tenant", help="A slug or an id; without it: all.")


@click.group("batches")
def batches_group() -> None:
    """Batches of requests, as tenants send them to /v1/batches and /v1/messages/batches."""


@batches_group.command("list")
@_tenant
@click.option("--status", type=click.Choice(get_args(BatchStatus)))
@_limit
@json_option
@pass_console
def list_command(console: Console, tenant: str | None, status: BatchStatus | None, limit: int, as_json: bool) -> None:
    """Batches with their progress, the newest first."""
    actor = console.administration.writes.actor

    def query(connection: sa.Connection) -> tuple[list[BatchView], dict[str | None, str]]:
        tenant_id = None if tenant is None else tenant_of(connection, tenant).id
        wanted = ListQuery(sort="-created_at", limit=limit)
        found = list_batch_rows(connection, wanted, tenant_id=tenant_id, status=status)
        views = batch_views(connection, found.items, actor, ProgressCache())
        return views, names_of(connection, [view.tenant_id for view in views])

    views, names = read_database(console, query)
    rows: list[Mapping[str, Any]] = [msgspec.to_builtins(view) for view in views]
    show_rows(rows if as_json else [_shown(row, names) for row in rows], BATCH_COLUMNS, as_json=as_json)


@batches_group.command("show")
@click.argument("batch_id")
@json_option
@pass_console
def show_command(console: Console, batch_id: str, as_json: bool) -> None:
    """One batch: its progress, its cost so far, and the errors of its lines by code."""
    actor = console.administration.writes.actor

    def query(connection: sa.Connection) -> tuple[BatchView, dict[str | None, str]]:
        view = batch_views(connection, [batch_seen(connection, batch_id, actor)], actor, ProgressCache())[0]
        return view, names_of(connection, [view.tenant_id])

    view, names = read_database(console, query)
    _show_batch(view, names, as_json)


@batches_group.command("cancel")
@click.argument("batch_id")
@yes_option
@json_option
@pass_console
def cancel_command(console: Console, batch_id: str, yes: bool, as_json: bool) -> None:
    """End a batch early. Lines that run are aborted and not billed; the outputs so far remain."""
    administration = console.administration
    if not yes:
        ask(f"Cancel {batch_id}?")

    def change(connection: sa.Connection) -> tuple[BatchView, dict[str | None, str]]:
        row = administration.batches.cancel(connection, batch_id)
        view = batch_views(connection, [row], administration.writes.actor, ProgressCache())[0]
        return view, names_of(connection, [view.tenant_id])

    view, names = write_database(console, change)
    _show_batch(view, names, as_json)


def _show_batch(view: BatchView, names: Mapping[str | None, str], as_json: bool) -> None:
    row = msgspec.to_builtins(view)
    if as_json:
        show_json(row)
        return
    shown = _shown(row, names)
    shown["errors"] = [f"{code}: {count}" for code, count in sorted(view.errors.items())]
    shown["problems"] = [problem.message or problem.code for problem in view.problems]
    show_row(
        {name: shown[name] for name in shown if name not in ("tenant_id", "cost_picos", "currency")}, as_json=False
    )


def _shown(row: Mapping[str, Any], names: Mapping[str | None, str]) -> dict[str, Any]:
    """With the cells that differ from the JSON."""
    cost = format_picos(row["cost_picos"], row["currency"])
    return {**row, "tenant": names[row["tenant_id"]], "cost": cost}


@batches_group.command("submit")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--endpoint", type=click.Choice(OPENAI_ENDPOINTS), help="Of all lines. Default: `url` of the first line.")
@click.option("--window", default="24h", show_default=True, help="Completion window: 1h to 24h.")
@click.option("--wait", is_flag=True, help="Show the progress until the batch has ended, and download its files.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Default: FILE with .output.jsonl.")
@click.option("--errors", type=click.Path(dir_okay=False, path_type=Path), help="Default: FILE with .errors.jsonl.")
@click.option("--url", envvar="LANEWAY_URL", required=True, help=CLIENT_VARIABLES.format("LANEWAY_URL"))
@click.option("--key", envvar="LANEWAY_KEY", required=True, help=CLIENT_VARIABLES.format("LANEWAY_KEY"))
@json_option
@click.pass_context
def submit_command(
    context: click.Context,
    file: Path,
    endpoint: str | None,
    window: str,
    wait: bool,
    output: Path | None,
    errors: Path | None,
    url: str,
    key: str,
    as_json: bool,
) -> None:
    """Upload FILE, a file of requests as for /v1/batches, to the gateway at --url and create a batch of it.

    Exit status with --wait: 0 if each line succeeded, 1 otherwise. Without it: 0 once the batch is created.
    """
    try:
        with BatchClient(url, key) as client:
            batch = client.create_batch(file, endpoint or first_endpoint(file), window)
            click.echo(f"{batch.id} was created", err=True)
            if wait:
                batch = _follow(client, batch)
                client.download(batch.output_file_id, output or file.with_suffix(".output.jsonl"))
                client.download(batch.error_file_id, errors or file.with_suffix(".errors.jsonl"))
    except (BatchFailed, OSError) as error:
        fail(str(error))
    shown = msgspec.to_builtins(batch)
    if not as_json:
        counts = shown.pop("request_counts")
        shown |= {"lines": counts["total"], "succeeded": counts["completed"], "failed": counts["failed"]}
    show_row(shown, as_json=as_json)
    if wait and not batch.is_complete:
        context.exit(EXIT_UNCOMPLETED)


def _follow(client: BatchClient, batch: SubmittedBatch) -> SubmittedBatch:
    """Show a progress bar on stderr until the batch has ended. Raises BatchFailed."""
    with click.progressbar(length=1, label=batch.status, file=sys.stderr) as bar:
        for batch in client.follow_batch(batch):  # noqa: B020 - the newest one is returned
            bar.label = batch.status
            bar.length = max(1, batch.request_counts.total)
            bar.update(batch.request_counts.ended_lines - bar.pos)
    return batch


@click.group("files")
def files_group() -> None:
    """Files of tenants: the input and output files of batches. Their contents are shown to the tenant only."""


@files_group.command("list")
@_tenant
@click.option("--purpose", type=click.Choice(get_args(FilePurpose)))
@_limit
@json_option
@pass_console
def list_files_command(
    console: Console, tenant: str | None, purpose: FilePurpose | None, limit: int, as_json: bool
) -> None:
    """Files that are neither deleted nor expired, the newest first."""

    def query(connection: sa.Connection) -> tuple[list[FileView], dict[str | None, str]]:
        tenant_id = None if tenant is None else tenant_of(connection, tenant).id
        wanted = ListQuery(sort="-created_at", limit=limit)
        found = list_tenant_files(connection, wanted, tenant_id=tenant_id, purpose=purpose)
        views = [FileView.of(one) for one in found.items]
        return views, names_of(connection, [view.tenant_id for view in views])

    views, names = read_database(console, query)
    rows = [msgspec.to_builtins(view) | {"tenant": names[view.tenant_id]} for view in views]
    show_rows(rows, FILE_COLUMNS, as_json=as_json)


@files_group.command("show")
@click.argument("file_id")
@json_option
@pass_console
def show_file_command(console: Console, file_id: str, as_json: bool) -> None:
    """One file, without its content."""
    actor = console.administration.writes.actor
    found = read_database(console, lambda c: file_seen(c, file_id, actor))
    show_row(msgspec.to_builtins(FileView.of(found)), as_json=as_json)


@files_group.command("delete")
@click.argument("file_id")
@yes_option
@json_option
@pass_console
def delete_file_command(console: Console, file_id: str, yes: bool, as_json: bool) -> None:
    """Delete a file. A batch that uses the file is not affected."""
    administration = console.administration
    if not yes:
        ask(f"Delete {file_id}?")
    found = write_database(console, lambda c: administration.files.delete(c, file_id))
    show_row(msgspec.to_builtins(FileView.of(found)), as_json=as_json)
