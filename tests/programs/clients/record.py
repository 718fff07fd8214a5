"""Records what a client sends: a loopback server that keeps each request and answers as Laneway does.

    python tests/programs/clients/record.py openai VENV/bin/python tests/programs/clients/speak_openai.py

writes tests/clients/recorded/openai.json. Each client lives in a virtual environment of its own (for the AI SDK: `npm
install` beside speak_ai_sdk.mjs, then `record.py ai_sdk node …`; for the JDK's client: `record.py jdk java …`).
speak_anthropic.py also speaks for versions before 1: `record.py anthropic_0 …`. No key is ever kept. litellm: 1.82.7,
1.82.8 and 1.107.0 were compromised; never install those.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

RECORDED = Path(__file__).resolve().parents[2] / "clients" / "recorded"
KEPT_HEADERS = ("accept", "content-type", "anthropic-version", "anthropic-beta", "expect", "transfer-encoding")
UPGRADE_HEADERS = ("connection", "upgrade", "http2-settings")  # recorded if the request offers an upgrade
BODY_BYTES_MAX = 1024 * 1024
CONTEXT_TOKENS = 8192
TEXT = "Hello there."

Json = dict[str, Any]


# ---- the answers, in the shapes that Laneway's have


def usage() -> Json:
    details = {"reasoning_tokens": 0, "audio_tokens": 0, "accepted_prediction_tokens": 0}
    return {
        "prompt_tokens": 9,
        "completion_tokens": 3,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {**details, "rejected_prediction_tokens": 0},
    }


def head(asked: Json, kind: str) -> Json:
    return {
        "id": "chatcmpl-1",
        "object": kind,
        "created": 1_700_000_000,
        "model": asked["model"],
        "service_tier": "default",
        "system_fingerprint": "fp_1",
    }


def chat_logprobs(asked: Json) -> Json | None:
    if not asked.get("logprobs"):
        return None
    token = {"token": "Hello", "logprob": -0.5, "bytes": list(b"Hello")}
    return {"content": [{**token, "top_logprobs": [token] * (asked.get("top_logprobs") or 0)}], "refusal": None}


def chat(asked: Json) -> Json:
    message = {"role": "assistant", "content": TEXT, "refusal": None, "annotations": []}
    choice = {"message": message, "logprobs": chat_logprobs(asked), "finish_reason": "stop"}
    choices = [{"index": index, **choice} for index in range(asked.get("n") or 1)]
    return {**head(asked, "chat.completion"), "choices": choices, "usage": usage()}


def chat_events(asked: Json) -> list[Json]:
    common = head(asked, "chat.completion.chunk")
    with_usage = bool((asked.get("stream_options") or {}).get("include_usage"))
    if with_usage:
        common["usage"] = None
    events: list[Json] = []
    for index in range(asked.get("n") or 1):
        for delta, ending in (({"role": "assistant", "content": ""}, None), ({"content": TEXT}, None), ({}, "stop")):
            logprobs = chat_logprobs(asked) if delta.get("content") else None
            choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": ending}
            events.append({**common, "choices": [choice]})
    return [*events, {**common, "choices": [], "usage": usage()}] if with_usage else events


def completion(asked: Json) -> Json:
    prompt = asked["prompt"]
    many = isinstance(prompt, list) and not isinstance(prompt[0], int)
    text = (prompt if asked.get("echo") else "") + TEXT
    logprobs = None
    if asked.get("logprobs") is not None:
        names = ["Hello", " there", "."]
        tops = [{name: -0.5} for name in names]
        logprobs = {"tokens": names, "token_logprobs": [-0.5] * 3, "text_offset": [0, 5, 11], "top_logprobs": tops}
    count = (asked.get("n") or 1) * (len(prompt) if many else 1)
    choices = [{"index": at, "text": text, "logprobs": logprobs, "finish_reason": "stop"} for at in range(count)]
    return {**head(asked, "text_completion"), "choices": choices, "usage": usage()}


def completion_events(asked: Json) -> list[Json]:
    whole = completion(asked)
    if not (asked.get("stream_options") or {}).get("include_usage"):
        del whole["usage"]
        return [whole]
    return [{**whole, "usage": None}, {**whole, "choices": []}]


def message(asked: Json) -> Json:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": asked["model"],
        "content": [{"type": "text", "text": TEXT}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 9,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 3,
            "service_tier": "standard",
        },
    }


def message_events(asked: Json) -> list[Json]:
    whole = message(asked)
    ending = {"stop_reason": "end_turn", "stop_sequence": None}
    return [
        {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": TEXT}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ending, "usage": whole["usage"]},
        {"type": "message_stop"},
    ]


def refusal(text: str, param: str | None = None) -> Json:
    return {"error": {"message": text, "type": "invalid_request_error", "param": param, "code": None}}


def model() -> Json:
    return {"id": "smollm2-135m-instruct", "object": "model", "created": 1_700_000_000, "owned_by": "laneway"}


def answer(path: str, asked: Json) -> tuple[int, Json | list[Json]]:
    """The status, and a body or the events of a stream."""
    if asked.get("tools") or asked.get("response_format", {"type": "text"}) != {"type": "text"}:
        return 400, refusal("Not supported.", "tools")
    if (asked.get("max_tokens") or 0) > CONTEXT_TOKENS:
        return 400, refusal(f"This model's maximum context length is {CONTEXT_TOKENS} tokens.", "max_tokens")
    stream = bool(asked.get("stream"))
    match path:
        case "/v1/chat/completions":
            return 200, chat_events(asked) if stream else chat(asked)
        case "/v1/completions":
            return 200, completion_events(asked) if stream else completion(asked)
        case "/v1/messages":
            return 200, message_events(asked) if stream else message(asked)
        case "/v1/messages/count_tokens":
            return 200, {"input_tokens": 9}
        case "/v1/models":
            return 200, {"object": "list", "data": [model()]}
        case "/v1/models/smollm2-135m-instruct":
            return 200, model()
    return 404, refusal("There is no such endpoint.")


def as_events(path: str, events: list[Json]) -> bytes:
    if path == "/v1/messages":
        return b"".join([f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events])
    return b"".join([f"data: {json.dumps(event)}\n\n".encode() for event in events]) + b"data: [DONE]\n\n"


# ---- the server


class Recorder(ThreadingHTTPServer):
    """`requests`: the received requests, in order. The first part of each path is the name of its case."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[Json] = []
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Recorder

    def do_POST(self) -> None:
        content = self.content()
        asked = json.loads(content) if content else None
        _, case, path = self.path.split("/", 2)
        names = KEPT_HEADERS + (UPGRADE_HEADERS if "upgrade" in self.headers else ())
        headers = {name: value for name in names if (value := self.headers.get(name)) is not None}
        auth = "x-api-key" if "x-api-key" in self.headers else "bearer" if "authorization" in self.headers else None
        kept = {"case": case, "method": self.command, "path": f"/{path}", "auth": auth, "headers": headers}
        with self.server.lock:
            self.server.requests.append({**kept, "body": asked})
        self.answer(urlsplit(f"/{path}").path, asked or {})

    do_GET = do_POST

    def content(self) -> bytes:
        """The body, of a known length or in chunks without trailers."""
        if "transfer-encoding" not in self.headers:
            length = int(self.headers.get("content-length") or 0)
            assert length <= BODY_BYTES_MAX
            return self.rfile.read(length)
        found = b""
        while length := int(self.rfile.readline(), 16):
            assert len(found) + length <= BODY_BYTES_MAX
            found += self.rfile.read(length)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def answer(self, path: str, asked: Json) -> None:
        status, said = answer(path, asked)
        stream = isinstance(said, list)
        data = as_events(path, said) if isinstance(said, list) else json.dumps(said).encode()
        self.send_response(status)
        self.send_header("content-type", "text/event-stream; charset=utf-8" if stream else "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


def main(name: str, argv: list[str]) -> None:
    with Recorder() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/{{case}}"
        run = subprocess.run(argv, env={**os.environ, "CLIENT_URL": url}, stdout=subprocess.PIPE, text=True, check=True)
        server.shutdown()
    first, *results = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    failed = [result for result in results if not result["ok"]]
    assert not failed, failed
    record = {
        "client": name,
        "versions": first["versions"],
        "recorded": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "requests": server.requests,
    }
    RECORDED.mkdir(exist_ok=True)
    (RECORDED / f"{name}.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    print(f"{name}: {len(server.requests)} requests of {len(results)} cases")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
