"""Parses request bodies, by endpoint: most of them in the event loop, large ones in a process of `large_work`.

It must never know the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from gateway.api.chat_wire import parse_chat
from gateway.api.completions_wire import parse_completion
from gateway.api.generation_request import GenerationRequest
from gateway.api.messages_wire import parse_count, parse_messages
from gateway.api.unknown_fields import UnknownFields
from gateway.errors import ContextLengthExceeded, InvalidRequest

# A body up to this size is parsed in the event loop, in at most two milliseconds whatever it contains.
PARSE_IN_LOOP_BYTES_MAX = 32 * 1024
# A larger body up to this size is parsed there if it has few values.
PARSE_TEXT_IN_LOOP_BYTES_MAX = 512 * 1024
PARSE_TEXT_IN_LOOP_MARKS_MAX = 4096
MARKS_PIECE_BYTES = 16 * 1024
# Commas allowed beyond those of the longest prompts of ids, for other lists and objects of the body.
OTHER_NUMBERS_MAX = 4096
# OpenAI's limit of messages. A longer context has room for more: a template takes three tokens or more for each.
MESSAGES_MAX = 2048
MESSAGE_TOKENS_MIN = 3
COUNT_BYTES = 64 * 1024
# Prompts of ids may have this many contexts of ids in all; further ones would take too long to parse.
IDS_CONTEXTS_MAX = 16


class ParsedBody(msgspec.Struct, frozen=True):
    """A parsed body. `wants_usage`: its stream ends with the usage. `ignored`: paths of unknown fields."""

    asked: GenerationRequest
    wants_usage: bool = False
    ignored: tuple[str, ...] = ()


def _read_chat(body: bytes, unknown: UnknownFields) -> ParsedBody:
    request = parse_chat(body, unknown)
    return ParsedBody(request.to_generation(), request.wants_usage())


def _read_completion(body: bytes, unknown: UnknownFields) -> ParsedBody:
    request = parse_completion(body, unknown)
    return ParsedBody(request.to_generation(), request.wants_usage())


_READERS: Mapping[str, Callable[[bytes, UnknownFields], ParsedBody]] = {
    "chat": _read_chat,
    "completions": _read_completion,
    "messages": lambda body, unknown: ParsedBody(parse_messages(body, unknown).to_generation()),
    "count": lambda body, unknown: ParsedBody(parse_count(body, unknown).to_generation()),
}


def read_request(kind: str, body: bytes, *, ignore_unknown: bool) -> ParsedBody:
    """Parse the body of a request. `kind`: "chat", "completions", "messages" or "count". Raises InvalidRequest."""
    unknown = UnknownFields(ignore=ignore_unknown)
    read = _READERS[kind](body, unknown)
    return msgspec.structs.replace(read, ignored=tuple(unknown.ignored)) if unknown.ignored else read


def has_few_values(body: bytes) -> bool:
    """Whether a body over PARSE_IN_LOOP_BYTES_MAX is quick to parse. Quotation marks, commas and opening brackets bound
    the number of its values; the rest is text, which the parser copies."""
    if len(body) > PARSE_TEXT_IN_LOOP_BYTES_MAX:
        return False
    found = 0
    for start in range(0, len(body), MARKS_PIECE_BYTES):  # stops early in a body with many values
        found += sum([body.count(mark, start, start + MARKS_PIECE_BYTES) for mark in (b'"', b",", b"[")])
        if found > PARSE_TEXT_IN_LOOP_MARKS_MAX:
            return False
    return True


def check_message_count(body: bytes, context_tokens: int) -> None:
    """Refuse a conversation with more messages than fit any model before it is parsed. `context_tokens`: the longest
    context served. Raises InvalidRequest.

    Quotation marks within a string are escaped, so each `"role"` is a whole name or value. Every message has one."""
    limit = max(MESSAGES_MAX, context_tokens // MESSAGE_TOKENS_MIN)
    if body.count(b'"role"') > limit:
        raise InvalidRequest(
            f"'messages' has over {limit} messages; the longest context served is {context_tokens} tokens.",
            param="messages",
        )


def check_id_count(body: bytes, context_tokens: int) -> None:
    """Refuse a body with more prompt ids than any model takes, before it is parsed. `context_tokens`: the longest
    context served. Raises ContextLengthExceeded.

    A list of ids contains no quotation mark. So the commas between the name "prompt" and the next quotation mark are
    those of the list of ids, or of the lists in it."""
    at = body.find(b'"prompt"')
    if at < 0:
        return
    at += len(b'"prompt"')
    end = body.find(b'"', at)
    end = len(body) if end < 0 else end
    limit = IDS_CONTEXTS_MAX * context_tokens
    found = 0
    for start in range(at, end, COUNT_BYTES):  # stops counting at the limit
        found += body.count(b",", start, min(end, start + COUNT_BYTES))
        if found > limit + OTHER_NUMBERS_MAX:
            raise ContextLengthExceeded(
                f"'prompt' has over {limit} ids: {IDS_CONTEXTS_MAX} times the longest context served, {context_tokens} "
                "tokens.",
                param="prompt",
            )
