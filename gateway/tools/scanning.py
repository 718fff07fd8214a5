"""Reading a text that arrives in pieces: markers, framing literals and JSON. No decision depends on how the text was
cut.

A marker that is a single id of the vocabulary stands in the text as one lone surrogate, which decoded UTF-8 never
contains (`AnswerMarkers`). So a text that merely spells the marker is not taken for it.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterable, Mapping, Sequence

# The first symbol. The lone surrogates are U+D800 to U+DFFF.
SYMBOLS_START = 0xD800
# Longest white space inside a framing.
BLANK_MAX = 64
# The longest framing before or behind the arguments of a call. A longer one is no call.
FRAMING_CHARS_MAX = 512


class AnswerMarkers:
    """The markers of one model's formats: by id where the vocabulary has one, else by their text."""

    def __init__(self, texts: Iterable[str], ids: Mapping[str, int]) -> None:
        """`ids`: of markers that are single ids, by text."""
        self.ids: dict[int, str] = {}  # the symbol of each id
        self._symbols: dict[str, str] = {}
        self._texts: dict[str, str] = {}
        for text in texts:
            if text not in self._symbols and text in ids:
                symbol = chr(SYMBOLS_START + len(self._texts))
                self.ids[ids[text]] = symbol
                self._texts[symbol] = text
            else:
                symbol = self._symbols.get(text, text)
            self._symbols[text] = symbol
        self._any = re.compile("[" + "".join(self._texts) + "]") if self._texts else None

    def symbol(self, text: str) -> str:
        """The marker as it stands in the text of an answer."""
        return self._symbols.get(text, text)

    def spell(self, text: str) -> str:
        """The text with each symbol replaced by its marker."""
        if self._any is None or self._any.search(text) is None:
            return text
        return self._any.sub(lambda match: self._texts[match.group()], text)

    def find_symbol(self, text: str) -> int:
        """The index of the first symbol of an id; -1: not found."""
        match = None if self._any is None else self._any.search(text)
        return -1 if match is None else match.start()

    def terminal(self, text: str) -> str:
        """The marker in a Lark grammar: its id, or its text."""
        symbol = self.symbol(text)
        id_ = next((id_ for id_, one in self.ids.items() if one == symbol), None)
        return json.dumps(text) if id_ is None else f"<[{id_}]>"

    def is_id(self, text: str) -> bool:
        return self.symbol(text) != text


def held_suffix(text: str, marker: str) -> int:
    """The length of the longest suffix of `text` that is a proper prefix of `marker`."""
    for size in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:size]):
            return size
    return 0


class MatchState(enum.Enum):
    FULL = "full"
    PARTIAL = "partial"  # more text is needed
    FAILED = "failed"


class Blank:
    """White space, BLANK_MAX characters at most. A pattern does not end with it."""


class Quoted:
    """A JSON string, captured."""


class Word:
    """A name or an id, captured: at least one character that is no white space, bracket, quote or symbol."""


class Peek:
    """A literal that must follow, and is not consumed."""

    def __init__(self, text: str) -> None:
        self.text = text


BLANK = Blank()
QUOTED = Quoted()
WORD = Word()
Pattern = Sequence[str | Blank | Quoted | Word | Peek]


class Matched:
    """The result of `match_pattern`. `end`: where the match ends; `captures`: the JSON strings and words in it."""

    __slots__ = ("captures", "end", "state")

    def __init__(self, state: MatchState, end: int = 0, captures: Sequence[str] = ()) -> None:
        self.state = state
        self.end = end
        self.captures = captures


_FAILED = Matched(MatchState.FAILED)
_PARTIAL = Matched(MatchState.PARTIAL)


def match_pattern(pattern: Pattern, text: str) -> Matched:
    """Match `text` from its beginning. The result FULL or FAILED holds whatever text follows. A match of more than
    FRAMING_CHARS_MAX characters fails."""
    matched = _match(pattern, text)
    size = matched.end if matched.state is MatchState.FULL else len(text)
    return _FAILED if size > FRAMING_CHARS_MAX else matched


def _match(pattern: Pattern, text: str) -> Matched:
    at = 0
    captures: list[str] = []
    for element in pattern:
        match element:
            case str():
                if not text.startswith(element, at):
                    return _PARTIAL if element.startswith(text[at:]) else _FAILED
                at += len(element)
            case Peek():
                if not text.startswith(element.text, at):
                    return _PARTIAL if element.text.startswith(text[at:]) else _FAILED
            case Blank():
                start = at
                while at < len(text) and text[at].isspace():
                    at += 1
                if at - start > BLANK_MAX:
                    return _FAILED
            case Word():
                found = _WORD.match(text, at)
                if at == len(text) or (found is not None and found.end() == len(text)):
                    return _PARTIAL
                if found is None:
                    return _FAILED
                captures.append(found.group())
                at = found.end()
            case Quoted():
                if at == len(text):
                    return _PARTIAL
                found = _QUOTED.match(text, at)
                if found is None:
                    return _PARTIAL if _QUOTED_PREFIX.fullmatch(text, at) else _FAILED
                try:
                    captures.append(json.loads(found.group()))
                except ValueError:
                    return _FAILED
                at = found.end()
    return Matched(MatchState.FULL, at, captures)


def match_any(patterns: Sequence[Pattern], text: str) -> tuple[int, Matched]:
    """The first pattern that matches, in their order, with its index. No pattern may be a prefix of a later one."""
    partial = False
    for index, pattern in enumerate(patterns):
        matched = match_pattern(pattern, text)
        if matched.state is MatchState.FULL:
            return index, matched
        partial = partial or matched.state is MatchState.PARTIAL
    return -1, _PARTIAL if partial else _FAILED


_WORD = re.compile(r"[^\s\[\]{}()<>\"'\x00-\x1f\ud800-\udfff]+")
_QUOTED = re.compile(r'"(?:[^"\\\x00-\x1f\ud800-\udfff]|\\.)*"')
_QUOTED_PREFIX = re.compile(r'"(?:[^"\\\x00-\x1f\ud800-\udfff]|\\.)*\\?')


class JsonObjectScanner:
    """Finds the end of a JSON object that begins with the first character pushed. It counts brackets outside of
    strings and checks nothing else."""

    __slots__ = ("_depth", "_escaped", "_string", "done")

    def __init__(self) -> None:
        self._depth = 0
        self._string = False
        self._escaped = False
        self.done = False

    def push_text(self, text: str) -> int:
        """The number of characters of `text` that belong to the object."""
        at = 0
        if self._escaped and text:
            self._escaped = False
            at = 1
        while (found := (_IN_STRING if self._string else _OUTSIDE).search(text, at)) is not None:
            at = found.end()
            match found.group():
                case '"':
                    self._string = not self._string
                case "\\":
                    if at == len(text):
                        self._escaped = True
                    at += 1
                case "{" | "[":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    if self._depth <= 0:
                        self.done = True
                        return at
        return len(text)


_IN_STRING = re.compile(r'["\\]')
_OUTSIDE = re.compile(r'["{}\[\]]')
