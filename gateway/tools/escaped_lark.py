"""A Lark grammar of texts as the grammar of the same texts inside a JSON string.

llguidance's lexer takes the longest token and looks one byte ahead. A backslash does not say which character it
begins, so the lexer could not end a token before it. Here a token may match the backslash of the next character too:
each rule has four forms, by whether the backslash of its first character is matched before it, and whether it matches
the one behind its last character. The byte behind a backslash decides, so the lexer decides as on the text itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from engine.text.json_schemas import GrammarRefused
from gateway.tools.escaped_regex import (
    NEVER,
    ChoiceTree,
    Escapes,
    SequenceTree,
    Tree,
    after_backslash,
    is_nullable,
    repeated,
    written,
)

NODES_MAX = 5000
DEPTH_MAX = 50
WRITTEN_CHARS_MAX = 128 * 1024  # of all expressions inside JSON
COPIES_MAX = 64  # of a rule under {n,m}

# llguidance's tokens of Lark. A Lark text that another grammar's token begins is refused.
_TOKEN = re.compile(
    r"""(?P<blank>[ \t]+|(?:\#|//)[^\n]*)
    |(?P<line>(?:\r?\n)+)
    |(?P<string>"(?:\\(?:["\\/bfnrt]|u[a-fA-F0-9]{4})|[^"\\\x00-\x1F\x7F])*"i?)
    |(?P<regex>/(?:\\.|[^/\\])+/[imslux]*)
    |(?P<import>%import[ \t]+common(?:\.\w+(?:[ \t]*->[ \t]*\w+)?|[ \t]*\([^()\n]*\)))
    |(?P<ignore>%ignore\b)
    |(?P<alias>->[ \t]*\w+)
    |(?P<name>[!?]?[_?]?[A-Za-z][\w-]*)
    |(?P<count>\{[ \t]*[0-9]*[ \t]*(?:,[ \t]*[0-9]*[ \t]*)?\})
    |(?P<priority>\.-?[0-9]+)
    |(?P<sign>\.\.|[:|()\[\]?*+])
    |(?P<refused>%\w*|<[^<>\s]*>?|@[\w{}-]*|[^\s])""",
    re.VERBOSE | re.DOTALL,
)
# The terminals of `%import common`.
_COMMON = {
    "CNAME": r"[_a-zA-Z][_a-zA-Z0-9]*",
    "CR": r"\r",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "DIGIT": r"[0-9]",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"',
    "FLOAT": r"[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "HEXDIGIT": r"[a-fA-F0-9]",
    "INT": r"[0-9]+",
    "LCASE_LETTER": r"[a-z]",
    "LETTER": r"[a-zA-Z]",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "NUMBER": r"[0-9]+(?:[eE][+-]?[0-9]+)?|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SH_COMMENT": r"#[^\n]*",
    "SIGNED_INT": r"[+-]?[0-9]+",
    "SIGNED_NUMBER": r"[+-]?(?:[0-9]+(?:[eE][+-]?[0-9]+)?|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)",
    "UCASE_LETTER": r"[A-Z]",
    "WORD": r"[a-zA-Z]+",
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
}


def escaped_lark(text: str, *, also: str = "") -> str:
    """The grammar of the texts inside a JSON string, with their shortest escapes. `also`: characters that are escaped
    by their code though JSON does not require it. Raises GrammarRefused, with the line, for a rule that has no form
    inside JSON."""
    parsed = _Reader(text, Escapes(also))
    parsed.read()
    return _Forms(_Rules(parsed)).write()


# An expression of rules and terminals. A name that begins with a capital letter is a terminal.
class _Name:
    __slots__ = ("line", "name")

    def __init__(self, name: str, line: int) -> None:
        self.name = name
        self.line = line


class _All:
    __slots__ = ("items",)

    def __init__(self, items: list[_Expression]) -> None:
        self.items = items


class _Any:
    __slots__ = ("items",)

    def __init__(self, items: list[_Expression]) -> None:
        self.items = items


class _Times:
    __slots__ = ("item", "quantifier")

    def __init__(self, item: _Expression, quantifier: str) -> None:
        self.item = item
        self.quantifier = quantifier


_Expression = Tree | _Name | _All | _Any | _Times
_Symbol = int | Tree


class _Reader:
    """Reads the definitions of a Lark text."""

    def __init__(self, text: str, escapes: Escapes) -> None:
        self.rules: dict[str, _Expression] = {}
        self.terminals: dict[str, _Expression] = {}
        self.ignored: list[_Expression] = []
        self._escapes = escapes
        self._tokens = list(_tokens(text))
        self._at = 0
        self._line = 1
        self._nodes = 0

    def read(self) -> None:
        try:
            while self._kind != "end":
                if self._kind == "line":
                    self._take()
                elif self._kind == "import":
                    self._import(self._take())
                elif self._kind == "ignore":
                    self._take()
                    self.ignored.append(self._choice(0))
                else:
                    self._define()
        except GrammarRefused as error:
            raise GrammarRefused(f"line {self._line}: {error} cannot be served for a custom tool") from None
        if "start" not in self.rules:
            raise GrammarRefused("the grammar has no rule 'start'")

    @property
    def _kind(self) -> str:
        return self._tokens[self._at][0]

    @property
    def _text(self) -> str:
        return self._tokens[self._at][1]

    def _take(self) -> str:
        _, text, self._line = self._tokens[self._at]
        self._at += 1
        return text

    def _define(self) -> None:
        if self._kind != "name":
            raise GrammarRefused(repr(self._take()))
        name = self._take().lstrip("!?")
        if self._kind == "priority":
            self._take()
        if self._text != ":":
            raise GrammarRefused(f"{self._take()!r} behind the name {name!r}")
        self._take()
        found = self.terminals if _is_terminal(name) else self.rules
        if name in found:
            raise GrammarRefused(f"a second definition of {name!r}")
        found[name] = self._choice(0)
        if self._kind not in ("line", "end"):
            raise GrammarRefused(repr(self._take()))

    def _import(self, directive: str) -> None:
        names = re.findall(r"\w+", directive)[2:]
        for name in names[:1] if "->" in directive else names:
            if name not in _COMMON:
                raise GrammarRefused(f"common.{name}")
            self.terminals[names[-1] if "->" in directive else name] = self._escapes.regex(_COMMON[name])

    def _choice(self, depth: int, closing: str = "") -> _Expression:
        """`closing`: the bracket at the end, within which lines may break."""
        if depth > DEPTH_MAX:
            raise GrammarRefused(f"a definition of more than {DEPTH_MAX} levels")
        options = [self._sequence(depth, closing)]
        while self._continues(closing):
            self._take()
            options.append(self._sequence(depth, closing))
        return options[0] if len(options) == 1 else _Any(options)

    def _continues(self, closing: str) -> bool:
        """Whether an alternative follows, on this line or on the next."""
        if self._kind == "line" and (closing or self._tokens[self._at + 1][1] == "|"):
            self._take()
        return self._text == "|"

    def _sequence(self, depth: int, closing: str) -> _Expression:
        items: list[_Expression] = []
        while True:
            if (self._kind == "line" and closing) or self._kind == "alias":
                self._take()
            elif self._kind in ("line", "end") or self._text in ("|", closing):
                break
            else:
                item = self._item(depth)
                if self._kind == "count" or self._text in ("*", "+", "?"):
                    item = _Times(item, re.sub(r"\s", "", self._take()))
                items.append(item)
        return items[0] if len(items) == 1 else _All(items)

    def _item(self, depth: int) -> _Expression:
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise GrammarRefused(f"a grammar of more than {NODES_MAX} names and literals")
        kind, text = self._kind, self._take()
        if text in ("(", "["):
            closing = ")" if text == "(" else "]"
            found = self._choice(depth + 1, closing)
            if self._text != closing:
                raise GrammarRefused(f"{text!r} without {closing!r}")
            self._take()
            return found if text == "(" else _Times(found, "?")
        if kind == "string":
            if self._text != "..":
                return self._escapes.text(json.loads(text.removesuffix("i")), ignore_case=text.endswith("i"))
            self._take()
            if self._kind != "string":
                raise GrammarRefused("'..' without a second literal")
            return self._escapes.between(json.loads(text.removesuffix("i")), json.loads(self._take().removesuffix("i")))
        if kind == "regex":
            pattern, _, flags = text[1:].rpartition("/")
            return self._escapes.regex(pattern, flags)
        if kind == "name" and text[0] not in "!?":
            return _Name(text, self._line)
        raise GrammarRefused(repr(text))


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    """(kind, text, line); the last one is of the kind "end"."""
    line = 1
    for token in _TOKEN.finditer(text):
        if token.lastgroup != "blank":
            yield str(token.lastgroup), token.group(), line
        line += token.group().count("\n")
    yield "end", "", line


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


class _Rules:
    """The grammar in rules of at most two symbols: the number of a rule, or a terminal's tree."""

    def __init__(self, parsed: _Reader) -> None:
        self._parsed = parsed
        self._numbers = {name: number for number, name in enumerate(parsed.rules)}
        self.bodies: list[list[tuple[_Symbol, ...]]] = [[] for _ in parsed.rules]
        self._skips: int | None = None
        self._chars = 0  # of all expressions, where each use of a terminal counts
        if parsed.ignored:
            self._skips = self._add([()])
            for one in parsed.ignored:
                self.bodies[self._skips].append((self._skips, self._tree(one, ())))
        for name, expression in parsed.rules.items():
            self.bodies[self._numbers[name]].append((self._lower(expression),))
        self.start: _Symbol = self._numbers["start"]

    def _add(self, bodies: list[tuple[_Symbol, ...]]) -> int:
        if len(self.bodies) > NODES_MAX:
            raise GrammarRefused("the grammar has too many rules for a custom tool")
        self.bodies.append(bodies)
        return len(self.bodies) - 1

    def _lower(self, node: _Expression) -> _Symbol:
        match node:
            case _Name(name=name) if not _is_terminal(name):
                if name not in self._numbers:
                    raise GrammarRefused(f"line {node.line}: unknown name: {name!r}")
                return self._numbers[name]
            case _Any(items=items):
                return self._add([(self._lower(item),) for item in items])
            case _All(items=items):
                symbols = [self._lower(item) for item in items]
                if not symbols:
                    return self._add([()])
                found = symbols[-1]
                for symbol in reversed(symbols[:-1]):
                    found = self._add([(symbol, found)])
                return found
            case _Times(item=item, quantifier="?"):
                return self._add([(), (self._lower(item),)])
            case _Times(item=item, quantifier="*" | "+" as quantifier):
                symbol = self._lower(item)
                number = self._add([() if quantifier == "*" else (symbol,)])
                self.bodies[number].append((number, symbol))
                return number
            case _Times(item=item, quantifier=quantifier):
                return self._lower(_copies(item, quantifier))
        tree = self._tree(node, ())
        if self._skips is not None:
            return self._add([(tree, self._skips), *([()] if is_nullable(tree) else [])])
        return self._add([(tree,), ()]) if is_nullable(tree) else tree

    def _tree(self, node: _Expression, inside: tuple[str, ...]) -> Tree:
        """A terminal's expression as one tree. `inside`: the terminals whose definitions it stands in."""
        match node:
            case _Name(name=name):
                if not _is_terminal(name):
                    raise GrammarRefused(f"line {node.line}: the rule {name!r} inside a terminal")
                if name in inside:
                    raise GrammarRefused(f"line {node.line}: the terminal {name!r} contains itself")
                if len(inside) > DEPTH_MAX:
                    raise GrammarRefused(f"line {node.line}: terminals of more than {DEPTH_MAX} levels")
                if name not in self._parsed.terminals:
                    raise GrammarRefused(f"line {node.line}: unknown name: {name!r}")
                return self._tree(self._parsed.terminals[name], (*inside, name))
            case _All(items=items):
                return SequenceTree(tuple([self._tree(item, inside) for item in items]))
            case _Any(items=items):
                return ChoiceTree(tuple([self._tree(item, inside) for item in items]))
            case _Times(item=item, quantifier=quantifier):
                return repeated(self._tree(item, inside), quantifier)
        self._chars += 1 + len(written(node))
        if self._chars > WRITTEN_CHARS_MAX:
            raise GrammarRefused("the grammar's expressions are too long for a custom tool")
        return node


def _copies(item: _Expression, quantifier: str) -> _Expression:
    low, comma, high = quantifier.strip("{}").partition(",")
    least = int(low or 0)
    most = (int(high) if high else None) if comma else least
    if max(least, most or 0) > COPIES_MAX or (most is not None and most < least):
        raise GrammarRefused(f"the repetition {quantifier} of a rule; at most {COPIES_MAX} are possible")
    more: list[_Expression] = [_Times(item, "*")] if most is None else [_Times(item, "?")] * (most - least)
    return _All([item] * least + more)


# A rule or a terminal in one of its four forms: whether the backslash of its first character is matched before, and
# whether the backslash of the next character is matched too.
_Form = tuple[_Symbol, bool, bool]


class _Forms:
    """The forms of all rules that a text can have."""

    def __init__(self, rules: _Rules) -> None:
        self._rules = rules
        self._bodies: dict[_Form, list[tuple[_Form, ...]]] = {}
        self._texts: dict[_Form, str] = {}  # of terminals; "": no text
        self._chars = 0
        self._start: _Form = (rules.start, False, False)
        self._collect()
        self._remove_unproductive()

    def write(self) -> str:
        names: dict[_Form, str] = {}
        waiting = [self._start]
        lines: list[str] = []
        chars = 0
        names[self._start] = "start"
        while waiting:
            form = waiting.pop()
            options = []
            for body in self._bodies[form]:
                for part in body:
                    if isinstance(part[0], int) and part not in names:
                        names[part] = f"r{len(names)}"
                        waiting.append(part)
                options.append(" ".join([names.get(part) or f"/{self._texts[part]}/" for part in body]) or '""')
            lines.append(f"{names[form]}: {' | '.join(dict.fromkeys(options))}")
            chars += len(lines[-1])
            if chars > 2 * WRITTEN_CHARS_MAX:
                raise GrammarRefused("the grammar has too many rules for a custom tool")
        return "\n".join(lines)

    def _collect(self) -> None:
        waiting = [self._start]
        while waiting:
            form = waiting.pop()
            symbol, begun, reaches = form
            if form in self._bodies or form in self._texts:
                continue
            if not isinstance(symbol, int):
                self._texts[form] = text = _form_of(symbol, begun=begun, reaches=reaches)
                self._chars += len(text)
                if self._chars > WRITTEN_CHARS_MAX:
                    raise GrammarRefused("the grammar's expressions are too long for a custom tool")
                continue
            bodies: list[tuple[_Form, ...]] = []
            self._bodies[form] = bodies
            for body in self._rules.bodies[symbol]:
                match body:
                    case ():
                        bodies += [()] if begun == reaches else []
                    case (one,):
                        bodies.append(((one, begun, reaches),))
                    case (first, second):
                        bodies += [((first, begun, middle), (second, middle, reaches)) for middle in (False, True)]
            waiting += [part for body in bodies for part in body]

    def _remove_unproductive(self) -> None:
        users: dict[_Form, list[tuple[_Form, list[_Form]]]] = {}  # bodies by each part that may be unproductive
        waiting = [form for form, text in self._texts.items() if text]
        for form, bodies in self._bodies.items():
            for body in bodies:
                lacking = list(dict.fromkeys(body))
                for part in lacking:
                    users.setdefault(part, []).append((form, lacking))
                if not body:
                    waiting.append(form)
        productive: set[_Form] = set()
        while waiting:
            part = waiting.pop()
            if part in productive:
                continue
            productive.add(part)
            for form, lacking in users.get(part, ()):
                lacking.remove(part)
                if not lacking:
                    waiting.append(form)
        if self._start not in productive:
            raise GrammarRefused("the grammar has no text inside JSON")
        self._bodies = {
            form: [body for body in bodies if all(part in productive for part in body)]
            for form, bodies in self._bodies.items()
            if form in productive
        }


def _form_of(tree: Tree, *, begun: bool, reaches: bool) -> str:
    tree = after_backslash(tree) if begun else tree
    return "" if tree == NEVER else written(tree) + (r"\\" if reaches else "")
