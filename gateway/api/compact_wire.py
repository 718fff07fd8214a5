"""The wire types of `/v1/responses/compact`: a conversation becomes its user messages and a summary.

The model writes the summary as it writes any answer. The client holds it encrypted and sends it with the next turn as
an item of the type compaction (`responses_items.CompactionItem`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.api.chat_wire import MESSAGES_MAX
from gateway.api.generation_request import ChatPrompt, GenerationRequest
from gateway.api.parsing import BodyDecoder
from gateway.api.responses_answers import ResponseUsage
from gateway.api.responses_items import InputItem, MessageItem, conversation, has_sealed, prepare_input, text_of
from gateway.api.responses_wire import HINTS as RESPONSE_HINTS
from gateway.api.responses_wire import REPEATED_BYTES_MAX
from gateway.api.sampling import MODEL_CHARS_MAX, TextRules, make_sampling
from gateway.api.unknown_fields import UnknownFields
from gateway.errors import InvalidRequest, encode
from gateway.tools.definitions import ReasoningRequest, ToolChoice, Tooling

SUMMARY_TOKENS = 2048  # the default bound
SUMMARIZE = (
    "Summarize the conversation so far for the assistant that will continue it. State the user's goal, decisions and "
    "constraints, facts and values that were found, names of files and tools that matter, what is done and what is "
    "still open. Write the summary alone."
)


class CompactRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a compaction."""

    model: Annotated[str, Meta(min_length=1, max_length=MODEL_CHARS_MAX)]
    input: str | Annotated[list[InputItem], Meta(min_length=1, max_length=MESSAGES_MAX)]
    instructions: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    previous_response_id: str | None = None

    def summary_request(self) -> GenerationRequest:
        """Raises InvalidRequest, also for messages of the user's of more than REPEATED_BYTES_MAX."""
        messages = _with_request(conversation(self.instructions, self.input))
        repeated = b",".join(map(encode, self._user_items()))
        if len(repeated) > REPEATED_BYTES_MAX:
            message = (
                f"'input' is too long: the answer repeats the user's messages, of at most {REPEATED_BYTES_MAX} bytes."
            )
            raise InvalidRequest(message, param="input")
        reasoning = ReasoningRequest(shown=False)
        return GenerationRequest(
            model=self.model,
            prompts=[ChatPrompt(messages, reasoning=reasoning)],
            param="input",
            n=1,
            max_tokens=None,
            max_tokens_default=SUMMARY_TOKENS,
            sampling=make_sampling(temperature=None, top_p=None, top_k=None),
            rules=TextRules(stops=[], stop_ids=[]),
            service_tier=self.service_tier,
            stream=False,
            tooling=Tooling(choice=ToolChoice("none"), reasoning=reasoning),
            has_sealed=has_sealed(messages),
            seals_reasoning=True,
            sticky=self.prompt_cache_key,
            continues=self.previous_response_id,
            repeated=repeated,
        )

    def _user_items(self) -> list[dict[str, Any]]:
        """The messages of the user's, which the answer repeats."""
        if isinstance(self.input, str):
            return [_item(self.input)]
        items: Sequence[InputItem] = self.input
        return [_item(text_of(item.content)) for item in items if isinstance(item, MessageItem) and item.role == "user"]


def _with_request(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation with SUMMARIZE at its end. Some templates refuse two messages of the user's in a row."""
    last = messages[-1]
    if last["role"] == "user" and not has_sealed([last]):
        return [*messages[:-1], {**last, "content": f"{last['content']}\n\n{SUMMARIZE}"}]
    return [*messages, {"role": "user", "content": SUMMARIZE}]


def _item(text: str) -> dict[str, Any]:
    part = {"type": "input_text", "text": text}
    return {"type": "message", "status": "completed", "role": "user", "content": [part]}


class CompactedResponse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`output`: the messages of the user's, then an item of the type compaction. It is the next turn's input."""

    id: str
    object: Literal["response.compaction"]
    created_at: float
    output: list[dict[str, Any]]
    usage: ResponseUsage


class InputTokens(msgspec.Struct, frozen=True):
    """The tokens of a response's prompt, as it would be charged when nothing of it is cached."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


HINTS = {name: why for name, why in RESPONSE_HINTS.items() if name.startswith(("input[]", "prompt_cache"))}


def _prepare(value: Any, unknown: UnknownFields) -> None:
    if isinstance(value, dict) and "input" in value:
        value["input"] = prepare_input(value["input"], unknown)


_decoder = BodyDecoder(CompactRequest, prepare=_prepare)


def parse_compact(body: bytes, unknown: UnknownFields) -> CompactRequest:
    """Decode and check a JSON body. Raises InvalidRequest that names the field."""
    request = _decoder.decode(body, unknown)
    return request
