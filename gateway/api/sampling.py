"""Sampling and stop fields: the fields that chat completions and completions share, their limits, and the conversion to
the engine's `Sampling`.

Prompts are not known here.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from engine.protocol import frames
from gateway.api.output_formats import HINTS_OUTPUT, UNSERVED_STRUCTURED, OutputFields, check_output
from gateway.api.parsing import UnsupportedField, check_value
from gateway.errors import InvalidRequest, UnsupportedValue

MODEL_CHARS_MAX = 256
MAX_TOKENS_MAX = 2**31 - 1
N_MAX = 8
STOPS_MAX = 4
STOP_CHARS_MAX = 512
STOP_IDS_MAX = 64
SEED_MIN, SEED_MAX = -(2**63), 2**63 - 1
LOGIT_BIAS_MAX = 1024
BIAS_MAX = 100
PENALTY_MAX = 2
REPETITION_MAX = 10
LOGPROBS_MAX = 20
ID_MAX = 2**31 - 1  # `check_ids` checks the model's vocabulary later

Stop = Annotated[str, Meta(min_length=1, max_length=STOP_CHARS_MAX)]
TokenId = Annotated[int, Meta(ge=0, le=ID_MAX)]
Tokens = Annotated[int, Meta(ge=1, le=MAX_TOKENS_MAX)]
Penalty = Annotated[float, Meta(ge=-PENALTY_MAX, le=PENALTY_MAX)]
# msgspec takes 13 µs for a typed float of an extreme exponent or many digits, and a body may contain thousands. Python
# parses untyped floats in 0.2 µs; `check_sampling` checks their type and range.
Bias = Annotated[Any, Meta(extra_json_schema={"type": "number", "minimum": -BIAS_MAX, "maximum": BIAS_MAX})]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    continuous_usage_stats: Any = None  # neutral: false
    include_obfuscation: Any = None  # neutral: OpenAI's default, true, and false


class SamplingFields(OutputFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields common to `/v1/chat/completions` and `/v1/completions`: OpenAI's, and vLLM's additions."""

    model: Annotated[str, Meta(min_length=1, max_length=MODEL_CHARS_MAX)]
    max_tokens: Tokens | None = None
    n: Annotated[int, Meta(ge=1, le=N_MAX)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1, description="0: the likeliest token alone, as temperature 0")] | None = (
        None
    )
    top_k: Annotated[int, Meta(ge=-1, le=ID_MAX, description="0 and -1: no limit")] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=REPETITION_MAX)] | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Meta(max_length=LOGIT_BIAS_MAX)] | None = None
    seed: Annotated[int, Meta(ge=SEED_MIN, le=SEED_MAX)] | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=STOPS_MAX)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=STOP_IDS_MAX)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS_MAX)] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: (
        Annotated[
            int,
            Meta(ge=0, le=LOGPROBS_MAX, description="Likeliest ids beside each prompt token; not with stream"),
        ]
        | None
    ) = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    service_tier: str | None = None
    # In HINTS_SAMPLING.
    user: str | None = None
    # In UNSERVED_SAMPLING.
    add_special_tokens: Any = None
    allowed_token_ids: Any = None
    bad_words: Any = None
    guided_whitespace_pattern: Any = None
    include_stop_str_in_output: Any = None
    length_penalty: Any = None
    priority: Any = None
    return_token_ids: Any = None
    return_tokens_as_token_ids: Any = None
    spaces_between_special_tokens: Any = None
    truncate_prompt_tokens: Any = None
    use_beam_search: Any = None

    def rules(self) -> TextRules:
        return TextRules(
            stops=[self.stop] if isinstance(self.stop, str) else list(self.stop or ()),
            stop_ids=list(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            min_tokens=self.min_tokens or 0,
            skip_special_tokens=self.skip_special_tokens is not False,
        )

    def sampling(self, logprobs: int | None, *, echo: bool = False) -> frames.Sampling:
        """The engine's parameters. `logprobs`: number of likeliest ids reported beside the drawn; None: no logprobs.
        `echo`: also beside the ids of the prompt."""
        of_prompt = [count for count in (self.prompt_logprobs, logprobs if echo else None) if count is not None]
        return make_sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            min_p=self.min_p or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            logit_bias={id_: float(bias) for id_, bias in (self.logit_bias or {}).items()},
            min_tokens=self.min_tokens or 0,
            logprobs=-1 if logprobs is None else logprobs,
            prompt_logprobs=max(of_prompt, default=-1),
        )

    def wants_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


# A hint is accepted and does not change the answer. A sticky hint chooses which model of an alias serves.
STICKY = "An alias serves requests with the same value by the same model"
NAMES_END_USER = f"{STICKY}; the request counts in the budget of this end user"
HINTS_STICKY = {"prompt_cache_key": STICKY, "safety_identifier": NAMES_END_USER, "user": NAMES_END_USER}
HINTS_SAMPLING: dict[str, str] = {"user": NAMES_END_USER, **HINTS_OUTPUT}

UNSERVED_STREAM_OPTIONS = {
    "continuous_usage_stats": UnsupportedField("The usage is reported at a stream's end", (False,)),
    "include_obfuscation": UnsupportedField("Streams are not padded", (False, True)),
}

_NO_IDS = "Token ids are not returned"

# vLLM's fields, and the OpenAI fields that both endpoints have.
UNSERVED_SAMPLING: dict[str, UnsupportedField] = {
    "guided_whitespace_pattern": UNSERVED_STRUCTURED["whitespace_pattern"],
    "allowed_token_ids": UnsupportedField("A list of allowed tokens is not served; 'logit_bias' is"),
    "bad_words": UnsupportedField("A list of bad words is not served; 'logit_bias' is", ([],)),
    "include_stop_str_in_output": UnsupportedField("A text ends before its stop sequence", (False,)),
    "length_penalty": UnsupportedField("Beam search is not served", (1,)),
    "priority": UnsupportedField("Requests are ordered by service tier; use 'service_tier'", (0,)),
    "return_token_ids": UnsupportedField(_NO_IDS, (False,)),
    "return_tokens_as_token_ids": UnsupportedField(_NO_IDS, (False,)),
    "spaces_between_special_tokens": UnsupportedField("Special tokens are separated by spaces", (True,)),
    "truncate_prompt_tokens": UnsupportedField("Prompts are not truncated"),
    "use_beam_search": UnsupportedField("Beam search is not served", (False,)),
}


class TextRules(msgspec.Struct, frozen=True):
    """The conditions that end a text before its maximal length, and whether special tokens are shown."""

    stops: list[str]
    stop_ids: list[int]  # the caller's; the model's own end-of-sequence ids count unless `ignore_eos`
    ignore_eos: bool = False
    min_tokens: int = 0  # fewer tokens than this: only the length ends a text
    skip_special_tokens: bool = True

    def all_stop_ids(self, eos_ids: frozenset[int]) -> list[int]:
        return sorted({*self.stop_ids, *(() if self.ignore_eos else eos_ids)})


def make_sampling(
    *, temperature: float | None, top_p: float | None, top_k: int | None, seed: int | None = None, **rest: Any
) -> frames.Sampling:
    """The engine's parameters, with defaults and, without a seed, a random seed."""
    temperature = 1.0 if temperature is None else temperature
    top_p = 1.0 if top_p is None else top_p
    if top_p == 0:  # greedy
        temperature, top_p = 0.0, 1.0
    return frames.Sampling(
        temperature=temperature,
        top_p=top_p,
        top_k=max(0, top_k or 0),
        seed=secrets.randbits(63) if seed is None else seed & SEED_MAX,
        **rest,
    )


def check_ids(rules: TextRules, sampling: frames.Sampling, vocab_size: int) -> None:
    """Raises InvalidRequest for an id outside the model's vocabulary."""
    for field, ids in (("stop_token_ids", rules.stop_ids), ("logit_bias", sampling.logit_bias)):
        for id_ in ids:
            if id_ >= vocab_size:
                message = f"{field!r} has the id {id_}; this model's ids are below {vocab_size}."
                raise InvalidRequest(message, param=field)


def check_sampling(request: SamplingFields) -> None:
    """Check rules that the types of the fields do not express: the form of the answer, `logit_bias`, `stream_options`,
    and `prompt_logprobs` beside `stream`. Raises InvalidRequest."""
    check_output(request)
    for bias in (request.logit_bias or {}).values():
        if type(bias) not in (int, float) or not -BIAS_MAX <= bias <= BIAS_MAX:
            message = f"'logit_bias' is wrong: each value must be a number from {-BIAS_MAX} to {BIAS_MAX}."
            raise InvalidRequest(message, param="logit_bias")
    if request.stream and request.prompt_logprobs is not None:
        raise UnsupportedValue("'prompt_logprobs' is not served with 'stream': true.", param="prompt_logprobs")
    options = request.stream_options
    if options is None:
        return
    if not request.stream:
        raise InvalidRequest("'stream_options' needs 'stream': true.", param="stream_options")
    for field, entry in UNSERVED_STREAM_OPTIONS.items():
        check_value(f"stream_options.{field}", getattr(options, field), entry)
