"""The limits of a tenant's stored data: its quotas, and the length of a conversation."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from gateway import errors
from gateway.tables import conversations, responses

CONVERSATION_BYTES_MAX = 8 * 1024 * 1024  # encrypted; of the turns or items that a request continues
CONVERSATION_ITEMS_MAX = 2000  # a request has at most `chat_wire.MESSAGES_MAX` items with its own
NOT_STORED = ", or send 'store': false"


class ResponseQuotas(msgspec.Struct, frozen=True):
    """The quotas of one tenant, for its responses and conversations together."""

    count_max: int
    bytes_max: int


def check_quotas(
    connection: sa.Connection, quotas: ResponseQuotas, tenant_id: str, size: int, *, rows: int = 1, instead: str = ""
) -> None:
    """Check that the tenant may store `rows` further responses or conversations, of `size` bytes. `instead`: ends the
    advice of the refusal. Raises QuotaExceeded."""
    count = stored = 0
    for table in (responses, conversations):
        query = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(table.c.bytes), 0))
        of_table = connection.execute(query.where(table.c.tenant_id == tenant_id)).one()
        count, stored = count + of_table[0], stored + int(of_table[1])
    if rows and count + rows > quotas.count_max:
        raise errors.QuotaExceeded(
            f"The tenant has {count} stored responses and conversations; the limit is {quotas.count_max}. Delete "
            f"some{instead}.",
            errors.ReachedLimit("tenant_stored_count", quotas.count_max),
        )
    if stored + size > quotas.bytes_max:
        raise errors.QuotaExceeded(
            f"The tenant's stored responses and conversations would exceed {quotas.bytes_max} bytes. Delete "
            f"some{instead}.",
            errors.ReachedLimit("tenant_stored_bytes", quotas.bytes_max),
        )
