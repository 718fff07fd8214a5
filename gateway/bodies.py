"""From a body to what it asks, by endpoint: in the event loop, or in a process of `large_work` when it is large.

It must never know who asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from gateway.asked import Asked
from gateway.completions_wire import PROMPTS_MAX, parse_completion
from gateway.errors import ContextLengthExceeded, InvalidRequest
from gateway.messages_wire import parse_count, parse_messages
from gateway.wire import parse_chat

# About a millisecond of parsing, whatever the body contains.
PARSE_IN_LOOP_BYTES_MAX = 32 * 1024
# Beside a prompt of ids, a body has other lists and objects: at most so many numbers.
OTHER_NUMBERS_MAX = 4096
# OpenAI's limit of messages. A longer context has room for more: a template takes three tokens or more for each.
MESSAGES_MAX = 2048
MESSAGE_TOKENS_MIN = 3
COUNT_BYTES = 64 * 1024


class Read(msgspec.Struct, frozen=True):
    """What a body asks, and whether its stream ends with the usage."""

    asked: Asked
    wants_usage: bool = False


def _read_chat(body: bytes) -> Read:
    request = parse_chat(body)
    return Read(request.asked(), request.wants_usage())


def _read_completion(body: bytes) -> Read:
    request = parse_completion(body)
    return Read(request.asked(), request.wants_usage())


# By endpoint. Each raises InvalidRequest.
READERS: Mapping[str, Callable[[bytes], Read]] = {
    "chat": _read_chat,
    "completions": _read_completion,
    "messages": lambda body: Read(parse_messages(body).asked()),
    "count": lambda body: Read(parse_count(body).asked()),
}


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
    """Refuse a prompt with more ids than fit any model before it is parsed. `context_tokens`: the longest context
    served. Raises ContextLengthExceeded.

    No string begins or ends between two quotation marks that follow one another, so after the name "prompt" the commas
    up to the next quotation mark are those of one list, or of lists in it."""
    at = body.find(b'"prompt"')
    if at < 0:
        return
    at += len(b'"prompt"')
    end = body.find(b'"', at)
    end = len(body) if end < 0 else end
    limit = PROMPTS_MAX * context_tokens
    found = 0
    for start in range(at, end, COUNT_BYTES):  # no further than is needed
        found += body.count(b",", start, min(end, start + COUNT_BYTES))
        if found > limit + OTHER_NUMBERS_MAX:
            raise ContextLengthExceeded(
                f"'prompt' has over {limit} ids; the longest context served is {context_tokens} tokens, and the limit "
                f"is {PROMPTS_MAX} prompts.",
                param="prompt",
            )
