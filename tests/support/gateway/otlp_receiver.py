"""An OTLP receiver over HTTP, and the ways in which a collector misbehaves."""

from __future__ import annotations

import http.server
import threading
import time
from typing import Any, Literal

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from support.waiting import eventually

# accept: 200. partial: 200, and one span is rejected. busy: 503. refuse: 400. hang: no answer. drip: a byte of the
# answer's head every DRIP_S. nonsense: no HTTP.
Behaviour = Literal["accept", "partial", "busy", "refuse", "hang", "drip", "nonsense"]
DRIP_S = 0.05


class OtlpReceiver:
    """Listens on a free port from its construction until `stop`."""

    def __init__(self, port: int = 0) -> None:
        self.behaviour: Behaviour = "accept"
        self.bodies: list[bytes] = []  # of accepted exports
        self.heads: list[dict[str, str]] = []  # of every export: header fields in lower case
        self.paths: list[str] = []
        self._stopping = threading.Event()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.receive(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        self._stopping.set()
        self._server.shutdown()
        self._server.server_close()

    def receive(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["content-length"]))
        self.heads.append({name.lower(): value for name, value in handler.headers.items()})
        self.paths.append(handler.path)
        match self.behaviour:
            case "hang":
                self._stopping.wait()
            case "drip":
                self._drip(handler)
            case "nonsense":
                handler.wfile.write(b"220 mail.example ready\r\n\r\n")
            case "busy" | "refuse":
                handler.send_response(503 if self.behaviour == "busy" else 400)
                handler.end_headers()
            case "accept" | "partial":
                self.bodies.append(body)
                self._accept(handler)

    def _accept(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        answer = ExportTraceServiceResponse()
        if self.behaviour == "partial":
            answer.partial_success.CopyFrom(ExportTracePartialSuccess(rejected_spans=1, error_message="too old"))
        encoded = answer.SerializeToString()
        handler.send_response(200)
        handler.send_header("Content-Type", "application/x-protobuf")
        handler.send_header("Content-Length", str(len(encoded)))
        handler.end_headers()
        handler.wfile.write(encoded)

    def _drip(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        try:
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            while not self._stopping.is_set():
                handler.wfile.write(b".")
                time.sleep(DRIP_S)
        except OSError:
            pass  # the gateway closed the connection

    # ---- received spans

    def requests(self) -> list[ExportTraceServiceRequest]:
        return [ExportTraceServiceRequest.FromString(body) for body in self.bodies]

    def spans(self) -> list[Span]:
        return [
            span
            for request in self.requests()
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def traces(self) -> dict[str, list[Span]]:
        """Spans by trace id."""
        found: dict[str, list[Span]] = {}
        for span in self.spans():
            found.setdefault(span.trace_id.hex(), []).append(span)
        return found

    def trace_of(self, request_id: str) -> list[Span]:
        """The spans of one request, once they have arrived."""
        found: list[Span] = []

        def look() -> bool:
            found[:] = [
                span
                for spans in self.traces().values()
                for span in spans
                if any(attributes_of(each).get("laneway.request_id") == request_id for each in spans)
            ]
            return bool(found)

        eventually(look)
        return found


def attributes_of(span: Span) -> dict[str, Any]:
    return read_attributes(span.attributes)


def read_attributes(attributes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in attributes:
        assert isinstance(each, KeyValue)
        assert each.key not in found, f"{each.key} is given twice"
        found[each.key] = _value(each.value)
    return found


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    assert kind is not None
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
