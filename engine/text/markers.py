"""The markers of a chat template, and how text of a caller is kept from forging them.

A marker is an added token that the chat template emits (`<|im_start|>`, `<tool_call>`, `</think>`), and every special
token. The template's own markers become ids. A marker that a caller writes, in a message, a tool's description or a
tool's result, is encoded as ordinary text.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise, product
from typing import Any

import jinja2.nodes
import tokenizers

# Unicode noncharacters: no interchanged text has them, so they can break up a forged marker and be removed again. The
# first that the caller's text does not contain is used. U+FDD1 is `tokenizer.MARK`.
BREAKS = ("\ufdd0", *map(chr, range(0xFDD2, 0xFDF0)))
# Templates compare the values of these fields with constants, so they are broken up only where they have a marker.
COMPARED = ("role", "type")
# Arguments by which templates open or close the reasoning.
REASONING_FLAGS = ("enable_thinking", "thinking")


class Markers:
    """The markers of one tokenizer."""

    def __init__(
        self, encoder: tokenizers.Tokenizer, texts: Iterable[str], encode_plain: Callable[[str], list[int]]
    ) -> None:
        """`texts`: contents of added tokens of `encoder`. `encode_plain` encodes text to which no marker is a token."""
        added = {token.content: (id_, token) for id_, token in encoder.get_added_tokens_decoder().items()}
        chosen = {text: added[text] for text in texts}
        self.ids: Mapping[str, int] = {text: id_ for text, (id_, _) in chosen.items()}
        self._id_set = frozenset(self.ids.values())
        self._pattern = _any_of(self.ids)
        self._strips = {text: (token.lstrip, token.rstrip) for text, (_, token) in chosen.items()}
        # Most texts of a request have no marker. These find so at little cost: a marker's first letters; and parts of
        # markers by their last or first letter, since a text is compared with each part of a tuple.
        self._firsts = tuple({text[0] for text in self.ids})
        self._beginnings = _grouped({text[:end] for text in self.ids for end in range(1, len(text))}, -1)
        self._endings = _grouped({text[start:] for text in self.ids for start in range(1, len(text))}, 0)
        # A normalizer can make a marker from other characters (NFKC makes "<" from U+FF1C). Every chat is then encoded
        # in parts.
        self._normalized = encoder.normalizer is not None and any(token.normalized for _, token in chosen.values())
        # A model can have a marker as an ordinary piece of its vocabulary too (`</s>` of a Unigram model).
        self._in_vocabulary = any(id_ in encode_plain(text) for text, id_ in self.ids.items())

    def choose_break(self, *data: Any) -> str | None:
        """The character that breaks up markers in `data` (plain JSON data of a caller); None when the data can be
        rendered unchanged, because no text in it has a marker or begins or ends within one."""
        if not self.ids or not (self._normalized or any(map(self._is_suspect, set(_strings(data))))):
            return None
        return next((one for one in BREAKS if not any(one in text for text in _strings(data))), BREAKS[0])

    def break_up(self, value: Any, mark: str) -> Any:
        """A copy of plain JSON data, names of fields included, in which `mark` divides each marker, and stands where a
        text could complete a marker together with the text before or after it."""
        if isinstance(value, str):
            value = self._divide(value, mark)
            value = mark + value if self._begins_within(value) else value
            return value + mark if self._ends_within(value) else value
        if isinstance(value, Mapping):
            return {
                self._divide(name, mark): self._divide(item, mark)
                if name in COMPARED and isinstance(item, str)
                else self.break_up(item, mark)
                for name, item in value.items()
            }
        return [self.break_up(item, mark) for item in value] if isinstance(value, (list, tuple)) else value

    def encode(self, text: str, mark: str, encode_plain: Callable[[str], list[int]]) -> list[int]:
        """Ids of a rendered chat whose data was broken up with `mark`: its whole markers are the template's.
        `encode_plain`: the constructor's. The encoder itself divides a text at added tokens first, so encoding the
        parts between them changes nothing else."""
        ids: list[int] = []
        for part, marker in self._split(text):
            ids += self._encode_part(part.replace(mark, ""), encode_plain)
            if marker is not None:
                ids.append(self.ids[marker])
        return ids

    def _encode_part(self, text: str, encode_plain: Callable[[str], list[int]]) -> list[int]:
        ids = encode_plain(text) if text else []
        if not self._in_vocabulary or self._id_set.isdisjoint(ids):
            return ids
        cuts = [0, *(match.start() + 1 for match in self._pattern.finditer(text)), len(text)]
        return [id_ for start, end in pairwise(cuts) for id_ in encode_plain(text[start:end])]

    def _is_suspect(self, text: str) -> bool:
        has_first = any(first in text for first in self._firsts)
        return (
            self._begins_within(text)
            or self._ends_within(text)
            or (has_first and self._pattern.search(text) is not None)
        )

    def _begins_within(self, text: str) -> bool:
        """Whether the text begins with the end of a marker."""
        return text.startswith(self._endings.get(text[:1], ()))

    def _ends_within(self, text: str) -> bool:
        """Whether the text ends with the beginning of a marker."""
        return text.endswith(self._beginnings.get(text[-1:], ()))

    def _divide(self, text: str, mark: str) -> str:
        text = text.replace(mark, "")
        return self._pattern.sub(lambda match: match.group()[0] + mark + match.group()[1:], text)

    def _split(self, text: str) -> Iterator[tuple[str, str | None]]:
        """Each marker with the text before it, then the rest. As in the encoder, a marker may take the blanks at its
        sides."""
        position = 0
        for match in self._pattern.finditer(text):
            lstrip, rstrip = self._strips[match.group()]
            before = text[position : match.start()]
            yield before.rstrip() if lstrip else before, match.group()
            position = match.end()
            while rstrip and position < len(text) and text[position].isspace():
                position += 1
        yield text[position:], None


def emitted_tokens(
    added: Iterable[str], template: jinja2.nodes.Template, render: Callable[..., str], arguments: Iterable[str]
) -> set[str]:
    """The added tokens, as texts, that a chat template emits: in a constant of its source, or when it renders
    conversations with a system message, reasoning, tools, calls and results. Blanks are no markers.

    `render(messages, tools, arguments)` raises ValueError where the template refuses; `arguments`: names that it reads.
    """
    texts = [node.data for node in template.find_all(jinja2.nodes.TemplateData)]
    texts += [node.value for node in template.find_all(jinja2.nodes.Const) if isinstance(node.value, str)]
    flags = [name for name in REASONING_FLAGS if name in arguments]
    choices: list[dict[str, Any]] = [{}, dict.fromkeys(flags, True), dict.fromkeys(flags, False)]
    for messages, tools, chosen in product(_SAMPLES, (None, [_TOOL]), choices if flags else choices[:1]):
        with contextlib.suppress(ValueError):
            texts.append(render(messages, tools, chosen))
    whole = "\0".join(texts)
    return {text for text in added if not text.isspace() and text in whole}


def _samples() -> list[list[dict[str, Any]]]:
    user: dict[str, Any] = {"role": "user", "content": "a"}
    assistant: dict[str, Any] = {"role": "assistant", "content": "b"}
    samples: list[list[dict[str, Any]]] = [[user], [{"role": "system", "content": "c"}, user, assistant, user]]
    for arguments in ({"x": 1}, '{"x": 1}'):
        call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": arguments}}
        calls: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": "d", "tool_calls": [call]}
        result: dict[str, Any] = {"role": "tool", "tool_call_id": "abcdefghi", "name": "f", "content": "e"}
        samples += [[user, calls, result], [user, calls, result, assistant, user]]
    return samples


_SAMPLES = _samples()
_TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "g", "parameters": {"type": "object", "properties": {}}},
}


def _strings(value: Any) -> list[str]:
    """Every text in plain JSON data, names of fields included, in no order. Iterative: this runs for each request."""
    found: list[str] = []
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, dict):
            found += item
            left += item.values()
        elif isinstance(item, (list, tuple)):
            left += item
    return found


def _grouped(texts: Iterable[str], place: int) -> dict[str, tuple[str, ...]]:
    """The texts by their letter at `place`."""
    found: dict[str, list[str]] = {}
    for text in texts:
        found.setdefault(text[place], []).append(text)
    return {letter: tuple(own) for letter, own in found.items()}


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Matches any of the texts, longest first; nothing when there are none."""
    ordered = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) or r"(?!)")
