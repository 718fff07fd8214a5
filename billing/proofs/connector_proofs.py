"""The proof that the tokens that connectors recorded equal the usage rows that they have read."""

from __future__ import annotations

import sqlalchemy as sa

from billing import tables
from billing.accounts.prices import METERS
from billing.books import rollups
from billing.finance_tables import connector_hours, connectors
from billing.proofs.imbalances import FINDINGS_MAX, Imbalance
from billing.proofs.queries import Amounts, differences, select, sum_of

_usage = tables.usage


def pushed(connection: sa.Connection, month: str | None) -> list[Imbalance]:
    """For each connector, no hour has sent more tokens than it recorded. Over all months (`month` None), since a
    connector has one cursor: the recorded tokens by tenant and meter = the usage with start_sequence < sequence ≤
    sequence."""
    found: list[Imbalance] = []
    for one in connection.execute(select(connectors).order_by(connectors.c.name)):
        own = connector_hours.c.connector == one.name
        key = (connector_hours.c.tenant_id, connector_hours.c.meter)
        if month is None:
            tokens = [sum_of(column) for column in rollups.meters().values()]
            read = sa.and_(_usage.c.sequence > one.start_sequence, _usage.c.sequence <= one.sequence)
            expected: Amounts = {}
            for row in connection.execute(select(_usage.c.tenant_id, *tokens).where(read).group_by(_usage.c.tenant_id)):
                expected |= {(one.name, row[0], meter): int(row[at]) for at, meter in enumerate(METERS, 1) if row[at]}
            sums = select(*key, sum_of(connector_hours.c.recorded)).where(own).group_by(*key)
            recorded: Amounts = {(one.name, row[0], row[1]): int(row[2]) for row in connection.execute(sums)}
            found += differences("tokens of a connector", expected, recorded)
        promised = connector_hours.c.sent + sa.func.coalesce(connector_hours.c.sending, 0)
        beyond = select(*key, connector_hours.c.hour, connector_hours.c.recorded, promised)
        for row in connection.execute(beyond.where(own, promised > connector_hours.c.recorded).limit(FINDINGS_MAX)):
            where = f"{one.name} {row[0]} {row[1]} {row[2]}"
            found.append(Imbalance("tokens that a connector sent", where, int(row[3]), int(row[4])))
    return found[:FINDINGS_MAX]
