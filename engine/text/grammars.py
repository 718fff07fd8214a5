"""Grammars that answers must follow: their text, their limits, and matchers over a model's tokenizer (llguidance).

Gateway and engine load this: no torch and no numpy. A grammar's text is llguidance's: JSON `{"grammars": [...]}`, or
Lark. The limits are deterministic: a text that one process accepts, every other process with the tokenizer accepts.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llguidance

from engine.text.json_schemas import (
    REFUSAL_CHARS_MAX,
    GrammarRefused,
    guided_schema,
    json_object_grammar,
    json_schema_grammar,
    pointers,
)
from engine.text.small_files import TOKENIZER_BYTES_MAX, read_small

__all__ = [
    "REFUSAL_CHARS_MAX",
    "GrammarRefused",
    "GrammarTokenizer",
    "check_grammar",
    "choice_grammar",
    "choice_terminal",
    "compile_grammar",
    "guided_schema",
    "json_object_grammar",
    "json_schema_grammar",
    "lark_grammar",
    "regex_grammar",
    "regex_literal",
]

# As engine.protocol.guide_limits.
GRAMMAR_CHARS_MAX = 256 * 1024
# llguidance's compiler recurses through rules that name rules: about 3,000 overflow a stack of 8 MiB.
LARK_DEFINITIONS_MAX = 500
LARK_GRAMMARS_MAX = 130
# Names, quotes, slashes and bars of Lark texts: the compiler's time grows with their square, to about 0.3 s here.
LARK_ITEMS_MAX = 20_000
CHOICES_MAX = 1000
# Ids that are tried when a grammar is compiled.
PROBED_IDS = 4
# Stack of a thread that compiles. `run_with_stack` starts such a thread.
STACK_BYTES = 64 * 1024 * 1024

LIMITS = llguidance.LLParserLimits(
    # About four a property that is not required.
    max_items_in_row=8_000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=50_000,
    max_grammar_size=200_000,
    precompute_large_lexemes=True,
    verbose_errors=False,
)

# Sets of tokens whose masks llguidance makes once: white space, and texts without quotes by their length. A mask inside
# a string of bounded length looks at each token of a set that does not fit in the rest of the string. With llguidance's
# own sets, of 10 and 30 characters, such masks take twice the time.
_PLAIN = r"""[^"\\\x00-\x1F\x7F]"""
SLICES = [r"[\x20\x0A\x0D\x09]+", *(f"{_PLAIN}{{1,{chars}}}" for chars in (*range(3, 17), 20, 30)), f"{_PLAIN}+"]

# A definition begins a line; the alternatives of a definition that continue on another line begin with `|`.
_DEFINITION = re.compile(r"(?:^|[\r\n])[ \t]*[!?]?[A-Za-z_]")
_ITEM = re.compile(r"\"|[\w-]+|[/|]")
_EMBEDDED = re.compile(r"%json\s*(?=\{)")
# Parts of Lark that may have a "<": comments, strings and expressions. Lines are counted without them.
_LITERAL = re.compile(r"""//[^\n]*|#[^\n]*|"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/""")
_FORMAT = re.compile(r"Unknown format: (.*)")
_RESOURCE = re.compile(r"Resource '(.*?)' is not present")
_KEYS = re.compile(r"Unimplemented keys: \[(.*?)\]")


class GrammarTokenizer:
    """A model's tokenizer as llguidance reads it. Threads may share it; it takes some 0.5 s to make."""

    def __init__(self, text: str, vocab_size: int, eos_ids: Sequence[int], digest: str) -> None:
        """`text`: of tokenizer.json. `vocab_size`: rows of the model's output matrix, at least the tokenizer's; ids
        that no token owns are never allowed. Raises ValueError."""
        self.digest = digest
        self.vocab_size = vocab_size
        self.eos_ids = frozenset(eos_ids)
        text = _with_secret_markers(text)
        try:
            self.inner = llguidance.LLTokenizer(text, n_vocab=vocab_size, eos_token=sorted(eos_ids), slices=SLICES)
        except Exception as error:
            raise ValueError(f"grammars cannot use this tokenizer: {error}") from error

    @classmethod
    def load(cls, directory: Path, vocab_size: int | None = None) -> GrammarTokenizer:
        """Load from a model directory; calls with the same content share one object. `vocab_size`: None: config.json's.
        Raises OSError, and ValueError when a file cannot be used."""
        file_key = directory, vocab_size
        files = _file_states(directory)
        with _loading:
            known = _by_file.get(file_key)
        if known is not None and known[0] == files:
            return known[1]
        text = read_small(directory / "tokenizer.json", TOKENIZER_BYTES_MAX).decode()
        config = _read_json(directory / "config.json")
        eos_ids = _eos_ids(directory, config, text)
        size = vocab_size if vocab_size is not None else config.get("vocab_size")
        if not isinstance(size, int) or size <= 0:
            raise ValueError(f"{directory / 'config.json'}: vocab_size is no size")
        if not eos_ids:
            raise ValueError(f"{directory}: grammars need a model with an end-of-sequence id")
        digest = hashlib.sha256(f"{size} {sorted(eos_ids)}\n{text}".encode()).hexdigest()
        with _loading:
            found = _loaded.get(digest)
            if found is None:
                found = _loaded[digest] = cls(text, size, sorted(eos_ids), digest)
                while len(_loaded) > TOKENIZERS_CACHED_MAX:
                    del _loaded[next(iter(_loaded))]
            _by_file[file_key] = files, found
            while len(_by_file) > TOKENIZERS_CACHED_MAX:
                del _by_file[next(iter(_by_file))]
        return found


def _with_secret_markers(text: str) -> str:
    """The tokenizer.json with names of the special tokens that no grammar can spell. llguidance encodes a text that a
    grammar forces as the tokenizer does: the name of an end-of-sequence token in a constant would end the answer there.
    Raises ValueError."""
    found = json.loads(text)
    model, nonce = found.get("model"), secrets.token_hex(8)
    special = [token for token in found.get("added_tokens") or () if token.get("special")]
    if not special or not isinstance(model, dict):
        return text
    names = {token["content"]: f"<{nonce} {token['id']}>" for token in special}
    for token in special:
        token["content"] = names[token["content"]]
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(name, name): id_ for name, id_ in vocabulary.items()}
    elif isinstance(vocabulary, list):  # of a Unigram model: [name, score]
        model["vocab"] = [[names.get(name, name), score] for name, score in vocabulary]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    found["post_processor"] = None  # it adds special tokens by name, to a whole prompt alone
    return json.dumps(found)


TOKENIZERS_CACHED_MAX = 16
_loaded: dict[str, GrammarTokenizer] = {}
_by_file: dict[tuple[Path, int | None], tuple[list[tuple[int, int, int] | None], GrammarTokenizer]] = {}
_loading = threading.Lock()


def compile_grammar(tokenizer: GrammarTokenizer, text: str, *, probe: bool = True) -> llguidance.LLMatcher:
    """A matcher at the start of the grammar. `probe`: with its first ids tried, with the GIL held; not necessary for a
    text that another process has compiled. Otherwise the GIL is released. Call it on a thread of `run_with_stack`.
    Raises GrammarRefused."""
    _check_size(text)
    matcher = llguidance.LLMatcher(tokenizer.inner, text, log_level=0, limits=LIMITS)
    if matcher.is_error():
        raise GrammarRefused(_refusal(matcher.get_error(), text))
    if probe:
        _probe(matcher.deep_copy(), tokenizer, text)
    return matcher


def _probe(matcher: llguidance.LLMatcher, tokenizer: GrammarTokenizer, text: str) -> None:
    """Refuse a grammar without a first id (a cycle of references, an empty intersection), or that exceeds a limit
    after its first ids."""
    for made in range(PROBED_IDS):
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            raise GrammarRefused(_refusal(matcher.get_error(), text))
        if not made and not any(mask):
            raise GrammarRefused("the grammar allows no text of this model's tokens")
        if not made and matcher.is_stopped() and not matcher.is_accepting():
            raise GrammarRefused("the grammar allows no text")
        allowed = int.from_bytes(mask, "little")
        for id_ in tokenizer.eos_ids:
            allowed &= ~(1 << id_)
        if not allowed:
            return
        if not matcher.consume_token((allowed & -allowed).bit_length() - 1):
            raise GrammarRefused(_refusal(matcher.get_error(), text))


def check_grammar(tokenizer: GrammarTokenizer, text: str) -> None:
    """Whether a grammar can be served. Takes milliseconds, a hostile text seconds: call it off an event loop, in a
    process that may be killed where the text is not to be trusted. Raises GrammarRefused."""
    run_with_stack(lambda: compile_grammar(tokenizer, text))


def run_with_stack(function: Any) -> Any:
    """The result of `function` on a thread with STACK_BYTES of stack."""
    results: list[Any] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller; a Rust panic is no Exception
            errors.append(error)

    thread = start_with_stack(call)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def start_with_stack(function: Any) -> threading.Thread:
    """A started daemon thread with STACK_BYTES of stack."""
    thread = threading.Thread(target=function, name="grammar", daemon=True)
    with _stack_size:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    return thread


_stack_size = threading.Lock()


# ---- texts of grammars


def regex_grammar(pattern: str) -> str:
    """The grammar text of a regular expression (Rust's syntax; no look-around) that the whole answer must match."""
    return llguidance.LLMatcher.grammar_from_regex(pattern)


def regex_literal(pattern: str) -> str:
    """A regular expression as a terminal of a Lark grammar."""
    return str(json.loads(regex_grammar(pattern))["grammars"][0]["lark_grammar"]).removeprefix("start: ")


def choice_grammar(choices: Sequence[str]) -> str:
    """The grammar text of an answer that is one of the texts. Raises GrammarRefused."""
    return llguidance.LLMatcher.grammar_from_lark("start: " + choice_terminal(choices))


def choice_terminal(choices: Sequence[str]) -> str:
    """The texts as a terminal of a Lark grammar. Raises GrammarRefused."""
    if not 1 <= len(choices) <= CHOICES_MAX:
        raise GrammarRefused(f"{len(choices)} choices; 1 to {CHOICES_MAX} are needed")
    if not all(choices):
        raise GrammarRefused("an empty choice is not supported")
    return "(" + " | ".join(lark_string(text) for text in choices) + ")"


def lark_string(text: str) -> str:
    """A Lark literal of the text."""
    return json.dumps(text, ensure_ascii=True)


def lark_grammar(text: str) -> str:
    """The grammar text of a caller's Lark grammar. Schemas inside it (`%json`) and options (`%llguidance`) are refused,
    since they would avoid the checks of `json_schema_grammar`, and so are special tokens (`<…>`). Raises
    GrammarRefused."""
    for directive in ("%json", "%llguidance"):
        if directive in text:
            raise GrammarRefused(f"{directive} is not supported in a Lark grammar")
    for number, line in enumerate(_LITERAL.sub("", text).split("\n"), 1):
        if "<" in line:
            raise GrammarRefused(f"line {number}: tokens in angle brackets are not supported in a Lark grammar")
    grammar = json.dumps({"grammars": [{"lark_grammar": text}]})
    _check_size(grammar)
    return grammar


# ---- limits and messages


def _check_size(text: str) -> None:
    """Raises GrammarRefused for a text that is too large or whose rules nest too deep for llguidance's recursion."""
    if len(text) > GRAMMAR_CHARS_MAX:
        raise GrammarRefused(f"the grammar has {len(text)} characters; at most {GRAMMAR_CHARS_MAX} are possible")
    larks = [text]
    if text.lstrip().startswith("{"):
        try:
            grammars = json.loads(text)["grammars"]
            larks = [g["lark_grammar"] for g in grammars if isinstance(g.get("lark_grammar"), str)]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise GrammarRefused("the grammar's text is no object with a list of grammars") from error
        if len(grammars) > LARK_GRAMMARS_MAX:
            raise GrammarRefused(f"{len(grammars)} grammars in one; at most {LARK_GRAMMARS_MAX} are possible")
    larks = [_without_schemas(lark) for lark in larks]
    definitions = sum(len(_DEFINITION.findall(lark)) for lark in larks)
    items = sum(len(_ITEM.findall(lark)) for lark in larks)
    if items > LARK_ITEMS_MAX:
        raise GrammarRefused(f"{items} names and literals; at most {LARK_ITEMS_MAX} are possible")
    if definitions > LARK_DEFINITIONS_MAX:
        raise GrammarRefused(f"{definitions} rules and terminals; at most {LARK_DEFINITIONS_MAX} are possible")


def _without_schemas(lark: str) -> str:
    """Lark without the operands of `%json`."""
    parts: list[str] = []
    position = 0
    for match in _EMBEDDED.finditer(lark):
        if match.start() < position:
            continue
        try:
            _, end = json.JSONDecoder().raw_decode(lark, match.end())
        except (ValueError, RecursionError):
            continue
        parts.append(lark[position : match.start()])
        position = end
    return "".join([*parts, lark[position:]])


def _refusal(error: str, text: str) -> str:
    """llguidance's message with the position: the JSON pointer of a schema's keyword, or the line of Lark."""
    message = error.partition("\n<backtrace>")[0].replace("<non-verbose/>", "").strip()
    if message.startswith("panic:"):
        message = "the grammar is too large"
    if message.startswith("NoExtension"):
        return "the grammar allows no text"
    if "::=" in message:
        message += "\nA grammar is in Lark (rule: body), not in GBNF or EBNF (rule ::= body)"
    if where := _pointer(message, text):
        return f"schema {where}"
    return f"the grammar is refused: {message}"


def _pointer(message: str, text: str) -> str | None:
    schemas = _schemas(text)
    if found := _FORMAT.search(message):
        for schema in schemas:
            for at, value in pointers(schema, "format"):
                if value == found[1]:
                    return f"{at}: the format {value!r} is not supported"
    elif "oneOf constraints" in message:
        for schema in schemas:
            for at, _ in pointers(schema, "oneOf"):
                return f"{at}: 'oneOf' is supported only where its schemas exclude each other; use 'anyOf'"
    elif found := _KEYS.search(message):
        names = [name.strip('" ') for name in found[1].split(",")]
        for schema in schemas:
            for at, _ in pointers(schema, names[0]):
                return f"{at}: the keyword {names[0]!r} is not supported"
    elif found := _RESOURCE.search(message):
        for keyword in ("$ref", "$schema", "$id"):
            for schema in schemas:
                for at, value in pointers(schema, keyword):
                    name = value.partition("#")[0].rpartition("/")[2] if isinstance(value, str) else ""
                    if name and name in found[1]:
                        return f"{at}: {value!r} is not part of the schema, and nothing is fetched"
    elif "are not disjoint" in message:
        for schema in schemas:
            for at, _ in pointers(schema, "patternProperties"):
                return f"{at}: 'patternProperties' is supported only where its patterns exclude each other"
    elif "look-around" in message or "backreference" in message:
        for schema in schemas:
            for keyword in ("pattern",):
                for at, value in pointers(schema, keyword):
                    if isinstance(value, str) and re.search(r"\(\?[=!<]|\\[1-9]", value):
                        return f"{at}: look-around and backreferences are not supported in {value!r}"
    return None


def _schemas(text: str) -> list[object]:
    try:
        grammars = json.loads(text)["grammars"]
        return [g["json_schema"] for g in grammars if "json_schema" in g]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def _file_states(directory: Path) -> list[tuple[int, int, int] | None]:
    """A value that changes with the content of the tokenizer's files."""
    states: list[tuple[int, int, int] | None] = []
    for name in ("tokenizer.json", "config.json", "generation_config.json", "tokenizer_config.json"):
        try:
            found = (directory / name).stat()
            states.append((found.st_mtime_ns, found.st_size, found.st_ino))
        except FileNotFoundError:
            states.append(None)
    return states


def _read_json(path: Path) -> dict[str, Any]:
    found = json.loads(read_small(path)) if path.exists() else {}
    if not isinstance(found, dict):
        raise ValueError(f"{path}: not a JSON object")
    return found


def _eos_ids(directory: Path, config: dict[str, Any], text: str) -> frozenset[int]:
    """As `Tokenizer.eos_ids`: the generation config's, else the model config's, and the tokenizer's own."""
    declared = _read_json(directory / "generation_config.json").get("eos_token_id")
    if declared is None:
        declared = config.get("eos_token_id")
    found = {id_ for id_ in (declared if isinstance(declared, list) else [declared]) if isinstance(id_, int)}
    name = _read_json(directory / "tokenizer_config.json").get("eos_token")
    content = name.get("content") if isinstance(name, dict) else name
    if content is not None:
        for token in json.loads(text).get("added_tokens") or ():
            if token.get("content") == content:
                found.add(token["id"])
    return frozenset(found)
