"""The wire types of `/v1/completions` (legacy completions): request bodies and answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.api.chat_wire import FinishReason, PromptLogprobItems, Usage
from gateway.api.generation_request import GenerationRequest, Prompt
from gateway.api.parsing import BodyDecoder, UnsupportedField, check_served
from gateway.api.sampling import (
    HINTS_SAMPLING,
    LOGPROBS_MAX,
    MAX_TOKENS_MAX,
    UNSERVED_SAMPLING,
    SamplingFields,
    TokenId,
    check_sampling,
)
from gateway.api.unknown_fields import UnknownFields
from gateway.errors import InvalidRequest, UnsupportedValue
from gateway.tools.definitions import Tooling

TEXTS_MAX = 64  # of one request: prompts × n
PROMPTS_MAX = TEXTS_MAX
PROMPT_IDS_MAX = 2**20  # of one prompt; no model has a longer context
MAX_TOKENS_DEFAULT = 16  # OpenAI's and vLLM's default for this endpoint


class CompletionRequest(SamplingFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a legacy completion. A field without a type is not served: only its neutral values are accepted."""

    prompt: Annotated[
        str
        | Annotated[
            list[str | TokenId | Annotated[list[TokenId], Meta(max_length=PROMPT_IDS_MAX)]], Meta(min_length=1)
        ],
        Meta(description=f"A text, a list of texts, a list of ids, or a list of lists of ids; at most {PROMPTS_MAX}"),
    ]
    max_tokens: (
        Annotated[
            int,
            Meta(ge=0, le=MAX_TOKENS_MAX, description="0: the prompt alone, with echo or prompt_logprobs"),
        ]
        | None
    ) = None
    echo: Annotated[bool, Meta(description="Each text begins with its prompt")] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=LOGPROBS_MAX)] | None = None
    best_of: Annotated[int, Meta(ge=1, description="Must equal n")] | None = None
    suffix: Any = None  # in UNSUPPORTED_FIELDS

    def prompts(self) -> list[Prompt]:
        """The prompts as a list. Raises InvalidRequest for too long a list, or a list of texts, ids and lists mixed."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        kinds = set(map(type, prompt))
        if kinds == {int}:
            if len(prompt) > PROMPT_IDS_MAX:
                raise InvalidRequest(f"'prompt' has over {PROMPT_IDS_MAX} ids.", param="prompt")
            return [cast("list[int]", prompt)]
        if len(kinds) > 1:
            raise InvalidRequest("'prompt' mixes texts, ids and lists of ids.", param="prompt")
        if len(prompt) > PROMPTS_MAX:
            raise InvalidRequest(f"'prompt' has {len(prompt)} prompts; the limit is {PROMPTS_MAX}.", param="prompt")
        return cast("list[Prompt]", prompt)

    def to_generation(self) -> GenerationRequest:
        output = self.output_format()
        return GenerationRequest(
            model=self.model,
            prompts=self.prompts(),
            param="prompt",
            n=self.n or 1,
            max_tokens=self.max_tokens,
            max_tokens_default=MAX_TOKENS_DEFAULT,
            sampling=self.sampling(self.logprobs, echo=bool(self.echo)),
            rules=self.rules(),
            service_tier=self.service_tier,
            stream=bool(self.stream),
            echo=bool(self.echo),
            tooling=None if output is None else Tooling(output=output, text_only=True),
            prompt_logprobs=self.prompt_logprobs,
            sticky=self.user,
            end_user=self.user or None,
        )


HINTS = HINTS_SAMPLING

UNSUPPORTED_FIELDS: dict[str, UnsupportedField] = UNSERVED_SAMPLING | {
    "add_special_tokens": UnsupportedField("Special tokens are added before a prompt that is a text", (True,)),
    "suffix": UnsupportedField("Text before a suffix is not filled in", ("",)),
}

_decoder = BodyDecoder(CompletionRequest)


def parse_completion(body: bytes, unknown: UnknownFields) -> CompletionRequest:
    """Decode and check a JSON body. Raises InvalidRequest that names the field."""
    request = _decoder.decode(body, unknown)
    check_served(request, UNSUPPORTED_FIELDS)
    check_sampling(request)
    for hint in request.ignored_output_hints():
        unknown.name_hint(hint)
    n = request.n or 1
    if request.best_of not in (None, n):
        message = (
            f"Unsupported value of 'best_of'. Every generated text is returned; send {n}, as 'n', or leave it out."
        )
        raise UnsupportedValue(message, param="best_of")
    if request.max_tokens == 0 and not request.echo and request.prompt_logprobs is None:
        raise InvalidRequest("'max_tokens' 0 needs 'echo' or 'prompt_logprobs'.", param="max_tokens")
    prompts = len(request.prompts())
    if prompts * n > TEXTS_MAX:
        message = f"{prompts} prompts and 'n' {n} ask for {prompts * n} texts; the limit is {TEXTS_MAX} a request."
        raise InvalidRequest(message, param="n")
    return request


# ---- answers ---------------------------------------------------------------------------------------------------


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Lists of equal length: an item for each completion token; with `echo`, before them an item for each prompt token,
    the first with null for its log probabilities. `text_offset` counts characters from the text's beginning;
    `top_logprobs` includes the token itself. A token that is a part of a character is written "bytes:\\\\xe2"."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Text j of prompt i has the index i × n + j."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    prompt_logprobs: PromptLogprobItems | UnsetType = UNSET
    finish_reason: FinishReason | None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer, or one chunk of a stream. In a stream only a text's last chunk has a `finish_reason`."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    service_tier: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
