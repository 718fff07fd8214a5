"""The wire types of `/v1/chat/completions`: request bodies and answers.

A field of a request has an effect, or is in HINTS (accepted without effect on the answer), or is in UNSUPPORTED_FIELDS
(only its neutral values are accepted). Every other field is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.api.chat_tools import (
    CallId,
    ChosenTools,
    CustomCall,
    FunctionCall,
    PastCalls,
    Tools,
    parsed_arguments,
    tool_choice,
    tool_specs,
)
from gateway.api.generation_request import ChatPrompt, GenerationRequest
from gateway.api.output_formats import check_output_beside_tools
from gateway.api.parsing import BodyDecoder, Explanations, UnsupportedField, check_served
from gateway.api.sampling import (
    HINTS_SAMPLING,
    HINTS_STICKY,
    LOGPROBS_MAX,
    MAX_TOKENS_MAX,
    UNSERVED_SAMPLING,
    SamplingFields,
    Tokens,
    check_sampling,
)
from gateway.api.unknown_fields import UnknownFields
from gateway.errors import InvalidRequest
from gateway.tools.definitions import CUSTOM_ARGUMENT, ReasoningRequest, Tooling
from gateway.tools.rendering import call_in_history, result_in_history

MESSAGES_MAX = 4096
PARTS_MAX = 4096  # of one message
NAME_CHARS_MAX = 256
EFFORT_CHARS_MAX = 32
NO_EFFORT = "none"
TEMPLATE_KWARGS_MAX = 16
TEMPLATE_VALUE_CHARS_MAX = 1024
PART_SEPARATOR = "\n"  # between the text parts of one message, as vLLM joins them


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    text: str


Content = str | Annotated[list[TextPart], Meta(min_length=1, max_length=PARTS_MAX)]
EmptyList = Annotated[list[Any], Meta(max_length=0)]


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="role"):
    """Base of messages. `name` is a hint: AutoGen, Semantic Kernel and LangGraph send it, templates do not get it."""

    content: Content
    name: Annotated[str, Meta(max_length=NAME_CHARS_MAX)] | None = None


class SystemMessage(ChatMessage, frozen=True, kw_only=True, tag="system"):
    pass


class DeveloperMessage(ChatMessage, frozen=True, kw_only=True, tag="developer"):
    """OpenAI's newer name of a system message."""


class UserMessage(ChatMessage, frozen=True, kw_only=True, tag="user"):
    pass


class AssistantMessage(ChatMessage, frozen=True, kw_only=True, tag="assistant"):
    """Written by a client, or returned by Laneway before: SDKs send the empty fields of an answer back. `reasoning` and
    `reasoning_content` are two names of one text."""

    content: Content | None = None  # type: ignore[assignment]  # the only message without a text
    refusal: None = None
    annotations: EmptyList | None = None
    tool_calls: PastCalls | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    audio: None = None
    function_call: None = None
    provider_specific_fields: dict[str, Any] | None = None  # a hint

    def reasoning_text(self) -> str:
        return self.reasoning or self.reasoning_content or ""


class ToolMessage(ChatMessage, frozen=True, kw_only=True, tag="tool"):
    """The result of a call of the assistant's."""

    tool_call_id: CallId


Messages = Annotated[
    list[SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage],
    Meta(min_length=1, max_length=MESSAGES_MAX),
]
TemplateKwargs = Annotated[dict[str, Any], Meta(description="Arguments that the model's chat template reads")]


class ChatRequest(SamplingFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a chat completion. A field without a type is not served: only its neutral values are accepted."""

    messages: Messages
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=LOGPROBS_MAX)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    tools: Tools | None = None
    tool_choice: ChosenTools | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Annotated[str, Meta(max_length=EFFORT_CHARS_MAX)] | None = None
    max_reasoning_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS_MAX)] | None = None
    include_reasoning: bool | None = None
    # In HINTS.
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    # In UNSUPPORTED_FIELDS.
    audio: Any = None
    chat_template: Any = None
    documents: Any = None
    echo: Any = None
    function_call: Any = None
    functions: Any = None
    modalities: Any = None
    moderation: Any = None
    prediction: Any = None
    store: Any = None
    verbosity: Any = None
    web_search_options: Any = None

    def to_generation(self) -> GenerationRequest:
        continues = bool(self.continue_final_message)
        opens = not continues if self.add_generation_prompt is None else self.add_generation_prompt
        tooling = self.tooling()
        # Without a call in sight the prompt does not describe the tools.
        described = [] if tooling.choice.mode == "none" else tooling.tools
        prompt = ChatPrompt(
            chat_messages(self), opens, continues, self.chat_template_kwargs or {}, described, tooling.reasoning
        )
        return GenerationRequest(
            model=self.model,
            prompts=[prompt],
            param="messages",
            n=self.n or 1,
            max_tokens=self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens,
            sampling=self.sampling((self.top_logprobs or 0) if self.logprobs else None),
            rules=self.rules(),
            service_tier=self.service_tier,
            stream=bool(self.stream),
            tooling=tooling,
            prompt_logprobs=self.prompt_logprobs,
            sticky=self.prompt_cache_key or self.safety_identifier or self.user,
            end_user=self.safety_identifier or self.user or None,
        )

    def tooling(self) -> Tooling:
        """Raises InvalidRequest."""
        tools = tool_specs(self.tools or ())
        choice = tool_choice(self.tool_choice, self.parallel_tool_calls, tools)
        output = self.output_format()
        check_output_beside_tools(output, choice)
        effort = self.reasoning_effort
        return Tooling(
            tools,
            choice,
            output,
            ReasoningRequest(
                enabled=None if effort is None else effort != NO_EFFORT,
                tokens_max=self.max_reasoning_tokens,
                effort=effort,
                shown=self.include_reasoning is not False,
                field="reasoning_effort" if effort is not None else "max_reasoning_tokens",
            ),
        )


# By path in the body: why the field has no effect on the answer, a sentence without its full stop.
HINTS: dict[str, str] = {
    "messages[].name": "Templates do not get it",
    "messages[].provider_specific_fields": "litellm's copies of an answer's fields; the message's own count",
    "messages[].tool_calls[].index": "Calls are in the order of the list",
    "metadata": "It is not stored",
    **HINTS_STICKY,
    "prompt_cache_options": "Every prompt is cached, with or without it",
    "prompt_cache_retention": "Retention is not guaranteed: the cached pages unused for longest are evicted first",
    **HINTS_SAMPLING,
}

_OLD_TOOLS = "'tools' and 'tool_choice' are served in its place"
_TEXT_ONLY = "Input and output are text only"

UNSUPPORTED_FIELDS: dict[str, UnsupportedField] = {
    "functions": UnsupportedField(_OLD_TOOLS, ([],)),
    "function_call": UnsupportedField(_OLD_TOOLS, ("none", "auto")),
    "add_special_tokens": UnsupportedField("The chat template adds the special tokens", (False,)),
    "audio": UnsupportedField(_TEXT_ONLY),
    "chat_template": UnsupportedField("The model's own chat template is used"),
    "documents": UnsupportedField("Documents are not searched", ([],)),
    "echo": UnsupportedField("An answer does not repeat its prompt", (False,)),
    "modalities": UnsupportedField(_TEXT_ONLY, (["text"],)),
    "moderation": UnsupportedField("Nothing is moderated"),
    "prediction": UnsupportedField("Predicted outputs are not served"),
    "store": UnsupportedField("Answers are not stored", (False,)),
    "verbosity": UnsupportedField("Only 'max_tokens' limits the length of an answer", ("medium",)),
    "web_search_options": UnsupportedField("The web is not searched"),
    **UNSERVED_SAMPLING,
}

EXPLANATIONS: Explanations = (
    (r"\.role' is wrong: Invalid value", "Roles are system, developer, user, assistant and tool"),
    (r"\.content\[\d+\]\.type' is wrong", "Parts are of the type 'text'; images, audio and files are not read"),
    (r"\.content' is wrong: .*got `null`", "Only an assistant's message with 'tool_calls' has no text"),
    (r"\.function_call' is wrong", _OLD_TOOLS),
    (r"\.audio' is wrong", _TEXT_ONLY),
)

_decoder = BodyDecoder(ChatRequest, EXPLANATIONS)


def parse_chat(body: bytes, unknown: UnknownFields) -> ChatRequest:
    """Decode and check a JSON body. Raises InvalidRequest that names the field."""
    request = _decoder.decode(body, unknown)
    check_served(request, UNSUPPORTED_FIELDS)
    check_sampling(request)
    check_conversation(request)
    for hint in request.ignored_output_hints():
        unknown.name_hint(hint)
    if None not in (request.max_tokens, request.max_completion_tokens) and (
        request.max_tokens != request.max_completion_tokens
    ):
        raise InvalidRequest("'max_tokens' and 'max_completion_tokens' disagree.", param="max_tokens")
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest("'top_logprobs' needs 'logprobs': true.", param="top_logprobs")
    return request


def check_conversation(request: ChatRequest) -> None:
    """Check what makes the prompt. Raises InvalidRequest."""
    check_template_kwargs(request.chat_template_kwargs)
    check_calls(request.messages)
    request.tooling()  # raises for tools, a choice or a format that contradict each other
    if request.continue_final_message:
        if request.add_generation_prompt:
            message = "'continue_final_message' needs 'add_generation_prompt': false."
            raise InvalidRequest(message, param="add_generation_prompt")
        if not isinstance(request.messages[-1], AssistantMessage):
            message = "'continue_final_message' needs a last message of the role 'assistant'."
            raise InvalidRequest(message, param="continue_final_message")


def check_template_kwargs(arguments: dict[str, Any] | None) -> None:
    """Check number, names and types. The model's template is not known yet. Raises InvalidRequest."""
    if arguments is None:
        return
    if len(arguments) > TEMPLATE_KWARGS_MAX:
        message = f"'chat_template_kwargs' has {len(arguments)} arguments; the limit is {TEMPLATE_KWARGS_MAX}."
        raise InvalidRequest(message, param="chat_template_kwargs")
    for name, value in arguments.items():
        if len(name) > NAME_CHARS_MAX:
            message = f"'chat_template_kwargs' has a name over {NAME_CHARS_MAX} characters."
            raise InvalidRequest(message, param="chat_template_kwargs")
        if not isinstance(value, (bool, int, float, str, NoneType)) or len(str(value)) > TEMPLATE_VALUE_CHARS_MAX:
            param = f"chat_template_kwargs.{name}"
            message = (
                f"{param!r} is wrong: it must be a boolean, a number, null or a text of at most "
                f"{TEMPLATE_VALUE_CHARS_MAX} characters."
            )
            raise InvalidRequest(message, param=param)


def check_calls(messages: Sequence[ChatMessage]) -> None:
    """Raises InvalidRequest for a result of a call that no earlier message has, and for an assistant's message without
    text and calls."""
    known: set[str] = set()
    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            if message.content is None and not message.tool_calls and not message.reasoning_text():
                param = f"messages[{index}].content"
                raise InvalidRequest(f"{param!r} is missing: the message has neither a text nor calls.", param=param)
            known |= {call.id for call in message.tool_calls or ()}
        elif isinstance(message, ToolMessage) and message.tool_call_id not in known:
            param = f"messages[{index}].tool_call_id"
            raise InvalidRequest(f"{param!r} is wrong: no earlier message has a call of this id.", param=param)


def chat_messages(request: ChatRequest) -> list[dict[str, Any]]:
    """The conversation for the chat template: a role and one text for each message, calls and results of tools."""
    names: dict[str, str] = {}
    found: list[dict[str, Any]] = []
    for message in request.messages:
        content = "" if message.content is None else text_of(message.content)
        if isinstance(message, ToolMessage):
            found.append(result_in_history(message.tool_call_id, names[message.tool_call_id], content))
            continue
        said: dict[str, Any] = {"role": _ROLES[type(message)], "content": content}
        if isinstance(message, AssistantMessage):
            if reasoning := message.reasoning_text():
                said["reasoning_content"] = reasoning
            if message.tool_calls:
                said["tool_calls"] = calls = [past_call(call) for call in message.tool_calls]
                names |= {call["id"]: call["function"]["name"] for call in calls}
        found.append(said)
    return found


def past_call(call: FunctionCall | CustomCall) -> dict[str, Any]:
    """A call as the chat template takes it."""
    if isinstance(call, CustomCall):
        return call_in_history(call.id, call.custom.name, {CUSTOM_ARGUMENT: call.custom.input})
    return call_in_history(call.id, call.function.name, parsed_arguments(call.function.arguments))


_ROLES: dict[type[ChatMessage], str] = {
    SystemMessage: "system",
    DeveloperMessage: "system",
    UserMessage: "user",
    AssistantMessage: "assistant",
}


def text_of(content: Content) -> str:
    return content if isinstance(content, str) else PART_SEPARATOR.join([part.text for part in content])


# ---- answers ---------------------------------------------------------------------------------------------------


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    audio_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails = CompletionTokensDetails()


FinishReason = Literal["stop", "length", "tool_calls"]


class AnsweredFunction(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    arguments: str


class AnsweredCustom(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    input: str


class AnsweredCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of the answer: of a function, or of a custom tool."""

    id: str
    type: Literal["function", "custom"] = "function"
    function: AnsweredFunction | UnsetType = UNSET
    custom: AnsweredCustom | UnsetType = UNSET


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    annotations: tuple[()] = ()
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET  # the same text, under the older name
    tool_calls: list[AnsweredCall] | UnsetType = UNSET


class Alternative(msgspec.Struct, frozen=True):
    """A token. `bytes` is its exact UTF-8, even if the token is a part of a character and `token` cannot show it."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True):
    """One token of the answer, and the likeliest tokens at its position, likeliest first."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[Alternative]


class ChoiceLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """An item for each completion token, including a final stop token that is not shown."""

    content: list[TokenLogprob]
    refusal: None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason


class PromptLogprob(msgspec.Struct, frozen=True):
    """In vLLM's format. `rank`: 1 + the number of likelier ids."""

    logprob: float
    rank: int
    decoded_token: str


# An item for each prompt token, by id: its own, then the likeliest. The first token has null.
PromptLogprobItems = list[dict[str, PromptLogprob] | None]


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    service_tier: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage
    prompt_logprobs: PromptLogprobItems | UnsetType = UNSET


class FunctionDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class CustomDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str | UnsetType = UNSET
    input: str | UnsetType = UNSET


class CallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Of a streamed call: the first has `id`, `type` and the name, later ones only new arguments."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET
    function: FunctionDelta | UnsetType = UNSET
    custom: CustomDelta | UnsetType = UNSET


class Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[CallDelta] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    delta: Delta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason | None = None


class ChatCompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    service_tier: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET


encode = msgspec.json.Encoder().encode
