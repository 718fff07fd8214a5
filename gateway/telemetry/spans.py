"""The spans of one request, built after its end from moments and counts that the log line and the books have anyway.

The engine's phases are spans of the gateway's making: each engine reports queue wait and first token of a request with
its ending, so its process needs no trace context, no exporter and no clock in common with the gateway.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import msgspec

from gateway.errors import STATUS_CLIENT_LEFT
from gateway.log import RequestLine, RequestRecord, RequestTimes, TextTimes
from gateway.telemetry import names
from gateway.telemetry.otlp import (
    CLIENT,
    INTERNAL,
    SERVER,
    SPAN_ATTRIBUTE,
    AttributeValue,
    attribute,
    cached_attribute,
    span,
)

TEXTS_MAX = 16  # of a request: further texts have no spans of their own
_SECOND = 1_000_000_000  # in nanoseconds


class FinishedRequest(msgspec.Struct, frozen=True):
    """A recorded request. Its line no longer changes. `ended_ns`: Unix time."""

    line: RequestLine
    trace_id: bytes
    parent_id: bytes | None
    ended_ns: int


class SpanWriter:
    """The encoded spans of one request, all in one trace."""

    def __init__(self, request: FinishedRequest) -> None:
        self.spans: list[bytes] = []
        self._trace_id = request.trace_id
        self._began_ns = request.ended_ns - round((request.line.record.total_s or 0.0) * _SECOND)

    def add_span(
        self,
        name: str,
        kind: int,
        parent_id: bytes | None,
        began_s: float,
        ended_s: float,
        attributes: Sequence[bytes] = (),
        *,
        remote_parent: bool = False,
        failed: bool = False,
    ) -> bytes:
        """`began_s`, `ended_s`: from the request's arrival. Returns the span's id."""
        span_id = random.randbytes(8)
        began_ns = self._began_ns + round(began_s * _SECOND)
        ended_ns = self._began_ns + round(ended_s * _SECOND)
        self.spans.append(
            span(
                name, kind, self._trace_id, span_id, parent_id, began_ns, ended_ns, attributes,
                remote_parent=remote_parent, failed=failed,
            )
        )  # fmt: skip
        return span_id


def spans_of(request: FinishedRequest) -> list[bytes]:
    """As fields of a ScopeSpans. Takes some 50 µs."""
    record, times = request.line.record, request.line.times
    writer = SpanWriter(request)
    total_s = record.total_s or 0.0
    failed = _has_failed(record)
    root = writer.add_span(
        f"{record.method} {record.route}", SERVER, request.parent_id, 0.0, total_s, list(_root_attributes(record)),
        remote_parent=request.parent_id is not None, failed=failed,
    )  # fmt: skip
    if times.hold_began_s is not None and times.hold_ended_s is not None:
        writer.add_span(names.HOLD_SPAN, INTERNAL, root, times.hold_began_s, times.hold_ended_s)
    if times.texts:
        _add_generation(writer, root, record, times, failed)
    if times.settle_began_s is not None and times.settle_ended_s is not None:
        writer.add_span(names.SETTLE_SPAN, INTERNAL, root, times.settle_began_s, times.settle_ended_s)
    return writer.spans


def _has_failed(record: RequestRecord) -> bool:
    """Whether the server failed: a refusal (4xx) is no failure of it, and neither is a client that left."""
    if record.status >= 500:
        return True
    return record.code is not None and record.status < 400 and record.status != STATUS_CLIENT_LEFT


def _add_generation(writer: SpanWriter, root: bytes, record: RequestRecord, times: RequestTimes, failed: bool) -> None:
    operation, texts = times.operation, times.texts
    parent = writer.add_span(
        f"{operation} {record.model}", CLIENT, root,
        min([text.submitted_s for text in texts]), max([text.ended_s for text in texts]),
        list(_generation_attributes(record, operation, texts)), failed=failed,
    )  # fmt: skip
    for index, text in enumerate(texts[:TEXTS_MAX]):
        labels = [attribute(SPAN_ATTRIBUTE, names.TEXT_INDEX, index)] if len(texts) > 1 else []
        _add_phases(writer, parent, text, labels)


def _add_phases(writer: SpanWriter, parent: bytes, text: TextTimes, labels: list[bytes]) -> None:
    """What the engine did. Its arrival there is taken for the moment of its submission; the two differ by the way of
    one frame."""
    if text.queue_s is None:
        return
    began_s, ended_s = text.submitted_s, text.ended_s
    running_s = min(began_s + text.queue_s, ended_s)
    first_s = ended_s if text.ttft_s is None else min(began_s + text.ttft_s, ended_s)
    writer.add_span(names.QUEUE_SPAN, INTERNAL, parent, began_s, running_s, labels)
    if running_s < ended_s:
        writer.add_span(names.PREFILL_SPAN, INTERNAL, parent, running_s, max(running_s, first_s), labels)
    if text.ttft_s is not None:
        counts = {names.PREEMPTIONS: text.preemptions, names.RECOMPUTED_TOKENS: text.recomputed_tokens}
        counted = [attribute(SPAN_ATTRIBUTE, name, count) for name, count in counts.items() if count]
        writer.add_span(names.DECODE_SPAN, INTERNAL, parent, max(running_s, first_s), ended_s, labels + counted)


def _root_attributes(record: RequestRecord) -> Iterator[bytes]:
    """None of them has text of the caller: names are the operator's, ids and words are Laneway's own."""
    yield from _shared({
        names.HTTP_REQUEST_METHOD: record.method,
        names.HTTP_ROUTE: record.route,
        names.TENANT_ID: record.tenant,
        names.KEY_ID: record.key,
        names.TIER: record.tier,
        names.ENDING: record.ending,
        names.ERROR_TYPE: record.code,
    })  # fmt: skip
    yield from _own({
        names.HTTP_RESPONSE_STATUS_CODE: record.status,
        names.REQUEST_ID: record.request_id,
        names.REPLAY_OF: record.replay_of or None,
        names.COST_PICOS: record.cost_picos or None,
    })  # fmt: skip


def _generation_attributes(record: RequestRecord, operation: str, texts: Sequence[TextTimes]) -> Iterator[bytes]:
    yield from _shared({
        names.OPERATION_NAME: operation,
        names.PROVIDER_NAME: names.PROVIDER,
        names.REQUEST_MODEL: record.asked or record.model,
        names.RESPONSE_MODEL: record.model,
        names.ADAPTER_ID: record.adapter,
        names.TIER: record.tier,
    })  # fmt: skip
    yield from _own({
        names.RESPONSE_ID: record.request_id,
        names.INPUT_TOKENS: record.prompt_tokens,
        names.CACHED_TOKENS: record.cached_tokens or None,
        names.OUTPUT_TOKENS: record.completion_tokens,
        names.FINISH_REASONS: [text.finish_reason or "error" for text in texts[:TEXTS_MAX]],
        names.ENGINE_EPOCHS: list(dict.fromkeys([epoch for text in texts for epoch in text.epochs])),
        names.DEVICE_S: sum([text.device_s for text in texts]),
        names.PREEMPTIONS: sum([text.preemptions for text in texts]) or None,
        names.RECOMPUTED_TOKENS: sum([text.recomputed_tokens for text in texts]) or None,
        names.DISCARDED_TOKENS: record.discarded_tokens or None,
        names.TEXTS: len(texts) if len(texts) > 1 else None,
        names.FALLBACKS: record.fallbacks or None,
        names.STREAM: record.stream or None,
        names.GUIDED: record.guided or None,
    })  # fmt: skip


def _shared(values: dict[str, str | None]) -> Iterator[bytes]:
    """Attributes that many requests have with the same value."""
    for name, value in values.items():
        if value is not None:
            yield cached_attribute(SPAN_ATTRIBUTE, name, value)


def _own(values: dict[str, AttributeValue | None]) -> Iterator[bytes]:
    for name, value in values.items():
        if value is not None:
            yield attribute(SPAN_ATTRIBUTE, name, value)
