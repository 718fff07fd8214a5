"""The spans of one request, built after its end from moments and counts that the log line and the books have anyway.

The engine's phases are spans of the gateway's making: each engine reports queue wait and first token of a request with
its ending, so its process needs no trace context, no exporter and no clock in common with the gateway.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping

import msgspec

from gateway.errors import STATUS_CLIENT_LEFT
from gateway.log import RequestLine, RequestRecord, RequestTimes, TextTimes
from gateway.telemetry import names
from gateway.telemetry.otlp import CLIENT, INTERNAL, SERVER, SPAN_ATTRIBUTE, AttributeValue, attribute, span

TEXTS_MAX = 16  # of a request: further texts have no spans
CACHED_MAX = 1024  # encoded groups of attributes
_SECOND = 1_000_000_000  # in nanoseconds


class TracedRequest(msgspec.Struct, frozen=True):
    """A recorded request. Its line no longer changes. `ended_ns`: Unix time."""

    line: RequestLine
    trace_id: bytes
    parent_id: bytes | None
    ended_ns: int


class SpanWriter:
    """The encoded spans of one request, all in one trace."""

    def __init__(self, request: TracedRequest) -> None:
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
        attributes: bytes = b"",
        *,
        remote_parent: bool = False,
        failed: bool = False,
    ) -> bytes:
        """`began_s`, `ended_s`: from the request's arrival. Returns the span's id."""
        span_id, origin = random.randbytes(8), self._began_ns
        began_ns, ended_ns = origin + int(began_s * _SECOND), origin + int(ended_s * _SECOND)
        self.spans.append(
            span(
                name, kind, self._trace_id, span_id, parent_id, began_ns, ended_ns, attributes,
                remote_parent=remote_parent, failed=failed,
            )
        )  # fmt: skip
        return span_id


def spans_of(request: TracedRequest) -> list[bytes]:
    """The spans as fields of a ScopeSpans. Takes some 50 µs."""
    record, times = request.line.record, request.line.times
    writer = SpanWriter(request)
    failed = _has_failed(record)
    root = writer.add_span(
        f"{record.method} {record.route}", SERVER, request.parent_id, 0.0, record.total_s or 0.0,
        _root_attributes(record), remote_parent=request.parent_id is not None, failed=failed,
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
    texts = times.texts
    parent = writer.add_span(
        f"{times.operation} {record.model}", CLIENT, root,
        min([text.submitted_s for text in texts]), max([text.ended_s for text in texts]),
        _generation_attributes(record, times), failed=failed,
    )  # fmt: skip
    for index, text in enumerate(texts[:TEXTS_MAX]):
        _add_phases(writer, parent, text, _attributes({names.TEXT_INDEX: index}) if len(texts) > 1 else b"")


def _add_phases(writer: SpanWriter, parent: bytes, text: TextTimes, label: bytes) -> None:
    """Add the spans of the engine's phases. Its arrival there is taken for the moment of its submission; the two differ
    by the way of one frame."""
    if text.queue_s is None:
        return
    began_s, ended_s = text.submitted_s, text.ended_s
    running_s = min(began_s + text.queue_s, ended_s)
    first_s = ended_s if text.ttft_s is None else max(running_s, min(began_s + text.ttft_s, ended_s))
    writer.add_span(names.QUEUE_SPAN, INTERNAL, parent, began_s, running_s, label)
    if running_s < ended_s:
        writer.add_span(names.PREFILL_SPAN, INTERNAL, parent, running_s, first_s, label)
    if text.ttft_s is not None:
        if text.preemptions:
            counts = {names.PREEMPTIONS: text.preemptions, names.RECOMPUTED_TOKENS: text.recomputed_tokens}
            label += _attributes(counts)
        writer.add_span(names.DECODE_SPAN, INTERNAL, parent, first_s, ended_s, label)


# No attribute has text of the caller: names of models are the operator's, ids and words are Laneway's own.


def _root_attributes(record: RequestRecord) -> bytes:
    shared = _shared_root(
        record.method, record.route, record.status, record.tenant, record.key, record.tier, record.ending, record.code
    )
    own = attribute(SPAN_ATTRIBUTE, names.REQUEST_ID, record.request_id)
    if record.cost_picos:
        own += attribute(SPAN_ATTRIBUTE, names.COST_PICOS, record.cost_picos)
    if record.replay_of is not None:
        own += attribute(SPAN_ATTRIBUTE, names.REPLAY_OF, record.replay_of)
    return shared + own


@functools.lru_cache(CACHED_MAX)
def _shared_root(
    method: str,
    route: str,
    status: int,
    tenant: str | None,
    key: str | None,
    tier: str | None,
    ending: str | None,
    code: str | None,
) -> bytes:
    """The encoded attributes that the root spans of many requests share."""
    return _attributes({
        names.HTTP_REQUEST_METHOD: method,
        names.HTTP_ROUTE: route,
        names.HTTP_RESPONSE_STATUS_CODE: status,
        names.TENANT_ID: tenant,
        names.KEY_ID: key,
        names.TIER: tier,
        names.ENDING: ending,
        names.ERROR_TYPE: code,
    })  # fmt: skip


def _generation_attributes(record: RequestRecord, times: RequestTimes) -> bytes:
    texts = times.texts
    shared = _shared_generation(
        times.operation,
        record.asked,
        record.model,
        record.adapter,
        record.tier,
        record.stream,
        record.guided,
        tuple(record.fallbacks),
        len(texts),
        tuple([text.finish_reason or "error" for text in texts[:TEXTS_MAX]]),
        texts[0].epochs if len(texts) == 1 else tuple({epoch: None for text in texts for epoch in text.epochs}),
    )
    return shared + _attributes({
        names.RESPONSE_ID: record.request_id,
        names.INPUT_TOKENS: record.prompt_tokens,
        names.CACHED_TOKENS: record.cached_tokens or None,
        names.OUTPUT_TOKENS: record.completion_tokens,
        names.DISCARDED_TOKENS: record.discarded_tokens or None,
        names.DEVICE_S: sum([text.device_s for text in texts]),
        names.PREEMPTIONS: sum([text.preemptions for text in texts]) or None,
        names.RECOMPUTED_TOKENS: sum([text.recomputed_tokens for text in texts]) or None,
    })  # fmt: skip


@functools.lru_cache(CACHED_MAX)
def _shared_generation(
    operation: str,
    asked: str | None,
    model: str | None,
    adapter: str | None,
    tier: str | None,
    stream: bool,
    guided: bool,
    fallbacks: tuple[str, ...],
    texts: int,
    finish_reasons: tuple[str, ...],
    epochs: tuple[str, ...],
) -> bytes:
    """The encoded attributes that the generation spans of many requests share."""
    return _attributes({
        names.OPERATION_NAME: operation,
        names.PROVIDER_NAME: names.PROVIDER,
        names.REQUEST_MODEL: asked or model,
        names.RESPONSE_MODEL: model,
        names.ADAPTER_ID: adapter,
        names.TIER: tier,
        names.STREAM: stream or None,
        names.GUIDED: guided or None,
        names.FALLBACKS: fallbacks or None,
        names.TEXTS: texts if texts > 1 else None,
        names.FINISH_REASONS: finish_reasons,
        names.ENGINE_EPOCHS: epochs,
    })  # fmt: skip


def _attributes(values: Mapping[str, AttributeValue | None]) -> bytes:
    return b"".join([attribute(SPAN_ATTRIBUTE, name, value) for name, value in values.items() if value is not None])
