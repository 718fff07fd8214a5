"""The answer of `/v1/responses/compact`: the user's messages, and the model's summary, encrypted."""

from __future__ import annotations

import time
from collections.abc import Iterator

from gateway.answers.responses_shape import usage_data
from gateway.answers.whole_shape import WholeShape
from gateway.errors import encode
from gateway.generation.answer import Answer, TextPiece
from gateway.generation.inflight import InFlight
from gateway.tools.parts import ContentDelta
from gateway.tools.sealed_reasoning import SUMMARY


class CompactShape(WholeShape):
    """Implements `gateway.answers.sse.Shape`."""

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


def _text(piece: TextPiece) -> str:
    """The piece's text without the model's reasoning."""
    if piece.parts is None:
        return piece.text
    return "".join([part.text for part in piece.parts if isinstance(part, ContentDelta)])
