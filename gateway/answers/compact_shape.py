"""The answer of `/v1/responses/compact`: the user's messages, and the model's summary, encrypted."""

from __future__ import annotations

import time
from collections.abc import Iterator

from gateway.answers.responses_shape import KEEP_ALIVE, usage_data
from gateway.errors import ApiError, encode
from gateway.generation.answer import Answer, TextPiece
from gateway.generation.inflight import InFlight
from gateway.tools.parts import ContentDelta
from gateway.tools.sealed_reasoning import SUMMARY


class CompactShape:
    """Implements `gateway.answers.sse.Shape`. It is never streamed."""

    keep_alive = KEEP_ALIVE
    has_logprobs = False

    def __init__(self, request: InFlight) -> None:
        self._request = request
        self._created = time.time()

    def render_body(self, answer: Answer) -> bytes:
        [piece] = answer.take_all()
        keys, number = self._request.reasoning_keys, self._request.request_id.removeprefix("req_")
        assert keys is not None
        assert answer.usage is not None
        summary = {"id": f"cmp_{number}", "type": "compaction", "encrypted_content": keys.seal(_text(piece), SUMMARY)}
        members = {
            "id": f"resp_{number}",
            "object": "response.compaction",
            "created_at": self._created,
            "usage": usage_data(answer.usage),
        }
        kept = self._request.asked.repeated
        output = b",".join([part for part in (kept, encode(summary)) if part])
        return encode(members)[:-1] + b',"output":[' + output + b"]}"

    def whole_parts(self, answer: Answer) -> Iterator[bytes]:
        yield self.render_body(answer)

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


def _text(piece: TextPiece) -> str:
    """Without the model's reasoning."""
    if piece.parts is None:
        return piece.text
    return "".join([part.text for part in piece.parts if isinstance(part, ContentDelta)])
