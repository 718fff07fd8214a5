"""Encodes log probabilities as JSON in parts: an answer may have 131,072 alternatives, too many for one turn of the
event loop.

A part has at most PART_TOKENS tokens. All answers together encode one part per turn of the loop.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from engine.protocol.frames import Logprobs
from engine.text.tokenizer import Tokenizer
from gateway.generation.text import DrawnIds, PromptReport, Vocabulary

PART_TOKENS = 32  # with 20 alternatives each, half a millisecond and 60 KB
KNOWN_MAX = 2**16  # ids per tokenizer and format whose JSON is cached

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode
_known: weakref.WeakKeyDictionary[Vocabulary, tuple[dict[int, tuple[bytes, bytes]], dict[int, bytes]]] = (
    weakref.WeakKeyDictionary()
)
_turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()


async def piecewise(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the parts; each is made in its own turn of the loop, among all answers."""
    loop = asyncio.get_running_loop()
    turn = _turns.get(loop)
    if turn is None:
        turn = _turns[loop] = asyncio.Lock()
    while True:
        async with turn:
            part = next(parts, None)
            await asyncio.sleep(0)
        if part is None:
            return
        yield part


def filled(skeleton: bytes, mark: bytes, fillings: Sequence[Iterator[bytes]]) -> Iterator[bytes]:
    """The skeleton with each `mark` replaced by one of the fillings, in order. A mark contains a quotation mark, so no
    string in the JSON can contain it."""
    between = skeleton.split(mark)
    assert len(between) == len(fillings) + 1
    yield between[0]
    for filling, after in zip(fillings, between[1:], strict=True):
        yield from filling
        yield after


def chat_tokens(tokenizer: Tokenizer, drawn: DrawnIds) -> Iterator[bytes]:
    """The items of `logprobs.content`, with the commas between them."""
    vocabulary = drawn.vocabulary or tokenizer
    known = _remembered(vocabulary)[0]

    def alternative(id_: int, logprob: float) -> bytes:
        spelled = known.get(id_)
        if spelled is None:
            data = vocabulary.token_bytes(id_)
            text = b'{"token":' + _encode(data.decode(errors="replace")) + b',"logprob":'
            spelled = _remember(known, id_, (text, b',"bytes":' + _encode(list(data))))
        return spelled[0] + _encode(logprob) + spelled[1]

    def item(_offset: int, logprobs: Logprobs) -> bytes:
        own, *likeliest = [alternative(id_, logprob) for id_, logprob in logprobs]
        return own + b',"top_logprobs":[' + b",".join([one + b"}" for one in likeliest]) + b"]}"

    return _parts(drawn, item)


def legacy_logprobs(tokenizer: Tokenizer, drawn: DrawnIds) -> Iterator[bytes]:
    """The `logprobs` object of a legacy completion: four lists of equal length. A prompt's first token has null."""
    vocabulary = drawn.vocabulary or tokenizer
    known = _remembered(vocabulary)[1]

    def spell(id_: int) -> bytes:
        spelled = known.get(id_)
        if spelled is None:
            spelled = _remember(known, id_, _encode(_legacy_text(vocabulary.token_bytes(id_))))
        return spelled

    def top(_offset: int, logprobs: Logprobs) -> bytes:
        if math.isnan(logprobs[0][1]):
            return b"null"
        # Keyed by text: among alternatives with equal texts the last wins, and the drawn token is put last.
        by_text = {spell(id_): logprob for id_, logprob in [*logprobs[1:], logprobs[0]]}
        return b"{" + b",".join([text + b":" + _encode(logprob) for text, logprob in by_text.items()]) + b"}"

    yield b'{"text_offset":['
    yield from _parts(drawn, lambda offset, _: b"%d" % offset)
    yield b'],"token_logprobs":['
    yield from _parts(drawn, lambda _, logprobs: _encode(logprobs[0][1]))
    yield b'],"tokens":['
    yield from _parts(drawn, lambda _, logprobs: spell(logprobs[0][0]))
    yield b'],"top_logprobs":['
    yield from _parts(drawn, top)
    yield b"]}"


def prompt_logprobs(tokenizer: Tokenizer, report: PromptReport) -> Iterator[bytes]:
    """vLLM's list of a prompt's tokens: null for the first, then by id the log probability, rank and text of the token
    and of the likeliest ids."""

    def alternative(id_: int, logprob: float, rank: int) -> bytes:
        text = _encode(tokenizer.token_bytes(id_).decode(errors="replace"))
        return b'"%d":{"logprob":%b,"rank":%d,"decoded_token":%b}' % (id_, _encode(logprob), rank, text)

    def item(at: int) -> bytes:
        (own, logprob), *likeliest = report.listed.token(at)[1]
        if not at:
            return b"null"
        found = {own: alternative(own, logprob, report.ranks[at])}
        for rank, (id_, value) in enumerate(likeliest, 1):
            found.setdefault(id_, alternative(id_, value, rank))
        return b"{" + b",".join(found.values()) + b"}"

    yield b"["
    yield from _items(len(report.listed), item)
    yield b"]"


def _parts(drawn: DrawnIds, item: Callable[[int, Logprobs], bytes]) -> Iterator[bytes]:
    return _items(len(drawn), lambda at: item(*drawn.token(at)))


def _items(count: int, item: Callable[[int], bytes]) -> Iterator[bytes]:
    for start in range(0, count, PART_TOKENS):
        items = [item(at) for at in range(start, min(start + PART_TOKENS, count))]
        yield (b"," if start else b"") + b",".join(items)


def _legacy_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join([f"\\x{byte:02x}" for byte in data])


def _remembered(vocabulary: Vocabulary) -> tuple[dict[int, tuple[bytes, bytes]], dict[int, bytes]]:
    known = _known.get(vocabulary)
    if known is None:
        known = _known[vocabulary] = {}, {}
    return known


def _remember(known: dict[int, T], id_: int, spelled: T) -> T:
    if len(known) >= KNOWN_MAX:
        known.clear()
    known[id_] = spelled
    return spelled
