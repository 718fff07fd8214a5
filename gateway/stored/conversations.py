"""Conversations stored for tenants that opted in: items in their order, to which responses add theirs.

A conversation lives as long as a response would that was stored at its creation: the tenant's setting
`store_responses_s` decides at every read. It is encrypted with the key that the tenant had at its creation.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import sqlalchemy as sa

from billing.clock import SECOND, database_now
from billing.database import Database, DatabaseUnavailable
from billing.ids import new_id
from billing.tables import tenants
from gateway import errors
from gateway.stored.conversation_items import ITEM_ID, Item, TurnItems, items_to_store
from gateway.stored.quotas import (
    CONVERSATION_BYTES_MAX,
    CONVERSATION_ITEMS_MAX,
    ResponseQuotas,
    check_quotas,
)
from gateway.stored.texts import TextKey, TextKeys, TextUnreadable
from gateway.tables import conversation_items, conversations, text_keys

ID_CHARS_MAX = 128  # of an id in a refusal
PAGE_BYTES_MAX = 2 * 1024 * 1024  # encrypted; a page of items ends before it exceeds them
# Of one deletion's transaction. SQLite's other writes wait for it.
DELETED_AT_ONCE, ITEMS_DELETED_AT_ONCE = 200, 2 * CONVERSATION_ITEMS_MAX
_ID = re.compile(r"conv_[0-9a-f]{32}")

_log = logging.getLogger(__name__)


class Conversation(msgspec.Struct, frozen=True):
    """`created_at`: seconds UTC. `metadata`: a JSON object."""

    id: str
    created_at: int
    metadata: msgspec.Raw


class ItemsPage(msgspec.Struct, frozen=True):
    """Items of a conversation, in the order of the request. `more`: further items follow."""

    items: list[Item]
    more: bool


def conversation_not_found(conversation_id: str, param: str | None = None) -> errors.NotFound:
    """The refusal of an id that is unknown, another tenant's, or of a conversation that is expired."""
    return errors.NotFound(f"Conversation with id '{conversation_id[:ID_CHARS_MAX]}' not found.", param=param)


def item_not_found(item_id: str) -> errors.NotFound:
    return errors.NotFound(f"Item with id '{item_id[:ID_CHARS_MAX]}' not found in this conversation.")


class ConversationStore:
    """One per gateway process. Its methods raise NotFound for an id that is unknown, another tenant's or expired, and
    DatabaseUnavailable."""

    def __init__(self, database: Database, keys: TextKeys, quotas: ResponseQuotas) -> None:
        self._database = database
        self._keys = keys
        self._quotas = quotas

    async def create_conversation(self, tenant_id: str, metadata: bytes, items: Sequence[Item]) -> Conversation:
        """Raises QuotaExceeded, DatabaseDown."""
        id_ = new_id("conv")

        def insert(connection: sa.Connection) -> Conversation:
            key, now = self._keys.ensure_key(connection, tenant_id), database_now(connection)
            sealed = key.seal(metadata, metadata_place(id_))
            values = {"id": id_, "tenant_id": tenant_id, "text_key_id": key.id, "metadata": sealed, "created_at": now}
            counts = {"item_count": 0, "next_position": 0, "bytes": len(sealed)}
            connection.execute(sa.insert(conversations).values(values | counts))
            row = _find(connection, tenant_id, id_)
            if row is not None:  # the tenant may have opted out meanwhile
                _append(connection, key, row, items)
            return Conversation(id_, now // SECOND, msgspec.Raw(metadata))

        try:
            await self._check_quotas(tenant_id, len(metadata) + _size(items), rows=1)
            return await self._database.write_in_background(insert)
        except DatabaseUnavailable:
            raise errors.DatabaseDown("The conversation cannot be stored now. Try again in a moment.") from None
        except TextUnreadable as error:
            _log.error("conversation.key_unreadable", extra={"fields": {"tenant": tenant_id, "reason": str(error)}})
            raise errors.InternalError from None

    async def get_conversation(self, tenant_id: str, conversation_id: str) -> Conversation:
        def read(connection: sa.Connection) -> Conversation:
            return self._opened(*self._found(connection, tenant_id, conversation_id))

        return await self._database.read(read)

    async def set_metadata(self, tenant_id: str, conversation_id: str, metadata: bytes) -> Conversation:
        """Replace the metadata. Raises QuotaExceeded."""

        def update(connection: sa.Connection) -> Conversation:
            row, key = self._found(connection, tenant_id, conversation_id, locked=True)
            sealed = key.seal(metadata, metadata_place(row.id))
            size = row.bytes - len(row.metadata) + len(sealed)
            changed = sa.update(conversations).where(conversations.c.id == row.id)
            connection.execute(changed.values(metadata=sealed, bytes=size))
            return Conversation(row.id, row.created_at // SECOND, msgspec.Raw(metadata))

        await self._check_quotas(tenant_id, len(metadata))
        return await self._database.write_in_background(update)

    async def delete_conversation(self, tenant_id: str, conversation_id: str) -> None:
        """Delete it with its items. Responses that were made in it remain."""

        def delete(connection: sa.Connection) -> None:
            row, _ = self._found(connection, tenant_id, conversation_id, locked=True)
            _delete(connection, [row.id])

        await self._database.write_in_background(delete)

    # ---- items

    async def add_items(self, tenant_id: str, conversation_id: str, items: Sequence[Item]) -> list[Item]:
        """Append the items; returns them as they are stored. Raises InvalidRequest over the limits of a conversation,
        QuotaExceeded."""

        def append(connection: sa.Connection) -> list[Item]:
            row, key = self._found(connection, tenant_id, conversation_id, locked=True)
            if (
                row.item_count + len(items) > CONVERSATION_ITEMS_MAX
                or row.bytes + _size(items) > CONVERSATION_BYTES_MAX
            ):
                raise errors.InvalidRequest(
                    f"With 'items' the conversation would have over {CONVERSATION_ITEMS_MAX} items or "
                    f"{CONVERSATION_BYTES_MAX} bytes. Begin another one.",
                    param="items",
                )
            return _append(connection, key, row, items)

        await self._check_quotas(tenant_id, _size(items))
        return await self._database.write_in_background(append)

    async def list_items(
        self, tenant_id: str, conversation_id: str, after: str | None, limit: int, order: Literal["asc", "desc"]
    ) -> ItemsPage:
        """Up to `limit` items that follow the item `after` in this order. Raises InvalidRequest for an `after` that is
        no item of the conversation."""

        def read(connection: sa.Connection) -> ItemsPage:
            row, key = self._found(connection, tenant_id, conversation_id)
            position = conversation_items.c.position
            query = _items_of(row, "position", "bytes").limit(limit + 1)
            query = query.order_by(position if order == "asc" else position.desc())
            if after is not None:
                last = _position_of(connection, row, after)
                if last is None:
                    raise errors.InvalidRequest("'after' is not the id of an item of this conversation.", param="after")
                query = query.where(position > last if order == "asc" else position < last)
            rows = connection.execute(query).all()
            shown = _within_bytes(rows[:limit])
            items = dict(self._items(connection, row, key, position.in_(shown)))
            return ItemsPage([items[at] for at in shown], len(rows) > len(shown))

        return await self._database.read(read)

    async def get_item(self, tenant_id: str, conversation_id: str, item_id: str) -> Item:
        def read(connection: sa.Connection) -> Item:
            row, key = self._found(connection, tenant_id, conversation_id)
            if (position := _position_of(connection, row, item_id)) is None:
                raise item_not_found(item_id)
            [(_, item)] = self._items(connection, row, key, conversation_items.c.position == position)
            return item

        return await self._database.read(read)

    async def delete_item(self, tenant_id: str, conversation_id: str, item_id: str) -> Conversation:
        """Returns the conversation without the item."""

        def delete(connection: sa.Connection) -> Conversation:
            row, key = self._found(connection, tenant_id, conversation_id, locked=True)
            if (position := _position_of(connection, row, item_id)) is None:
                raise item_not_found(item_id)
            size = connection.execute(_items_of(row, "bytes").where(conversation_items.c.position == position)).scalar()
            deleted = sa.delete(conversation_items).where(conversation_items.c.conversation_id == row.id)
            connection.execute(deleted.where(conversation_items.c.position == position))
            changed = sa.update(conversations).where(conversations.c.id == row.id)
            connection.execute(changed.values(item_count=row.item_count - 1, bytes=row.bytes - (size or 0)))
            return self._opened(row, key)

        return await self._database.write_in_background(delete)

    async def prompt_items(self, tenant_id: str, conversation_id: str) -> list[msgspec.Raw]:
        """All items of the conversation, for the prompt of a request with `conversation`. Raises
        ContextLengthExceeded."""

        def read(connection: sa.Connection) -> list[msgspec.Raw]:
            row, key = self._found(connection, tenant_id, conversation_id, param="conversation")
            if row.item_count > CONVERSATION_ITEMS_MAX or row.bytes > CONVERSATION_BYTES_MAX:
                raise errors.ContextLengthExceeded(
                    f"'conversation' has over {CONVERSATION_ITEMS_MAX} items or {CONVERSATION_BYTES_MAX} bytes. "
                    "Delete some of its items, or begin another one.",
                    param="conversation",
                )
            rows = connection.execute(_items_of(row, "id", "item").order_by(conversation_items.c.position))
            return [msgspec.Raw(self._text(key, item, row)) for item in rows]

        return await self._database.read(read)

    # ---- parts

    async def _check_quotas(self, tenant_id: str, size: int, *, rows: int = 0) -> None:
        """Check in a reader's thread: the sums of a tenant with many rows must not delay the ledger's writes."""
        await self._database.read(lambda c: check_quotas(c, self._quotas, tenant_id, size, rows=rows))

    def _found(
        self,
        connection: sa.Connection,
        tenant_id: str,
        conversation_id: str,
        *,
        locked: bool = False,
        param: str | None = None,
    ) -> tuple[sa.Row[Any], TextKey]:
        """The row of a conversation that is readable, and its key. `locked`: no other transaction changes it before the
        end of this one. Raises NotFound."""
        row = _find(connection, tenant_id, conversation_id, locked=locked)
        if row is not None:
            try:
                return row, self._keys.unwrap(row.text_key_id, tenant_id, row.wrapped)
            except TextUnreadable as error:
                _note_unreadable(row, error)
        raise conversation_not_found(conversation_id, param)

    def _opened(self, row: sa.Row[Any], key: TextKey) -> Conversation:
        """Raises NotFound."""
        try:
            metadata = key.open(row.metadata, metadata_place(row.id))
        except TextUnreadable as error:
            _note_unreadable(row, error)
            raise conversation_not_found(row.id) from None
        return Conversation(row.id, row.created_at // SECOND, msgspec.Raw(metadata))

    def _items(
        self, connection: sa.Connection, row: sa.Row[Any], key: TextKey, condition: sa.ColumnElement[bool]
    ) -> list[tuple[int, Item]]:
        """The items that meet the condition, each after its position. Raises NotFound."""
        rows = connection.execute(_items_of(row, "position", "id", "item").where(condition))
        return [(item.position, msgspec.json.decode(self._text(key, item, row))) for item in rows]

    def _text(self, key: TextKey, item: sa.Row[Any], row: sa.Row[Any]) -> bytes:
        """The JSON of an item. Raises NotFound."""
        try:
            return key.open(item.item, item_place(row.id, item.id))
        except TextUnreadable as error:
            _note_unreadable(row, error)
            raise conversation_not_found(row.id) from None


def append_turn(connection: sa.Connection, keys: TextKeys, tenant_id: str, turn: TurnItems) -> None:
    """Append the items of a response that ended. No effect if the conversation was deleted meanwhile, or has expired.
    Raises TextUnreadable."""
    row = _find(connection, tenant_id, turn.conversation_id, locked=True)
    if row is None:
        _log.warning("conversation.not_appended", extra={"fields": {"conversation": turn.conversation_id}})
        return
    _append(connection, keys.unwrap(row.text_key_id, tenant_id, row.wrapped), row, turn.read_items())


def delete_unreadable_conversations(connection: sa.Connection) -> int:
    """Delete conversations that are expired or have no key, with their items: up to DELETED_AT_ONCE, and no more after
    ITEMS_DELETED_AT_ONCE items. Returns their number."""
    kept_s = sa.select(tenants.c.store_responses_s).where(tenants.c.id == conversations.c.tenant_id).scalar_subquery()
    expired = conversations.c.created_at <= database_now(connection) - SECOND * sa.func.coalesce(kept_s, 0)
    keyless = ~sa.exists().where(text_keys.c.id == conversations.c.text_key_id, text_keys.c.wrapped.is_not(None))
    query = sa.select(conversations.c.id, conversations.c.item_count).where(sa.or_(expired, keyless))
    # Rows that another gateway deletes or appends to are left to the next run.
    rows = connection.execute(query.limit(DELETED_AT_ONCE).with_for_update(of=conversations, skip_locked=True)).all()
    ids: list[str] = []
    deleted_items = 0
    for row in rows:
        if deleted_items >= ITEMS_DELETED_AT_ONCE:
            break
        ids.append(row.id)
        deleted_items += row.item_count
    if ids:
        _delete(connection, ids)
    return len(ids)


def _find(
    connection: sa.Connection, tenant_id: str, conversation_id: str, *, locked: bool = False
) -> sa.Row[Any] | None:
    """The row of a tenant's conversation that is not expired, with the key that was stored for it."""
    if not _ID.fullmatch(conversation_id):  # a database refuses some texts
        return None
    joined = conversations.join(text_keys, text_keys.c.id == conversations.c.text_key_id)
    joined = joined.join(tenants, tenants.c.id == conversations.c.tenant_id)
    created_after = database_now(connection) - SECOND * tenants.c.store_responses_s
    query = sa.select(conversations, text_keys.c.wrapped).select_from(joined)
    query = query.where(
        conversations.c.tenant_id == tenant_id,
        conversations.c.id == conversation_id,
        conversations.c.created_at > created_after,
        text_keys.c.wrapped.is_not(None),
    )
    return connection.execute(query.with_for_update(of=conversations) if locked else query).one_or_none()


def _items_of(row: sa.Row[Any], *columns: str) -> sa.Select[Any]:
    selected = [conversation_items.c[name] for name in columns]
    query: sa.Select[Any] = sa.select(*selected)
    return query.where(conversation_items.c.tenant_id == row.tenant_id, conversation_items.c.conversation_id == row.id)


def _position_of(connection: sa.Connection, row: sa.Row[Any], item_id: str) -> int | None:
    if not ITEM_ID.fullmatch(item_id):
        return None
    found: int | None = connection.execute(
        _items_of(row, "position").where(conversation_items.c.id == item_id)
    ).scalar()
    return found


def _append(connection: sa.Connection, key: TextKey, row: sa.Row[Any], items: Sequence[Item]) -> list[Item]:
    """Append to a conversation whose row is locked, so that two gateways give no position twice. Returns the items as
    they are stored."""
    given = [item["id"] for item in items if isinstance(item.get("id"), str) and ITEM_ID.fullmatch(item["id"])]
    taken = connection.execute(_items_of(row, "id").where(conversation_items.c.id.in_(given))).scalars().all()
    stored = items_to_store(items, taken)
    values = []
    for position, item in enumerate(stored, row.next_position):
        sealed = key.seal(errors.encode(item), item_place(row.id, item["id"]))
        ids = {"conversation_id": row.id, "position": position, "id": item["id"], "tenant_id": row.tenant_id}
        values.append({**ids, "bytes": len(sealed), "item": sealed})
    if values:
        connection.execute(sa.insert(conversation_items), values)
        changed = sa.update(conversations).where(conversations.c.id == row.id)
        size = sum(value["bytes"] for value in values)
        counts = {"item_count": row.item_count + len(values), "bytes": row.bytes + size}
        connection.execute(changed.values(next_position=row.next_position + len(values), **counts))
    return stored


def _delete(connection: sa.Connection, ids: Sequence[str]) -> None:
    """Delete conversations whose rows are locked."""
    connection.execute(sa.delete(conversation_items).where(conversation_items.c.conversation_id.in_(ids)))
    connection.execute(sa.delete(conversations).where(conversations.c.id.in_(ids)))


def _within_bytes(rows: Sequence[sa.Row[Any]]) -> list[int]:
    """The positions of the first rows that have at most PAGE_BYTES_MAX together; at least one."""
    shown: list[int] = []
    size = 0
    for row in rows:
        size += row.bytes
        if shown and size > PAGE_BYTES_MAX:
            break
        shown.append(row.position)
    return shown


def _size(items: Sequence[Item]) -> int:
    return sum(len(errors.encode(item)) for item in items)


def metadata_place(conversation_id: str) -> str:
    """The associated data of the metadata's encryption, like that of `item_place`."""
    return f"{conversation_id} metadata"


def item_place(conversation_id: str, item_id: str) -> str:
    return f"{conversation_id} item {item_id}"


def _note_unreadable(row: sa.Row[Any], error: TextUnreadable) -> None:
    _log.error("conversation.unreadable", extra={"fields": {"conversation": row.id, "reason": str(error)}})
