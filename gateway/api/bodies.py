"""Parses request bodies, by endpoint: small bodies in the event loop, large bodies in a process of `large_work`.

The result depends on the body alone, not on the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from gateway.api.chat_wire import MESSAGES_MAX as ITEMS_MAX
from gateway.api.chat_wire import parse_chat
from gateway.api.compact_wire import parse_compact
from gateway.api.completions_wire import parse_completion
from gateway.api.generation_request import GenerationRequest
from gateway.api.messages_wire import parse_count, parse_messages
from gateway.api.pooling.embeddings_wire import parse_embeddings
from gateway.api.pooling.rerank_wire import parse_rerank, parse_score
from gateway.api.responses_wire import parse_response
from gateway.api.tokenize_wire import parse_detokenize, parse_tokenize
from gateway.api.unknown_fields import UnknownFields
from gateway.errors import ContextLengthExceeded, InvalidRequest

# A body up to this size is parsed in the event loop. Any content of this size takes at most 2 ms.
PARSE_IN_LOOP_BYTES_MAX = 32 * 1024
# A larger body, up to this size, is parsed in the event loop if `has_few_values` is true of it.
PARSE_TEXT_IN_LOOP_BYTES_MAX = 512 * 1024
# Limit of `has_few_values`: quotation marks, commas and opening brackets.
PARSE_TEXT_IN_LOOP_MARKS_MAX = 4096
# The messages or ids of a larger body are counted by the process that parses it: this takes 2 ms a MiB.
CHECK_IN_LOOP_BYTES_MAX = 2 * 1024 * 1024
MARKS_PIECE_BYTES = 16 * 1024  # `has_few_values` stops after the piece that exceeds the limit
# OpenAI's limit of messages. A model with a longer context may take more: a template adds at least
# MESSAGE_TOKENS_MIN tokens to each message.
MESSAGES_MAX = 2048
MESSAGE_TOKENS_MIN = 3
# All prompts of ids together may have this multiple of the longest context: more ids take too long to parse.
IDS_CONTEXTS_MAX = 16
# `check_id_count` counts commas. OTHER_NUMBERS_MAX commas are allowed beyond the prompts', for other lists and objects.
OTHER_NUMBERS_MAX = 4096
COUNT_BYTES = 64 * 1024  # counted at once


class ParsedBody(msgspec.Struct, frozen=True):
    """A parsed body. `wants_usage`: the stream ends with the usage. `ignored`: paths of dropped unknown fields.
    `wants_token_texts`: the ids of the prompt are answered with the text of each."""

    asked: GenerationRequest
    wants_usage: bool = False
    ignored: tuple[str, ...] = ()
    wants_token_texts: bool = False


def _read_chat(body: bytes, unknown: UnknownFields) -> ParsedBody:
    request = parse_chat(body, unknown)
    return ParsedBody(request.to_generation(), request.wants_usage())


def _read_completion(body: bytes, unknown: UnknownFields) -> ParsedBody:
    request = parse_completion(body, unknown)
    return ParsedBody(request.to_generation(), request.wants_usage())


def _read_tokenize(body: bytes, unknown: UnknownFields) -> ParsedBody:
    request = parse_tokenize(body, unknown)
    return ParsedBody(request.generation_request(), wants_token_texts=bool(request.return_token_strs))


# Kinds whose bodies may have lists of ids, with the field that has them.
_ID_FIELDS = {"completions": "prompt", "detokenize": "tokens"}
# Kinds without a conversation, whose inputs may have more ids together than any context: the body's size limits them.
_MANY_INPUTS_KINDS = ("embeddings", "rerank", "score")
_INPUT_KINDS = ("responses", "compact")  # their conversation is `input`
_READERS: Mapping[str, Callable[[bytes, UnknownFields], ParsedBody]] = {
    "chat": _read_chat,
    "completions": _read_completion,
    "embeddings": lambda body, unknown: ParsedBody(parse_embeddings(body, unknown).generation_request()),
    "rerank": lambda body, unknown: ParsedBody(parse_rerank(body, unknown).generation_request()),
    "score": lambda body, unknown: ParsedBody(parse_score(body, unknown).generation_request()),
    "messages": lambda body, unknown: ParsedBody(parse_messages(body, unknown).to_generation()),
    "responses": lambda body, unknown: ParsedBody(parse_response(body, unknown).to_generation()),
    "compact": lambda body, unknown: ParsedBody(parse_compact(body, unknown).summary_request()),
    "count": lambda body, unknown: ParsedBody(parse_count(body, unknown).to_generation()),
    "tokenize": _read_tokenize,
    "detokenize": lambda body, unknown: ParsedBody(parse_detokenize(body, unknown).generation_request()),
}


def read_request(kind: str, body: bytes, *, ignore_unknown: bool) -> ParsedBody:
    """Parse the body of a request to the endpoint `kind`, a key of `_READERS`.

    `ignore_unknown`: drop unknown fields instead of refusing them. Raises InvalidRequest."""
    unknown = UnknownFields(ignore=ignore_unknown)
    parsed = _READERS[kind](body, unknown)
    return msgspec.structs.replace(parsed, ignored=tuple(unknown.ignored)) if unknown.ignored else parsed


def has_few_values(body: bytes) -> bool:
    """Whether a body over PARSE_IN_LOOP_BYTES_MAX is quick to parse.

    The count of quotation marks, commas and opening brackets bounds the number of values; the parser copies the rest,
    which is text."""
    if len(body) > PARSE_TEXT_IN_LOOP_BYTES_MAX:
        return False
    marks = 0
    for start in range(0, len(body), MARKS_PIECE_BYTES):  # stops early in a body with many values
        marks += sum([body.count(mark, start, start + MARKS_PIECE_BYTES) for mark in (b'"', b",", b"[")])
        if marks > PARSE_TEXT_IN_LOOP_MARKS_MAX:
            return False
    return True


def check_body(kind: str, body: bytes, context_tokens: int) -> None:
    """Refuse a body of `kind` with more messages or ids than any model takes, before it is parsed. Raises
    InvalidRequest, ContextLengthExceeded."""
    if kind in _MANY_INPUTS_KINDS:
        return
    if (field := _ID_FIELDS.get(kind)) is not None:
        check_id_count(body, context_tokens, field)
    else:
        check_message_count(body, context_tokens, "input" if kind in _INPUT_KINDS else "messages")


def check_message_count(body: bytes, context_tokens: int, field: str = "messages") -> None:
    """Refuse a conversation with more messages than any model's context holds, before the body is parsed.

    `context_tokens`: the longest context served. `field`: of the messages. Raises InvalidRequest.

    JSON escapes quotation marks within a string, so each `"role"` is a whole name or value. Every message has one.
    Calls and results in an input of `/v1/responses` have a `"call_id"` instead."""
    limit = max(MESSAGES_MAX, context_tokens // MESSAGE_TOKENS_MIN)
    if body.count(b'"role"') + body.count(b'"call_id"') > limit:
        raise InvalidRequest(
            f"{field!r} has over {limit} messages; the longest context served is {context_tokens} tokens.",
            param=field,
        )


class _InputItems(msgspec.Struct):
    input: list[msgspec.Raw]


_read_items = msgspec.json.Decoder(_InputItems).decode


def check_item_count(body: bytes) -> None:
    """Refuse a body of `/v1/responses` whose `input` has more items than a request may have. Parsing refuses a body
    that has no list of items. Raises InvalidRequest."""
    try:
        items = _read_items(body).input
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    if len(items) > ITEMS_MAX:
        raise InvalidRequest(f"'input' has over {ITEMS_MAX} items.", param="input")


def check_id_count(body: bytes, context_tokens: int, field: str = "prompt") -> None:
    """Refuse a body with more ids in `field` than any model takes, before the body is parsed.

    `context_tokens`: the longest context served. Raises ContextLengthExceeded.

    A list of ids contains no quotation mark. So the commas between the field's name and the next quotation mark belong
    to the list of ids, or to the lists in it."""
    name = f'"{field}"'.encode()
    at = body.find(name)
    if at < 0:
        return
    at += len(name)
    end = body.find(b'"', at)
    end = len(body) if end < 0 else end
    limit = IDS_CONTEXTS_MAX * context_tokens
    commas = 0
    for start in range(at, end, COUNT_BYTES):  # stops counting at the limit
        commas += body.count(b",", start, min(end, start + COUNT_BYTES))
        if commas > limit + OTHER_NUMBERS_MAX:
            raise ContextLengthExceeded(
                f"{field!r} has over {limit} ids: {IDS_CONTEXTS_MAX} times the longest context served, "
                f"{context_tokens} tokens.",
                param=field,
            )
