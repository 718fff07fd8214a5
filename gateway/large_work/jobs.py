"""The jobs of a `large_work` process: parse a large body, or render and count prompts. Plain data in and out.

It must never know the caller, or which process runs it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path

import msgspec

from engine.text.tokenizer import TemplateError, Tokenizer, UnknownTemplateArgument, words_at_least
from gateway import errors
from gateway.api.bodies import ParsedBody, read_request
from gateway.api.generation_request import ChatPrompt, LargeBody, Prompt
from gateway.errors import ApiError, ContextLengthExceeded, InvalidRequest, UnsupportedParameter

# A text longer than this many characters per token of the window is refused before it is counted.
CHARS_PER_TOKEN_MAX = 32


class ContextLimits(msgspec.Struct, frozen=True):
    """Limits of the model. `least`: tokens that the answer needs at least."""

    context_tokens: int
    vocab_size: int
    least: int
    param: str  # the field of the prompts


class ReadJob(msgspec.Struct, frozen=True, tag="read"):
    """Parse a body. `kind`: of `bodies.read_request`."""

    kind: str
    body: bytes
    ignore_unknown: bool


class CountJob(msgspec.Struct, frozen=True, tag="count"):
    """Count prompts with the tokenizer in `directory`. `encoding`: identifies the contents of its files."""

    prompts: list[Prompt] | LargeBody
    directory: str
    encoding: str
    window: ContextLimits
    texts: bool = False  # also return each text prompt as it was sent


class JobRefusal(msgspec.Struct, frozen=True, tag="refusal"):
    """An ApiError that the job raised: the request is at fault."""

    error: str  # name of a class in `errors`
    message: str
    param: str | None


class ReadResult(msgspec.Struct, frozen=True, tag="has_read"):
    """`read.asked.prompts` is a LargeBody with an empty body: the gateway has the body already."""

    read: ParsedBody


class CountResult(msgspec.Struct, frozen=True, tag="counts"):
    """`ids`: of each prompt, as the bytes of an array("I"). `texts`: empty unless the job asked for them."""

    ids: list[bytes]
    texts: list[str]

    def all_ids(self) -> list[list[int]]:
        return [array("I", one).tolist() for one in self.ids]


Job = ReadJob | CountJob
Reply = ReadResult | CountResult | JobRefusal


class JobRunner:
    """Does jobs one after another. Tokenizers are loaded on first use and kept."""

    def __init__(self) -> None:
        self._tokenizers: dict[str, tuple[str, Tokenizer]] = {}  # by directory, with its encoding

    def load_tokenizer(self, directory: str, encoding: str) -> Tokenizer:
        """Raises OSError or ValueError."""
        known = self._tokenizers.get(directory)
        if known is None or known[0] != encoding:
            known = self._tokenizers[directory] = encoding, Tokenizer.load(Path(directory))
        return known[1]

    def run_job(self, job: Job) -> Reply:
        """Raises OSError or ValueError for a tokenizer that cannot be loaded."""
        try:
            if isinstance(job, ReadJob):
                return ReadResult(_read(job))
            tokenizer = self.load_tokenizer(job.directory, job.encoding)
            prompts = job.prompts
            if isinstance(prompts, LargeBody):
                read = read_request(prompts.kind, prompts.body, ignore_unknown=prompts.ignore_unknown).asked.prompts
                assert isinstance(read, list)
                prompts = read
            ids = count(tokenizer, prompts, job.window)
            texts = [prompt if isinstance(prompt, str) else "" for prompt in prompts] if job.texts else []
            return CountResult([array("I", one).tobytes() for one in ids], texts)
        except ApiError as error:
            return JobRefusal(type(error).__name__, error.message, error.param)


def _read(job: ReadJob) -> ParsedBody:
    """Raises InvalidRequest."""
    read = read_request(job.kind, job.body, ignore_unknown=job.ignore_unknown)
    prompts = read.asked.prompts
    assert isinstance(prompts, list)
    ids = any(type(prompt) is list for prompt in prompts)
    words = max(map(_words_at_least, prompts))
    large = LargeBody(job.kind, b"", len(prompts), ids, words, job.ignore_unknown)
    return msgspec.structs.replace(read, asked=msgspec.structs.replace(read.asked, prompts=large))


def refuse(refusal: JobRefusal) -> ApiError:
    """The ApiError that was raised in the process."""
    made: ApiError = getattr(errors, refusal.error)(refusal.message, param=refusal.param)
    return made


def count(tokenizer: Tokenizer, prompts: Sequence[Prompt], window: ContextLimits) -> list[list[int]]:
    """The ids of each prompt. A prompt that is too long is refused as early as possible. Raises ContextLengthExceeded,
    InvalidRequest."""
    check_sizes(tokenizer, prompts, window)
    found: list[list[int]] = []
    try:
        for prompt in prompts:
            ids = _encode(tokenizer, prompt, window)
            check_window(len(ids), window)
            found.append(ids)
    except UnknownTemplateArgument as error:
        raise UnsupportedParameter(f"{error}.", param=f"chat_template_kwargs.{error.name}") from None
    except TemplateError as error:
        raise InvalidRequest(f"{window.param!r} do not fit this model: {error}.", param=window.param) from None
    return found


def check_sizes(tokenizer: Tokenizer, prompts: Sequence[Prompt], window: ContextLimits) -> None:
    """Refuse a prompt that cannot fit by its characters, messages, words or ids, before it is rendered or encoded.
    Raises ContextLengthExceeded."""
    for prompt in prompts:
        if isinstance(prompt, list):
            check_window(len(prompt), window)
            continue
        chars = chars_of(prompt)
        if chars > window.context_tokens * CHARS_PER_TOKEN_MAX:
            raise _too_long(window, f"{window.param!r} has {chars} characters, too many for any prompt that fits.")
        if isinstance(prompt, ChatPrompt) and len(prompt.messages) > window.context_tokens:
            raise _too_long(window, f"{window.param!r} has {len(prompt.messages)} messages.")
        if tokenizer.ends_at_words and chars > window.context_tokens:  # fewer characters have fewer words
            check_words(tokenizer, _words_at_least(prompt, window.context_tokens), window)


def check_words(tokenizer: Tokenizer, words: int, window: ContextLimits) -> None:
    """`words`: a lower bound of a prompt's. Raises ContextLengthExceeded."""
    if tokenizer.ends_at_words and words > window.context_tokens:
        raise _too_long(window, f"{window.param!r} takes at least {words} tokens.")


def _words_at_least(prompt: Prompt, enough: int | None = None) -> int:
    """See `words_at_least`. A template renders the user's words unchanged, but may omit the assistant's reasoning."""
    match prompt:
        case ChatPrompt():
            words = 0
            for message in prompt.messages:
                if message["role"] == "user" and (enough is None or words <= enough):
                    # The template may strip the first blank.
                    words += max(0, words_at_least(message["content"], enough) - 1)
            return words
        case str():
            return words_at_least(prompt, enough)
    return 0


def check_window(tokens: int, window: ContextLimits) -> None:
    """Check that a prompt of `tokens` leaves room for the answer. Raises ContextLengthExceeded."""
    room = window.context_tokens - tokens
    if room < window.least:
        raise _too_long(
            window,
            f"{window.param!r} takes {tokens} and the answer may take {window.least}. Send less, or ask for less.",
            param=window.param if room < 1 else "max_tokens",
        )


def _too_long(window: ContextLimits, why: str, param: str | None = None) -> ContextLengthExceeded:
    """Begins with OpenAI's sentence, by which LiteLLM and others recognise that the context was exceeded."""
    message = f"This model's maximum context length is {window.context_tokens} tokens. However, {why}"
    return ContextLengthExceeded(message, param=param or window.param)


def chars_of(prompt: Prompt) -> int:
    match prompt:
        case ChatPrompt():
            return sum([len(message["content"]) for message in prompt.messages])
        case str():
            return len(prompt)
    return 0


def _encode(tokenizer: Tokenizer, prompt: Prompt, window: ContextLimits) -> list[int]:
    """Raises InvalidRequest, TemplateError."""
    match prompt:
        case ChatPrompt():
            ids = tokenizer.encode_chat(
                prompt.messages,
                add_generation_prompt=prompt.add_generation_prompt,
                continue_final_message=prompt.continue_final,
                arguments=prompt.template_kwargs,
            )
        case str():
            ids = tokenizer.encode(prompt, add_special_tokens=True)
        case _:
            ids = prompt
            if ids and max(ids) >= window.vocab_size:
                wrong = next(id_ for id_ in ids if id_ >= window.vocab_size)
                message = f"{window.param!r} has the id {wrong}; this model's ids are below {window.vocab_size}."
                raise InvalidRequest(message, param=window.param)
    if not ids:
        raise InvalidRequest(f"{window.param!r} is empty: there is nothing to go on from.", param=window.param)
    return ids
