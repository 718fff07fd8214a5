"""The patterns of an adapter's configuration, matched as peft matches them, in time that is linear in the name.

peft matches with Python's `re`, which backtracks: a few nested optional parts keep it busy for ever, and it holds the
interpreter's lock meanwhile. RE2 does not backtrack. Only syntax that both interpret alike is accepted; a refusal names
the field. Only the check of an adapter may evaluate patterns; an engine reads their results
(`adapters/files/resolved.py`, docs/decisions/0017).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from adapters.files.header import AdapterRefused

PATTERN_CHARS_MAX = 1024
PATTERNS_MAX = 4096
# Limits of one configuration: patterns that are not plain dotted names, and RE2 instructions of all of them. At both
# limits, matching all names of a model of 126 layers takes half a second.
EXPRESSIONS_MAX = 256
INSTRUCTIONS_MAX = 65_536
MATCHER_BYTES_MAX = 1024 * 1024

Value = TypeVar("Value", int, float)

# A module's full name, or the last components of a full name. Such a pattern is compared as text, although `.`
# matches any character: no module name has the same letters with another character in place of a dot.
DOTTED_NAME = re.compile(r"(?:(?:(?:(?:model\.)?layers\.)?[0-9]{1,5}\.)?(?:self_attn|mlp)\.)?[A-Za-z0-9_]+")
# Syntax that Python and RE2 interpret alike in patterns of printable ASCII. `refused`: all other syntax.
TOKEN = re.compile(
    r"(?P<set>\[\^?\]?(?:\\[dDwWsS!-/:-@\[-`{-~]|[^\\\[\]])*\])"
    r"|(?P<repeat>(?:[*+?]|\{(?:0|[1-9][0-9]{0,3})(?:,(?:0|[1-9][0-9]{0,3})?)?\})\??)"
    r"|(?P<group>\((?:\?:|\?P<[A-Za-z_][A-Za-z0-9_]*>|(?!\?)))"
    r"|(?P<escape>\\[dDwWsSbBA!-/:-@\[-`{-~])"
    r"|(?P<other>[^\\\[({*+?])"
    r"|(?P<refused>.[^)\]]{0,7})",
    re.DOTALL,
)
SET_OPERATORS = ("--", "&&", "~~", "||")  # future Python versions may read these as set operators


class PatternBudget:
    """The limits on all patterns of one configuration together."""

    def __init__(self) -> None:
        self._expressions = 0
        self._instructions = 0

    def spend(self, field: str, instructions: int) -> None:
        """Count one expression of `instructions` RE2 instructions. Raises AdapterRefused over a limit."""
        self._expressions += 1
        self._instructions += instructions
        if self._expressions > EXPRESSIONS_MAX:
            raise AdapterRefused(
                f"{field}: more than {EXPRESSIONS_MAX} regular expressions; the dotted names of modules are not limited"
            )
        if self._instructions > INSTRUCTIONS_MAX:
            raise AdapterRefused(f"{field}: its regular expressions are too large: over {INSTRUCTIONS_MAX} RE2 steps")


class Pattern:
    """One regular expression, which must match a whole name."""

    def __init__(self, field: str, pattern: str, budget: PatternBudget, *, any_prefix: bool = False) -> None:
        """With `any_prefix`, a match of a dotted end of the name is enough. Raises AdapterRefused."""
        _check_syntax(field, pattern, f"(.*\\.)?({pattern})$" if any_prefix else pattern)
        self._matcher: Any = _compiled(field, pattern, rf"(?:.*\.)?(?:{pattern})" if any_prefix else pattern)
        budget.spend(field, self._matcher.programsize)

    def matches(self, name: str) -> bool:
        return self._matcher.fullmatch(name) is not None


class Names:
    """peft's rule for a list of names: the name itself or a dotted end of it is in the list."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)

    def matches(self, name: str) -> bool:
        return any(end in self._names for end in ends_of(name))


class PatternValues(Generic[Value]):
    """Values by pattern, by peft's rule for `rank_pattern` and `alpha_pattern`: the first pattern that matches the
    whole name or a dotted end of it decides."""

    def __init__(self, field: str, values: Mapping[str, Value], budget: PatternBudget) -> None:
        """Raises AdapterRefused."""
        self._values: list[Value] = list(values.values())
        self._names: dict[str, int] = {}  # plain name → its index among all patterns
        self._patterns: list[tuple[int, Pattern]] = []
        for place, pattern in enumerate(values):
            if len(pattern) <= PATTERN_CHARS_MAX and DOTTED_NAME.fullmatch(pattern):
                self._names[pattern] = place
            else:
                self._patterns.append((place, Pattern(field, pattern, budget, any_prefix=True)))

    def get(self, name: str, default: Value) -> Value:
        none = len(self._values)
        first = min((self._names.get(end, none) for end in ends_of(name)), default=none)
        for place, pattern in self._patterns:
            if place > first:
                break
            if pattern.matches(name):
                return self._values[place]
        return default if first == none else self._values[first]


class StoredValues:
    """PatternValues with Python's `re`, for adapters stored before patterns were limited: RE2 may not know their
    syntax. It may backtrack: only for a process whose CPU time is limited."""

    def __init__(self, field: str, values: Mapping[str, float]) -> None:
        """Raises AdapterRefused."""
        try:
            self._patterns = [(re.compile(rf"(.*\.)?({pattern})$"), value) for pattern, value in values.items()]
        except (re.error, RecursionError, OverflowError) as error:
            raise AdapterRefused(f"{field}: a pattern is not a regular expression: {error}") from error

    def get(self, name: str, default: float) -> float:
        return next((value for pattern, value in self._patterns if pattern.match(name)), default)


def ends_of(name: str) -> Iterator[str]:
    """The name, and its remainder after each of its dots."""
    yield name
    for dot in re.finditer(r"\.", name):
        yield name[dot.end() :]


def _check_syntax(field: str, pattern: str, embedded: str) -> None:
    """Raises AdapterRefused for a pattern that Python cannot compile, or with syntax that RE2 reads differently."""
    shown = f"{field}: the pattern {pattern[:64]!r}"
    if len(pattern) > PATTERN_CHARS_MAX:
        raise AdapterRefused(f"{shown} has more than {PATTERN_CHARS_MAX} characters")
    if not (pattern.isascii() and pattern.isprintable()):
        raise AdapterRefused(f"{shown} has characters other than printable ASCII")
    before = ""
    for token in TOKEN.finditer(pattern):
        kind, text = str(token.lastgroup), token.group()
        operator = kind == "set" and any(operator in text for operator in SET_OPERATORS)
        if kind == "refused" or operator or (kind == "repeat" and before == "repeat"):
            raise AdapterRefused(
                f"{shown}: {text!r} is not served; served are characters, sets, groups, `|`, `.`, `^`, `$`, `?`, `*`, "
                "`+`, `{n,m}`, and \\ before d, w, s, b, D, W, S, B, A and punctuation"
            )
        before = kind
    try:
        re.compile(pattern)  # alone, too: `)|(` is invalid, but valid inside peft's parentheses
        re.compile(embedded)
    except (re.error, RecursionError, OverflowError) as error:
        raise AdapterRefused(f"{shown} is not a regular expression: {error}") from error


def _compiled(field: str, pattern: str, embedded: str) -> Any:
    """An RE2 matcher. Raises AdapterRefused."""
    import re2  # imported late: few configurations have patterns

    options = re2.Options()
    options.max_mem = MATCHER_BYTES_MAX
    options.never_capture = True
    options.log_errors = False
    try:
        return re2.compile(embedded, options=options)
    except re2.error as error:
        said = error.args[0] if error.args else ""
        reason = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        raise AdapterRefused(f"{field}: the pattern {pattern[:64]!r} is refused by RE2: {reason[:128]}") from error
