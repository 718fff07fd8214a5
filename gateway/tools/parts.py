"""The parts of an answer, in the order in which the model writes them."""

from __future__ import annotations

import msgspec


class ContentDelta(msgspec.Struct, frozen=True, gc=False):
    """Text of the answer."""

    text: str


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False):
    """Text of the reasoning before the answer."""

    text: str


class CallStart(msgspec.Struct, frozen=True, gc=False):
    """A call of the tool `name`. `index` counts the calls of one text from 0."""

    index: int
    id: str
    name: str
    custom: bool = False


class ArgumentsDelta(msgspec.Struct, frozen=True, gc=False):
    """Arguments of the call that was started last, as JSON; of a custom tool, its input as text."""

    index: int
    text: str


class CallEnd(msgspec.Struct, frozen=True, gc=False):
    """The call is over. `complete`: its arguments are whole."""

    index: int
    complete: bool = True


Part = ContentDelta | ReasoningDelta | CallStart | ArgumentsDelta | CallEnd


def join_parts(parts: list[Part]) -> list[Part]:
    """The same parts with consecutive text of one kind (and one call) in one part."""
    whole: list[Part] = []
    texts: list[str] = []

    def close() -> None:
        if len(texts) > 1:
            whole[-1] = msgspec.structs.replace(whole[-1], text="".join(texts))
        texts.clear()

    for part in parts:
        if isinstance(part, ContentDelta | ReasoningDelta | ArgumentsDelta):
            if texts and type(whole[-1]) is type(part):
                texts.append(part.text)
                continue
            close()
            whole.append(part)
            texts.append(part.text)
        else:
            close()
            whole.append(part)
    close()
    return whole
