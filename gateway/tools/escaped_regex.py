"""Regular expressions of texts as expressions of the same texts inside a JSON string.

In a JSON string a character stands for itself, or it is a backslash and a tail: `n` for a line break. The tree of an
expression has both forms of each character, so that it can also be written without the backslash of its first
character, where another expression has matched it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from engine.text.json_schemas import GrammarRefused

# The escape, after the backslash, of each character that JSON must escape. The other control characters are not served.
TAILS = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
REPEATS_MAX = 1000
OPTIONAL_MAX = 32  # each one repeats what follows it
_CONTROLS = "".join(map(chr, range(0x20)))


class CharTree(msgspec.Struct, frozen=True):
    """One character. `plain`: an expression of the characters that need no escape, or "". `tails`: what follows the
    backslash of each character that needs an escape, sorted. `begun`: the backslash is matched already, and no plain
    character can follow."""

    plain: str
    tails: tuple[str, ...] = ()
    begun: bool = False


class SequenceTree(msgspec.Struct, frozen=True):
    """One tree after another; none: the empty text."""

    items: tuple[Tree, ...] = ()


class ChoiceTree(msgspec.Struct, frozen=True):
    """One of the trees; none: no text."""

    options: tuple[Tree, ...] = ()


class RepeatTree(msgspec.Struct, frozen=True):
    """`most`: None is any number."""

    item: Tree
    least: int
    most: int | None


Tree = CharTree | SequenceTree | ChoiceTree | RepeatTree
EMPTY = SequenceTree()
NEVER = ChoiceTree()


def is_nullable(tree: Tree) -> bool:
    match tree:
        case CharTree():
            return False
        case SequenceTree(items):
            return all(map(is_nullable, items))
        case ChoiceTree(options):
            return any(map(is_nullable, options))
        case RepeatTree(item, least):
            return not least or is_nullable(item)


def after_backslash(tree: Tree) -> Tree:
    """The texts of the tree that begin with a backslash, without it: the derivative of the expression. Raises
    GrammarRefused."""
    match tree:
        case CharTree(_, tails):
            return CharTree("", tails, begun=True) if tails else NEVER
        case ChoiceTree(options):
            found = [after_backslash(option) for option in options]
            return ChoiceTree(tuple([option for option in found if option != NEVER]))
        case RepeatTree(item, least, most):
            first = after_backslash(item)
            if first == NEVER or most == 0:
                return NEVER
            return SequenceTree((first, RepeatTree(item, max(0, least - 1), None if most is None else most - 1)))
        case SequenceTree(items):
            begun: list[Tree] = []
            for index, item in enumerate(items):
                if len(begun) > OPTIONAL_MAX:
                    raise GrammarRefused(f"an expression with more than {OPTIONAL_MAX} optional beginnings")
                if (first := after_backslash(item)) != NEVER:
                    begun.append(SequenceTree((first, *items[index + 1 :])))
                if not is_nullable(item):
                    break
            return begun[0] if len(begun) == 1 else ChoiceTree(tuple(begun))


def written(tree: Tree) -> str:
    """The tree as an expression between the slashes of Lark."""
    match tree:
        case CharTree(plain, tails, begun):
            if not tails:
                return plain
            tail = "(?:" + "|".join([_literal(one) for one in tails]) + ")"
            if begun:
                return tail
            return rf"(?:{plain}|\\{tail})" if plain else rf"(?:\\{tail})"
        case SequenceTree(items):
            return "".join(map(written, items))
        case ChoiceTree(options):
            return "(?:" + "|".join(map(written, options)) + ")"
        case RepeatTree(item, least, most):
            bounds = f"{{{least},{'' if most is None else most}}}"
            return f"(?:{written(item)}){bounds}"


def _literal(text: str) -> str:
    return "".join([char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}" for char in text])


# Pieces of a set in an expression.
_HEX = r"[xu]\{[0-9a-fA-F]{1,6}\}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}"
_ESCAPE = rf"\\(?:{_HEX}|[pP](?:\{{[^}}]*\}}|.)|.)"
_PIECE = re.compile(
    rf"(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])|(?P<escape>{_ESCAPE})|(?P<open>\((?:\?(?:P?<\w+>|[a-zA-Z-]*:|[a-zA-Z-]*\)))?)"
    r"|(?P<close>\))|(?P<bar>\|)|(?P<repeat>[*+?]|\{[0-9]*(?:,[0-9]*)?\})|(?P<char>.)",
    re.DOTALL,
)
_SET_ITEM = re.compile(rf"{_ESCAPE}|.", re.DOTALL)
_NAMED = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a"}
_CLASSES = {"d": "", "w": "", "s": "\t\n\v\f\r"}  # the control characters, quotes and backslashes in \d, \w and \s
# Letters, marks and numbers of Unicode: no class of these has such a character.
_PLAIN_CLASS = re.compile(r"\\p(?:[LMN]|\{[LMN][a-z&]?\})")


class Escapes:
    """Trees for one set of escaped characters."""

    def __init__(self, also: str = "") -> None:
        """`also`: characters that are escaped by their code though JSON does not ask for it."""
        self._tails = TAILS | {char: f"u{ord(char):04x}" for char in also}
        self._special = "".join({**dict.fromkeys(_CONTROLS), **dict.fromkeys(self._tails)})
        self._plain = "[^" + "".join([f"\\x{{{ord(char):x}}}" for char in self._special]) + "]"

    def text(self, text: str, *, ignore_case: bool = False) -> Tree:
        """Raises GrammarRefused."""
        return SequenceTree(tuple([self._char(char, _literal(char), ignore_case) for char in text]))

    def between(self, first: str, last: str) -> Tree:
        """One character of a range. Raises GrammarRefused."""
        if len(first) != 1 or len(last) != 1 or first > last:
            raise GrammarRefused("'..' needs two characters in their order")
        return self._set(f"[\\x{{{ord(first):x}}}-\\x{{{ord(last):x}}}]", ignore_case=False)

    def regex(self, pattern: str, flags: str = "") -> Tree:
        """Raises GrammarRefused for an expression that has no form inside JSON."""
        return _Parser(self, pattern, flags).parse()

    def _char(self, char: str, spelled: str, ignore_case: bool) -> Tree:
        if char in self._tails:
            return CharTree("", (self._tails[char],))
        if char in _CONTROLS:
            raise GrammarRefused(f"the control character U+{ord(char):04X}")
        return CharTree(f"(?i:{spelled})" if ignore_case else spelled)

    def _any(self, *, dot_all: bool) -> Tree:
        return CharTree(self._plain, self._tails_of([char for char in self._tails if dot_all or char != "\n"]))

    def _tails_of(self, chars: list[str]) -> tuple[str, ...]:
        return tuple(sorted([self._tails[char] for char in chars if char in self._tails]))

    def _escape(self, spelled: str, ignore_case: bool) -> Tree:
        if (char := _char_of(spelled)) is not None:
            return self._char(char, spelled, ignore_case)
        return self._set(f"[{spelled}]", ignore_case=ignore_case)

    def _set(self, spelled: str, *, ignore_case: bool) -> Tree:
        members, only_special = self._members(spelled)
        if not members and not only_special:
            return CharTree(f"(?i:{spelled})" if ignore_case else spelled)
        plain = f"[{spelled}&&{self._plain}]"
        plain = "" if only_special else f"(?i:{plain})" if ignore_case else plain
        tails = self._tails_of(members)
        return CharTree(plain, tails) if plain or tails else NEVER

    def _members(self, spelled: str) -> tuple[list[str], bool]:
        """The special characters in a set, and whether it has no others."""
        inner = spelled[1:-1]
        negated = inner.startswith("^")
        items = _SET_ITEM.findall(inner[negated:])
        if any(items[at : at + 2] == [one, one] for one in "&-~" for at in range(len(items))) or "[" in items:
            raise GrammarRefused(f"the operator or set inside the set {spelled}")
        found: set[str] = set()
        only_special = not negated
        at = 0
        while at < len(items):
            first = _char_of(items[at])
            if first is None:
                found.update(self._class_members(items[at]))
                only_special = False
                at += 1
                continue
            last: str | None = first
            is_range = items[at + 1 : at + 2] == ["-"] and at + 2 < len(items)
            if is_range:
                last = _char_of(items[at + 2])
            if last is None or last < first:
                raise GrammarRefused(f"the range in the set {spelled}")
            inside = [char for char in self._special if first <= char <= last]
            found.update(inside)
            only_special = only_special and len(inside) == ord(last) - ord(first) + 1
            at += 3 if is_range else 1
        return [char for char in self._special if (char in found) != negated], only_special

    def _class_members(self, spelled: str) -> list[str]:
        kind = spelled[1]
        if kind in "pP":
            if _PLAIN_CLASS.fullmatch(spelled) is None:
                raise GrammarRefused(f"the class {spelled}")
            return []
        if kind.lower() not in _CLASSES:
            raise GrammarRefused(f"{spelled} in an expression")
        return [char for char in self._special if (char in _CLASSES[kind.lower()]) != kind.isupper()]


def _char_of(spelled: str) -> str | None:
    """The character that a piece of an expression matches; None for a class."""
    if spelled[0] != "\\":
        return spelled
    kind, code = spelled[1], spelled[2:].strip("{}")
    if kind in "xu" and code:
        if int(code, 16) > 0x10FFFF or 0xD800 <= int(code, 16) < 0xE000:
            raise GrammarRefused(f"{spelled}, which is no character")
        return chr(int(code, 16))
    if kind in "<>":
        raise GrammarRefused(f"{spelled} in an expression")
    return _NAMED.get(kind) if kind.isalnum() else kind


class _Parser:
    """Reads one expression."""

    def __init__(self, escapes: Escapes, pattern: str, flags: str) -> None:
        if unknown := set(flags) - set("isu"):
            raise GrammarRefused(f"the flag {min(unknown)!r} of an expression")
        self._escapes = escapes
        self._flags = set(flags)
        self._pieces: Iterator[re.Match[str]] = _PIECE.finditer(pattern)
        self._next = next(self._pieces, None)

    def parse(self) -> Tree:
        if self._next is not None and re.fullmatch(r"\(\?[is]+\)", self._next.group()):
            self._flags |= set(self._next.group()[2:-1])
            self._advance()
        tree = self._choice(0)
        if self._next is not None:
            raise GrammarRefused("an expression with a bracket that closes nothing")
        return tree

    def _advance(self) -> None:
        self._next = next(self._pieces, None)

    def _choice(self, depth: int) -> Tree:
        if depth > 50:
            raise GrammarRefused("an expression of more than 50 levels")
        options = [self._sequence(depth)]
        while self._next is not None and self._next.lastgroup == "bar":
            self._advance()
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else ChoiceTree(tuple(options))

    def _sequence(self, depth: int) -> Tree:
        items: list[Tree] = []
        while self._next is not None and self._next.lastgroup not in ("bar", "close"):
            item = self._item(depth)
            if self._next is not None and self._next.lastgroup == "repeat":
                item = repeated(item, self._next.group())
                self._advance()
                if self._next is not None and self._next.lastgroup == "repeat":
                    raise GrammarRefused("a lazy or doubled repetition in an expression")
            items.append(item)
        return items[0] if len(items) == 1 else SequenceTree(tuple(items))

    def _item(self, depth: int) -> Tree:
        piece = self._next
        assert piece is not None
        self._advance()
        text, ignore_case = piece.group(), "i" in self._flags
        match piece.lastgroup:
            case "set":
                return self._escapes._set(text, ignore_case=ignore_case)
            case "escape":
                return self._escapes._escape(text, ignore_case)
            case "open":
                return self._group(text, depth)
            case "char" if text == ".":
                return self._escapes._any(dot_all="s" in self._flags)
            case "char" if text not in "^$":
                return self._escapes._char(text, text, ignore_case)
        raise GrammarRefused(f"{text} in an expression")

    def _group(self, opening: str, depth: int) -> Tree:
        before = self._flags
        if opening in ("(?i:", "(?s:", "(?is:", "(?si:"):
            self._flags = before | set(opening[2:-1])
        elif opening not in ("(", "(?:") and ">" not in opening:
            raise GrammarRefused(f"{opening} in an expression")
        if opening == "(" and self._next is not None and self._next.group() == "?":
            raise GrammarRefused("(? in an expression")
        tree = self._choice(depth + 1)
        if self._next is None or self._next.lastgroup != "close":
            raise GrammarRefused("an expression with an open bracket")
        self._advance()
        self._flags = before
        return tree


def repeated(tree: Tree, quantifier: str) -> Tree:
    """The tree under `*`, `+`, `?` or `{n,m}`. Raises GrammarRefused."""
    if quantifier in "*+?":
        return RepeatTree(tree, int(quantifier == "+"), 1 if quantifier == "?" else None)
    low, comma, high = quantifier.strip("{}").partition(",")
    least = int(low or 0)
    most = (int(high) if high else None) if comma else least
    if max(least, most or 0) > REPEATS_MAX or (most is not None and most < least) or quantifier in ("{}", "{,}"):
        raise GrammarRefused(f"the repetition {quantifier}")
    return RepeatTree(tree, least, most)
