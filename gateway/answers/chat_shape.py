"""An answer in OpenAI's chat-completions format: one `chat.completion` object, or a stream of chunks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from msgspec import UNSET

from engine.text.tokenizer import Tokenizer
from gateway.answers.chat_parts import DeltaWriter, message_of
from gateway.api import chat_wire
from gateway.errors import ApiError
from gateway.generation.answer import Answer, FinishReason, TextPiece, TokenUsage
from gateway.generation.inflight import InFlight
from gateway.generation.logprobs import chat_tokens, filled, prompt_logprobs
from gateway.tools.parts import Part

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
NO_LOGPROBS = chat_wire.ChoiceLogprobs(content=[])
MARK = b'"content":[]'  # the JSON of NO_LOGPROBS
PROMPT_MARK = b'"prompt_logprobs":[]'  # of a body's last field


class ChatShape:
    """Implements `gateway.answers.sse.Shape`. The bytes around the content of a text's chunks are encoded once."""

    keep_alive = KEEP_ALIVE

    def __init__(self, request: InFlight, include_usage: bool) -> None:
        self._request = request
        self._id = "chatcmpl-" + request.request_id.removeprefix("req_")
        self._created = int(time.time())
        self._include_usage = include_usage
        self._of_tokens = request.sampling.logprobs >= 0
        self._of_prompt = request.asked.prompt_logprobs is not None
        self.has_logprobs = self._of_tokens or self._of_prompt
        tooling = request.asked.tooling
        self._reasoning = tooling is None or tooling.reasoning.shown
        self._writers: dict[int, DeltaWriter] = {}  # by text in parts
        self._frames: dict[int, tuple[bytes, bytes]] = {}  # by text: a chunk's bytes before and after its content

    # ---- whole

    def render_body(self, answer: Answer) -> bytes:
        return self._whole(answer, answer.take_all())

    def whole_parts(self, answer: Answer) -> Iterator[bytes]:
        pieces = answer.take_all()
        tokenizer = self._request.model.tokenizer
        fillings = [_filling(tokenizer, piece) for piece in pieces] if self._of_tokens else []
        body, *rest = self._whole(answer, pieces).split(PROMPT_MARK)
        yield from filled(body, MARK, fillings)
        report = answer.texts[0].prompt
        for after in rest:
            assert report is not None, "an answer without an error has all of its prompt"
            yield b'"prompt_logprobs":'
            yield from prompt_logprobs(tokenizer, report)
            yield after

    def _whole(self, answer: Answer, pieces: Sequence[TextPiece]) -> bytes:
        """The body with MARK in place of each choice's logprobs, and PROMPT_MARK of the prompt's."""
        request = self._request
        assert answer.usage is not None
        return chat_wire.encode(
            chat_wire.ChatCompletion(
                id=self._id,
                created=self._created,
                model=request.target.name,
                service_tier=request.service_tier,
                system_fingerprint=request.fingerprint,
                choices=[self._choice(answer, piece) for piece in pieces],
                usage=usage_of(answer.usage),
                prompt_logprobs=[] if self._of_prompt else UNSET,
            )
        )

    def _choice(self, answer: Answer, piece: TextPiece) -> chat_wire.Choice:
        reason = answer.texts[piece.index].finish_reason
        assert reason is not None
        return chat_wire.Choice(
            index=piece.index,
            message=self._message(piece),
            logprobs=NO_LOGPROBS if self._of_tokens else None,
            finish_reason=reason,
        )

    def _message(self, piece: TextPiece) -> chat_wire.AnswerMessage:
        if piece.parts is None:
            return chat_wire.AnswerMessage(content=piece.text)
        return message_of(piece.parts, reasoning=self._reasoning)

    # ---- streamed

    def opening(self) -> bytes:
        return b""

    def piece(self, piece: TextPiece) -> bytes:
        if piece.parts is not None:
            return self._parts(piece, piece.parts)
        chunks = b""
        if piece.first:
            chunks = self._chunk(piece.index, chat_wire.Delta(role="assistant", content=""))
        if piece.text:
            before, after = self._frames.get(piece.index) or self._frame(piece.index)
            chunks += before + chat_wire.encode(piece.text) + after
        return chunks

    def piece_parts(self, piece: TextPiece) -> Iterator[bytes]:
        if piece.parts is not None:
            yield self._parts(piece, piece.parts)
        elif not piece.drawn:
            yield self.piece(piece)
            return
        if piece.first and piece.parts is None:
            yield self._chunk(piece.index, chat_wire.Delta(role="assistant", content=""))
        if not piece.drawn:
            return
        # The log probabilities of parts follow them in a separate chunk.
        delta = chat_wire.Delta(content=piece.text) if piece.parts is None else chat_wire.Delta()
        chunk = self._chunk(piece.index, delta, logprobs=NO_LOGPROBS)
        yield from filled(chunk, MARK, [_filling(self._request.model.tokenizer, piece)])

    def _parts(self, piece: TextPiece, parts: Sequence[Part]) -> bytes:
        chunks = [self._chunk(piece.index, chat_wire.Delta(role="assistant"))] if piece.first else []
        writer = self._writers.setdefault(piece.index, DeltaWriter(reasoning=self._reasoning))
        for part in parts:
            delta = writer.delta(part)
            if delta is not None:
                chunks.append(self._chunk(piece.index, delta))
        return b"".join(chunks)

    def closing(self, answer: Answer) -> bytes:
        chunks = [self._chunk(text.index, chat_wire.Delta(), text.finish_reason) for text in answer.texts]
        if self._include_usage:
            assert answer.usage is not None
            chunks.append(self._event([], usage_of(answer.usage)))
        return b"".join(chunks) + DONE

    def failure(self, error: ApiError) -> bytes:
        return b"data: " + error.body() + b"\n\n"

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        # JSON escapes the quotation marks inside strings, so these bytes occur once in the chunk.
        mark = b'"content":""'
        chunk = self._chunk(index, chat_wire.Delta(content=""))
        at = chunk.index(mark) + len(mark) - 2
        frame = self._frames[index] = chunk[:at], chunk[at + 2 :]
        return frame

    def _chunk(
        self,
        index: int,
        delta: chat_wire.Delta,
        reason: FinishReason | None = None,
        logprobs: chat_wire.ChoiceLogprobs | None = None,
    ) -> bytes:
        choice = chat_wire.ChunkChoice(index=index, delta=delta, logprobs=logprobs, finish_reason=reason)
        return self._event([choice], None)

    def _event(self, choices: list[chat_wire.ChunkChoice], usage: chat_wire.Usage | None) -> bytes:
        request = self._request
        chunk = chat_wire.ChatCompletionChunk(
            id=self._id,
            created=self._created,
            model=request.target.name,
            service_tier=request.service_tier,
            system_fingerprint=request.fingerprint,
            choices=choices,
            usage=usage if self._include_usage else UNSET,
        )
        return b"data: " + chat_wire.encode(chunk) + b"\n\n"


def usage_of(usage: TokenUsage) -> chat_wire.Usage:
    """The `usage` object of chat completions and of legacy completions."""
    details = chat_wire.PromptTokensDetails(cached_tokens=usage.cached)
    made = chat_wire.CompletionTokensDetails(reasoning_tokens=usage.reasoning)
    return chat_wire.Usage(usage.prompt, usage.completion, usage.prompt + usage.completion, details, made)


def _filling(tokenizer: Tokenizer, piece: TextPiece) -> Iterator[bytes]:
    """The JSON of one choice's logprobs, in parts: it replaces MARK."""
    yield b'"content":['
    if piece.drawn:
        yield from chat_tokens(tokenizer, piece.drawn)
    yield b"]"
