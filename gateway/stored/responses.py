"""Responses stored for tenants that opted in: written by the gateway that answers, read by any gateway.

A row is made before the answer begins and gets the answer when it ends. The tenant's setting `store_responses_s`
decides at every read whether a row is expired, so a shorter time applies at once.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from billing.clock import SECOND, database_now
from billing.database import Database, DatabaseUnavailable
from billing.tables import leases, tenants
from gateway import errors
from gateway.stored.conversation_items import TurnItems
from gateway.stored.conversations import append_turn, delete_unreadable_conversations
from gateway.stored.quotas import CONVERSATION_BYTES_MAX, NOT_STORED, ResponseQuotas, check_quotas
from gateway.stored.texts import TextKey, TextKeys, TextUnreadable, scrub
from gateway.tables import responses, text_keys

TURNS_MAX = 1000  # of a conversation
RESPONSE_ID = re.compile(r"resp_[0-9a-f]{32}")
DELETED_AT_ONCE = 200  # rows of one transaction
ROW_COLUMNS = ("id", "status", "background", "events_until", "input", "answer")

_log = logging.getLogger(__name__)


class StoredTurn(msgspec.Struct, frozen=True):
    """One response: the items that its request added to the conversation (a JSON array), and the response object; ""
    until it ends, or in the background an object without output."""

    id: str
    status: str
    input: bytes
    answer: bytes

    @property
    def continuable(self) -> bool:
        """Whether another response may continue it."""
        return self.status in ("completed", "incomplete")


class ResponseStore:
    """One per gateway process."""

    def __init__(self, database: Database, gateway_id: str, keys: TextKeys, quotas: ResponseQuotas) -> None:
        self._database = database
        self._gateway_id = gateway_id
        self._keys = keys
        self._quotas = quotas

    async def begin_turn(self, tenant_id: str, response_id: str, previous_id: str | None, items: bytes) -> None:
        """Insert the row of a response in progress. Requests at the same moment may exceed a quota by their own size.
        Raises QuotaExceeded, DatabaseDown."""

        def insert(connection: sa.Connection) -> None:
            key = self._keys.ensure_key(connection, tenant_id)
            sealed = key.seal(items, f"{response_id} input")
            values = {
                "id": response_id,
                "tenant_id": tenant_id,
                "text_key_id": key.id,
                "gateway_id": self._gateway_id,
                "previous_id": previous_id,
                "status": "in_progress",
                "bytes": len(sealed),
                "input": sealed,
                "created_at": database_now(connection),
            }
            connection.execute(sa.insert(responses).values(values))

        try:
            # In a reader's thread: the sums of a tenant with many rows must not delay the ledger's writes.
            await self._database.read(lambda connection: self._check_quotas(connection, tenant_id, len(items)))
            await self._database.write_in_background(insert)
        except DatabaseUnavailable:
            raise errors.DatabaseDown("The response cannot be stored now. Try again in a moment.") from None
        except TextUnreadable as error:
            _log.error("response.key_unreadable", extra={"fields": {"tenant": tenant_id, "reason": str(error)}})
            raise errors.InternalError from None

    async def end_turn(
        self, tenant_id: str, response_id: str, status: str, answer: bytes, added: TurnItems | None = None
    ) -> bool:
        """Store the answer. `added`: what its conversation gets, in the same transaction. False: it cannot be stored,
        and the row is deleted later."""

        def update(connection: sa.Connection) -> bool:
            key = self._keys.key_of(connection, tenant_id)
            if key is None:  # the tenant opted out meanwhile
                return False
            sealed = key.seal(answer, f"{response_id} answer")
            size = responses.c.bytes + len(sealed)
            row = sa.update(responses).where(responses.c.id == response_id, responses.c.text_key_id == key.id)
            stored = connection.execute(row.values(status=status, answer=sealed, bytes=size)).rowcount > 0
            if stored and added is not None:
                append_turn(connection, self._keys, tenant_id, added)
            return stored

        try:
            return await self._database.write_in_background(update)
        except (DatabaseUnavailable, TextUnreadable) as error:
            _log.error("response.not_stored", extra={"fields": {"response": response_id, "reason": str(error)}})
            return False

    async def drop_turn(self, response_id: str) -> None:
        """Delete the row of a response that was refused, or whose client left."""
        row = sa.delete(responses).where(responses.c.id == response_id)
        try:
            await self._database.write_in_background(lambda connection: connection.execute(row).rowcount)
        except DatabaseUnavailable as error:  # `delete_unreadable` deletes the row after this gateway's lease has ended
            _log.warning("response.not_deleted", extra={"fields": {"response": response_id, "reason": str(error)}})

    async def get_turn(self, tenant_id: str, response_id: str) -> StoredTurn | None:
        """None: unknown, another tenant's or expired. Raises DatabaseUnavailable."""
        if not RESPONSE_ID.fullmatch(response_id):  # a database refuses some texts
            return None
        found = await self._database.read(lambda c: self._turns(c, tenant_id, [response_id]))
        return found[0] if found else None

    async def delete_turn(self, tenant_id: str, response_id: str) -> bool:
        """False: unknown, another tenant's or expired. Raises DatabaseUnavailable."""
        if not RESPONSE_ID.fullmatch(response_id):
            return False

        def delete(connection: sa.Connection) -> bool:
            if not connection.execute(readable(connection, tenant_id, [response_id])).all():
                return False
            return connection.execute(sa.delete(responses).where(responses.c.id == response_id)).rowcount > 0

        return await self._database.write_in_background(delete)

    async def conversation(self, tenant_id: str, response_id: str) -> list[StoredTurn] | None:
        """The response and all earlier responses of its chain, the earliest first. None: one of them is unknown,
        another tenant's or expired. Raises ContextLengthExceeded, DatabaseUnavailable."""
        if not RESPONSE_ID.fullmatch(response_id):
            return None

        def read(connection: sa.Connection) -> list[StoredTurn] | None:
            ids = _chain(connection, tenant_id, response_id)
            turns = {turn.id: turn for turn in self._turns(connection, tenant_id, ids)}
            return None if not ids or len(turns) < len(ids) else [turns[id_] for id_ in ids]

        return await self._database.read(read)

    def _turns(self, connection: sa.Connection, tenant_id: str, ids: Sequence[str]) -> list[StoredTurn]:
        """The turns with these ids that are readable: not expired, and with their key. In no order."""
        found = []
        for row in connection.execute(readable(connection, tenant_id, ids)):
            try:
                key = self._keys.unwrap(row.text_key_id, tenant_id, row.wrapped)
                found.append(_opened(key, row))
            except TextUnreadable as error:
                _log.error("response.unreadable", extra={"fields": {"response": row.id, "reason": str(error)}})
        return found

    def _check_quotas(self, connection: sa.Connection, tenant_id: str, size: int) -> None:
        """Raises QuotaExceeded."""
        check_quotas(connection, self._quotas, tenant_id, size, instead=NOT_STORED)

    # ---- deletion of expired, keyless and orphaned rows

    async def run(self, every_s: float) -> None:
        """Delete expired, keyless and orphaned rows, and the bytes of deleted keys, every `every_s` seconds until
        cancelled."""
        while True:
            await asyncio.sleep(every_s)
            try:
                while await self._database.write_in_background(delete_unreadable) == DELETED_AT_ONCE:
                    pass
                while await self._database.write_in_background(delete_unreadable_conversations):
                    pass
                if await self._database.maintain(scrub):
                    _log.info("response.keys_scrubbed")
            except DatabaseUnavailable as error:
                _log.warning("response.not_deleted", extra={"fields": {"reason": str(error)}})


def delete_unreadable(connection: sa.Connection) -> int:
    """Delete up to DELETED_AT_ONCE rows that are expired, have no key, or are in progress on a gateway that has ended.
    Returns their number."""
    now = database_now(connection)
    kept_s = sa.select(tenants.c.store_responses_s).where(tenants.c.id == responses.c.tenant_id).scalar_subquery()
    expired = responses.c.created_at <= now - SECOND * sa.func.coalesce(kept_s, 0)
    keyless = ~sa.exists().where(text_keys.c.id == responses.c.text_key_id, text_keys.c.wrapped.is_not(None))
    # A response in the background has an answer without output, and is ended by `gateway.stored.background`.
    abandoned = sa.and_(responses.c.answer.is_(None), is_orphaned())
    query = sa.select(responses.c.id).where(sa.or_(expired, keyless, abandoned)).limit(DELETED_AT_ONCE)
    ids = list(connection.execute(query).scalars())
    if ids:
        connection.execute(sa.delete(responses).where(responses.c.id.in_(ids)))
    return len(ids)


def is_orphaned() -> sa.ColumnElement[bool]:
    """Whether a response's gateway is dead: it has no lease. The Auditor deletes the leases of dead gateways. An
    expired lease proves nothing: after the database was unavailable, the leases of live gateways have expired too."""
    return responses.c.gateway_id.not_in(sa.select(leases.c.gateway_id))


def readable(connection: sa.Connection, tenant_id: str, ids: Sequence[str]) -> sa.Select[Any]:
    """Selects the rows of a tenant that are not expired, with the key that was stored for them."""
    joined = responses.join(text_keys, text_keys.c.id == responses.c.text_key_id)
    joined = joined.join(tenants, tenants.c.id == responses.c.tenant_id)
    columns = [responses.c[name] for name in (*ROW_COLUMNS, "text_key_id")]
    created_after = database_now(connection) - SECOND * tenants.c.store_responses_s
    query = sa.select(*columns, text_keys.c.wrapped).select_from(joined)
    return query.where(
        responses.c.tenant_id == tenant_id,
        responses.c.id.in_(ids),
        responses.c.created_at > created_after,
        text_keys.c.wrapped.is_not(None),
    )


def _chain(connection: sa.Connection, tenant_id: str, response_id: str) -> list[str]:
    """The ids from the first response of the conversation to this one; empty: one of them is missing. Raises
    ContextLengthExceeded for more than any context holds."""
    columns = (responses.c.id, responses.c.previous_id, responses.c.bytes)
    last = sa.select(*columns, sa.literal(1).label("turns"))
    turns = last.where(responses.c.id == response_id, responses.c.tenant_id == tenant_id).cte(recursive=True)
    before = sa.select(*columns, turns.c.turns + 1)
    of_tenant = sa.and_(responses.c.id == turns.c.previous_id, responses.c.tenant_id == tenant_id)
    turns = turns.union_all(before.join_from(turns, responses, of_tenant).where(turns.c.turns <= TURNS_MAX))
    rows = connection.execute(sa.select(turns).order_by(turns.c.turns.desc())).all()
    if len(rows) > TURNS_MAX or sum(row.bytes for row in rows) > CONVERSATION_BYTES_MAX:
        raise errors.ContextLengthExceeded(
            f"'previous_response_id' continues a conversation of over {TURNS_MAX} responses or "
            f"{CONVERSATION_BYTES_MAX} bytes. Compact it, and send it as 'input'.",
            param="previous_response_id",
        )
    return [row.id for row in rows] if rows and rows[0].previous_id is None else []


def input_place(response_id: str) -> str:
    """The associated data of the encryption of a response's input; `answer_place` is that of its answer."""
    return f"{response_id} input"


def answer_place(response_id: str) -> str:
    return f"{response_id} answer"


def _opened(key: TextKey, row: sa.Row[Any]) -> StoredTurn:
    """Raises TextUnreadable."""
    answer = b"" if row.answer is None else key.open(row.answer, answer_place(row.id))
    return StoredTurn(row.id, row.status, key.open(row.input, input_place(row.id)), answer)
