"""The wire types of Anthropic's Messages API (`/v1/messages` and `/v1/messages/count_tokens`): bodies and answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.api.agent_hints import CacheControl, OutputConfig, Thinking, is_billing_block
from gateway.api.chat_tools import TOOLS_MAX
from gateway.api.chat_wire import MESSAGES_MAX, PART_SEPARATOR, PARTS_MAX
from gateway.api.generation_request import ChatPrompt, GenerationRequest
from gateway.api.messages_tools import (
    ID_PREFIX,
    Block,
    MessageToolChoice,
    TextBlock,
    ThinkingBlock,
    Tool,
    ToolResultBlock,
    ToolUseBlock,
    is_foreign,
    output_format,
    result_text,
    tool_choice,
    tool_specs,
)
from gateway.api.parsing import BodyDecoder, Explanations, UnsupportedField, check_served
from gateway.api.sampling import ID_MAX, MODEL_CHARS_MAX, Stop, TextRules, Tokens, make_sampling
from gateway.api.unknown_fields import UnknownFields, is_empty
from gateway.errors import InvalidRequest
from gateway.tools.definitions import ReasoningRequest, Tooling
from gateway.tools.rendering import call_in_history, result_in_history

STOPS_MAX = 16
HIDDEN = "omitted"  # of `thinking.display`
# Anthropic's names by our service tiers. A request's "standard_only" selects "default".
SERVICE_TIERS = {"priority": "priority", "default": "standard", "flex": "batch"}


Content = str | Annotated[list[Block], Meta(min_length=1, max_length=PARTS_MAX)]
System = str | Annotated[list[TextBlock], Meta(max_length=PARTS_MAX)]


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system"]
    content: Content


class Metadata(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A hint."""

    user_id: str | None = None


class CountRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A conversation. If the last message is the assistant's, the answer continues it. A field without a type is not
    served: only its neutral values are accepted."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MESSAGES_MAX)]
    model: Annotated[str, Meta(min_length=1, max_length=MODEL_CHARS_MAX)]
    system: System | None = None
    # In HINTS.
    cache_control: CacheControl | None = None
    user_profile_id: str | None = None
    workspace_id: str | None = None
    # In HINTS; values in IGNORED_HINTS are named in `laneway-ignored`.
    betas: list[str] | None = None
    billing_policy: dict[str, Any] | None = None
    compaction: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    diagnostics: dict[str, Any] | None = None
    fallback_credit_token: Any = None
    fallbacks: Any = None
    output_config: OutputConfig | None = None
    speed: str | None = None
    thinking: Thinking | None = None
    # In UNSUPPORTED_IN_PROMPTS.
    mcp_servers: Any = None
    output_format: Any = None
    tool_choice: MessageToolChoice | None = None
    tools: Annotated[list[Tool], Meta(max_length=TOOLS_MAX)] | None = None

    def prompt(self) -> ChatPrompt:
        """Raises InvalidRequest."""
        messages = conversation(self.messages)
        if system := self._system():
            messages.insert(0, {"role": "system", "content": text_of(system)})
        continues = self.messages[-1].role == "assistant"
        if continues and "tool_calls" in messages[-1]:
            raise InvalidRequest("The calls of the last message have no results.", param="messages")
        tooling = self.tooling()
        return ChatPrompt(
            messages,
            add_generation_prompt=not continues,
            continue_final=continues,
            # Without a call in sight the prompt does not describe the tools.
            tools=[] if tooling.choice.mode == "none" else tooling.tools,
            reasoning=tooling.reasoning,
        )

    def tooling(self) -> Tooling:
        """Raises InvalidRequest."""
        tools = tool_specs(self.tools or ())
        output, thinking = self.output_config, self.thinking
        return Tooling(
            tools,
            tool_choice(self.tool_choice, tools),
            output_format(None if output is None else output.format),
            ReasoningRequest(
                # Anthropic's models think only where the request asks for it.
                enabled=thinking is not None and thinking.requested,
                tokens_max=None if thinking is None else thinking.budget_tokens,
                effort=None if output is None else output.effort,
                shown=thinking is None or thinking.display != HIDDEN,
                field="thinking",
                effort_field="output_config.effort",
            ),
            id_prefix=ID_PREFIX,
        )

    def _system(self) -> System | None:
        """The system prompt without a leading billing block."""
        if self.has_billing_block():
            return self.system[1:] if isinstance(self.system, list) else None
        return self.system

    def has_billing_block(self) -> bool:
        """Whether `system` begins with a block of Claude Code's that is left out of the prompt."""
        system = self.system
        return isinstance(system, list) and bool(system) and is_billing_block(system[0].text)

    def to_generation(self) -> GenerationRequest:
        """The request whose prompt tokens are counted; its sampling values are placeholders."""
        return GenerationRequest(
            model=self.model,
            prompts=[self.prompt()],
            param="messages",
            n=1,
            max_tokens=1,
            sampling=make_sampling(temperature=None, top_p=None, top_k=None, seed=0),
            rules=TextRules(stops=[], stop_ids=[]),
            service_tier=None,
            stream=False,
            tooling=self.tooling(),
        )


class MessagesRequest(CountRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A conversation, and the limits and sampling of its answer."""

    max_tokens: Tokens
    stop_sequences: Annotated[list[Stop], Meta(max_length=STOPS_MAX)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=ID_MAX)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1, description="0: the likeliest token alone, as temperature 0")] | None = (
        None
    )
    service_tier: str | None = None
    # In HINTS.
    metadata: Metadata | None = None
    # In UNSUPPORTED_FIELDS.
    container: Any = None
    inference_geo: Any = None

    def to_generation(self) -> GenerationRequest:
        return GenerationRequest(
            model=self.model,
            prompts=[self.prompt()],
            param="messages",
            n=1,
            max_tokens=self.max_tokens,
            sampling=make_sampling(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k),
            rules=TextRules(stops=list(self.stop_sequences or ()), stop_ids=[]),
            service_tier="default" if self.service_tier == "standard_only" else self.service_tier,
            stream=bool(self.stream),
            tooling=self.tooling(),
            sticky=None if self.metadata is None else self.metadata.user_id,
            end_user=None if self.metadata is None else self.metadata.user_id or None,
        )


_CACHED = "Every prompt is cached, with or without it; `ttl` is not guaranteed"

# By path in the body: why the field has no effect on the answer, a sentence without its full stop.
HINTS: dict[str, str] = {
    "cache_control": _CACHED,
    "messages[].content[].cache_control": _CACHED,
    "system[].cache_control": _CACHED,
    "metadata": (
        "An alias serves requests with the same `user_id` by the same model; the request counts in the budget of this "
        "end user"
    ),
    "betas": "No beta feature is served",
    "billing_policy": "Prices are those of the tenant",
    "compaction": "Conversations are not shortened",
    "context_management": "Conversations are not shortened",
    "diagnostics": "Cache misses are not diagnosed",
    "fallback_credit_token": "Prices are those of the tenant",
    "fallbacks": "An operator chooses a model's fallbacks",
    "output_config.task_budget": "The answer is bounded by `max_tokens` alone",
    "speed": "Only the standard speed is served",
    "user_profile_id": "It is not stored",
    "workspace_id": "It is not stored",
}

# Hints that would have changed the answer: `laneway-ignored` names each whose value asks for something.
IGNORED_HINTS = (
    "betas",
    "billing_policy",
    "compaction",
    "context_management",
    "diagnostics",
    "fallback_credit_token",
    "fallbacks",
    "speed",
)
SPEED_STANDARD = "standard"

UNSUPPORTED_IN_PROMPTS: dict[str, UnsupportedField] = {
    "mcp_servers": UnsupportedField("Tools are called by the client", ([],)),
    "output_format": UnsupportedField("'output_config.format' is served in its place"),
}
UNSUPPORTED_FIELDS: dict[str, UnsupportedField] = UNSUPPORTED_IN_PROMPTS | {
    "container": UnsupportedField("No code is run"),
    "inference_geo": UnsupportedField("A region cannot be chosen", ("global",)),
}

_EXPLANATIONS: Explanations = (
    (
        r"\.(content|system)\[\d+\]\.type' is wrong",
        "Blocks are of the types 'text', 'tool_use', 'tool_result' and 'thinking'; images and files are not served",
    ),
)

_messages_decoder = BodyDecoder(MessagesRequest, _EXPLANATIONS)
_count_decoder = BodyDecoder(CountRequest, _EXPLANATIONS)


def parse_messages(body: bytes, unknown: UnknownFields) -> MessagesRequest:
    """Decode and check a JSON body. Raises InvalidRequest that names the field."""
    request = _messages_decoder.decode(body, unknown)
    check_served(request, UNSUPPORTED_FIELDS)
    _check_hints(request, unknown)
    request.prompt()  # raises for tools, a choice or blocks that contradict each other
    return request


def parse_count(body: bytes, unknown: UnknownFields) -> CountRequest:
    """Decode and check the JSON body of a token count. Raises InvalidRequest that names the field."""
    request = _count_decoder.decode(body, unknown)
    check_served(request, UNSUPPORTED_IN_PROMPTS)
    _check_hints(request, unknown)
    request.prompt()  # raises for tools, a choice or blocks that contradict each other
    return request


def _check_hints(request: CountRequest, unknown: UnknownFields) -> None:
    """Name the hints that are ignored. Hints that only some models ignore are named once the model is known
    (`generation.guiding`)."""
    for field in IGNORED_HINTS:
        value = getattr(request, field)
        if value is not None and value != SPEED_STANDARD and not is_empty(value):
            unknown.name_hint(field)
    if request.output_config is not None and request.output_config.task_budget is not None:
        unknown.name_hint("output_config.task_budget")
    for index, tool in enumerate(request.tools or ()):
        if is_foreign(tool):
            unknown.name_hint(f"tools[{index}]")
    if request.has_billing_block():
        unknown.name_hint("system[0]")


def text_of(content: Content | System) -> str:
    """The texts of a message."""
    if isinstance(content, str):
        return content
    return PART_SEPARATOR.join([block.text for block in content if isinstance(block, TextBlock)])


def conversation(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The conversation for the chat template: calls and results of tools are messages in the form of chat completions.
    Raises InvalidRequest for a result of a call that no earlier message has, and for a block in the wrong role."""
    names: dict[str, str] = {}  # of tools, by the id of their call
    found: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        if isinstance(message.content, str):
            found.append({"role": message.role, "content": message.content})
        elif message.role == "assistant":
            found.append(_assistant_message(message.content, names, index))
        else:
            found += _user_messages(message.role, message.content, names, index)
    return found


def _assistant_message(blocks: Sequence[Block], names: dict[str, str], index: int) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": text_of(list(blocks))}
    thinking = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    if any(thinking):
        said["reasoning_content"] = "".join(thinking)
    calls = []
    for number, block in enumerate(blocks):
        if isinstance(block, ToolUseBlock):
            names[block.id] = block.name
            calls.append(call_in_history(block.id, block.name, block.input))
        elif isinstance(block, ToolResultBlock):
            raise _misplaced("tool_result", "user", f"messages[{index}].content[{number}]")
    if calls:
        said["tool_calls"] = calls
    return said


def _user_messages(role: str, blocks: Sequence[Block], names: dict[str, str], index: int) -> list[dict[str, Any]]:
    """The results are first, as the API requires, and then the text."""
    found: list[dict[str, Any]] = []
    for number, block in enumerate(blocks):
        if isinstance(block, ToolUseBlock):
            raise _misplaced("tool_use", "assistant", f"messages[{index}].content[{number}]")
        if isinstance(block, ToolResultBlock):
            if block.tool_use_id not in names:
                param = f"messages[{index}].content[{number}].tool_use_id"
                raise InvalidRequest(f"{param!r} is wrong: no earlier message has a call of this id.", param=param)
            found.append(result_in_history(block.tool_use_id, names[block.tool_use_id], result_text(block)))
    if not found or any(isinstance(block, TextBlock) for block in blocks):
        found.append({"role": role, "content": text_of(list(blocks))})
    return found


def _misplaced(kind: str, role: str, param: str) -> InvalidRequest:
    return InvalidRequest(
        f"{param!r} is wrong: only a message of the role {role!r} has blocks of {kind!r}.", param=param
    )


# ---- answers ---------------------------------------------------------------------------------------------------

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextContent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """A text of an answer. It has no `citations`: @ai-sdk/anthropic refuses the field if it is null."""

    text: str


class ThinkingContent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="thinking"):
    """The reasoning of an answer. `signature` lets a client send the block back; Laneway does not check it."""

    thinking: str
    signature: str


class ToolUseContent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


AnswerBlock = TextContent | ThinkingContent | ToolUseContent


class OutputTokensDetails(msgspec.Struct, frozen=True):
    thinking_tokens: int


class MessagesUsage(msgspec.Struct, frozen=True, kw_only=True):
    """`input_tokens` excludes the cached tokens, which `cache_read_input_tokens` counts. Cache writes are free."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int
    output_tokens_details: OutputTokensDetails | UnsetType = UNSET  # of an answer that may have reasoning


class ServedUsage(MessagesUsage, frozen=True, kw_only=True):
    """`service_tier`: the tier that served the request, by Anthropic's name."""

    service_tier: str


class MessageAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: ServedUsage


class TokenCount(msgspec.Struct, frozen=True):
    input_tokens: int


class MessageStart(msgspec.Struct, frozen=True, tag_field="type", tag="message_start"):
    message: MessageAnswer


class BlockStart(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_start"):
    content_block: AnswerBlock
    index: int = 0


class TextDelta(msgspec.Struct, frozen=True, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, tag_field="type", tag="signature_delta"):
    signature: str


class InputJsonDelta(msgspec.Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    partial_json: str


class BlockDelta(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta
    index: int = 0


class BlockStop(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    index: int = 0


class Ending(msgspec.Struct, frozen=True):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, tag_field="type", tag="message_delta"):
    delta: Ending
    usage: MessagesUsage


class MessageStop(msgspec.Struct, frozen=True, tag_field="type", tag="message_stop"):
    pass


Event = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop
