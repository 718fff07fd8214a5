"""Stand-ins for Stripe's meter events and OpenMeter's ingestion: they check what the real ones check, and count each
identifier once."""

from __future__ import annotations

import http.server
import json
import re
import threading
import time
from typing import Any, Literal
from urllib.parse import parse_qs

# accept: as the real one. lost: the event is taken, and the connection ends without an answer. busy: 503. unauthorized:
# 401. reset: the connection ends before anything is taken.
Behaviour = Literal["accept", "lost", "busy", "reset"]
KEY = "sk_test_stand_in"
AGE_S_MAX = 35 * 86_400
_IDENTIFIER = re.compile(r"[\x21-\x7e]{1,100}")


class UsageReceiver:
    """Listens on a free port from its construction until `stop`. `counted`: amounts by (account, event name) or
    (subject, meter); `refused`: the events that it refused, each with its reason."""

    def __init__(self, kind: Literal["stripe", "openmeter"]) -> None:
        self.kind = kind
        self.behaviour: Behaviour = "accept"
        self.counted: dict[tuple[str, str], int] = {}
        self.events: dict[str, dict[str, Any]] = {}  # by identifier
        self.answers: dict[str, tuple[str, int, dict[str, Any]]] = {}  # by Idempotency-Key: body, status, answer
        self.attempts = 0
        self.repeated = 0
        self.refused: list[str] = []
        self._lock = threading.Lock()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.receive(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def receive(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["content-length"])).decode()
        with self._lock:
            self.attempts += 1
            if self.behaviour == "reset":
                handler.connection.close()
                return
            if self.behaviour == "busy":
                status, answer = 503, {"error": {"message": "try again"}}
            elif handler.headers["authorization"] != f"Bearer {KEY}":
                status, answer = 401, {"error": {"message": "Invalid API Key provided"}}
            else:
                take = self._stripe if self.kind == "stripe" else self._openmeter
                status, answer = take(handler, body)
        if self.behaviour == "lost":
            handler.connection.close()
            return
        if status >= 400:
            self.refused.append(json.dumps(answer))
        encoded = json.dumps(answer).encode() if status != 204 else b""
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(encoded)))
        handler.end_headers()
        handler.wfile.write(encoded)

    def _stripe(self, handler: http.server.BaseHTTPRequestHandler, body: str) -> tuple[int, dict[str, Any]]:
        """POST /v1/billing/meter_events, form-encoded. An Idempotency-Key repeats its answer, and may not come with
        another body."""

        def wrong(message: str) -> tuple[int, dict[str, Any]]:
            return 400, {"error": {"type": "invalid_request_error", "message": message}}

        if handler.path != "/v1/billing/meter_events":
            return 404, {"error": {"message": f"Unrecognized request URL (POST: {handler.path})"}}
        if handler.headers["content-type"] != "application/x-www-form-urlencoded":
            return wrong(f"content type {handler.headers['content-type']}")
        key = handler.headers["idempotency-key"]
        if key in self.answers:
            earlier, status, answer = self.answers[key]
            self.repeated += 1
            return (status, answer) if earlier == body else wrong("the Idempotency-Key was used with other parameters")
        fields = {name: values[0] for name, values in parse_qs(body, strict_parsing=True).items()}
        identifier, moment = fields["identifier"], int(fields["timestamp"])
        account, value = fields["payload[stripe_customer_id]"], fields["payload[value]"]
        if not _IDENTIFIER.fullmatch(identifier) or not value.isdigit() or not account.startswith("cus_"):
            return wrong(f"malformed: {fields}")
        if not time.time() - AGE_S_MAX <= moment <= time.time() + 300:
            return wrong("The timestamp must be within the past 35 calendar days or up to 5 minutes in the future.")
        if identifier in self.events:
            self.repeated += 1
            return wrong(f"An event already exists with identifier {identifier}.")
        self.events[identifier] = fields
        self._count((account, fields["event_name"]), int(value))
        answer = {"object": "billing.meter_event", "identifier": identifier, "event_name": fields["event_name"]}
        self.answers[key] = body, 200, answer
        return 200, answer

    def _openmeter(self, handler: http.server.BaseHTTPRequestHandler, body: str) -> tuple[int, dict[str, Any]]:
        """POST /api/v1/events, a batch of CloudEvents. Events with an id and a source that it has are dropped."""
        if handler.path != "/api/v1/events":
            return 404, {"title": "Not Found", "status": 404, "detail": handler.path}
        if handler.headers["content-type"] != "application/cloudevents-batch+json":
            return 415, {"title": "Unsupported Media Type", "status": 415, "detail": handler.headers["content-type"]}
        for event in json.loads(body):
            if event["specversion"] != "1.0" or not all(event[name] for name in ("id", "source", "type", "subject")):
                return 400, {"title": "Bad Request", "status": 400, "detail": f"malformed: {event}"}
            if event["id"] in self.events:
                self.repeated += 1
                continue
            self.events[event["id"]] = event
            self._count((event["subject"], event["data"]["meter"]), event["data"]["tokens"])
        return 204, {}

    def _count(self, at: tuple[str, str], amount: int) -> None:
        self.counted[at] = self.counted.get(at, 0) + amount
