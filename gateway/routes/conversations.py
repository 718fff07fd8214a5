"""OpenAI's Conversations API: conversations that are stored for the tenant. Any of the tenant's keys may read, change
and delete them; responses with `conversation` add to them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from litestar import Request, delete, get, post
from litestar.params import Parameter
from msgspec import Meta

from gateway.access.callers import Caller
from gateway.api.bodies import PARSE_IN_LOOP_BYTES_MAX
from gateway.api.parsing import BodyDecoder
from gateway.api.responses_items import InputItem, prepare_input
from gateway.api.unknown_fields import UnknownFields
from gateway.errors import InvalidRequest, encode
from gateway.http.exchange import line_of, read_body
from gateway.routes.answering import hold_body, refund_on_error
from gateway.routes.guard import admit
from gateway.services import Services
from gateway.stored.conversation_items import Item
from gateway.stored.conversations import Conversation
from gateway.stored.turns import NO_CONVERSATIONS

ITEMS_ADDED_MAX = 20  # by one request, as with OpenAI
PAGE_DEFAULT, PAGE_MAX = 20, 100
METADATA_PAIRS_MAX, METADATA_KEY_CHARS_MAX, METADATA_VALUE_CHARS_MAX = 16, 64, 512
COLLECTION = "/v1/conversations"
PATH = f"{COLLECTION}/{{conversation:str}}"
ITEMS = f"{PATH}/items"
ITEM = f"{ITEMS}/{{item:str}}"
TENANT = "/t/{tenant:str}"

Metadata = Annotated[
    dict[
        Annotated[str, Meta(max_length=METADATA_KEY_CHARS_MAX)],
        Annotated[str, Meta(max_length=METADATA_VALUE_CHARS_MAX)],
    ],
    Meta(max_length=METADATA_PAIRS_MAX),
]
Body = TypeVar("Body", bound=msgspec.Struct)


class NewConversation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a new conversation."""

    items: Annotated[list[InputItem], Meta(max_length=ITEMS_ADDED_MAX)] | None = None
    metadata: Metadata | None = None


class ConversationChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The metadata that replaces that of a conversation; null: none."""

    metadata: Metadata | None


class NewItems(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Items that are added to a conversation."""

    items: Annotated[list[InputItem], Meta(min_length=1, max_length=ITEMS_ADDED_MAX)]


class ConversationObject(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation. `created_at`: seconds UTC."""

    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str]


class DeletedConversation(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: Literal[True] = True


class ConversationItemList(msgspec.Struct, frozen=True, kw_only=True):
    """Items of a conversation. A page may have fewer items than its `limit` before the last page: it ends before it is
    too large."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


@post([COLLECTION, TENANT + COLLECTION], status_code=200, opt={"route": COLLECTION})
async def create_conversation(request: Request[Any, Any, Any], services: Services) -> ConversationObject:
    """Create a conversation. Counts as a request under the limits, as every endpoint of conversations does."""
    async with _admitted(request, services) as (caller, tenant_id):
        if not caller.stores_responses:
            raise InvalidRequest(NO_CONVERSATIONS[0].upper() + NO_CONVERSATIONS[1:])
        body = await _read(request, services, caller, _new_conversation)
        items = [] if body.items is None else _items(body.items)
        created = await services.conversations.create_conversation(tenant_id, encode(body.metadata or {}), items)
    return _object(created)


@get([PATH, TENANT + PATH], opt={"route": PATH})
async def get_conversation(
    request: Request[Any, Any, Any], services: Services, conversation: str
) -> ConversationObject:
    """A conversation, without its items."""
    async with _admitted(request, services) as (_, tenant_id):
        found = await services.conversations.get_conversation(tenant_id, conversation)
    return _object(found)


@post([PATH, TENANT + PATH], status_code=200, opt={"route": PATH})
async def update_conversation(
    request: Request[Any, Any, Any], services: Services, conversation: str
) -> ConversationObject:
    """Replace the metadata of a conversation."""
    async with _admitted(request, services) as (caller, tenant_id):
        body = await _read(request, services, caller, _change)
        metadata = encode(body.metadata or {})
        changed = await services.conversations.set_metadata(tenant_id, conversation, metadata)
    return _object(changed)


@delete([PATH, TENANT + PATH], status_code=200, opt={"route": PATH})
async def delete_conversation(
    request: Request[Any, Any, Any], services: Services, conversation: str
) -> DeletedConversation:
    """Delete a conversation and its items. Responses that were made in it remain."""
    async with _admitted(request, services) as (_, tenant_id):
        await services.conversations.delete_conversation(tenant_id, conversation)
    return DeletedConversation(id=conversation)


@get([ITEMS, TENANT + ITEMS], opt={"route": ITEMS})
async def list_items(
    request: Request[Any, Any, Any],
    services: Services,
    conversation: str,
    after: str | None = None,
    limit: Annotated[int, Parameter(ge=1, le=PAGE_MAX)] = PAGE_DEFAULT,
    order: Literal["asc", "desc"] = "desc",
) -> ConversationItemList:
    """The items of a conversation."""
    async with _admitted(request, services) as (_, tenant_id):
        page = await services.conversations.list_items(tenant_id, conversation, after, limit, order)
    return _list(page.items, more=page.more)


@post([ITEMS, TENANT + ITEMS], status_code=200, opt={"route": ITEMS})
async def add_items(request: Request[Any, Any, Any], services: Services, conversation: str) -> ConversationItemList:
    """Append items to a conversation. Answers with them, as they are stored."""
    async with _admitted(request, services) as (caller, tenant_id):
        body = await _read(request, services, caller, _new_items)
        added = await services.conversations.add_items(tenant_id, conversation, _items(body.items))
    return _list(added, more=False)


@get([ITEM, TENANT + ITEM], opt={"route": ITEM})
async def get_item(request: Request[Any, Any, Any], services: Services, conversation: str, item: str) -> dict[str, Any]:
    """An item of a conversation."""
    async with _admitted(request, services) as (_, tenant_id):
        return await services.conversations.get_item(tenant_id, conversation, item)


@delete([ITEM, TENANT + ITEM], status_code=200, opt={"route": ITEM})
async def delete_item(
    request: Request[Any, Any, Any], services: Services, conversation: str, item: str
) -> ConversationObject:
    """Delete an item of a conversation. Answers with the conversation."""
    async with _admitted(request, services) as (_, tenant_id):
        left = await services.conversations.delete_item(tenant_id, conversation, item)
    return _object(left)


@contextlib.asynccontextmanager
async def _admitted(request: Request[Any, Any, Any], services: Services) -> AsyncIterator[tuple[Caller, str]]:
    """The caller and its tenant. The request counts under the limits on requests and takes no tokens."""
    caller = await admit(services, request)
    assert caller.tenant_id is not None
    admission = await services.generator.admit(caller)
    async with refund_on_error(admission):
        yield caller, caller.tenant_id
    await admission.finish_request(0)


async def _read(
    request: Request[Any, Any, Any],
    services: Services,
    caller: Caller,
    parse: Callable[[bytes, UnknownFields], Body],
) -> Body:
    """The parsed body. Raises InvalidRequest that names the field, and as `read_body`."""
    settings = services.config.gateway
    data = await read_body(request, settings.body_bytes_max, hold_body(services, request, caller))
    unknown = UnknownFields(ignore=settings.unknown_fields == "ignore")
    in_loop = len(data) <= PARSE_IN_LOOP_BYTES_MAX
    body = parse(data, unknown) if in_loop else await asyncio.to_thread(parse, data, unknown)
    line_of(request).record.ignored = tuple(unknown.ignored)
    return body


def _prepare(value: Any, unknown: UnknownFields) -> None:
    if isinstance(value, dict) and "items" in value:
        value["items"] = prepare_input(value["items"], unknown, "items")


_new_conversation = BodyDecoder(NewConversation, prepare=_prepare).decode
_change = BodyDecoder(ConversationChange).decode
_new_items = BodyDecoder(NewItems, prepare=_prepare).decode


def _items(items: Sequence[InputItem]) -> list[Item]:
    found: list[Item] = msgspec.to_builtins(items)
    return found


def _object(found: Conversation) -> ConversationObject:
    metadata = msgspec.json.decode(found.metadata, type=dict[str, str])
    return ConversationObject(id=found.id, created_at=found.created_at, metadata=metadata)


def _list(items: list[Item], *, more: bool) -> ConversationItemList:
    first, last = (items[0]["id"], items[-1]["id"]) if items else (None, None)
    return ConversationItemList(data=items, first_id=first, last_id=last, has_more=more)
