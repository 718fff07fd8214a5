"""The bytes of a chat completion, in and out, as types: what a caller may send, and what it gets back.

A field is accepted when it works, when its value is neutral, or when it is a hint; everything else is refused by
name. It must never know who asks or what happens next.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.asked import Asked, ChatPrompt
from gateway.errors import InvalidRequest
from gateway.parsing import check_neutral, decode, json_decoder
from gateway.sampling import LOGPROBS_MAX, NEUTRAL_SAMPLING, SamplingFields, Tokens, check_sampling

MESSAGES_MAX = 4096
PARTS_MAX = 4096  # of one message
NAME_CHARS_MAX = 256
PART_SEPARATOR = "\n"  # between the text parts of one message, as vLLM joins them


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    text: str


Content = str | Annotated[list[TextPart], Meta(min_length=1, max_length=PARTS_MAX)]
EmptyList = Annotated[list[Any], Meta(max_length=0)]


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="role"):
    """Base of all messages. `name` is a hint: AutoGen, Semantic Kernel and LangGraph send it, and no template that is
    served here reads it."""

    content: Content
    name: Annotated[str, Meta(max_length=NAME_CHARS_MAX)] | None = None


class SystemMessage(Message, frozen=True, kw_only=True, tag="system"):
    pass


class DeveloperMessage(Message, frozen=True, kw_only=True, tag="developer"):
    """The newer name of a system message."""


class UserMessage(Message, frozen=True, kw_only=True, tag="user"):
    pass


class AssistantMessage(Message, frozen=True, kw_only=True, tag="assistant"):
    """As a caller writes it, or as we returned it, with the empty fields that SDKs add."""

    refusal: None = None
    annotations: EmptyList | None = None
    tool_calls: EmptyList | None = None
    audio: None = None
    function_call: None = None
    provider_specific_fields: dict[str, None] | None = None  # litellm's, of an answer that had none of them


class ChatRequest(SamplingFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to answer, and how. A field typed Any must have one of its NEUTRAL values."""

    messages: Annotated[
        list[SystemMessage | DeveloperMessage | UserMessage | AssistantMessage],
        Meta(min_length=1, max_length=MESSAGES_MAX),
    ]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=LOGPROBS_MAX)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    # Hints: they may change nothing that the caller gets, but which model of an alias serves.
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    # Neutral values only.
    audio: Any = None
    chat_template: Any = None
    chat_template_kwargs: Any = None
    documents: Any = None
    echo: Any = None
    function_call: Any = None
    functions: Any = None
    modalities: Any = None
    moderation: Any = None
    parallel_tool_calls: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    response_format: Any = None
    store: Any = None
    tool_choice: Any = None
    tools: Any = None
    verbosity: Any = None
    web_search_options: Any = None

    def asked(self) -> Asked:
        continues = bool(self.continue_final_message)
        opens = not continues if self.add_generation_prompt is None else self.add_generation_prompt
        return Asked(
            model=self.model,
            prompts=[ChatPrompt(chat_messages(self), opens, continues)],
            param="messages",
            n=self.n or 1,
            max_tokens=self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens,
            sampling=self.sampling((self.top_logprobs or 0) if self.logprobs else None),
            rules=self.rules(),
            service_tier=self.service_tier,
            stream=bool(self.stream),
            sticky=self.prompt_cache_key or self.safety_identifier or self.user,
        )


# Beside null: the API's own default, or what asks for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = NEUTRAL_SAMPLING | {
    "audio": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}

_decoder = json_decoder(ChatRequest)


def parse_chat(body: bytes) -> ChatRequest:
    """The request in a body of JSON. Raises InvalidRequest that names the field."""
    request = decode(_decoder, body)
    check_neutral(request, NEUTRAL)
    check_sampling(request)
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


def chat_messages(request: ChatRequest) -> list[dict[str, str]]:
    """The conversation as the chat template takes it: a role and one text each."""
    return [{"role": _ROLES[type(message)], "content": text_of(message.content)} for message in request.messages]


_ROLES: dict[type[Message], str] = {
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
    """An id by its text. `bytes` is exact where the text is not: a token may be a part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True):
    """One id of the answer, and the likeliest in its place, likeliest first."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[Alternative]


class ChoiceLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """One for each completion token, also for the one that ended the text and shows nothing."""

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


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    parent: str | None = None  # an adapter's base model


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]


encode = msgspec.json.Encoder().encode
