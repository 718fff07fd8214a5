"""Runs agent frameworks against a real gateway with a scripted engine, prints what passed, and records their requests.

    python -m venv VENV
    VENV/bin/pip install -r tests/programs/clients/requirements.txt
    npm install --prefix tests/programs/clients            # for the AI SDK
    npm install --prefix DIRECTORY @anthropic-ai/claude-code @openai/codex
    export CLAUDE_CODE=DIRECTORY/node_modules/.bin/claude CODEX=DIRECTORY/node_modules/.bin/codex
    PYTHONPATH=tests python tests/programs/clients/record_agents.py VENV/bin/python [CLIENT …] [--record]

A client is NAME of agent_NAME.py or agent_NAME.mjs in this folder; none: all of them. `--record` writes
tests/clients/recorded/tools/NAME.json: each request with the answer that the client received. Exit status 1 when a
case failed, or when the engine's answer was outside the grammar of its request.
"""

from __future__ import annotations

import datetime
import http.client
import json
import sys
import tempfile
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from record import KEPT_HEADERS, RECORDED, Handler
from record_claude_code import scrubbed

from support.gateway.agent_stack import AgentStack, read_answer
from support.gateway.client_scripts import CLIENT_S_MAX, run_script

HERE = Path(__file__).resolve().parent
LONG_TEXT = 600  # characters; a framework's own prompts are longer
RELAYED_BYTES = 65536
NOT_RELAYED = ("transfer-encoding", "connection", "content-length", "date")

Json = dict[str, Any]


class Relay(ThreadingHTTPServer):
    """Forwards to the gateway and keeps each request. The first part of each path is the name of its case."""

    daemon_threads = True

    def __init__(self, gateway: str) -> None:
        super().__init__(("127.0.0.1", 0), RelayHandler)
        self.gateway = urlsplit(gateway).netloc
        self.requests: list[Json] = []
        self.lock = threading.Lock()


class RelayHandler(Handler):
    server: Relay  # type: ignore[assignment]

    def do_POST(self) -> None:
        content = self.content()
        _, case, path = self.path.split("/", 2)
        headers = {name: value for name in KEPT_HEADERS if (value := self.headers.get(name)) is not None}
        auth = "x-api-key" if "x-api-key" in self.headers else "bearer"
        kept: Json = {"case": case, "method": self.command, "path": f"/{path}", "auth": auth, "headers": headers}
        kept["body"] = json.loads(content) if content else None
        with self.server.lock:
            self.server.requests.append(kept)
        status, answer = self.relay(f"/{path}", content)
        kept["answer"] = read_answer(urlsplit(f"/{path}").path, answer) if status == 200 else status

    do_GET = do_POST

    def relay(self, path: str, content: bytes) -> tuple[int, bytes]:
        """The gateway's answer, once it is written to the client piece by piece."""
        gateway = http.client.HTTPConnection(self.server.gateway, timeout=CLIENT_S_MAX)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", *NOT_RELAYED)}
        gateway.request(self.command, path, content or None, headers)
        answer = gateway.getresponse()
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in NOT_RELAYED:
                self.send_header(name, value)
        self.send_header("connection", "close")
        self.end_headers()
        received = b""
        while piece := answer.read1(RELAYED_BYTES):
            received += piece
            self.wfile.write(piece)
        gateway.close()
        return answer.status, received


def shortened(value: Any) -> Any:
    """A copy with a note in place of each text over LONG_TEXT characters: a framework's prompts are its author's."""
    if isinstance(value, dict):
        return {key: shortened(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shortened(item) for item in value]
    if isinstance(value, str) and len(value) > LONG_TEXT:
        return f"A text of {len(value)} characters."
    return value


def run(stack: AgentStack, script: Path, interpreter: str, *, record: bool) -> int:
    """The number of failures."""
    name = script.stem.removeprefix("agent_")
    stack.outside.clear()
    with Relay(stack.url) as relay:
        threading.Thread(target=relay.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{relay.server_port}/{{case}}"
        argv = ["node" if script.suffix == ".mjs" else interpreter, str(script)]
        versions, results = run_script(argv, url, stack.keys["acme"])
        relay.shutdown()
    failed = [result for result in results if not result["ok"]]
    print(f"\n{name} ({', '.join([f'{package} {version}' for package, version in versions.items()])})")
    for result in results:
        mark = "ok    " if result["ok"] else "FAILED"
        print(f"  {mark} {result['case']:24} {result['seconds']:6.2f} s  {result['detail']!r}")
    for problem in stack.outside:
        print(f"  FAILED {problem}")
    print(f"  {len(results) - len(failed)} of {len(results)} cases, {len(relay.requests)} requests")
    if record and not failed and not stack.outside:
        write_record(name, versions, relay.requests)
    return len(failed) + len(stack.outside)


def without_texts(body: Json) -> Json:
    """A copy of a request of Claude Code. Every text is replaced; the first message names the case again."""
    kept: Json = scrubbed(body)
    said = {"type": "text", "text": "Case claude_edit."}
    [first, *others] = kept["messages"]
    content = [said] if isinstance(first["content"], str) else [*first["content"], said]
    return kept | {"messages": [first | {"content": content}, *others]}


def without_codexs_texts(body: Json) -> Json:
    """A copy of a request of Codex: as `without_texts`; outputs of commands and the session's ids are replaced too."""
    kept: Json = scrubbed(body | {"prompt_cache_key": "s", "client_metadata": {"session_id": "s"}})
    for sent, item in zip(body["input"], kept["input"], strict=True):
        if sent.get("role") == "user" and sent["content"][0]["text"].startswith("Case codex"):
            item["content"] = sent["content"]
        elif isinstance(sent.get("output"), str):
            item["output"] = f"A text of {len(sent['output'])} characters."
    return kept


SCRUBS = {"claude_code": without_texts, "codex": without_codexs_texts}


def without_encrypted(body: Json | None) -> Json | None:
    """A copy without the encrypted reasoning, which a gateway with another server secret could not read."""
    items = (body or {}).get("input")
    if not isinstance(items, list):
        return body
    return body | {
        "input": [item | {"encrypted_content": None} if "encrypted_content" in item else item for item in items]
    }


def write_record(name: str, versions: Json, requests: list[Json]) -> None:
    scrub = SCRUBS.get(name, shortened)
    kept = [request | {"body": scrub(without_encrypted(request["body"]))} for request in requests]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    record = {"client": name, "versions": versions, "recorded": today, "requests": kept}
    (RECORDED / "tools").mkdir(exist_ok=True)
    file = RECORDED / "tools" / f"{name}.json"
    file.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def main(argv: list[str]) -> int:
    interpreter, *names = [argument for argument in argv if argument != "--record"]
    scripts = sorted([file for file in HERE.glob("agent_*.*") if file.suffix in (".py", ".mjs")])
    with tempfile.TemporaryDirectory() as directory:
        stack = AgentStack(Path(directory))
        try:
            stack.start()
            failures = [
                run(stack, script, interpreter, record="--record" in argv)
                for script in scripts
                if not names or script.stem.removeprefix("agent_") in names
            ]
            holds = stack.open_holds()
        finally:
            stack.stop()
    print(f"\n{sum(failures)} failed, {holds} holds are open")
    return int(any(failures) or holds > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
