"""An answer in the format of OpenAI's Responses API: one `response` object, or a stream of events that builds it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from billing.ledger.checkpoints import Checkpoint
from gateway.answers.responses_parts import Data, ItemWriter
from gateway.errors import ApiError, BudgetExceeded, QuotaExceeded, ResponseCancelled, encode
from gateway.generation.answer import Answer, TextPiece, TokenUsage
from gateway.generation.inflight import InFlight
from gateway.tools.parts import ContentDelta, Part

KEEP_ALIVE = b": keep-alive\n\n"
MAX_TOKENS = "max_output_tokens"


class ResponseShape:
    """Implements `gateway.answers.sse.Shape`, for an answer of one text."""

    keep_alive = KEEP_ALIVE
    has_logprobs = False

    def __init__(self, request: InFlight) -> None:
        self._request = request
        self._created = time.time()
        self.response = b""  # the last response object that was encoded; it ends with whether it is stored
        self._number = -1  # of the last event
        tooling = request.asked.tooling
        assert tooling is not None
        self._writer = ItemWriter(
            request.request_id.removeprefix("req_"),
            {tool.name: tool for tool in tooling.tools},
            reasoning=tooling.reasoning.shown,
            summarized=tooling.reasoning.summarized,
            seal=None if request.reasoning_keys is None else self._seal,
        )

    # ---- whole

    def render_body(self, answer: Answer) -> bytes:
        [piece] = answer.take_all()
        self.piece(piece)
        for _ in self._writer.close(complete=not _is_cut(answer)):
            pass
        return self._response(status_of(answer), answer)

    def whole_parts(self, answer: Answer) -> Iterator[bytes]:
        yield self.render_body(answer)

    # ---- streamed

    def opening(self) -> bytes:
        response = msgspec.Raw(self._response("in_progress"))
        kinds = ("response.created", "response.in_progress")
        return self._events({"type": kind, "response": response} for kind in kinds)

    def piece(self, piece: TextPiece) -> bytes:
        return b"".join([self._encoded(part) for part in _parts(piece)])

    def _encoded(self, part: Part) -> bytes:
        event = self._writer.extend(part)
        if event is None:
            return self._events(self._writer.events(part))
        self._number += 1
        return event + b"%d}\n\n" % self._number

    def piece_parts(self, piece: TextPiece) -> Iterator[bytes]:
        yield self.piece(piece)

    def closing(self, answer: Answer) -> bytes:
        events = self._events(self._writer.close(complete=not _is_cut(answer)))
        status = status_of(answer)
        response = msgspec.Raw(self._response(status, answer))
        return events + self._events([{"type": f"response.{status}", "response": response}])

    def failure(self, error: ApiError, usage: TokenUsage | None = None) -> bytes:
        """The last events of an answer that failed. A response in the background has its output so far, and `usage`.
        The stream of a cancelled response ends with `response.failed` too, since OpenAI's API has no event for it."""
        events = b""
        if self._request.asked.background:
            events = self._events(self._writer.close(complete=False))
        cancelled = isinstance(error, ResponseCancelled)
        response = (
            self._response("cancelled", usage=usage)
            if cancelled
            else self._response("failed", error=error, usage=usage)
        )
        return events + self._events([{"type": "response.failed", "response": msgspec.Raw(response)}])

    # ---- in the background

    @property
    def number(self) -> int:
        """The number of the last event; -1: there is none."""
        return self._number

    def queued(self) -> bytes:
        """The response object before the first event."""
        return self._response("queued")

    def _seal(self, text: str) -> str:
        """Encrypted for the tenant and the model that answers, which is known by now."""
        assert self._request.reasoning_keys is not None
        return self._request.reasoning_keys.seal(text, self._request.plan.digest)

    def _events(self, found: Iterable[Data]) -> bytes:
        events = []
        for data in found:
            self._number += 1
            data["sequence_number"] = self._number
            events.append(b"event: " + data["type"].encode() + b"\ndata: " + encode(data) + b"\n\n")
        return b"".join(events)

    def _response(
        self,
        status: str,
        answer: Answer | None = None,
        error: ApiError | None = None,
        usage: TokenUsage | None = None,
    ) -> bytes:
        request = self._request
        if answer is not None:
            usage = answer.usage
        members: dict[str, Any] = {
            "id": "resp_" + request.request_id.removeprefix("req_"),
            "object": "response",
            "created_at": self._created,
            "status": status,
            "completed_at": None if answer is None else time.time(),
            "error": None if error is None else {"code": error_code(error), "message": error.message},
            "incomplete_details": {"reason": MAX_TOKENS} if status == "incomplete" else None,
            "model": request.target.name,
            "output": self._writer.items,
            "service_tier": request.service_tier,
            "usage": None if usage is None else usage_data(usage),
        }
        stored = b"true" if request.stores else b"false"
        self.response = encode(members)[:-1] + b"," + request.asked.repeated + b',"store":' + stored + b"}"
        return self.response


def _parts(piece: TextPiece) -> Sequence[Part]:
    if piece.parts is not None:
        return piece.parts
    return [ContentDelta(piece.text)] if piece.text else []


def _is_cut(answer: Answer) -> bool:
    """Whether its length ended the answer."""
    return answer.texts[0].finish_reason == "length"


def status_of(answer: Answer, error: ApiError | None = None) -> str:
    """The status of a response whose answer has ended, with `error` if it failed."""
    if error is not None:
        return "cancelled" if isinstance(error, ResponseCancelled) else "failed"
    return "incomplete" if _is_cut(answer) else "completed"


def usage_data(usage: TokenUsage) -> Data:
    """The `usage` of a response object."""
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }


def usage_of_checkpoint(checkpoint: Checkpoint) -> Data:
    """The `usage` of a response whose gateway was lost. Its reasoning tokens are not known."""
    return usage_data(TokenUsage(checkpoint.prompt_tokens, checkpoint.cached_tokens, checkpoint.completion_tokens))


def error_code(error: ApiError) -> str:
    """One of the codes of a failed response, or the error's own. Codex reads the code, not the type."""
    if isinstance(error, BudgetExceeded | QuotaExceeded):
        return error.type
    return error.code or ("server_error" if error.status >= 500 else "invalid_prompt")
