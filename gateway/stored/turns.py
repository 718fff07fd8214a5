"""The stored side of one request to `/v1/responses`: the turns before it, and the turn that it adds."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway import errors
from gateway.access.callers import Caller
from gateway.errors import InvalidRequest, PreviousResponseNotFound, encode
from gateway.stored.conversation_items import TurnItems
from gateway.stored.conversations import ConversationStore
from gateway.stored.responses import ResponseStore, StoredTurn

RESPONSE_ID_CHARS_MAX = 128  # of an id in a refusal
NO_CONVERSATIONS = (
    "conversations are not stored for this tenant. Send the whole input with each request, or ask the operator to have "
    "the tenant's responses stored."
)
_STORED, _NOT_STORED = b'"store":true}', b'"store":false}'
REFERENCE = "item_reference"
_BLOB = b'"encrypted_content"'
REFERENCED_MAX = 64  # responses that the references of one request name
_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{32})_\d+")  # as `answers.responses_parts` makes them
_INDEX = re.compile(r"input\[(\d+)\]")
_ANSWERED = ("completed", "incomplete")  # statuses of responses that their conversation gets


class _Fields(msgspec.Struct):
    input: msgspec.Raw = msgspec.Raw(b"")
    previous_response_id: Any = None
    conversation: Any = None
    store: Any = None


class _Item(msgspec.Struct):
    type: Any = None
    id: Any = None


class _Answer(msgspec.Struct):
    output: list[msgspec.Raw]
    conversation: Any = None


class _Status(msgspec.Struct):
    status: str


_read_fields = msgspec.json.Decoder(_Fields).decode
_read_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_read_item = msgspec.json.Decoder(_Item).decode
_read_text = msgspec.json.Decoder(str).decode
_read_output = msgspec.json.Decoder(_Answer).decode
_read_status = msgspec.json.Decoder(_Status).decode


class OpenTurn:
    """The turn of a request. `body`: the request with the items of the earlier turns before its own, `earlier` items.
    `response_id` None: the response is not stored. `conversation_id`: the conversation that the turn is added to."""

    def __init__(
        self,
        store: ResponseStore,
        tenant_id: str,
        response_id: str | None,
        body: bytes,
        items: bytes,
        earlier: int,
        conversation_id: str | None = None,
    ) -> None:
        self._store = store
        self.tenant_id = tenant_id
        self.response_id = response_id
        self._items = items
        self._earlier = earlier
        self._conversation_id = conversation_id
        self._begun = self._ended = False
        self._dropping: asyncio.Task[None] | None = None
        self.body = body

    @property
    def stores(self) -> bool:
        return self.response_id is not None

    def hand_over(self) -> None:
        """From now on `gateway.stored.background` ends the response, not this turn."""
        self._ended = True

    async def begin_turn(self, previous_id: str | None) -> None:
        """Make the row of the response. Raises QuotaExceeded, DatabaseDown."""
        if self.response_id is not None:
            self._begun = True
            await self._store.begin_turn(self.tenant_id, self.response_id, previous_id, self._items)

    async def keep_answer(self, data: bytes, response: bytes) -> bytes:
        """Store the response object with which `data` ends. Returns `data`, which says whether it is stored."""
        if self.response_id is None or not self._begun or self._ended:
            return data
        self._ended = True
        status = _read_status(response).status
        added = self.added_items(status, response)
        if await self._store.end_turn(self.tenant_id, self.response_id, status, response, added):
            return data
        before, _, after = data.rpartition(_STORED)
        return before + _NOT_STORED + after

    def added_items(self, status: str, response: bytes) -> TurnItems | None:
        """The items that are added to the conversation when the turn ends with this response object; None: none."""
        if self._conversation_id is None or status not in _ANSWERED:
            return None
        return TurnItems(self._conversation_id, self._items, response)

    def abandon_turn(self) -> None:
        """The response has not been stored, and will not be. No effect after `keep_answer`."""
        if self.response_id is not None and self._begun and not self._ended:
            self._ended = True
            self._dropping = asyncio.create_task(self._store.drop_turn(self.response_id))

    def own_index(self, error: InvalidRequest) -> InvalidRequest:
        """The error with the indices of the request's own items, which follow the items of the earlier turns. An item
        of the conversation is named as such: a client may have deleted the call of a result, for example."""

        def shift(match: re.Match[str]) -> str:
            index = int(match[1])
            if index < self._earlier and self._conversation_id is not None:
                return f"conversation.items[{index}]"
            return f"input[{max(0, index - self._earlier)}]"

        if self._earlier:
            error.message = _INDEX.sub(shift, error.message)
            error.param = None if error.param is None else _INDEX.sub(shift, error.param)
        return error


async def open_turn(
    store: ResponseStore, conversations: ConversationStore, caller: Caller, body: bytes, response_id: str | None
) -> OpenTurn | None:
    """None: the body is not valid, or the response neither continues another nor is stored. `response_id` None: it is
    not stored in any case. Raises PreviousResponseNotFound, NotFound for a conversation, ContextLengthExceeded,
    DatabaseDown."""
    tenant_id = caller.tenant_id
    if not caller.stores_responses or tenant_id is None:
        return None
    try:
        fields = _read_fields(body)
        items = _own_items(fields.input)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None  # parsing it refuses it, and names the field
    stored_id = None if fields.store is False else response_id
    previous, conversation_id = fields.previous_response_id, _conversation_id(fields.conversation)
    if conversation_id is not None and (previous is not None or fields.store is False):
        return None  # parsing it refuses it
    resolved = await _without_references(store, tenant_id, items)
    earlier: list[msgspec.Raw] = []
    if conversation_id is not None:
        earlier = await conversations.prompt_items(tenant_id, conversation_id)
    elif isinstance(previous, str):
        earlier = await _earlier_items(store, tenant_id, previous)
    earlier = [_without_blob(item) for item in earlier]
    if earlier or resolved != items:
        members = _read_members(body)
        members["input"] = msgspec.Raw(_array([*earlier, *resolved]))
        body = encode(members)
    elif stored_id is None:
        return None
    return OpenTurn(store, tenant_id, stored_id, body, _array(resolved), len(earlier), conversation_id)


def _without_blob(item: msgspec.Raw) -> msgspec.Raw:
    """A stored item of reasoning without its encrypted text, if its text is stored beside it: a server secret that was
    dropped meanwhile then costs nothing."""
    if _BLOB not in bytes(item):
        return item
    members = msgspec.json.decode(item)
    if members.get("type") != "reasoning" or not (members.get("content") or members.get("summary")):
        return item
    members.pop("encrypted_content", None)
    return msgspec.Raw(encode(members))


def _conversation_id(field: object) -> str | None:
    """Of the field `conversation`: an id, or an object that has it."""
    id_ = field.get("id") if isinstance(field, dict) else field
    return id_ if isinstance(id_, str) else None


def refuse_without_turn(previous: str | None, conversation_id: str | None) -> None:
    """Refuse a request that continues a response or conversation that is not stored for its tenant. Raises
    PreviousResponseNotFound, InvalidRequest."""
    if previous is not None:
        raise not_found(previous)
    if conversation_id is not None:
        raise InvalidRequest(f"'conversation' has no effect: {NO_CONVERSATIONS}", param="conversation")


async def _earlier_items(store: ResponseStore, tenant_id: str, previous: str) -> list[msgspec.Raw]:
    """The items of the turns up to the response `previous`. Raises as `open_turn`."""
    turns = await store.conversation(tenant_id, previous)
    if turns is None:
        raise not_found(previous)
    for turn in turns:
        if not turn.continuable:
            message = f"'previous_response_id' continues the response '{turn.id}', whose status is {turn.status}."
            raise InvalidRequest(message, param="previous_response_id")
    answers = [_read_output(turn.answer) for turn in turns]
    if any(answer.conversation is not None for answer in answers):
        message = f"The response '{previous[:RESPONSE_ID_CHARS_MAX]}' or one before it is of a conversation: send "
        raise InvalidRequest(f"{message}'conversation' instead.", param="previous_response_id")
    pairs = zip(turns, answers, strict=True)
    return [item for turn, answer in pairs for item in (*_read_items(turn.input), *answer.output)]


async def _without_references(store: ResponseStore, tenant_id: str, items: list[msgspec.Raw]) -> list[msgspec.Raw]:
    """The items, with stored items in the place of references to them. Raises InvalidRequest for a reference to an item
    that is not stored."""
    found: list[msgspec.Raw] = []
    turns: dict[str, dict[str, msgspec.Raw]] = {}  # the items of each response that a reference names
    for index, item in enumerate(items):
        head = _read_item(item) if bytes(item).lstrip().startswith(b"{") else _Item()
        if head.type != REFERENCE or not isinstance(head.id, str):
            found.append(item)
            continue
        match = _ITEM_ID.fullmatch(head.id)
        response_id = f"resp_{match[1]}" if match else ""
        if response_id not in turns:
            if len(turns) >= REFERENCED_MAX:
                raise InvalidRequest(f"'input' refers to items of over {REFERENCED_MAX} responses.", param="input")
            turns[response_id] = _output_of(await store.get_turn(tenant_id, response_id))
        if head.id not in turns[response_id]:
            param = f"input[{index}]"
            message = f"{param!r} is wrong: item with id '{head.id[:RESPONSE_ID_CHARS_MAX]}' not found."
            raise InvalidRequest(message, param=param)
        found.append(turns[response_id][head.id])
    return found


def _output_of(turn: StoredTurn | None) -> dict[str, msgspec.Raw]:
    """The items of an answer by their ids."""
    output = _read_output(turn.answer).output if turn is not None and turn.answer else []
    return {str(_read_item(item).id): item for item in output}


def not_found(previous: str) -> PreviousResponseNotFound:
    """The refusal of an id that is unknown, another tenant's, expired, or of a response that was not stored."""
    message = f"Previous response with id '{previous[:RESPONSE_ID_CHARS_MAX]}' not found."
    return PreviousResponseNotFound(message, param="previous_response_id")


def response_not_found(response_id: str) -> errors.NotFound:
    return errors.NotFound(f"Response with id '{response_id[:RESPONSE_ID_CHARS_MAX]}' not found.")


def input_items(turns: Sequence[StoredTurn]) -> list[dict[str, Any]]:
    """The input of the last of these turns: the items of the earlier turns, and its own. Each has an id."""
    found: list[dict[str, Any]] = []
    for number, turn in enumerate(turns, 1):
        own = [msgspec.json.decode(item) for item in _read_items(turn.input)]
        for index, item in enumerate(own):
            found.append({"id": f"{turn.id}_in_{index}", **item})
        if number < len(turns):
            found += [msgspec.json.decode(item) for item in _read_output(turn.answer).output]
    return found


def _own_items(raw: msgspec.Raw) -> list[msgspec.Raw]:
    """Raises msgspec.DecodeError."""
    if not bytes(raw).lstrip().startswith(b'"'):
        return _read_items(raw)
    part = {"type": "input_text", "text": _read_text(raw)}
    return [msgspec.Raw(encode({"type": "message", "role": "user", "content": [part]}))]


def _array(items: Sequence[msgspec.Raw]) -> bytes:
    return b"[" + b",".join(map(bytes, items)) + b"]"
