"""Records what Claude Code sends, headless: a loopback server answers it, first with a call of its tool Write.

    npm install --prefix DIRECTORY @anthropic-ai/claude-code
    python tests/programs/clients/record_claude_code.py DIRECTORY/node_modules/.bin/claude

writes tests/clients/recorded/claude_code.json. The requests keep their fields, types and tools. Every text, description
and id is replaced: prompts and descriptions are their author's, and ids are of one session.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from record import RECORDED, Handler, Json, Recorder, as_events, message, message_events

MODEL = "smollm2-135m-instruct"
MAX_TOKENS = "64"
RUN_S_MAX = 120
# By case: the arguments after the prompt. Without tools Claude Code needs nothing but text.
CASES = {"agent": ["--allowedTools", "Write"], "agent_without_tools": ["--tools", ""]}
BILLING = "x-anthropic-billing-header: cc_version=0; cc_entrypoint=sdk-cli;"
WORDS = ("text", "description", "thinking", "signature")


class AgentHandler(Handler):
    """A Handler that answers HEAD too, and answers POST with a call of the tool Write or a text."""

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()

    def answer(self, path: str, asked: Json) -> None:
        data = as_events(path, call_of(asked) if wants_call(asked) else message_events(asked))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def wants_call(asked: Json) -> bool:
    """Whether the request has tools, and no result of a call."""
    return bool(asked.get("tools")) and "tool_result" not in json.dumps(asked["messages"])


def call_of(asked: Json) -> list[Json]:
    """The events of an answer that thinks, speaks and calls Write."""
    whole = message(asked)
    file = {"file_path": str(Path.cwd() / "b.txt"), "content": "hi"}
    call = {"type": "tool_use", "id": "toolu_1", "name": "Write", "input": {}}
    blocks = [
        ({"type": "thinking", "thinking": "", "signature": ""}, {"type": "thinking_delta", "thinking": "I write."}),
        ({"type": "text", "text": ""}, {"type": "text_delta", "text": "I write."}),
        (call, {"type": "input_json_delta", "partial_json": json.dumps(file)}),
    ]
    events: list[Json] = [{"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}}]
    for index, (block, delta) in enumerate(blocks):
        events += [
            {"type": "content_block_start", "index": index, "content_block": block},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    ending = {"stop_reason": "tool_use", "stop_sequence": None}
    return [*events, {"type": "message_delta", "delta": ending, "usage": whole["usage"]}, {"type": "message_stop"}]


def scrubbed(value: Any, name: str = "") -> Any:
    """The value with the same structure and other texts. Names of fields within `properties` are no texts."""
    if isinstance(value, dict):
        return {key: scrubbed(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [scrubbed(item, name) for item in value]
    if not isinstance(value, str):
        return value
    if value.startswith("x-anthropic-billing-header:"):
        return BILLING
    if name == "user_id":
        return '{"session_id":"s"}'
    if name == "file_path":
        return "/repository/b.txt"
    if name == "content" or name in WORDS:
        return f"A text of {len(value)} characters."
    return value


def main(claude: str) -> None:
    requests: list[Json] = []
    version = subprocess.run([claude, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[0]
    with Recorder() as server, tempfile.TemporaryDirectory() as home:
        server.RequestHandlerClass = AgentHandler
        threading.Thread(target=server.serve_forever, daemon=True).start()
        os.chdir(home)
        for case, arguments in CASES.items():
            environ = {
                "PATH": os.environ["PATH"],
                "HOME": home,
                "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{server.server_port}/{case}",
                "ANTHROPIC_API_KEY": "none",
                "ANTHROPIC_MODEL": MODEL,
                "ANTHROPIC_SMALL_FAST_MODEL": MODEL,
                "CLAUDE_CODE_MAX_OUTPUT_TOKENS": MAX_TOKENS,
            }
            command = [claude, "-p", "Write hi into b.txt", *arguments]
            subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, timeout=RUN_S_MAX, check=True)
        assert Path("b.txt").read_text() == "hi", "the call was carried out"
        server.shutdown()
        requests = server.requests
    for request in requests:
        request["body"] = scrubbed(request["body"])
        request["case"] = case_of(request)
    record = {
        "client": "claude_code",
        "versions": {"claude-code": version},
        "recorded": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "requests": requests,
    }
    (RECORDED / "claude_code.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    print(f"claude_code: {len(requests)} requests: {', '.join([request['case'] for request in requests])}")


def case_of(request: Json) -> str:
    """The case of a request: a title of the session in JSON, a turn with tools, or a turn without tools."""
    body: Json = request["body"]
    assert urlsplit(request["path"]).path == "/v1/messages"
    if "format" in body.get("output_config", {}):
        return "agent_title"
    return "agent_tools" if body.get("tools") else "agent_plain"


if __name__ == "__main__":
    main(sys.argv[1])
