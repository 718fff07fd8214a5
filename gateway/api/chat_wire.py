"""The wire types of `/v1/chat/completions`: request bodies and answers.

A field of a request has an effect, or is in HINTS (accepted without effect on the answer), or is in UNSUPPORTED_FIELDS
(only its neutral values are accepted). Every other field is unknown.
"""

from __future__ import annotations

from types import NoneType
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.api.generation_request import ChatPrompt, GenerationRequest
from gateway.api.parsing import BodyDecoder, Explanations, UnsupportedField, check_served
from gateway.api.sampling import (
    HINTS_SAMPLING,
    LOGPROBS_MAX,
    STICKY,
    UNSERVED_SAMPLING,
    SamplingFields,
    Tokens,
    check_sampling,
)
from gateway.api.unknown_fields import UnknownFields
from gateway.errors import InvalidRequest

MESSAGES_MAX = 4096
PARTS_MAX = 4096  # of one message
NAME_CHARS_MAX = 256
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
    """A message of the assistant. A message that Laneway returned is accepted with the empty fields that SDKs add."""

    refusal: None = None
    annotations: EmptyList | None = None
    tool_calls: EmptyList | None = None
    audio: None = None
    function_call: None = None
    provider_specific_fields: dict[str, None] | None = None  # litellm adds it, with null values


class ChatRequest(SamplingFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a chat completion. A field without a type is not served: only its neutral values are accepted."""

    messages: Annotated[
        list[SystemMessage | DeveloperMessage | UserMessage | AssistantMessage],
        Meta(min_length=1, max_length=MESSAGES_MAX),
    ]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=LOGPROBS_MAX)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: (
        Annotated[dict[str, Any], Meta(description="Arguments that the model's chat template reads")] | None
    ) = None
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
    include_reasoning: Any = None
    modalities: Any = None
    moderation: Any = None
    parallel_tool_calls: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    store: Any = None
    tool_choice: Any = None
    tools: Any = None
    verbosity: Any = None
    web_search_options: Any = None

    def to_generation(self) -> GenerationRequest:
        continues = bool(self.continue_final_message)
        opens = not continues if self.add_generation_prompt is None else self.add_generation_prompt
        return GenerationRequest(
            model=self.model,
            prompts=[ChatPrompt(chat_messages(self), opens, continues, self.chat_template_kwargs or {})],
            param="messages",
            n=self.n or 1,
            max_tokens=self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens,
            sampling=self.sampling((self.top_logprobs or 0) if self.logprobs else None),
            rules=self.rules(),
            service_tier=self.service_tier,
            stream=bool(self.stream),
            sticky=self.prompt_cache_key or self.safety_identifier or self.user,
        )


# By path in the body: why the field has no effect on the answer, a sentence without its full stop.
HINTS: dict[str, str] = {
    "messages[].name": "Templates do not get it",
    "metadata": "It is not stored",
    "safety_identifier": STICKY,
    "prompt_cache_key": STICKY,
    "prompt_cache_options": "Every prompt is cached, with or without it",
    "prompt_cache_retention": "Retention is not guaranteed: the cached pages unused for longest are evicted first",
    **HINTS_SAMPLING,
}

_NO_TOOLS = "Tool calling is not served"
_TEXT_ONLY = "Input and output are text only"

UNSUPPORTED_FIELDS: dict[str, UnsupportedField] = {
    "tools": UnsupportedField(_NO_TOOLS, ([],)),
    "functions": UnsupportedField(_NO_TOOLS, ([],)),
    "tool_choice": UnsupportedField(_NO_TOOLS, ("none", "auto")),
    "function_call": UnsupportedField(_NO_TOOLS, ("none", "auto")),
    "parallel_tool_calls": UnsupportedField(_NO_TOOLS, (True, False)),
    "add_special_tokens": UnsupportedField("The chat template adds the special tokens", (False,)),
    "audio": UnsupportedField(_TEXT_ONLY),
    "chat_template": UnsupportedField("The model's own chat template is used"),
    "documents": UnsupportedField("Documents are not searched", ([],)),
    "echo": UnsupportedField("An answer does not repeat its prompt", (False,)),
    "include_reasoning": UnsupportedField("Reasoning is not separated from the answer", (True,)),
    "modalities": UnsupportedField(_TEXT_ONLY, (["text"],)),
    "moderation": UnsupportedField("Nothing is moderated"),
    "prediction": UnsupportedField("Predicted outputs are not served"),
    "reasoning_effort": UnsupportedField("The effort of reasoning cannot be set", ("none",)),
    "store": UnsupportedField("Answers are not stored", (False,)),
    "verbosity": UnsupportedField("Only 'max_tokens' limits the length of an answer", ("medium",)),
    "web_search_options": UnsupportedField("The web is not searched"),
    **UNSERVED_SAMPLING,
}

_EXPLANATIONS: Explanations = (
    (r"\.role' is wrong: Invalid value", "Roles are system, developer, user and assistant; tool calling is not served"),
    (r"\.content\[\d+\]\.type' is wrong", "Parts are of the type 'text'; images, audio and files are not read"),
    (r"\.content' is wrong: .*got `null`", "A message has a text; tool calling is not served"),
    (r"\.(tool_calls|function_call)' is wrong", _NO_TOOLS),
    (r"\.audio' is wrong", _TEXT_ONLY),
)

_decoder = BodyDecoder(ChatRequest, _EXPLANATIONS)


def parse_chat(body: bytes, unknown: UnknownFields) -> ChatRequest:
    """Decode and check a JSON body. Raises InvalidRequest that names the field."""
    request = _decoder.decode(body, unknown)
    check_served(request, UNSUPPORTED_FIELDS)
    check_sampling(request)
    check_template_kwargs(request.chat_template_kwargs)
    if None not in (request.max_tokens, request.max_completion_tokens) and (
        request.max_tokens != request.max_completion_tokens
    ):
        raise InvalidRequest("'max_tokens' and 'max_completion_tokens' disagree.", param="max_tokens")
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest("'top_logprobs' needs 'logprobs': true.", param="top_logprobs")
    if request.continue_final_message:
        if request.add_generation_prompt:
            message = "'continue_final_message' needs 'add_generation_prompt': false."
            raise InvalidRequest(message, param="add_generation_prompt")
        if not isinstance(request.messages[-1], AssistantMessage):
            message = "'continue_final_message' needs a last message of the role 'assistant'."
            raise InvalidRequest(message, param="continue_final_message")
    return request


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


def chat_messages(request: ChatRequest) -> list[dict[str, str]]:
    """The conversation for the chat template: a role and one text for each message."""
    return [{"role": _ROLES[type(message)], "content": text_of(message.content)} for message in request.messages]


_ROLES: dict[type[ChatMessage], str] = {
    SystemMessage: "system",
    DeveloperMessage: "system",
    UserMessage: "user",
    AssistantMessage: "assistant",
}


def text_of(content: Content) -> str:
    if isinstance(content, str):
        return content
    return PART_SEPARATOR.join([part.text for part in content])


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


FinishReason = Literal["stop", "length"]


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None
    annotations: tuple[()] = ()


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


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    service_tier: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage


class Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


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
