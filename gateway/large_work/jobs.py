"""The jobs of a `large_work` process: parse or check a large body, render and count prompts, or decode ids. Jobs and
replies are plain data.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from engine.text.grammars import GrammarRefused, GrammarTokenizer, check_grammar
from engine.text.tokenizer import TemplateError, Tokenizer, UnknownTemplateArgument, words_at_least
from gateway import errors
from gateway.api.bodies import ParsedBody, check_body, check_item_count, read_request
from gateway.api.generation_request import ChatPrompt, LargeBody, Prompt, RawText
from gateway.errors import ApiError, ContextLengthExceeded, InvalidRequest, UnsupportedParameter
from gateway.tools.model_dialect import PLAIN_DIALECT, ModelDialect, dialect_of
from gateway.tools.rendering import template_arguments, template_messages, template_tools
from gateway.tools.sealed_reasoning import ReasoningReader

# JSON has such integers, msgpack has not.
TOO_LARGE_INTEGER = "An integer in 'tools', a schema or a call has more than 64 bits, which is not supported here."
# A text with more characters per token of the context than this is refused before it is encoded.
CHARS_PER_TOKEN_MAX = 32


class ContextLimits(msgspec.Struct, frozen=True):
    """Limits of the model for a request. `least`: the minimal tokens of the answer."""

    context_tokens: int
    vocab_size: int
    least: int
    param: str  # the field that has the prompts, named in refusals


class ReadJob(msgspec.Struct, frozen=True, tag="read"):
    """Parse a body. `kind`, `ignore_unknown`: as for `bodies.read_request`."""

    kind: str
    body: bytes
    ignore_unknown: bool
    context_tokens: int | None = None  # the longest context served, to check the body by before it is parsed


class ItemsJob(msgspec.Struct, frozen=True, tag="items"):
    """Check the number of items in the `input` of a body of `/v1/responses`, as `bodies.check_item_count` does."""

    body: bytes


class CountJob(msgspec.Struct, frozen=True, tag="count"):
    """Count prompts with the tokenizer in `directory`. `encoding` identifies the contents of the tokenizer's files.
    `tools`: of the model's section in laneway.toml. `reader`: opens the encrypted reasoning of a LargeBody; other
    prompts have theirs opened already."""

    prompts: list[Prompt] | LargeBody
    directory: str
    encoding: str
    window: ContextLimits
    reader: ReasoningReader | None = None
    texts: bool = False  # also return each text prompt as it was sent
    tools: str | None = None


class DecodeJob(msgspec.Struct, frozen=True, tag="decode"):
    """Decode one list of ids, the only prompt. Otherwise as CountJob."""

    prompts: list[Prompt] | LargeBody
    directory: str
    encoding: str
    window: ContextLimits


class GrammarPart(msgspec.Struct, frozen=True):
    """A grammar inside another. `param`: the field of the request that it is of. `loose_tool`: of the schema of a tool
    that is not strict, the tool's name; else ""."""

    grammar: str
    param: str
    loose_tool: str = ""


class GrammarJob(msgspec.Struct, frozen=True, tag="grammar"):
    """Check a grammar for the model in `directory`. If it is refused, the refusal names the field of the part that is.
    Where only parts of tools that are not strict are refused, the result has the tools' names instead."""

    directory: str
    vocab_size: int
    grammar: str
    param: str
    parts: list[GrammarPart] = []


class JobRefusal(msgspec.Struct, frozen=True, tag="refusal"):
    """An ApiError that the job raised, a fault of the request."""

    error: str  # name of a class in `errors`
    message: str
    param: str | None


class ReadResult(msgspec.Struct, frozen=True, tag="has_read"):
    """`read.asked.prompts` is a LargeBody without its body, which the gateway has already."""

    read: ParsedBody


class CountResult(msgspec.Struct, frozen=True, tag="counts"):
    """`ids`: of each prompt, as the bytes of an array("I"). `texts`: empty unless the job has `texts`. `ignored`:
    fields whose encrypted reasoning is left out."""

    ids: list[bytes]
    texts: list[str]
    ignored: list[str] = []

    def all_ids(self) -> list[list[int]]:
        return [array("I", ids).tolist() for ids in self.ids]


class DecodeResult(msgspec.Struct, frozen=True, tag="decoded"):
    """The text of the ids."""

    text: str


class GrammarResult(msgspec.Struct, frozen=True, tag="grammar_checked"):
    """The engine can serve the grammar if `refused` is empty; otherwise it cannot follow the schemas of these tools."""

    refused: list[str] = []


class ItemsResult(msgspec.Struct, frozen=True, tag="items_checked"):
    """The items are not too many."""


Job = ReadJob | ItemsJob | CountJob | DecodeJob | GrammarJob


def detach_body(job: Job) -> tuple[Job, bytes]:
    """The job without its body, and the body, which is sent beside it: encoding would copy it."""
    if isinstance(job, ReadJob | ItemsJob):
        return msgspec.structs.replace(job, body=b""), job.body
    if isinstance(job, CountJob | DecodeJob) and isinstance(job.prompts, LargeBody):
        prompts = msgspec.structs.replace(job.prompts, body=b"")
        return msgspec.structs.replace(job, prompts=prompts), job.prompts.body
    return job, b""


def attach_body(job: Job, body: bytes) -> Job:
    """Undoes `detach_body`."""
    if isinstance(job, ReadJob | ItemsJob):
        return msgspec.structs.replace(job, body=body)
    if isinstance(job, CountJob | DecodeJob) and isinstance(job.prompts, LargeBody):
        return msgspec.structs.replace(job, prompts=msgspec.structs.replace(job.prompts, body=body))
    return job


Reply = ReadResult | ItemsResult | CountResult | DecodeResult | GrammarResult | JobRefusal


class JobRunner:
    """Runs jobs one after another. A tokenizer is loaded at its first use and remains loaded."""

    def __init__(self) -> None:
        self._tokenizers: dict[str, tuple[str, Tokenizer]] = {}  # by directory, with its encoding
        self._dialects: dict[tuple[str, str | None], ModelDialect] = {}  # by encoding and `CountJob.tools`

    def load_tokenizer(self, directory: str, encoding: str) -> Tokenizer:
        """Raises OSError or ValueError."""
        known = self._tokenizers.get(directory)
        if known is None or known[0] != encoding:
            known = self._tokenizers[directory] = encoding, Tokenizer.load(Path(directory))
        return known[1]

    def _dialect(self, tokenizer: Tokenizer, job: CountJob) -> ModelDialect:
        key = job.encoding, job.tools
        if key not in self._dialects:
            self._dialects[key] = dialect_of(tokenizer, job.tools)
        return self._dialects[key]

    def run_job(self, job: Job) -> Reply:
        """Raises OSError or ValueError for a tokenizer that cannot be loaded."""
        try:
            if isinstance(job, ReadJob):
                return ReadResult(_read(job))
            if isinstance(job, ItemsJob):
                check_item_count(job.body)
                return ItemsResult()
            if isinstance(job, GrammarJob):
                return _check_grammar(job)
            tokenizer = self.load_tokenizer(job.directory, job.encoding)
            prompts = job.prompts
            if isinstance(prompts, LargeBody):
                parsed = read_request(prompts.kind, prompts.body, ignore_unknown=prompts.ignore_unknown).asked.prompts
                assert isinstance(parsed, list)
                prompts = parsed
            if isinstance(job, DecodeJob):
                return DecodeResult(decode(tokenizer, prompts, job.window))
            ignored: list[str] = []
            if job.reader is not None:
                prompts, ignored = open_prompts(job.reader, prompts)
            all_ids = count(tokenizer, prompts, job.window, self._dialect(tokenizer, job))
            texts = [prompt if isinstance(prompt, str) else "" for prompt in prompts] if job.texts else []
            return CountResult([array("I", ids).tobytes() for ids in all_ids], texts, ignored)
        except ApiError as error:
            return JobRefusal(type(error).__name__, error.message, error.param)


def _check_grammar(job: GrammarJob) -> GrammarResult:
    """Raises InvalidRequest; OSError or ValueError for a tokenizer that cannot be loaded."""
    tokenizer = GrammarTokenizer.load(Path(job.directory), job.vocab_size)
    try:
        check_grammar(tokenizer, job.grammar)
    except GrammarRefused as error:
        refused = _check_parts(tokenizer, job.parts)
        if not refused:
            raise _refusal(job.param, error) from None
        return GrammarResult(refused)
    return GrammarResult()


def _check_parts(tokenizer: GrammarTokenizer, parts: Sequence[GrammarPart]) -> list[str]:
    """The tools that the grammar must not follow: tools whose part is refused, or all tools where the parts together
    are too large. Raises InvalidRequest."""
    refused = []
    for part in parts:
        try:
            check_grammar(tokenizer, part.grammar)
        except GrammarRefused as error:
            if not part.loose_tool:
                raise _refusal(part.param, error) from None
            refused.append(part.loose_tool)
    return refused or [part.loose_tool for part in parts if part.loose_tool]


def _refusal(param: str, error: GrammarRefused) -> InvalidRequest:
    return InvalidRequest(f"{param!r} cannot be served: {error}.", param=param)


def _read(job: ReadJob) -> ParsedBody:
    """Raises InvalidRequest, ContextLengthExceeded."""
    if job.context_tokens is not None:
        check_body(job.kind, job.body, job.context_tokens)
    parsed = read_request(job.kind, job.body, ignore_unknown=job.ignore_unknown)
    prompts = parsed.asked.prompts
    assert isinstance(prompts, list)
    ids = any(type(prompt) is list for prompt in prompts)
    words = max(map(_words_at_least, prompts))
    large = LargeBody(job.kind, b"", len(prompts), ids, words, job.ignore_unknown)
    return msgspec.structs.replace(parsed, asked=msgspec.structs.replace(parsed.asked, prompts=large))


def refuse(refusal: JobRefusal) -> ApiError:
    """The ApiError that the job raised."""
    error: ApiError = getattr(errors, refusal.error)(refusal.message, param=refusal.param)
    return error


def count(
    tokenizer: Tokenizer, prompts: Sequence[Prompt], window: ContextLimits, dialect: ModelDialect | None = None
) -> list[list[int]]:
    """The ids of each prompt. A prompt that is too long is refused as early as possible. Raises ContextLengthExceeded,
    InvalidRequest."""
    check_sizes(tokenizer, prompts, window)
    found: list[list[int]] = []
    try:
        for prompt in prompts:
            ids = _encode(tokenizer, prompt, window, dialect)
            check_window(len(ids), window)
            found.append(ids)
    except UnknownTemplateArgument as error:
        raise UnsupportedParameter(f"{error}.", param=f"chat_template_kwargs.{error.name}") from None
    except RecursionError:
        raise InvalidRequest(f"{window.param!r} are nested too deeply.", param=window.param) from None
    except TemplateError as error:
        raise InvalidRequest(f"{window.param!r} do not fit this model: {error}.", param=window.param) from None
    return found


def open_prompts(reader: ReasoningReader, prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[str]]:
    """As `ReasoningReader.open_messages`, for the conversations among the prompts."""
    opened: list[Prompt] = []
    ignored: list[str] = []
    for prompt in prompts:
        if isinstance(prompt, ChatPrompt):
            messages, left_out = reader.open_messages(prompt.messages)
            prompt = msgspec.structs.replace(prompt, messages=messages)
            ignored += left_out
        opened.append(prompt)
    return opened, ignored


def decode(tokenizer: Tokenizer, prompts: Sequence[Prompt], window: ContextLimits) -> str:
    """The text of the only prompt, a list of ids; special tokens are shown. Raises ContextLengthExceeded,
    InvalidRequest."""
    [ids] = prompts
    assert isinstance(ids, list)
    check_window(len(ids), window)
    _check_vocabulary(ids, window)
    return tokenizer.decode(ids, skip_special_tokens=False)


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
    """`words`: a lower bound of a prompt's words. Raises ContextLengthExceeded."""
    if tokenizer.ends_at_words and words > window.context_tokens:
        raise _too_long(window, f"{window.param!r} takes at least {words} tokens.")


def _words_at_least(prompt: Prompt, enough: int | None = None) -> int:
    """A lower bound of the prompt's words; counting stops above `enough`. Only user messages of a conversation count: a
    template renders them unchanged, but may omit the assistant's reasoning."""
    match prompt:
        case ChatPrompt():
            words = 0
            for message in prompt.messages:
                if message["role"] == "user" and (enough is None or words <= enough):
                    # The template may strip a leading space.
                    words += max(0, words_at_least(message["content"], enough) - 1)
            return words
        case RawText():
            return words_at_least(prompt.text, enough)
        case str():
            return words_at_least(prompt, enough)
    return 0


def check_window(tokens: int, window: ContextLimits) -> None:
    """Check that the context has tokens left for the answer beside a prompt of `tokens`. Raises
    ContextLengthExceeded."""
    rest = window.context_tokens - tokens
    if rest < window.least:
        if window.least == 0:
            raise _too_long(window, f"{window.param!r} takes {tokens}. Shorten it.")
        raise _too_long(
            window,
            f"{window.param!r} takes {tokens} and the answer may take {window.least}. Shorten the prompt, or lower "
            "'max_tokens'.",
            param=window.param if rest < 1 else "max_tokens",
        )


def _too_long(window: ContextLimits, why: str, param: str | None = None) -> ContextLengthExceeded:
    """The refusal. It begins with OpenAI's sentence, by which LiteLLM and other clients recognise this error."""
    message = f"This model's maximum context length is {window.context_tokens} tokens. However, {why}"
    return ContextLengthExceeded(message, param=param or window.param)


def chars_of(prompt: Prompt) -> int:
    match prompt:
        case ChatPrompt():
            return sum([len(message["content"]) for message in prompt.messages]) + _structure_chars(prompt)
        case RawText():
            return len(prompt.text)
        case str():
            return len(prompt)
    return 0


def _structure_chars(prompt: ChatPrompt) -> int:
    """Characters of calls, reasoning and tools, as JSON."""
    said: list[Any] = [tool.definition() for tool in prompt.tools]
    said += [{**message, "content": ""} for message in prompt.messages if len(message) > 2]
    return len(msgspec.json.encode(said)) if said else 0


def _encode(tokenizer: Tokenizer, prompt: Prompt, window: ContextLimits, dialect: ModelDialect | None) -> list[int]:
    """The ids of a prompt. Raises InvalidRequest, TemplateError."""
    match prompt:
        case ChatPrompt():
            dialect = dialect or PLAIN_DIALECT
            ids = tokenizer.encode_chat(
                template_messages(dialect, prompt.messages, prompt.tools),
                tools=template_tools(dialect, prompt.tools),
                add_generation_prompt=prompt.add_generation_prompt,
                continue_final_message=prompt.continue_final,
                arguments=template_arguments(dialect, prompt.reasoning, prompt.template_kwargs),
            )
        case RawText():
            return tokenizer.encode(prompt.text, add_special_tokens=prompt.special_tokens)
        case str():
            ids = tokenizer.encode(prompt, add_special_tokens=True)
        case _:
            ids = prompt
            _check_vocabulary(ids, window)
    if not ids:
        raise InvalidRequest(f"{window.param!r} is empty: send a prompt of at least one token.", param=window.param)
    return ids


def _check_vocabulary(ids: Sequence[int], window: ContextLimits) -> None:
    """Raises InvalidRequest for an id that the model does not have."""
    if ids and max(ids) >= window.vocab_size:
        wrong = next(id_ for id_ in ids if id_ >= window.vocab_size)
        message = f"{window.param!r} has the id {wrong}; this model's ids are below {window.vocab_size}."
        raise InvalidRequest(message, param=window.param)
