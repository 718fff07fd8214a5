"""Inputs of the benchmark of grammars, beside a model with random weights: a tokenizer of its size, and long schemas.

The tokenizer is generated, because the shape of Llama-3.1-8B has no tokenizer: byte-level BPE without merges, and
always the same for the same size. Its ids are all single bytes, all numbers of up to three digits, pieces of JSON, runs
of spaces, characters of two and three bytes, and words of syllables with and without a space before them; the last
RESERVED ids are special.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

# As in Llama-3. The first is the end of a text.
RESERVED = 256
PROPERTIES, TEXT_CHARS = 5, 100
STARTS = ["b", "c", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "st", "tr"]
SYLLABLES = [start + vowel + end for start in STARTS for vowel in "aeiou" for end in ("", "n", "r", "s")]
JSON_PIECES = [
    '{"', '":', '": ', '":"', '": "', '",', '", ', '","', '", "', '"}', "},", "}, ", '"},', '},{"', '}, {"', "[{",
    '[{"', '["', '"]', "],", '],"', '], "', "]}", "[]", "{}", ', "', ',"', " {", " [", ' "', " :", ": ", ", ",
    " true", " false", " null", "true", "false", "null", ":true", ":false", ":[", ": [", ":{", ": {",
]  # fmt: skip


def write_model_directory(directory: Path, shape: dict[str, Any]) -> Path:
    """config.json of the shape and a tokenizer.json of its `vocab_size` ids; no weights."""
    vocab_size = shape["vocab_size"]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**shape, "eos_token_id": vocab_size - RESERVED}))
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer_of(vocab_size)))
    return directory


def tokenizer_of(vocab_size: int) -> dict[str, Any]:
    """tokenizer.json with `vocab_size` ids, of which no two have the same bytes."""
    plain = vocab_size - RESERVED
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    letters = _byte_letters()
    vocab = {"".join(letters[byte] for byte in piece): id_ for id_, piece in enumerate(_pieces(plain))}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": plain + n, "content": f"<|reserved_{n}|>", **special} for n in range(RESERVED)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": False, "ignore_merges": True},
    }


def _pieces(count: int) -> list[bytes]:
    """The bytes of the first `count` ids."""
    found = dict.fromkeys(bytes([byte]) for byte in range(256))
    for digits in (2, 3):
        found.update(dict.fromkeys(f"{number:0{digits}d}".encode() for number in range(10**digits)))
    found.update(dict.fromkeys(piece.encode() for piece in JSON_PIECES))
    found.update(dict.fromkeys(b" " * length for length in range(2, 64)))
    found.update(dict.fromkeys(chr(code).encode() for code in (*range(0xA1, 0x600), *range(0x4E00, 0x8E00))))
    dice = random.Random(0)
    while len(found) < count:
        word = "".join(dice.choice(SYLLABLES) for _ in range(1 + dice.randrange(4)))
        if dice.randrange(6) == 0:
            word = word.capitalize()
        for form in (word, " " + word):
            found[form.encode()] = None
    return list(found)[:count]


def _byte_letters() -> list[str]:
    """The letter for each byte in a byte-level vocabulary (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {byte: chr(byte) for byte in printable}
    return [table.get(byte) or chr(256 + others.index(byte)) for byte in range(256)]


def closing_ids(vocab_size: int) -> list[int]:
    """The ids that may end a string."""
    return [id_ for id_, piece in enumerate(_pieces(vocab_size - RESERVED)) if piece.startswith(b'"')]


def schema_of(number: int, tokens: int, text_chars: int = TEXT_CHARS) -> dict[str, Any]:
    """A schema whose instances have at least `tokens` ids: an array of objects, each of five properties whose names
    differ between numbers. So no answer ends before its request's `max_tokens`, whatever ids random weights draw, and a
    row's state moves through strings, numbers, choices and structure. `text_chars`: maxLength of its strings; 0: none.
    Random weights end no string before that, and masks near the end of a bounded string are the slowest."""
    dice = random.Random(number)
    names = [f"{dice.choice(SYLLABLES)}{dice.choice(SYLLABLES)}_{n}" for n in range(PROPERTIES)]
    words = sorted({dice.choice(SYLLABLES) + dice.choice(SYLLABLES) for _ in range(6)})
    kinds: list[dict[str, Any]] = [
        {"type": "string", "maxLength": text_chars} if text_chars else {"type": "string"},
        {"type": "integer", "minimum": 0, "maximum": 1000 + dice.randrange(100_000)},
        {"enum": words},
        {"type": "boolean"},
        {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 100}, "minItems": 1, "maxItems": 3},
    ]
    dice.shuffle(kinds)
    item = {
        "type": "object",
        "properties": dict(zip(names, kinds, strict=True)),
        "required": names,
        "additionalProperties": False,
    }
    # No id covers more than a name or a value with the punctuation around it.
    return {"type": "array", "items": item, "minItems": 1 + tokens // PROPERTIES}


def hostile_schema_of(number: int) -> dict[str, Any]:
    """One of four kinds of schemas whose masks take long, and which no answer completes soon: short bounded strings,
    many properties that are not required, patterns with many states, and choices of objects."""
    dice = random.Random(number)
    names = [f"{dice.choice(SYLLABLES)}{dice.choice(SYLLABLES)}_{n}" for n in range(85)]
    kind = number % 4
    if kind == 0:
        return {"type": "array", "items": {"type": "string", "maxLength": 5 + dice.randrange(10)}, "minItems": 1000}
    if kind == 1:
        properties = {name: {"type": "string", "maxLength": 12} for name in names}
        return {"type": "object", "properties": properties, "additionalProperties": False, "minProperties": 1}
    if kind == 2:
        words = "|".join(name[:4] for name in names[:60])
        item = {"type": "string", "pattern": f"^(?:(?:{words})[a-z]{{0,8}}){{20,40}}$"}
        return {"type": "array", "items": item, "minItems": 100}
    choices = [
        {"type": "object", "properties": {name: {"type": "string", "maxLength": 8}}, "required": [name],
         "additionalProperties": False}
        for name in names[:40]
    ]  # fmt: skip
    return {"type": "array", "items": {"anyOf": choices}, "minItems": 1000}
