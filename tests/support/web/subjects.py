"""The parameters for pages of one object: for each parameter of a route, the id of an existing object."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from billing import tables
from billing.books import corrections, invoices, periods
from billing.clock import SECOND
from gateway.tables import adapters, keys
from support.gateway.batch_client import BatchClient, chat_lines
from support.stack import MODEL
from support.web.console import Console


def closed(console: Console, slug: str = "hooli") -> str:
    """The invoice of a tenant's first month, with a correction on it; it is closed for it."""
    tenant_id = console.stack.tenants[slug]

    def close(connection: sa.Connection) -> str:
        made = invoices.list_invoices(connection, tenant_id=tenant_id, limit=1)
        if made:
            return made[0].id
        first = periods.list_periods(connection, tenant_id=tenant_id, limit=1)[0]
        past = first.end_at - SECOND
        corrections.correct_tenant(
            connection,
            tenant_id,
            picos=-7_500_000_000,
            reason="The outage of the 14th",
            actor="the tests",
            tier="premium",
            clock=lambda _: past,
        )
        return invoices.close(connection, tenant_id, first.month, actor="the tests").id

    return console.stack.write(close)


def _first(console: Console, column: sa.Column[str], owner: sa.Column[str]) -> str:
    query = sa.select(column).where(owner == console.stack.tenants["hooli"]).limit(1)
    return str(console.stack.read(lambda connection: connection.execute(query).scalar_one()))


def credited(console: Console) -> str:
    """A credit of hooli's, with its note."""
    closed(console)
    return _first(console, tables.corrections.c.id, tables.corrections.c.tenant_id)


def batched(console: Console) -> str:
    """A batch of hooli's that has ended."""
    with BatchClient(console.stack, console.stack.keys["hooli"]) as client:
        return str(client.finish(client.create(chat_lines(2)))["id"])


# A page with a new parameter needs its line here. The pages show hooli, the tenant of the tenant_admin.
SUBJECTS: dict[str, Callable[[Console], str]] = {
    "tenant": lambda _: "hooli",
    "invoice": closed,
    "correction": credited,
    "model": lambda _: MODEL,
    "adapter": lambda console: _first(console, adapters.c.id, adapters.c.tenant_id),
    "key": lambda console: _first(console, keys.c.id, keys.c.tenant_id),
    "request": lambda console: _first(console, tables.usage.c.request_id, tables.usage.c.tenant_id),
    "batch": batched,
    "tier": lambda _: "premium",
}
