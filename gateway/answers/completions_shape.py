"""An answer in OpenAI's legacy completions format: one `text_completion` object, or a stream of such objects."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from msgspec import UNSET, UnsetType

from gateway.answers.chat_shape import DONE, KEEP_ALIVE, usage_of
from gateway.api import chat_wire
from gateway.api.completions_wire import Completion, CompletionChoice, CompletionLogprobs
from gateway.errors import ApiError
from gateway.generation.answer import Answer, AnswerText, TextPiece
from gateway.generation.inflight import InFlight
from gateway.generation.logprobs import filled, legacy_logprobs, prompt_logprobs
from gateway.generation.text import DrawnIds

NO_LOGPROBS = CompletionLogprobs([], [], [], [])
MARK = b'"logprobs":' + chat_wire.encode(NO_LOGPROBS)


class CompletionShape:
    """Implements `gateway.answers.sse.Shape`. The bytes around the text of a choice's chunks are encoded once."""

    keep_alive = KEEP_ALIVE

    def __init__(self, request: InFlight, include_usage: bool) -> None:
        self._request = request
        self._id = "cmpl-" + request.request_id.removeprefix("req_")
        self._created = int(time.time())
        self._usage: UnsetType | None = None if include_usage else UNSET  # of a chunk with text: null, or no field
        self.has_logprobs = request.sampling.logprobs >= 0 or request.asked.prompt_logprobs is not None
        self._frames: dict[int, tuple[bytes, bytes]] = {}  # by text: a chunk's bytes before and after its text

    def render_body(self, answer: Answer) -> bytes:
        return self._whole(answer, answer.take_all())

    def whole_parts(self, answer: Answer) -> Iterator[bytes]:
        pieces = answer.take_all()
        fillings = [self._filling(piece, answer.texts[piece.index]) for piece in pieces] if self.has_logprobs else []
        return filled(self._whole(answer, pieces), MARK, fillings)

    def _whole(self, answer: Answer, pieces: Sequence[TextPiece]) -> bytes:
        """The body with MARK in place of each choice's logprobs."""
        assert answer.usage is not None
        choices = [
            CompletionChoice(
                index=piece.index,
                text=piece.text,
                logprobs=NO_LOGPROBS if self.has_logprobs else None,
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
        yield from filled(chunk, MARK, [self._filling(piece)])

    def closing(self, answer: Answer) -> bytes:
        chunks = b""
        for text in answer.texts:
            choice = CompletionChoice(index=text.index, text="", finish_reason=text.finish_reason)
            chunks += self._event([choice], self._usage)
        if self._usage is None:
            assert answer.usage is not None
            chunks += self._event([], usage_of(answer.usage))
        return chunks + DONE

    def failure(self, error: ApiError) -> bytes:
        return b"data: " + error.body() + b"\n\n"

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        # JSON escapes the quotation marks inside strings, so these bytes occur once in the chunk.
        mark = b'"text":""'
        chunk = self._event([CompletionChoice(index=index, text="", finish_reason=None)], self._usage)
        at = chunk.index(mark) + len(mark) - 2
        frame = self._frames[index] = chunk[:at], chunk[at + 2 :]
        return frame

    def _event(self, choices: list[CompletionChoice], usage: chat_wire.Usage | UnsetType | None) -> bytes:
        return b"data: " + chat_wire.encode(self._completion(choices, usage)) + b"\n\n"

    def _completion(self, choices: list[CompletionChoice], usage: chat_wire.Usage | UnsetType | None) -> Completion:
        request = self._request
        return Completion(
            id=self._id,
            created=self._created,
            model=request.target.name,
            service_tier=request.service_tier,
            system_fingerprint=request.fingerprint,
            choices=choices,
            usage=usage,
        )

    def _filling(self, piece: TextPiece, text: AnswerText | None = None) -> Iterator[bytes]:
        """The JSON of one choice's logprobs, in parts: it replaces MARK. `text`: of a whole answer, which may have
        `prompt_logprobs`."""
        request = self._request
        yield b'"logprobs":'
        if request.sampling.logprobs >= 0:
            yield from legacy_logprobs(request.model.tokenizer, piece.drawn or DrawnIds())
        else:
            yield b"null"
        if text is not None and text.prompt is not None and request.asked.prompt_logprobs is not None:
            yield b',"prompt_logprobs":'
            yield from prompt_logprobs(request.model.tokenizer, text.prompt)
