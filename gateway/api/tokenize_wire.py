"""The wire types of `/v1/tokenize` and `/v1/detokenize`, in vLLM's shape: request bodies and answers."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.api import chat_wire
from gateway.api.chat_tools import Tools
from gateway.api.chat_wire import ChatRequest, Messages, TemplateKwargs, check_conversation
from gateway.api.completions_wire import PROMPT_IDS_MAX
from gateway.api.generation_request import GenerationRequest, Prompt, RawText
from gateway.api.parsing import BodyDecoder, UnsupportedField, check_served, check_value
from gateway.api.sampling import MODEL_CHARS_MAX, TextRules, TokenId, make_sampling
from gateway.api.unknown_fields import UnknownFields
from gateway.errors import InvalidRequest

ModelName = Annotated[str, Meta(min_length=1, max_length=MODEL_CHARS_MAX)]
OneOf = Meta(description="One of 'prompt' and 'messages' is required")


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text as `/v1/completions` reads it (`prompt`), or a conversation as `/v1/chat/completions` reads it."""

    model: ModelName
    prompt: Annotated[str, OneOf] | None = None
    add_special_tokens: Annotated[bool, Meta(description="By default true with 'prompt'; false with 'messages'")] | (
        None
    ) = None
    return_token_strs: Annotated[bool, Meta(description="Also answer the text of each token")] | None = None
    # With `messages`.
    messages: Annotated[Messages, OneOf] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    tools: Tools | None = None
    # In UNSUPPORTED_FIELDS.
    chat_template: Any = None
    media_io_kwargs: Any = None
    mm_processor_kwargs: Any = None

    def chat_request(self) -> ChatRequest | None:
        """The chat completion that has this prompt; None for a text. One path makes the prompts of both."""
        if self.messages is None:
            return None
        return ChatRequest(
            model=self.model,
            messages=self.messages,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            chat_template_kwargs=self.chat_template_kwargs,
            tools=self.tools,
        )

    def generation_request(self) -> GenerationRequest:
        """The request whose prompt is converted to ids; its sampling values are placeholders."""
        if (chat := self.chat_request()) is not None:
            return chat.to_generation()
        return _placeholder_request(
            self.model, RawText(self.prompt or "", self.add_special_tokens is not False), "prompt"
        )


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ids of the model's vocabulary, at most as many as its context has tokens."""

    model: ModelName
    tokens: Annotated[list[TokenId], Meta(max_length=PROMPT_IDS_MAX)]

    def generation_request(self) -> GenerationRequest:
        """The request whose ids are decoded to text; its sampling values are placeholders."""
        return _placeholder_request(self.model, self.tokens, "tokens")


def _placeholder_request(model: str, prompt: Prompt, param: str) -> GenerationRequest:
    return GenerationRequest(
        model=model,
        prompts=[prompt],
        param=param,
        n=1,
        max_tokens=1,
        sampling=make_sampling(temperature=None, top_p=None, top_k=None, seed=0),
        rules=TextRules(stops=[], stop_ids=[]),
        service_tier=None,
        stream=False,
    )


UNSUPPORTED_FIELDS: dict[str, UnsupportedField] = {
    "chat_template": chat_wire.UNSUPPORTED_FIELDS["chat_template"],
    "media_io_kwargs": UnsupportedField("Input is text only", ({},)),
    "mm_processor_kwargs": UnsupportedField("Input is text only", ({},)),
}
# Fields without an effect on a text. vLLM's own clients send their defaults with it.
_OF_MESSAGES: dict[str, UnsupportedField] = {
    "add_generation_prompt": UnsupportedField("It needs 'messages'", (True,)),
    "continue_final_message": UnsupportedField("It needs 'messages'", (False,)),
    "chat_template_kwargs": UnsupportedField("It needs 'messages'", ({},)),
    "tools": UnsupportedField("It needs 'messages'", ([],)),
}

_tokenize_decoder = BodyDecoder(TokenizeRequest, chat_wire.EXPLANATIONS)
_detokenize_decoder = BodyDecoder(DetokenizeRequest)


def parse_tokenize(body: bytes, unknown: UnknownFields) -> TokenizeRequest:
    """Decode and check a JSON body. Raises InvalidRequest that names the field."""
    request = _tokenize_decoder.decode(body, unknown)
    check_served(request, UNSUPPORTED_FIELDS)
    chat = request.chat_request()
    if chat is None:
        if request.prompt is None:
            raise InvalidRequest("Missing required field 'prompt' or 'messages': send one of them.", param="prompt")
        check_served(request, _OF_MESSAGES)
        return request
    if request.prompt is not None:
        raise InvalidRequest("'prompt' and 'messages' exclude each other: send one of them.", param="prompt")
    name = "add_special_tokens"
    check_value(name, request.add_special_tokens, chat_wire.UNSUPPORTED_FIELDS[name])
    check_conversation(chat)
    return request


def parse_detokenize(body: bytes, unknown: UnknownFields) -> DetokenizeRequest:
    """Decode and check a JSON body. Raises InvalidRequest that names the field."""
    return _detokenize_decoder.decode(body, unknown)


# ---- answers ---------------------------------------------------------------------------------------------------


class TokenizeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`token_strs`: each token as the vocabulary spells it; null unless the request has `return_token_strs`."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The text of the tokens; special tokens are shown."""

    prompt: str
