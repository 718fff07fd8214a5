"""The input of a custom tool: one text, which the model writes as the only argument of a call."""

from __future__ import annotations

import json
import re

from gateway.tools.definitions import CUSTOM_ARGUMENT

HEAD_CHARS_MAX = 128
_HEAD = re.compile(r'\s*\{\s*"' + CUSTOM_ARGUMENT + r'"\s*:\s*"')
# The pieces of a JSON string. A surrogate pair is one character.
_TOKEN = re.compile(
    r'[^"\\]+|"|\\["\\/bfnrt]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_ESCAPE_CHARS_MAX = 12


class InputReader:
    """Makes the text of the argument from the JSON of the arguments, as it arrives. Arguments of another form are
    passed on as they are."""

    __slots__ = ("_done", "_held", "_inside", "_verbatim")

    def __init__(self) -> None:
        self._held = ""
        self._inside = False
        self._verbatim = False
        self._done = False

    def push_text(self, text: str, *, last: bool = False) -> str:
        """The new text of the input. `last`: no more arrives."""
        if self._done:
            return ""
        self._held += text
        if not self._inside and not self._verbatim:
            head = _HEAD.match(self._held)
            if head is not None and head.end() <= HEAD_CHARS_MAX:
                self._inside = True
                self._held = self._held[head.end() :]
            elif last or head is not None or len(self._held) > HEAD_CHARS_MAX:
                self._verbatim = True
        if self._inside:
            return self._take_string(last=last)
        if not self._verbatim:
            return ""
        shown, self._held = self._held, ""
        return shown

    def _take_string(self, *, last: bool) -> str:
        text, at = self._held, 0
        shown: list[str] = []
        while at < len(text):
            token = _TOKEN.match(text, at)
            if token is None:
                if not last and len(text) - at < _ESCAPE_CHARS_MAX:
                    break
                shown.append(text[at])  # no JSON: copied unchanged
                at += 1
                continue
            at = token.end()
            if token.group() == '"':
                self._done = True
                break
            piece = token.group()
            shown.append(json.loads(f'"{piece}"') if piece[0] == "\\" else piece)
        self._held = "" if self._done else text[at:]
        return "".join(shown)
