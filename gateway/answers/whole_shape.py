"""The base of shapes whose answer is never streamed."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.errors import ApiError
from gateway.generation.answer import Answer, TextPiece


class WholeShape:
    """Implements what `gateway.answers.sse.Shape` has for streams. A subclass renders the whole body."""

    keep_alive = b""

    def opening(self) -> bytes:
        raise NotImplementedError

    def piece(self, piece: TextPiece) -> bytes:
        raise NotImplementedError

    def piece_parts(self, piece: TextPiece) -> Iterator[bytes]:
        raise NotImplementedError

    def closing(self, answer: Answer) -> bytes:
        raise NotImplementedError

    def failure(self, error: ApiError) -> bytes:
        raise NotImplementedError
