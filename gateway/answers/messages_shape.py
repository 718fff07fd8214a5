"""An answer in the format of Anthropic's Messages API: one `message` object, or a stream of named events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import UNSET

from gateway.answers.messages_parts import BlockWriter, blocks_of
from gateway.api.chat_wire import encode
from gateway.api.dialects import anthropic_error
from gateway.api.messages_wire import (
    SERVICE_TIERS,
    AnswerBlock,
    BlockDelta,
    BlockStart,
    BlockStop,
    Ending,
    Event,
    MessageAnswer,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessagesUsage,
    OutputTokensDetails,
    ServedUsage,
    StopReason,
    TextContent,
    TextDelta,
)
from gateway.errors import ApiError
from gateway.generation.answer import Answer, AnswerText, TextPiece, TokenUsage
from gateway.generation.inflight import InFlight
from gateway.tools.parts import Part

PING = b'event: ping\ndata: {"type":"ping"}\n\n'


class MessageShape:
    """Implements `gateway.answers.sse.Shape`, for an answer of one text."""

    keep_alive = PING
    has_logprobs = False

    def __init__(self, request: InFlight) -> None:
        self._request = request
        self._opened = False
        tooling = request.asked.tooling
        self._thinking = tooling is None or tooling.reasoning.shown
        self._blocks = BlockWriter(thinking=self._thinking)  # of an answer in parts
        # JSON escapes the quotation marks inside strings, so these bytes occur once in the event.
        mark = b'"text":""'
        event = _event(BlockDelta(TextDelta("")))
        at = event.index(mark) + len(mark) - 2
        self._before, self._after = event[:at], event[at + 2 :]

    def render_body(self, answer: Answer) -> bytes:
        assert answer.usage is not None
        [piece] = answer.take_all()
        [text] = answer.texts
        content: list[AnswerBlock] = [TextContent(text=piece.text)]
        if piece.parts is not None:
            content = blocks_of(piece.parts, thinking=self._thinking)
        return encode(self._message(content, self._usage(answer.usage), text))

    def whole_parts(self, answer: Answer) -> Iterator[bytes]:
        yield self.render_body(answer)

    def piece_parts(self, piece: TextPiece) -> Iterator[bytes]:
        yield self.piece(piece)

    def opening(self) -> bytes:
        """`message_start`, with all prompt tokens as `input_tokens`. The closing event subtracts the cached ones."""
        usage = MessagesUsage(input_tokens=self._request.prompt_tokens, output_tokens=0)
        return _event(MessageStart(self._message([], usage, None)))

    def piece(self, piece: TextPiece) -> bytes:
        if piece.parts is not None:
            return self._events(piece.parts)
        events = self._open()
        if piece.text:
            events += self._before + encode(piece.text) + self._after
        return events

    def _events(self, parts: Sequence[Part]) -> bytes:
        events = [_event(event) for part in parts for event in self._blocks.events(part)]
        if events and not self._opened:
            self._opened = True
            events.insert(1, PING)
        return b"".join(events)

    def closing(self, answer: Answer) -> bytes:
        assert answer.usage is not None
        [text] = answer.texts
        ending = MessageDelta(Ending(_stop_reason(text), text.matched), self._usage(answer.usage))
        if self._request.plan.answer.syntax is None:
            blocks = self._open() + _event(BlockStop())
        else:
            blocks = b"".join([_event(event) for event in self._blocks.closing()])
        return blocks + _event(ending) + _event(MessageStop())

    def failure(self, error: ApiError) -> bytes:
        return b"event: error\ndata: " + anthropic_error(error, self._request.request_id) + b"\n\n"

    def _open(self) -> bytes:
        """`content_block_start` and a ping, once; b"" afterwards."""
        if self._opened:
            return b""
        self._opened = True
        return _event(BlockStart(TextContent(text=""))) + PING

    def _usage(self, usage: TokenUsage) -> MessagesUsage:
        syntax = self._request.plan.answer.syntax
        reasons = syntax is not None and syntax.reasoning is not None
        return MessagesUsage(
            input_tokens=usage.prompt - usage.cached,
            cache_read_input_tokens=usage.cached,
            output_tokens=usage.completion,
            output_tokens_details=OutputTokensDetails(usage.reasoning) if reasons else UNSET,
        )

    def _message(self, content: list[AnswerBlock], usage: MessagesUsage, text: AnswerText | None) -> MessageAnswer:
        request = self._request
        return MessageAnswer(
            id="msg_" + request.request_id.removeprefix("req_"),
            model=request.target.name,
            content=content,
            stop_reason=None if text is None else _stop_reason(text),
            stop_sequence=None if text is None else text.matched,
            usage=ServedUsage(
                input_tokens=usage.input_tokens,
                cache_read_input_tokens=usage.cache_read_input_tokens,
                output_tokens=usage.output_tokens,
                output_tokens_details=usage.output_tokens_details,
                service_tier=SERVICE_TIERS.get(request.service_tier, request.service_tier),
            ),
        )


def _stop_reason(text: AnswerText) -> StopReason:
    if text.matched is not None:
        return "stop_sequence"
    if text.finish_reason == "tool_calls":
        return "tool_use"
    return "max_tokens" if text.finish_reason == "length" else "end_turn"


def _event(event: Event) -> bytes:
    name = str(type(event).__struct_config__.tag).encode()
    return b"event: " + name + b"\ndata: " + encode(event) + b"\n\n"
