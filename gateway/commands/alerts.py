"""`laneway webhooks list|add|remove|alerts|problems`, `laneway audit` and `laneway audit verify`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec
import sqlalchemy as sa

from billing.accounts import alerts, webhooks
from billing.accounts.prices import format_picos
from billing.accounts.webhooks import BUDGETS, EVENTS, FORMATS
from billing.clock import SECOND
from gateway.access import audit_chain, audit_log
from gateway.access.audit_chain import CheckpointSigner
from gateway.access.deployment_secret import WrongSecret
from gateway.admin.writes import tenant_of
from gateway.commands.console import Console, fail, json_option, pass_console, show_json, show_row, show_rows
from gateway.commands.database import currencies_of, read_database, show_named_rows, write_database
from gateway.config.file import ConfigError
from gateway.config.server_secrets import read_server_secrets
from gateway.upkeep import problem_events
from gateway.upkeep.retention import read_checkpoints, since_restores
from gateway.views.accounts import AuditLineView, ListedAlertView, NewWebhookView, WebhookView
from gateway.views.names import known_names

ALERT_COLUMNS = ("crossed_at", "tenant", "scope", "of", "unit", "period", "threshold", "used", "limit_amount", "told")
PROBLEM_COLUMNS = ("occurred_at", "type", "part", "status", "detail", "told", "last_error")
AUDIT_COLUMNS = ("when_at", "actor", "action", "object", "tenant", "changed")
VALUE_CHARS_MAX = 40
# The last words of the actions that create their object; `session.refuse` and others have no values before either.
# The console's auditTable.tsx has the same list; tests/repository/test_audit_actions.py compares them.
CREATING = ("add", "begin", "create", "enrol", "make", "publish", "record", "register", "set", "version")
EXIT_UNSOUND = 1

tenant_option = click.option("--tenant", help="A slug or an id; without it: all.")


@click.group("webhooks")
def webhooks_group() -> None:
    """Webhooks that receive alerts of budgets, and problems of the deployment."""


@webhooks_group.command("add")
@click.argument("url")
@click.option("--tenant", help="Only the alerts of this tenant, a slug or an id.")
@click.option(
    "--format", "format_", type=click.Choice(FORMATS), default=FORMATS[0], show_default=True, help="Form of the body."
)
@click.option(
    "--event", "events", type=click.Choice(EVENTS), multiple=True, help="May be repeated; by default budgets."
)
@click.option(
    "--routing-key-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A file with PagerDuty's integration key.",
)
@json_option
@pass_console
def add_command(
    console: Console,
    url: str,
    tenant: str | None,
    format_: str,
    events: tuple[str, ...],
    routing_key_file: Path | None,
    as_json: bool,
) -> None:
    """Send events to URL. The secret that signs the deliveries is shown only now."""
    administration = console.administration
    try:
        routing_key = None if routing_key_file is None else routing_key_file.read_text().strip()
        made = write_database(
            console,
            lambda c: administration.webhooks.create(
                c,
                url=url,
                tenant_id=None if tenant is None else tenant_of(c, tenant).id,
                format=format_,
                events=events or (BUDGETS,),
                routing_key=routing_key,
            ),
        )
    except (OSError, UnicodeDecodeError, ConfigError, WrongSecret) as error:
        fail(str(error))
    show_row(msgspec.to_builtins(NewWebhookView.made(made)), as_json=as_json)


@webhooks_group.command("list")
@json_option
@pass_console
def list_command(console: Console, as_json: bool) -> None:
    """Webhooks, oldest first, without their secrets."""
    rows = [msgspec.to_builtins(WebhookView.of(webhook)) for webhook in read_database(console, webhooks.list_webhooks)]
    columns = ("id", "tenant", "format", "events", "created_at", "url")
    show_named_rows(console, rows, columns, {"tenant": "tenant_id"}, as_json=as_json)


@webhooks_group.command("remove")
@click.argument("webhook_id")
@pass_console
def remove_command(console: Console, webhook_id: str) -> None:
    """Send no more events to a webhook."""
    administration = console.administration
    write_database(console, lambda c: administration.webhooks.remove(c, webhook_id))
    click.echo(f"{webhook_id} is removed")


@webhooks_group.command("alerts")
@tenant_option
@click.option("--limit", type=click.IntRange(1, 500), default=100, show_default=True)
@json_option
@pass_console
def alerts_command(console: Console, tenant: str | None, limit: int, as_json: bool) -> None:
    """Thresholds that were reached, newest first, each with the number of webhooks that received the alert."""

    def query(connection: sa.Connection) -> tuple[list[ListedAlertView], dict[str, str]]:
        tenant_id = None if tenant is None else tenant_of(connection, tenant).id
        found = alerts.list_alerts(connection, tenant_id=tenant_id, limit=limit)
        deliveries = alerts.deliveries(connection, [alert.id for alert in found])
        views = [ListedAlertView.with_deliveries(alert, deliveries[alert.id]) for alert in found]
        return views, currencies_of(connection)

    found, currencies = read_database(console, query)
    rows = []
    for alert in found:
        delivered = sum(delivery.state == "delivered" for delivery in alert.deliveries)
        row = msgspec.to_builtins(alert) | {"told": f"{delivered} of {len(alert.deliveries)}"}
        if not as_json and alert.unit == "money":
            row |= {name: format_picos(row[name], currencies[alert.tenant_id]) for name in ("used", "limit_amount")}
        rows.append(row)
    show_named_rows(console, rows, ALERT_COLUMNS, {"tenant": "tenant_id", "of": "scope_id"}, as_json=as_json)


@webhooks_group.command("problems")
@click.option("--limit", type=click.IntRange(1, 500), default=100, show_default=True)
@json_option
@pass_console
def problems_command(console: Console, limit: int, as_json: bool) -> None:
    """Problems that were opened, worsened or resolved, newest first, each with the number of webhooks that received
    the event, and the last error of a delivery."""
    rows = []
    for event, deliveries in read_database(console, lambda c: problem_events.list_problem_events(c, limit)):
        delivered = sum(delivery.state == "delivered" for delivery in deliveries)
        errors = [delivery.last_error for delivery in deliveries if delivery.last_error is not None]
        row = {**msgspec.to_builtins(event), "occurred_at": event.occurred_at // SECOND}
        rows.append({**row, "told": f"{delivered} of {len(deliveries)}", "last_error": errors[-1] if errors else None})
    show_rows(rows, PROBLEM_COLUMNS, as_json=as_json)


@click.group("audit", invoke_without_command=True)
@tenant_option
@click.option("--actor", help="A key's id, or cli:USER.")
@click.option("--action", help="For example key.revoke.")
@click.option("--object", "object_id", help="The id of the changed object.")
@click.option("--since", type=click.DateTime(), help="From this moment on, UTC.")
@click.option("--until", type=click.DateTime(), help="Before this moment, UTC.")
@click.option("--before", type=click.IntRange(min=1), help="Only lines older than the line with this id.")
@click.option("--limit", type=click.IntRange(1, 500), default=100, show_default=True)
@json_option
@pass_console
@click.pass_context
def audit_group(
    context: click.Context,
    console: Console,
    tenant: str | None,
    actor: str | None,
    action: str | None,
    object_id: str | None,
    since: datetime | None,
    until: datetime | None,
    before: int | None,
    limit: int,
    as_json: bool,
) -> None:
    """Administrative writes with their actor and what changed, newest first."""
    if context.invoked_subcommand is not None:
        return

    def query(connection: sa.Connection) -> list[AuditLineView]:
        only = audit_log.AuditFilter(
            tenant_id=None if tenant is None else tenant_of(connection, tenant).id,
            actor=actor,
            action=action,
            object_id=object_id,
            start=_micros(since),
            end=_micros(until),
        )
        lines = audit_log.list_audit_lines(connection, only, before=before, limit=limit)
        names = known_names(connection, [one for line in lines for one in (line.object_id, line.actor)])
        return [AuditLineView.of(line, names) for line in lines]

    views = read_database(console, query)
    if as_json:
        show_rows([msgspec.to_builtins(view) for view in views], (), as_json=True)
        return
    rows = [
        {**msgspec.to_builtins(view), "when_at": view.at, "actor": _actor_said(view), "changed": changed(view)}
        for view in views
    ]
    named = {"tenant": "tenant_id", "object": "object_id"}
    show_named_rows(console, rows, AUDIT_COLUMNS, named, as_json=False)


@audit_group.command("verify")
@click.option(
    "--checkpoints",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file of signed checkpoints. Default: <data_dir>/audit-checkpoints.jsonl of this host.",
)
@json_option
@pass_console
def verify_command(console: Console, checkpoints: Path | None, as_json: bool) -> None:
    """Prove that no line of the audit log was altered, deleted or moved, by its hash chain and by signed checkpoints.
    Exit status 1 with the first bad entry."""
    config = console.config
    secret = Path(config.gateway.secret_file)
    try:
        known = CheckpointSigner(read_server_secrets(config)).known if secret.exists() else []
        kept = read_checkpoints(checkpoints or config.audit_checkpoints_file)
    except (ConfigError, OSError, msgspec.DecodeError) as error:
        fail(str(error))
    found = read_database(console, lambda c: audit_chain.verify_chain(c, known, since_restores(c, kept)))
    if as_json:
        show_json(msgspec.to_builtins(found))
    elif found.finding is None:
        click.echo(
            f"{found.lines} lines up to position {found.position} are sound; {found.checkpoints} checkpoints agree"
        )
        for count, what in (
            (found.pruned_to, "older lines were deleted by retention"),
            (found.erased, "lines lost their contents when their tenant was erased"),
            (found.unhashed, "lines of an older version are not in the chain yet"),
            (found.foreign, "checkpoints are signed with another secret, such as that of before a rotation"),
        ):
            if count:
                click.echo(f"{count} {what}")
        if not known:
            click.echo(
                "the signatures were not compared with the server secret: gateway.secret_file is not on this host"
            )
    else:
        entry = "" if found.finding.entry_id is None else f", entry {found.finding.entry_id}"
        click.echo(f"position {found.finding.position}{entry}: {found.finding.reason}")
    if found.finding is not None:
        raise SystemExit(EXIT_UNSOUND)


def _micros(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.replace(tzinfo=UTC).timestamp()) * SECOND


def _actor_said(line: AuditLineView) -> str:
    """Name and id: a key may have any name, such as `cli:root`."""
    return line.actor if line.actor_name in (None, line.actor) else f"{line.actor_name} ({line.actor})"


def changed(line: AuditLineView) -> str:
    """The fields that differ between before and after, as one line."""
    before, after = line.before or {}, line.after or {}
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    if line.before is None and line.action.rpartition(".")[2] in CREATING:
        return "made"
    return ", ".join(f"{name}: {_short(before.get(name))} → {_short(after.get(name))}" for name in names) or "nothing"


def _short(value: object) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 1] + "…"
