"""The Lark grammar of a custom tool, inside JSON: what it accepts decodes to what the original accepts, and back."""

from __future__ import annotations

import contextlib
import json
import random
import time
from typing import Any

import numpy as np
import pytest

from engine.text.grammars import GrammarTokenizer, compile_grammar, lark_grammar
from engine.text.json_schemas import GrammarRefused
from gateway.tools.escaped_lark import escaped_lark
from gateway.tools.escaped_regex import TAILS
from gateway.tools.grammar import add_input, lark
from support.paths import EXAMPLES

GRAMMARS = [
    'start: "a" | "\\"q\\\\"',
    "start: /[^a]+/",
    "start: /.+/",
    "start: /(?s).+/",
    "start: /.*x.*/s",
    "start: /\\s+|\\S\\S/",
    "start: /\\W\\d?/",
    "start: /[\\w\\s.-]+/",
    'start: /[^\\s"<]+/',
    "start: /[\\x00-\\x1f]{1,3}/",
    "start: /[!-~]+/",
    'start: "\\u0000".."\\u0060"',
    'start: line+\nline: "+" /(.*)/ LF | "-" /[^\\n]*/ "\\n"\nLF: /\\r?\\n/',
    'start: text? "\\n" [text] "\\t"\ntext: WORD (/[^\\n\\t]+/ | "\\\\")*\nWORD: "a".."c"',
    'start: item{2,3}\nitem: /[^,]+/ ","',
    '?start: sum\n!sum: product\n  | sum "+" product -> add\nproduct: /[0-9]+/ | ("(" sum ")")',
    'start: A*\nA: B "\\n" B | "<" B\nB: /x{0,2}/',
    "start: /a(b|\\n){0,2}?c/".replace("?c", "c"),
    'start: A | B\nA: "a\\nb"i\nB: /c\\td/i',
    "start: LINE+\nLINE: /[^\\n]*/ NL\nNL: /\\r?\\n/",
    "%import common.ESCAPED_STRING\nstart: ESCAPED_STRING",
    "%import common.WS\n%import common.WORD\n%ignore WS\nstart: WORD+",
    "%import common (NEWLINE, CNAME)\nstart: CNAME (NEWLINE CNAME)*",
    '%import common.LF -> END\nstart: /[a-z]*/ END // "comment"\n# /comment/',
    'start: "<" name ">" text "</" name ">"\nname: /[a-b]/\ntext: /[^<]*/',
    "start: /\\p{L}+[^\\pN]/",
    "start: /\\//  /[\\]\\[\\\\]/",
]
ALPHABET = 'aab<>/"\\\n\t\r\x7f xé😀.1cdAB_]['

SAMPLES = ["a\nb", "A\nB", "C\tD", 'q"\\', '"q\\', '"a\\"b"', "<a>x\n</a>", "a\\a", "ab\ncd\n", "+a\n", '+\\\n-\t"\n']
SAMPLES += ["a\n\t", "\n\t", "b\na\\\t", "a,b\n,", "\n,\\,", "1+(2+3)", "x\nx", "<x", "a\n\nc", "ac", "a\nc", "abc"]


@pytest.fixture(scope="module")
def tokenizer() -> GrammarTokenizer:
    return GrammarTokenizer.load(EXAMPLES / "models/laneway-tiny")


class Accepting:
    """Whether a grammar accepts texts."""

    def __init__(self, tokenizer: GrammarTokenizer, text: str) -> None:
        self._tokenizer = tokenizer
        self._matcher: Any = compile_grammar(tokenizer, text)

    def __call__(self, text: str) -> bool:
        matcher = self._matcher.deep_copy()
        ids = self._tokenizer.inner.tokenize_bytes(text.encode())
        return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


def framed(text: str, also: str) -> str:
    """The grammar of a JSON string."""
    rules: dict[str, str] = {}
    return lark(add_input(rules, "x", text, also=also), rules)


def image(text: str, also: str) -> str:
    """A JSON string in which each character stands by itself or as its shortest escape."""
    said = json.dumps(text, ensure_ascii=False)
    for char in also:
        said = said.replace(char, f"\\u{ord(char):04x}")
    return said


@pytest.mark.parametrize("also", ["", "<"])
@pytest.mark.parametrize("grammar", GRAMMARS)
def test_the_escaped_grammar_accepts_the_images_of_what_the_grammar_accepts(
    grammar: str, also: str, tokenizer: GrammarTokenizer
) -> None:
    plain, escaped = Accepting(tokenizer, lark_grammar(grammar)), Accepting(tokenizer, framed(grammar, also))
    chance = random.Random(grammar)
    texts = ["", *ALPHABET, *TAILS, *SAMPLES]
    texts += ["".join(chance.choices(ALPHABET, k=chance.randrange(1, 5))) for _ in range(300)]
    accepted = 0
    for text in texts:
        accepted += plain(text)
        assert escaped(image(text, also)) == plain(text), (text, escaped_lark(grammar))
    assert accepted


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_a_random_answer_of_the_escaped_grammar_decodes_to_a_text_of_the_grammar(
    grammar: str, tokenizer: GrammarTokenizer
) -> None:
    plain = Accepting(tokenizer, lark_grammar(grammar))
    closing = tokenizer.inner.tokenize_str('"')
    start: Any = compile_grammar(tokenizer, framed(grammar, ""))
    chance = random.Random(grammar)
    checked = 0
    for _ in range(40):
        matcher, ids = start.deep_copy(), []
        for _ in range(300):
            if matcher.is_accepting():
                break
            mask = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
            found = np.flatnonzero(mask[: tokenizer.vocab_size]).tolist()
            allowed = [id_ for id_ in found if id_ not in tokenizer.eos_ids]
            if not allowed:
                break
            ends = [id_ for id_ in allowed if id_ in closing]
            ids.append(chance.choice(ends if ends and chance.random() < 0.3 else allowed))
            assert matcher.consume_token(ids[-1])
        if matcher.is_accepting():
            said = b"".join(tokenizer.inner.decode_bytes([id_]) for id_ in ids).decode()
            assert plain(json.loads(said)), said
            checked += 1
    # Random ids seldom end a text that needs one character at its end.
    assert checked or "start: l" in grammar.lower() or "name" in grammar or "text" in grammar


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        ('start: "a"\n  | %json {}', "line 2: '%json'"),
        ("start: ~/a/", "line 1: '~'"),
        ("start: A & B\nA: /a/\nB: /b/", "'&'"),
        ("start: <eos>", "'<eos>'"),
        ("start: @other", "'@other'"),
        ('start[stop="x"]: "a"', "behind the name 'start'"),
        ("start: /[a&&b]/", "operator or set"),
        ("start: /[[:alpha:]]/", "operator or set"),
        ("start: /\\p{P}/", "the class"),
        ("start: /a\\b/", "in an expression"),
        ("start: /^a/", "in an expression"),
        ("start: /a+?/", "lazy"),
        ("start: /(?=a)b/", "in an expression"),
        ("start: /a/m", "the flag 'm'"),
        ("start: /(?x)a/", "(?x)"),
        ("start: /a{2000}/", "repetition"),
        ("start: a{1,100}\na: /b/", "repetition"),
        ("start: /a(/", "open bracket"),
        ("start: /a)/", "closes nothing"),
        ("%import common.C_COMMENT\nstart: C_COMMENT", "common.C_COMMENT"),
        ("%import python.NAME\nstart: NAME", "%import"),
        ('start: "ab".."c"', "'..'"),
        ("start: 'a'", '"\'"'),
        ('start: "a', "'\"'"),
        ("start: /\\u{d800}/", "no character"),
        ('start: "\\u0001"', "U+0001"),
        ("start: a", "unknown name: 'a'"),
        ("start: A\nA: B\nB: A", "contains itself"),
        ("start: A\nA: b\nb: /x/", "the rule 'b' inside a terminal"),
        ("a: /x/", "no rule 'start'"),
        ("start: start", "no text"),
        ("start: " + "(" * 60 + '"a"' + ")" * 60, "levels"),
        ("start: /" + "(" * 60 + "a" + ")" * 60 + "/", "levels"),
    ],
)
def test_what_cannot_be_escaped_is_named_with_its_line(grammar: str, said: str) -> None:
    with pytest.raises(GrammarRefused) as refused:
        escaped_lark(grammar)
    assert said in str(refused.value)


SIZE = 8192
HOSTILE = {
    "a chain": "\n".join([f"r{i}: r{i + 1}" for i in range(620)]).replace("r0:", "start:", 1) + '\nr620: "a"',
    "doubling terminals": "start: A20\nA0: /.{1,5}/\n" + "\n".join([f"A{i + 1}: A{i} A{i}" for i in range(20)]),
    "deep terminals": "start: A0\n" + "\n".join([f"A{i}:A{i + 1}" for i in range(700)]) + "\nA700: /a/",
    "optional beginnings": "start: /[^,]*/ T\nT: /" + "\\n?" * 2000 + "/",
    "optional letters": "start: /[^,]*/ T\nT: /" + "a?" * 4000 + "/",
    "any characters": "start: /" + "." * SIZE + "/",
    "many expressions": "start: " + "/.*/ " * 1600,
    "copies": "start: ((((a{64}){64}){64}){64})\na: /./",
    "stars": "start: /a" + "*" * SIZE + "/",
    "question marks": "start: a" + "?" * SIZE + "\na: /b/",
    "brackets": "start: " + "(" * 4000 + '"a"' + ")" * 4000,
    "brackets in an expression": "start: /" + "(" * 4000 + "a" + ")" * 4000 + "/",
}


@pytest.mark.parametrize("grammar", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_grammar_takes_a_bounded_time(grammar: str) -> None:
    started = time.thread_time()
    with contextlib.suppress(GrammarRefused):
        assert len(escaped_lark(grammar)) < 512 * 1024
    assert time.thread_time() - started < 0.5  # some 20 ms each on an idle machine
