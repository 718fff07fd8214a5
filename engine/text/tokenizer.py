"""Text ↔ ids for one model directory: the chat template, the encoder, and decoding as ids arrive.

The gateway loads this, so it knows `tokenizers` and `jinja2` only, never torch or transformers.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, Protocol

import jinja2
import jinja2.meta
import jinja2.nodes
import tokenizers
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.text.markers import Markers, emitted_tokens
from engine.text.small_files import TOKENIZER_BYTES_MAX, read_small

# Encoding these characters takes two milliseconds: an event loop should leave a longer text to another process.
ENCODE_IN_LOOP_CHARS_MAX = 8 * 1024
# A character is at most 4 ids of one byte each; a window decoder that holds HELD_IDS_MAX ids shows its text.
HELD_IDS_MAX = 32
# `words_at_least` reads a long text in pieces of this size until it has found enough words.
WORDS_PIECE_CHARS = 16 * 1024

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A Unicode noncharacter: it marks where a message that is to be continued ends. It is not one of `markers.BREAKS`.
MARK = "\ufdd1"


class TemplateError(ValueError):
    """The chat template refused the messages: the caller's mistake. The message is fit to be shown to the caller."""


class UnknownTemplateArgument(TemplateError):
    """An argument that the chat template does not read."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        others = ", ".join(sorted(known))
        reads = f"it reads {others}" if others else "it reads no arguments"
        super().__init__(f"This model's chat template does not read {name!r}; {reads}")
        self.name = name


class Detokenizer(Protocol):
    """Ids in, text out, for one stream. All `push` results and `finish` joined equal decoding all ids at once."""

    def push_ids(self, ids: Sequence[int]) -> str:
        """The new text that later ids cannot change; "" while a character is incomplete."""
        ...

    def flush_text(self) -> str:
        """The text that was held back. Call once, after the last push."""
        ...


class Tokenizer:
    """A model's tokenizer, read only after `load`; threads may share it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        path = directory / "tokenizer.json"
        text = read_small(path, TOKENIZER_BYTES_MAX)
        self._encoder = _encoder_of(text, path)
        config = _read_json(directory / "tokenizer_config.json")
        added = self._encoder.get_added_tokens_decoder()
        self._special = frozenset(id_ for id_, token in added.items() if token.special)
        self._names = {name: _token_text(config[name]) for name in _NAMED_TOKENS if config.get(name) is not None}
        parsed, self._template, arguments = _compile_template(directory, config)
        # The template's arguments that a caller may set.
        self.template_arguments = arguments - RESERVED_ARGUMENTS - self._names.keys()
        texts = {token.content for token in added.values() if token.special}
        if parsed is not None:
            texts |= emitted_tokens(
                [token.content for token in added.values()], parsed, self._render_sample, self.template_arguments
            )
        # A second encoder, to which the text of a marker is ordinary text.
        self._plain = _encoder_of(text, path)
        self._plain.add_special_tokens([tokenizers.AddedToken(one, special=True, normalized=False) for one in texts])
        self._plain.encode_special_tokens = True
        self._markers = Markers(self._encoder, texts, self._encode_plain)
        self._byte_level = isinstance(self._encoder.decoder, tokenizers.decoders.ByteLevel)
        self.ends_at_words = self._byte_level and _ends_at_words(self._encoder)
        self._bytes_of: dict[int, bytes] = {}  # of a byte-level vocabulary, filled on demand; at most its size
        self.eos_ids = self._find_eos_ids(directory)
        self.vocab_size = self._encoder.get_vocab_size(with_added_tokens=True)

    @classmethod
    def load(cls, directory: Path) -> Tokenizer:
        """Reads tokenizer.json, tokenizer_config.json and, where present, chat_template.jinja, generation_config.json
        and config.json. Raises OSError or ValueError when they cannot be used."""
        return cls(directory)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Ids of a raw text. Control tokens written in it are control tokens; `add_special_tokens` adds the model's BOS
        where it has one. The GIL is not held meanwhile."""
        return _encode(self._encoder, text, add_special_tokens)

    def tokens_at_least(self, text: str) -> int:
        """A lower bound on the ids of `text`, wherever it stands in a prompt, found without encoding it."""
        return words_at_least(text) if self.ends_at_words else 0

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Ids of a conversation under the model's chat template. `tools`: the definitions that the template describes;
        `arguments`: values of `template_arguments`. Raises TemplateError.

        Only the template makes markers (`markers`): where a message, a tool or an argument spells one, its characters
        are encoded as text.
        `continue_final_message` ends the prompt with the last character of the last message, for the model to go on.
        """
        mark = self._markers.choose_break(messages, tools, arguments)
        if mark is not None:
            messages, tools, arguments = self._markers.break_up([messages, tools, arguments], mark)
        if continue_final_message:
            *before, last = messages
            marked = [*before, {**last, "content": last["content"] + MARK}]
            rendered = self.render_chat(marked, tools=tools, add_generation_prompt=False, arguments=arguments)
            text, found, _ = rendered.rpartition(MARK)
            if not found:
                raise TemplateError("this model's chat template does not let its last message be continued")
        else:
            text = self.render_chat(
                messages, tools=tools, add_generation_prompt=add_generation_prompt, arguments=arguments
            )
        if mark is None:
            return _encode(self._encoder, text, False)
        return self._markers.encode(text, mark, self._encode_plain)

    @property
    def markers(self) -> Mapping[str, int]:
        """The id of each special token, and of each added token that the chat template emits, by its text. No text of a
        caller is encoded as one of them by `encode_chat`."""
        return self._markers.ids

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as the text that the model reads. Raises TemplateError."""
        if self._template is None:
            raise TemplateError("this model has no chat template")
        for name in arguments or ():
            if name not in self.template_arguments:
                raise UnknownTemplateArgument(name, self.template_arguments)
        try:
            text = self._template.render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._names,
                **(arguments or {}),
            )
            text.encode()  # a lone surrogate is no text: UnicodeEncodeError, a ValueError
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template refuses these messages: {error.message or error}") from error
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            raise TemplateError(f"the chat template cannot render these messages: {error}") from error
        return text

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self._encoder.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Each id as the vocabulary spells it: "Ġthe" of a byte-level one. "" for an id that no token owns."""
        return [self._encoder.id_to_token(id_) or "" for id_ in ids]

    def token_bytes(self, id_: int) -> bytes:
        """The bytes that one id adds to a text, special or not; not always whole characters of UTF-8. b"" for an id
        that no token owns."""
        token = self._encoder.id_to_token(id_)
        if token is None or self._byte_level:
            return b"" if token is None else _bytes_of_token(token)
        if match := _BYTE_FALLBACK.fullmatch(token):
            return bytes([int(match["byte"], 16)])
        return token.replace(SPACE_MARK, " ").encode()

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """A fresh decoder for one stream of ids."""
        skipped = self._special if skip_special_tokens else frozenset()
        if self._byte_level:
            return _ByteDetokenizer(self._encoder, self._bytes_of, skipped)
        return _WindowDetokenizer(self._encoder, skipped)

    def _encode_plain(self, text: str) -> list[int]:
        return _encode(self._plain, text, False)

    def _render_sample(
        self, messages: Sequence[Mapping[str, Any]], tools: list[Any] | None, arguments: Mapping[str, Any]
    ) -> str:
        return self.render_chat(messages, tools=tools, arguments=arguments)

    def _find_eos_ids(self, directory: Path) -> frozenset[int]:
        """Ids that end an answer: the generation config's (else the model config's) and the tokenizer's own."""
        declared = _read_json(directory / "generation_config.json").get("eos_token_id")
        if declared is None:
            declared = _read_json(directory / "config.json").get("eos_token_id")
        found = declared if isinstance(declared, list) else [declared]
        if "eos_token" in self._names:
            found = [*found, self._encoder.token_to_id(self._names["eos_token"])]
        return frozenset(int(id_) for id_ in found if id_ is not None)


def words_at_least(text: str, enough: int | None = None) -> int:
    """A lower bound on the words that a space follows: runs of an odd number of spaces, less the runs after another
    blank. With `enough`, the rest of a text is not read once the bound exceeds it. A whole text takes about 5 ns a
    character.
    """
    size = WORDS_PIECE_CHARS if enough is not None else max(1, len(text))
    bound = 0
    for start in range(0, len(text), size):
        end = start + size
        runs = text.count(" ", start, end) - 2 * text.count("  ", start, end)
        runs -= sum([text.count(blank, start, end) for blank in ("\n ", "\t ", "\r ")])
        bound += runs - (2 if start else 0)  # a run or a pair that is cut in two adds at most two
        if enough is not None and bound > enough:
            break
    return max(0, bound)


def _ends_at_words(encoder: tokenizers.Tokenizer) -> bool:
    """Whether every word that a space follows ends a token: no token of this byte-level vocabulary has a space after a
    character that is no blank. A normalizer may drop or join words; NFC does not."""
    if encoder.normalizer is not None and not isinstance(encoder.normalizer, tokenizers.normalizers.NFC):
        return False
    inner = re.compile(r"[^ \n\t\rĠĊĉč][ Ġ]")
    return not any(map(inner.search, encoder.get_vocab(with_added_tokens=True)))


class _ByteDetokenizer:
    """For byte-level vocabularies (GPT-2, Llama 3, Qwen, SmolLM): each id is some bytes, the stream is UTF-8."""

    def __init__(self, encoder: tokenizers.Tokenizer, bytes_of: dict[int, bytes], skipped: frozenset[int]) -> None:
        """`bytes_of`: the bytes of ids that were decoded before; shared, and added to."""
        self._encoder = encoder
        self._bytes_of = bytes_of
        self._skipped = skipped
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push_ids(self, ids: Sequence[int]) -> str:
        known, skipped = self._bytes_of, self._skipped
        return self._utf8.decode(
            b"".join([known[id_] if id_ in known else self._bytes(id_) for id_ in ids if id_ not in skipped])
        )

    def flush_text(self) -> str:
        return self._utf8.decode(b"", final=True)

    def _bytes(self, id_: int) -> bytes:
        token = self._encoder.id_to_token(id_)
        if token is None:  # a row of the output matrix that no token owns
            return b""
        data = self._bytes_of[id_] = _bytes_of_token(token)
        return data


class _WindowDetokenizer:
    """For every other vocabulary (SentencePiece with byte fallback): decode a short window of ids, with the piece
    before it as context, and show what lies beyond that piece once it ends in a whole character."""

    def __init__(self, encoder: tokenizers.Tokenizer, skipped: frozenset[int]) -> None:
        self._encoder = encoder
        self._skipped = skipped
        self._context: list[int] = []
        self._held: list[int] = []

    def push_ids(self, ids: Sequence[int]) -> str:
        return "".join([self._push(id_) for id_ in ids if id_ not in self._skipped])

    def flush_text(self) -> str:
        return self._show(self._window())

    def _push(self, id_: int) -> str:
        self._held.append(id_)
        text = self._window()
        if text.endswith(REPLACEMENT) and len(self._held) <= HELD_IDS_MAX:
            return ""
        return self._show(text)

    def _window(self) -> str:
        return self._encoder.decode(self._context + self._held, skip_special_tokens=False)

    def _show(self, text: str) -> str:
        known = len(self._encoder.decode(self._context, skip_special_tokens=False))
        if len(text) > known:
            self._context, self._held = self._held, []
        return text[known:]


_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def _byte_of_char() -> dict[str, int]:
    """GPT-2's alphabet: a printable byte is its own character, the other 68 bytes are U+0100 and on, in order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHAR = _byte_of_char()
# SentencePiece's spellings of a space, and of a byte that no piece has.
SPACE_MARK = "\N{LOWER ONE EIGHTH BLOCK}"
_BYTE_FALLBACK = re.compile(r"<0x(?P<byte>[0-9A-Fa-f]{2})>")


def _bytes_of_token(token: str) -> bytes:
    """The bytes of a token of a byte-level vocabulary."""
    try:
        return bytes([_BYTE_OF_CHAR[char] for char in token])
    except KeyError:  # an added token, spelled literally
        return token.encode()


def _encoder_of(text: bytes, path: Path) -> tokenizers.Tokenizer:
    try:
        encoder = tokenizers.Tokenizer.from_buffer(text)
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"{path}: {error}") from error
    encoder.no_truncation()
    encoder.no_padding()
    return encoder


def _encode(encoder: tokenizers.Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
    # Of a batch of one: without the offsets that `encode` finds for every token, and without the GIL.
    return list(encoder.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids)


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file, or an empty one when there is no such file."""
    if not path.exists():
        return {}
    loaded = json.loads(read_small(path))
    if not isinstance(loaded, dict):
        raise ValueError(f"{path}: not a JSON object")
    return loaded


def _token_text(value: Any) -> str:
    """A named token of tokenizer_config.json: its text, or an object with its text under "content"."""
    if isinstance(value, dict) and "content" not in value:
        raise ValueError("tokenizer_config.json: a token without its 'content'")
    return str(value["content"]) if isinstance(value, dict) else str(value)


# Set by `render_chat` itself.
RESERVED_ARGUMENTS = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


def _compile_template(
    directory: Path, config: Mapping[str, Any]
) -> tuple[jinja2.nodes.Template | None, jinja2.Template | None, frozenset[str]]:
    """The template in chat_template.jinja, else in tokenizer_config.json, else None, parsed and compiled, and the names
    that it reads. Same dialect as transformers."""
    path = directory / "chat_template.jinja"
    source = read_small(path).decode() if path.exists() else config.get("chat_template")
    if isinstance(source, list):  # several, by name
        source = {entry["name"]: entry["template"] for entry in source}.get("default")
    if source is None:
        return None, None, frozenset()
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        parsed = environment.parse(source)
        names = jinja2.meta.find_undeclared_variables(parsed)
        return parsed, environment.from_string(source), frozenset(names - environment.globals.keys())
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(f"{directory}: the chat template does not compile: {error}") from error


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """jinja2's own filter escapes HTML; a prompt must not."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format_: str) -> str:
    return datetime.now(UTC).astimezone().strftime(format_)
