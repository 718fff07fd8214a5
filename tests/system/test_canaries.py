"""Secrets and texts that a whole stack receives are in none of its outputs: logs, crash output, metrics, exports,
files, command lines, and what the console's API tells a read_only key."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from gateway.access import keys
from support.gateway import faulty_gateway
from support.gateway.admin_routes import admin_routes
from support.gateway.faulty_gateway import CRASH_SEED, ERROR_SEED, LEAK_SEED
from support.gateway.session_client import cookie_name, sign_in
from support.gateway.tool_model import MARKERS, make_tool_model
from support.paths import REPO
from support.stack import MODEL, Stack
from support.waiting import eventually

PROMPT, ARGUMENT, RESULT = "canary-prompt-6f1d2b", "canary-argument-90ac11", "canary-result-c4b7e8"
PASSWORD, URL_TOKEN, WRONG_KEY = (
    "canary-password-1c9e",
    "canary-url-token-77ab",
    "lw_live_canaryKeyThatNobodyMade0000000000",
)
ROUTING_KEY = "canaryRoutingKey".ljust(32, "7")
LOSES_DEVICE, STEP_FAILS = 701, 702
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {"q": {}}}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": json.dumps({"q": ARGUMENT})}}
CONVERSATION = [
    {"role": "user", "content": f"Look up {PROMPT}."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": RESULT},
]


class FaultyStack(Stack):
    """Its gateway raises on demand."""

    def start_gateway(self) -> None:
        argv = [sys.executable, faulty_gateway.__file__, "--config", str(self.config_file)]
        with self.log_file.open("ab") as log:
            self.gateway = subprocess.Popen(argv, stdout=log, stderr=log, cwd=REPO, env=self.process_environ())


@dataclass
class Planted:
    stack: FaultyStack
    canaries: dict[str, str] = field(default_factory=dict)  # by kind
    export: bytes = b""
    answers: dict[str, bytes] = field(default_factory=dict)  # by path of the console's API
    metrics: bytes = b""
    command_lines: bytes = b""

    def found(self) -> dict[str, list[str]]:
        """By kind of canary, the outputs that have it."""
        outputs = {str(path): path.read_bytes() for path in self.stack.directory.rglob("*") if is_output(path)}
        outputs |= {"export": self.export, "metrics": self.metrics, "command lines": self.command_lines}
        outputs |= self.answers
        assert all(len(outputs[name]) > 100 for name in ("export", "metrics", "command lines"))
        hits = {
            kind: [name for name, data in outputs.items() if canary.encode() in data]
            for kind, canary in self.canaries.items()
        }
        return {kind: names for kind, names in hits.items() if names}


def is_output(path: Path) -> bool:
    """All files but those that an operator wrote a secret into: laneway.toml and what the gateway keeps of its own."""
    return path.is_file() and path.name not in ("laneway.toml", "server.secret")


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory, modules_postgres_url: str) -> Iterator[Planted]:
    url = sa.make_url(modules_postgres_url).set(password=PASSWORD).render_as_string(hide_password=False)
    faults = {"device_lost_id": LOSES_DEVICE, "step_error_id": STEP_FAILS}
    directory = tmp_path_factory.mktemp("canaries")
    model = make_tool_model(directory / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"vocab_size": config["vocab_size"] + len(MARKERS)}))
    fold = "[billing]\nreconcile_s = 1\n"
    stack = FaultyStack(directory / "stack", url, model, fake={"faults": faults}, toml=fold)
    try:
        stack.start()
        yield Planted(stack)
    finally:
        stack.stop()


def post(stack: Stack, path: str, key: str = "", **fields: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key or stack.keys['acme']}"}
    if not fields.get("stream"):
        headers["Idempotency-Key"] = f"{time.time_ns()}"
    return httpx.post(f"{stack.url}{path}", headers=headers, json={"model": MODEL, **fields}, timeout=60)


def send_requests(stack: Stack) -> list[int]:
    """Requests of every API that quote the canaries, good ones and bad ones. Returns their statuses."""
    turns = [{"role": "user", "content": PROMPT}]
    chat: dict[str, Any] = {"messages": CONVERSATION, "tools": [TOOL], "max_tokens": 4}
    answers = [
        post(stack, "/v1/chat/completions", **chat),
        post(stack, "/v1/chat/completions", **chat, stream=True),
        post(stack, "/v1/completions", prompt=f"Say {PROMPT}", max_tokens=4),
        post(stack, "/v1/messages", messages=turns, max_tokens=4),
        post(stack, "/v1/responses", input=PROMPT, max_output_tokens=16, store=False),
        post(stack, "/v1/tokenize", prompt=PROMPT),
        # Refused: a field of the wrong type, an unknown role, too long, a name that is not served, no such key.
        post(stack, "/v1/chat/completions", **chat, temperature=PROMPT),
        post(stack, "/v1/chat/completions", messages=[{"role": PROMPT, "content": ARGUMENT}]),
        post(stack, "/v1/chat/completions", messages=turns, max_tokens=10**6),
        post(stack, "/v1/chat/completions", messages=turns, model="nowhere"),
        post(stack, "/v1/chat/completions", WRONG_KEY, messages=turns),
        post(stack, "/v1/chat/completions", messages=turns, response_format={"type": PROMPT}),
        post(
            stack, "/v1/chat/completions", messages=turns, tools=[{"type": "function", "function": {"name": ARGUMENT}}]
        ),
        httpx.post(f"{stack.url}/v1/chat/completions", headers=stack.headers(), content=f'{{"model": "{PROMPT}'),
        # Faults: an exception in the gateway, a step that fails in the engine.
        post(stack, "/v1/chat/completions", messages=CONVERSATION, seed=ERROR_SEED),
        post(stack, "/v1/completions", prompt=[300, STEP_FAILS], max_tokens=4),
    ]
    return [answer.status_code for answer in answers]


def test_no_output_has_a_canary_after_requests_errors_and_crashes(planted: Planted) -> None:
    stack = planted.stack
    admin = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="admin", kind="admin", role="owner"))
    reader = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="reader", kind="admin", role="read_only"))
    browser = sign_in(stack, admin)
    made = browser.post("/v1/admin/webhooks", json={"url": f"https://192.0.2.1/hook?token={URL_TOKEN}"})
    assert made.status_code == 201, made.text
    pager = {
        "url": "https://192.0.2.1/pager",
        "format": "pagerduty",
        "routing_key": ROUTING_KEY,
        "events": ["problems"],
    }
    assert browser.post("/v1/admin/webhooks", json=pager).status_code == 201
    planted.canaries = {
        "prompt": PROMPT, "tool argument": ARGUMENT, "tool result": RESULT, "database password": PASSWORD,
        "key": stack.keys["acme"], "admin key": admin.secret, "wrong key": WRONG_KEY,
        "token in a URL": URL_TOKEN, "routing key": ROUTING_KEY, "client secret": made.json()["secret"],
        "session token": browser.cookies[cookie_name(stack.url)], "CSRF token": browser.headers["x-csrf-token"],
    }  # fmt: skip
    statuses = send_requests(stack)
    assert {200, 400, 401, 404, 500} <= set(statuses), statuses
    assert statuses.count(200) >= 5, statuses
    order_export(planted, browser)
    read_as(planted, reader.secret)
    processes = (stack.gateway, stack.engine)
    lines = [Path(f"/proc/{process.pid}/cmdline").read_bytes() for process in processes if process is not None]
    planted.command_lines = b"\n".join(lines)
    crash_engine(stack)
    crash_gateway(stack)
    assert "a planted error" in stack.log_file.read_text()
    assert planted.found() == {}


def test_a_leak_is_found(planted: Planted) -> None:
    """The same search, after an exception whose message quotes the request."""
    stack = planted.stack
    stack.start_gateway()
    stack.wait_ready()
    assert post(stack, "/v1/chat/completions", messages=CONVERSATION, seed=LEAK_SEED).status_code == 500
    eventually(lambda: "a planted leak" in stack.log_file.read_text())
    found = planted.found()
    assert set(found) >= {"prompt", "tool argument", "tool result"}
    assert {name for names in found.values() for name in names} == {str(stack.log_file)}


def order_export(planted: Planted, browser: Any) -> None:
    """Of all usage so far, as events: they have the most fields."""
    month = time.strftime("%Y-%m", time.gmtime())
    orders: list[httpx.Response] = []

    def is_ordered() -> bool:  # not before the month's usage is folded
        orders.append(browser.post("/v1/admin/exports", json={"month": month, "kind": "events", "format": "jsonl"}))
        return orders[-1].status_code == 201

    eventually(is_ordered)
    path = f"/v1/admin/exports/{orders[-1].json()['id']}"
    eventually(lambda: browser.get(path).json()["state"] == "done")
    planted.export = browser.get(f"{path}/file").content


def read_as(planted: Planted, key: str) -> None:
    """Everything that the console reads, by lists and by the ids of a request."""
    stack = planted.stack
    with httpx.Client(base_url=stack.url, headers={"Authorization": f"Bearer {key}"}, timeout=60) as client:
        planted.metrics = client.get("/metrics").content
        requests = client.get("/v1/admin/requests").json()["data"]
        paths = [
            route.path for route in admin_routes()
            if route.method == "GET" and "{" not in route.path and not route.path.endswith(("/live", "/session"))
        ]  # fmt: skip
        paths += [f"/v1/admin/requests/{row['request_id']}" for row in requests]
        assert len(paths) > 30
        planted.answers = {path: client.get(path).content for path in paths}


def crash_engine(stack: Stack) -> None:
    """While it serves a request: the engine dies with a traceback."""
    assert stack.engine is not None
    post(stack, "/v1/completions", prompt=[300, LOSES_DEVICE], max_tokens=4)
    assert stack.engine.wait(30) == 1
    assert "was made to be lost" in (stack.directory / "engine.log").read_text()
    stack.start_engine()
    stack.wait_ready()


def crash_gateway(stack: Stack) -> None:
    """An exception that nothing catches ends the process, with a traceback."""
    assert stack.gateway is not None
    with contextlib.suppress(httpx.TransportError):
        post(stack, "/v1/chat/completions", messages=CONVERSATION, seed=CRASH_SEED)
    assert stack.gateway.wait(30) != 0
    assert "a planted crash" in stack.log_file.read_text()
