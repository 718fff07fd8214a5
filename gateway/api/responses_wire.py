"""The wire types of `/v1/responses`: request bodies. Answers and events: responses_answers.py.

A field of a request has an effect, or is in HINTS (accepted without effect on the answer), or is in UNSUPPORTED_FIELDS
(only its neutral values are accepted). Stored responses and earlier responses: gateway/stored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.api.chat_tools import TOOLS_MAX
from gateway.api.chat_wire import EFFORT_CHARS_MAX, MESSAGES_MAX, NO_EFFORT
from gateway.api.generation_request import ChatPrompt, GenerationRequest
from gateway.api.output_formats import check_output_beside_tools
from gateway.api.parsing import BodyDecoder, Explanations, UnsupportedField, check_served
from gateway.api.responses_items import ConversationReference, InputItem, conversation, has_sealed, prepare_input
from gateway.api.responses_tools import (
    ResponseFormatOption,
    ResponseTool,
    ResponseToolChoice,
    gather_tools,
    output_format,
    prepare_tools,
    tool_choice,
    tool_specs,
)
from gateway.api.sampling import HINTS_STICKY, MODEL_CHARS_MAX, TextRules, Tokens, make_sampling
from gateway.api.unknown_fields import UnknownFields
from gateway.errors import InvalidRequest, encode
from gateway.tools.definitions import ReasoningRequest, Tooling

ENCRYPTED_REASONING = "reasoning.encrypted_content"  # the value of `include` that has an effect
REPEATED_BYTES_MAX = 2 * 1024 * 1024  # of the request's fields in its answer, which is in memory until it is sent


class TextOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`verbosity` is a hint."""

    format: ResponseFormatOption | None = None
    verbosity: str | None = None


class ReasoningOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`effort`: as `reasoning_effort` of chat completions. `summary`: the reasoning is also its own summary. `context`
    is a hint."""

    effort: Annotated[str, Meta(max_length=EFFORT_CHARS_MAX)] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    context: str | None = None


class ResponseStreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A hint: no event is padded."""

    include_obfuscation: bool | None = None


class ResponsesRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a response. A field without a type is not served: only its neutral values are accepted."""

    model: Annotated[str, Meta(min_length=1, max_length=MODEL_CHARS_MAX)]
    input: str | Annotated[list[InputItem], Meta(min_length=1, max_length=MESSAGES_MAX)]
    instructions: str | None = None
    max_output_tokens: Tokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    stream: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: Annotated[list[ResponseTool], Meta(max_length=TOOLS_MAX)] | None = None
    tool_choice: ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    service_tier: str | None = None
    include: list[str] | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationReference | None = None
    store: bool | None = None
    background: bool | None = None
    metadata: dict[str, str] | None = None
    # In HINTS.
    client_metadata: dict[str, Any] | None = None
    max_tool_calls: int | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    stream_options: ResponseStreamOptions | None = None
    user: str | None = None
    # In UNSUPPORTED_FIELDS.
    context_management: Any = None
    prompt: Any = None
    top_logprobs: Any = None
    truncation: Any = None

    def to_generation(self) -> GenerationRequest:
        tooling = self.tooling()
        # Without a call in sight the prompt does not describe the tools.
        described = [] if tooling.choice.mode == "none" else tooling.tools
        messages = conversation(self.instructions, self.input)
        return GenerationRequest(
            model=self.model,
            prompts=[ChatPrompt(messages, tools=described, reasoning=tooling.reasoning)],
            param="input",
            n=1,
            max_tokens=self.max_output_tokens,
            sampling=make_sampling(temperature=self.temperature, top_p=self.top_p, top_k=None),
            rules=TextRules(stops=[], stop_ids=[]),
            service_tier=self.service_tier,
            stream=bool(self.stream),
            tooling=tooling,
            has_sealed=has_sealed(messages),
            seals_reasoning=ENCRYPTED_REASONING in (self.include or ()),
            sticky=self.prompt_cache_key or self.safety_identifier or self.user,
            end_user=self.safety_identifier or self.user or None,
            continues=self.previous_response_id,
            store=bool(self.store),
            background=bool(self.background),
            conversation_id=self.conversation_id,
            repeated=self.repeated_fields(),
        )

    @property
    def conversation_id(self) -> str | None:
        return self.conversation.id if isinstance(self.conversation, ConversationReference) else self.conversation

    def tooling(self) -> Tooling:
        """Raises InvalidRequest."""
        tools = tool_specs(self.tools or ())
        choice = tool_choice(self.tool_choice, self.parallel_tool_calls, tools)
        output = output_format(None if self.text is None else self.text.format)
        check_output_beside_tools(output, choice)
        asked = self.reasoning or ReasoningOptions()
        return Tooling(
            tools,
            choice,
            output,
            ReasoningRequest(
                enabled=None if asked.effort is None else asked.effort != NO_EFFORT,
                tokens_max=asked.max_tokens,
                effort=asked.effort,
                summarized=(asked.summary or asked.generate_summary) is not None,
                field="reasoning.effort" if asked.effort is not None else "reasoning.max_tokens",
                effort_field="reasoning.effort",
            ),
        )

    def repeated_fields(self) -> bytes:
        """The members of a response object that repeat the request, as JSON without braces. Raises InvalidRequest for
        more than REPEATED_BYTES_MAX."""
        asked = self.reasoning or ReasoningOptions()
        text = self.text or TextOptions()
        members: dict[str, Any] = {
            "background": bool(self.background),
            "conversation": None if self.conversation is None else {"id": self.conversation_id},
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "metadata": self.metadata or {},
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "previous_response_id": self.previous_response_id,
            "prompt_cache_key": self.prompt_cache_key,
            "reasoning": {"effort": asked.effort, "summary": asked.summary or asked.generate_summary},
            "safety_identifier": self.safety_identifier,
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "text": {"format": text.format or {"type": "text"}, "verbosity": text.verbosity or "medium"},
            "tool_choice": self.tool_choice or "auto",
            "tools": self.tools or [],
            "top_logprobs": 0,
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "truncation": "disabled",
            "user": self.user,
        }
        repeated = encode(members)[1:-1]
        if len(repeated) > REPEATED_BYTES_MAX:
            largest = max(members, key=lambda name: len(encode(members[name])))
            message = (
                f"{largest!r} is too long: an answer repeats the fields of its request that are not 'input', and these "
                f"have over {REPEATED_BYTES_MAX} bytes."
            )
            raise InvalidRequest(message, param=largest)
        return repeated


CACHE = "Every prompt is cached by its pages"
TEXT_ALONE = "Only the text of a part counts"
# The hints of a text part, which a message has in `content` and the result of a call in `output`.
_PART_HINTS = {
    "annotations": TEXT_ALONE,
    "logprobs": TEXT_ALONE,
    "parsed": TEXT_ALONE,
    "prompt_cache_breakpoint": CACHE,
}
_TOOL_HINTS = {
    "allowed_callers": "The model calls the tools",
    "defer_loading": "The prompt describes every tool",
    "output_schema": "Templates do not get it",
}
# By path in the body: why the field has no effect on the answer, a sentence without its full stop.
HINTS: dict[str, str] = {
    "client_metadata": "It is not stored",
    **{f"input[].{field}[].{name}": why for field in ("content", "output") for name, why in _PART_HINTS.items()},
    "input[].caller": "The client calls the tools",
    "input[].created_by": "Templates do not get it",
    "input[].id": "Templates do not get it; the list of a stored response's input items shows it",
    "input[].parsed_arguments": "Only `arguments` counts",
    "input[].phase": "Templates do not get it",
    "input[].status": "Every item counts as complete",
    "max_tool_calls": "It counts calls of tools that OpenAI's own service runs",
    **HINTS_STICKY,
    "prompt_cache_options": CACHE,
    "prompt_cache_retention": "Retention is not guaranteed: the cached pages unused for longest are evicted first",
    "reasoning.context": "The model's template decides which earlier reasoning the prompt has",
    "stream_options": "No event is padded",
    "text.format.description": "The schema alone counts",
    "text.format.name": "The schema alone counts",
    **{f"{tools}.{name}": why for tools in ("tools[]", "tools[].tools[]") for name, why in _TOOL_HINTS.items()},
    "text.verbosity": "Only `max_output_tokens` limits the length of an answer",
}

UNSUPPORTED_FIELDS: dict[str, UnsupportedField] = {
    "context_management": UnsupportedField("The client compacts its own input"),
    "prompt": UnsupportedField("Prompt templates are not stored; send 'instructions' and 'input'"),
    "top_logprobs": UnsupportedField("Log probabilities are served by chat completions", (0,)),
    "truncation": UnsupportedField("Prompts are not truncated", ("disabled", "auto")),
}

_EXPLANATIONS: Explanations = (
    (r"\.role' is wrong: Invalid", "Roles are system, developer, user and assistant"),
    (r"\.content\[\d+\]\.type' is wrong", "Parts are texts; images, audio and files are not read"),
    (r"'tool_choice\.type' is wrong", "Tools that OpenAI's own service runs are not served"),
)


def _prepare(value: Any, unknown: UnknownFields) -> None:
    if isinstance(value, dict):
        gather_tools(value)
        for name, prepare in (("input", prepare_input), ("tools", prepare_tools)):
            if name in value:
                value[name] = prepare(value[name], unknown)


_decoder = BodyDecoder(ResponsesRequest, _EXPLANATIONS, prepare=_prepare)


def _check_conversation(request: ResponsesRequest) -> None:
    """Raises InvalidRequest."""
    if request.conversation is None:
        return
    if request.previous_response_id is not None:
        message = "'conversation' and 'previous_response_id' exclude each other: send one of them."
        raise InvalidRequest(message, param="conversation")
    if request.store is False:
        message = (
            "'store' is wrong: a response with 'conversation' is stored. Leave 'store' out, or send the whole input."
        )
        raise InvalidRequest(message, param="store")


def parse_response(body: bytes, unknown: UnknownFields) -> ResponsesRequest:
    """Decode and check a JSON body. Raises InvalidRequest that names the field."""
    request = _decoder.decode(body, unknown)
    check_served(request, UNSUPPORTED_FIELDS)
    _check_conversation(request)
    request.tooling()  # raises for tools, a choice or a format that contradict each other
    return request
