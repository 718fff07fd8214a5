"""A legacy completion as OpenAI says it: one object, or chunks of the same kind. It must never know how it is made."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from msgspec import UNSET, UnsetType

from engine.text.tokenizer import Tokenizer
from gateway.answers.chat_shape import DONE, KEEP_ALIVE, usage_of
from gateway.api import chat_wire
from gateway.api.completions_wire import Completion, CompletionChoice, CompletionLogprobs
from gateway.errors import ApiError
from gateway.generation.answer import Answer, TextPiece
from gateway.generation.inflight import InFlight
from gateway.generation.logprobs import filled, legacy_logprobs
from gateway.generation.text import DrawnIds

NO_LOGPROBS = CompletionLogprobs([], [], [], [])
MARK = b'"logprobs":' + chat_wire.encode(NO_LOGPROBS)


class CompletionShape:
    """Implements `gateway.answers.sse.Shape`. What is the same in every chunk of a text is encoded once."""

    keep_alive = KEEP_ALIVE

    def __init__(self, work: InFlight, include_usage: bool) -> None:
        self._work = work
        self._id = "cmpl-" + work.request_id.removeprefix("req_")
        self._created = int(time.time())
        self._usage: UnsetType | None = None if include_usage else UNSET  # of a chunk with text
        self.reports = work.sampling.logprobs >= 0
        self._frames: dict[int, tuple[bytes, bytes]] = {}  # by text: what stands before and after a chunk's text

    def render_body(self, answer: Answer) -> bytes:
        return self._whole(answer, answer.take_all())

    def whole_parts(self, answer: Answer) -> Iterator[bytes]:
        pieces = answer.take_all()
        tokenizer = self._work.model.tokenizer
        fillings = [_filling(tokenizer, piece) for piece in pieces] if self.reports else []
        return filled(self._whole(answer, pieces), MARK, fillings)

    def _whole(self, answer: Answer, pieces: Sequence[TextPiece]) -> bytes:
        """The body with MARK in place of each choice's logprobs."""
        assert answer.usage is not None
        choices = [
            CompletionChoice(
                index=piece.index,
                text=piece.text,
                logprobs=NO_LOGPROBS if self.reports else None,
                finish_reason=answer.texts[piece.index].finish_reason,
            )
            for piece in pieces
        ]
        return chat_wire.encode(self._completion(choices, usage_of(answer.usage)))

    def opening(self) -> bytes:
        return b""

    def piece(self, piece: TextPiece) -> bytes:
        if not piece.text:
            return b""
        before, after = self._frames.get(piece.index) or self._frame(piece.index)
        return before + chat_wire.encode(piece.text) + after

    def piece_parts(self, piece: TextPiece) -> Iterator[bytes]:
        if not piece.drawn:
            yield self.piece(piece)
            return
        choice = CompletionChoice(index=piece.index, text=piece.text, logprobs=NO_LOGPROBS, finish_reason=None)
        chunk = self._event([choice], self._usage)
        yield from filled(chunk, MARK, [_filling(self._work.model.tokenizer, piece)])

    def closing(self, answer: Answer) -> bytes:
        said = b""
        for text in answer.texts:
            choice = CompletionChoice(index=text.index, text="", finish_reason=text.finish_reason)
            said += self._event([choice], self._usage)
        if self._usage is None:
            assert answer.usage is not None
            said += self._event([], usage_of(answer.usage))
        return said + DONE

    def failure(self, error: ApiError) -> bytes:
        return b"data: " + error.body() + b"\n\n"

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        # An encoded string has its quotes escaped, so this mark stands once.
        mark = b'"text":""'
        chunk = self._event([CompletionChoice(index=index, text="", finish_reason=None)], self._usage)
        at = chunk.index(mark) + len(mark) - 2
        frame = self._frames[index] = chunk[:at], chunk[at + 2 :]
        return frame

    def _event(self, choices: list[CompletionChoice], usage: chat_wire.Usage | UnsetType | None) -> bytes:
        return b"data: " + chat_wire.encode(self._completion(choices, usage)) + b"\n\n"

    def _completion(self, choices: list[CompletionChoice], usage: chat_wire.Usage | UnsetType | None) -> Completion:
        work = self._work
        return Completion(
            id=self._id,
            created=self._created,
            model=work.target.name,
            service_tier=work.service_tier,
            system_fingerprint=work.fingerprint,
            choices=choices,
            usage=usage,
        )


def _filling(tokenizer: Tokenizer, piece: TextPiece) -> Iterator[bytes]:
    """The JSON that replaces MARK."""
    yield b'"logprobs":'
    yield from legacy_logprobs(tokenizer, piece.drawn or DrawnIds())
