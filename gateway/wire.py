"""The bytes of a chat completion, in and out, as types: what a caller may send, and what it gets back.

A field is accepted when it works, when its value is neutral, or when it is a hint; everything else is refused by
name. It must never know who asks or what happens next.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.errors import InvalidRequest

MESSAGES_MAX = 4096
PARTS_MAX = 4096  # of one message
MODEL_CHARS_MAX = 256
STOPS_MAX = 4
STOP_CHARS_MAX = 512
MAX_TOKENS_MAX = 2**31 - 1
SEED_MIN, SEED_MAX = -(2**63), 2**63 - 1
PART_SEPARATOR = "\n"  # between the text parts of one message, as vLLM joins them


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    text: str


Content = str | Annotated[list[TextPart], Meta(min_length=1, max_length=PARTS_MAX)]
Stop = Annotated[str, Meta(min_length=1, max_length=STOP_CHARS_MAX)]
EmptyList = Annotated[list[Any], Meta(max_length=0)]


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="role"):
    """Base of all messages. A participant's name would have to change the prompt, and no template here reads it."""

    content: Content
    name: None = None


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


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: Any = None


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to answer, and how. A field typed Any must have one of its NEUTRAL values."""

    messages: Annotated[
        list[SystemMessage | DeveloperMessage | UserMessage | AssistantMessage],
        Meta(min_length=1, max_length=MESSAGES_MAX),
    ]
    model: Annotated[str, Meta(min_length=1, max_length=MODEL_CHARS_MAX)]
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS_MAX)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS_MAX)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=SEED_MIN, le=SEED_MAX)] | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=STOPS_MAX)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    service_tier: str | None = None
    # Hints: they may change nothing that the caller gets.
    user: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    # Neutral values only.
    audio: Any = None
    frequency_penalty: Any = None
    function_call: Any = None
    functions: Any = None
    logit_bias: Any = None
    logprobs: Any = None
    min_p: Any = None
    modalities: Any = None
    n: Any = None
    parallel_tool_calls: Any = None
    prediction: Any = None
    presence_penalty: Any = None
    reasoning_effort: Any = None
    repetition_penalty: Any = None
    response_format: Any = None
    store: Any = None
    tool_choice: Any = None
    tools: Any = None
    top_k: Any = None
    top_logprobs: Any = None
    verbosity: Any = None
    web_search_options: Any = None

    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def tokens_asked(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def wants_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


# Beside null: the API's own default, or what asks for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_p": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": ("none",),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_k": (0, -1),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}

_decoder = msgspec.json.Decoder(ChatRequest)
_PATH = re.compile(r"^(?P<text>.*?)(?: - at `(?P<key>key in )?\$(?P<path>.*)`)?$", re.DOTALL)
_FIELD = re.compile(r"(?:unknown|required) field `(?P<field>.*)`$", re.DOTALL)


def parse_chat(body: bytes) -> ChatRequest:
    """The request in a body of JSON. Raises InvalidRequest that names the field."""
    try:
        request = _decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _named(str(error)) from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from None
    except UnicodeDecodeError:
        raise InvalidRequest("The body is not valid UTF-8.") from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.") from None
    _check(request)
    return request


def _named(message: str) -> InvalidRequest:
    """msgspec's "… - at `$.messages[0]`" as an error whose param is the field that is wrong, missing or unknown."""
    match = _PATH.match(message)
    text, path = (match["text"], match["path"] or "") if match else (message, "")
    path = path.lstrip(".").replace("[...]", "")
    if field := _FIELD.search(text):
        param = f"{path}.{field['field']}" if path else field["field"]
        if "required" in text:
            return InvalidRequest(f"Missing required field {param!r}.", param=param)
        return InvalidRequest(f"{param!r} is not a field of this endpoint, or not supported.", param=param)
    if not path:
        return InvalidRequest(f"The body is wrong: {text}.")
    return InvalidRequest(f"{path!r} is wrong: {text}.", param=path)


def _check(request: ChatRequest) -> None:
    """What types alone cannot say. Raises InvalidRequest."""
    for field, allowed in NEUTRAL.items():
        value = getattr(request, field)
        if value is not None and not _is_one_of(value, allowed):
            raise _unsupported(field, allowed)
    options = request.stream_options
    if options is not None:
        if not request.stream:
            raise InvalidRequest("'stream_options' needs 'stream': true.", param="stream_options")
        if options.include_obfuscation is not None and options.include_obfuscation is not False:
            raise _unsupported("stream_options.include_obfuscation", (False,))
    if None not in (request.max_tokens, request.max_completion_tokens) and (
        request.max_tokens != request.max_completion_tokens
    ):
        raise InvalidRequest("'max_tokens' and 'max_completion_tokens' disagree.", param="max_tokens")


def _is_one_of(value: Any, allowed: tuple[Any, ...]) -> bool:
    # True == 1 and False == 0 in Python, not in JSON.
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in allowed)


def _unsupported(field: str, allowed: tuple[Any, ...]) -> InvalidRequest:
    values = ", ".join(["null", *(msgspec.json.encode(value).decode() for value in allowed)])
    return InvalidRequest(f"{field!r} is not supported beyond its neutral values ({values}).", param=field)


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


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    message: AnswerMessage
    logprobs: None = None
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
    logprobs: None = None
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
