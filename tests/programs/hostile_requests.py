"""Sends tens of thousands of malformed and hostile requests to a gateway with a fake engine.

    python tests/programs/hostile_requests.py [--requests 47500] [--seed 1] [--uploads 200] [--postgres]

Five groups share the requests: bodies of the inference endpoints, every admin operation of the OpenAPI description by
four roles, paths and methods, raw bytes on a socket, and multipart uploads. `play` raises Broken unless

- no answer has status 500, and every other 5xx has the documented error body;
- no answer to a tenant contains another tenant's ids, a secret or a path of the host;
- every answer arrives within ANSWER_S_MAX;
- gateway and engine are the processes that they were at the start, the gateway logged no traceback and counted no
  internal error, no hold is open at the end, and an ordinary request is answered 200.

The same seed makes the same requests. Each answer is judged alone: the order in which threads send does not matter.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # beside support/, and beside the packages where those are not installed
    sys.path[:0] = [str(directory) for directory in Path(__file__).resolve().parents[1:3]]

import httpx
import msgspec

from adapters.files.check import CONFIG_FILE, WEIGHTS_FILE
from engine.models.packaged.convert import convert_demo_model
from gateway.access import keys
from support.gateway.random_bodies import ENDPOINTS, WEIGHTS, WRONG, a_body
from support.paths import EXAMPLES
from support.stack import MODEL, Stack
from support.waiting import eventually

SHARES = {"bodies": 0.5, "admin": 0.25, "paths": 0.14, "raw": 0.11}
CLIENTS = 6
ANSWER_S_MAX = 30.0
RAW_WAIT_S = 0.5  # seconds to wait for an answer: a gateway that expects more bytes sends none
FAULTS_SHOWN = 12
REFUSALS = (501, 503, 505, 507)  # server errors that are documented refusals
ROLES: tuple[keys.Role, ...] = ("owner", "operator", "tenant_admin", "read_only")
UNLIMITED = "requests_per_minute = 100000000\ntokens_per_minute = 1000000000\nconcurrency = 100000\n"
TOML = (
    f"[limits]\n{UNLIMITED}[tenant_limits]\n{UNLIMITED}"
    "[administration]\ntenant_writes_per_minute = 1000000\noperator_writes_per_minute = 1000000\n"
)
FAKE = {"step_ms": 0.0, "stop_after": 5}
EXAMPLE = EXAMPLES / "adapters" / "pirate"
# Endless streams, sessions of the callers, and calls whose only effect is work for a separate process.
LEFT_OUT = ("/v1/admin/engine/live", "/v1/admin/session", "/v1/admin/exports")

Request = tuple[str, str, bytes, dict[str, str]]  # method, target, body, headers


class Broken(AssertionError):
    """A condition of this module's docstring is violated."""


@dataclass
class Seen:
    """Statistics of the answers."""

    statuses: dict[str, Counter[int]] = field(default_factory=dict)  # by group; 0: closed or silent
    slowest_s: float = 0.0
    faults: list[str] = field(default_factory=list)

    def add(self, group: str, status: int, seconds: float) -> None:
        self.statuses.setdefault(group, Counter())[status] += 1
        self.slowest_s = max(self.slowest_s, seconds)

    @property
    def total(self) -> int:
        return sum(sum(counts.values()) for counts in self.statuses.values())


class Fuzzer:
    """One stack, its callers, and texts that they must never see. Random choices come from `seed`."""

    def __init__(self, stack: Stack, seed: int) -> None:
        self.stack = stack
        self.seed = seed
        self.seen = Seen()
        self.admins = {role: self._admin(role) for role in ROLES}
        secrets = [*stack.keys.values(), *self.admins.values()]
        others = [stack.tenants["globex"], stack.key_ids["globex"], stack.adapters["globex-style"]]
        host = [str(stack.directory), str(stack.model_dir)]
        # By caller. The owner and the operator may see everything except secrets.
        self.hidden = dict.fromkeys(ROLES, secrets) | {"tenant": [*secrets, *others, *host]}
        self.hidden["tenant_admin"] = self.hidden["tenant"]
        self.hidden["read_only"] = [*secrets, *host]
        # Objects that may be changed and removed without affecting the callers.
        self.names = self._make_prey()

    def _admin(self, role: keys.Role) -> str:
        tenant_id = self.stack.tenants["acme"] if role == "tenant_admin" else None
        return self.stack.write(
            lambda c: keys.create_key(c, tenant_id=tenant_id, name=role, kind="admin", role=role)
        ).secret

    def _make_prey(self) -> list[str]:
        """Ids and names of a tenant that requests may change or remove."""
        owner = {"Authorization": f"Bearer {self.admins['owner']}"}
        found = ["prey", "absent", "", "..", "%00", "x" * 300, "key_" + "0" * 32]
        with httpx.Client(base_url=f"{self.stack.url}/v1/admin", headers=owner, timeout=ANSWER_S_MAX) as client:
            for path, sent in (
                ("tenants", {"slug": "prey", "name": "Prey", "tier": "batch"}),
                ("projects", {"tenant": "prey", "name": "prey"}),
                ("keys", {"tenant": "prey", "name": "prey"}),
            ):
                answer = client.post(f"/{path}", json=sent)
                if answer.status_code != 201:
                    raise Broken(f"{path}: {answer.status_code} {answer.text}")
                made = answer.json()
                found += [
                    value for value in _flat(made) if isinstance(value, str) and re.match(r"[a-z]+_[0-9a-f]", value)
                ]
        return found

    # ---- judging

    def check(self, group: str, caller: str, told: str, status: int, content: bytes, seconds: float) -> None:
        """Check an answer; append what is wrong to the faults."""
        self.seen.add(group, status, seconds)
        text = content.decode(errors="replace")
        if status == 500 or (status > 500 and not (status in REFUSALS and _is_error(content))):
            self.seen.faults.append(f"{group}: {told}: {status} {text[:400]}")
        for secret in self.hidden[caller]:
            if secret in text:
                self.seen.faults.append(f"{group}: {told}: the answer to {caller} contains {secret!r}: {text[:400]}")
        if seconds > ANSWER_S_MAX:
            self.seen.faults.append(f"{group}: {told}: answered after {seconds:.1f} s")

    def send(self, client: httpx.Client, group: str, caller: str, request: Request) -> None:
        method, target, data, headers = request
        secret = self.stack.keys["acme"] if caller == "tenant" else self.admins[caller]  # type: ignore[index]
        began = time.monotonic()
        told = f"{caller} {method} {target[:200]} {data[:400]!r}"
        try:
            sent = {"Authorization": f"Bearer {secret}", "content-type": "application/json"} | headers
            answer = client.request(method, target, content=data, headers=sent)
        except httpx.InvalidURL:
            return  # the client library cannot send it; the raw group has such targets
        except httpx.TransportError as error:
            self.seen.faults.append(f"{group}: {told}: {error!r}")
            return
        self.check(group, caller, told, answer.status_code, answer.content, time.monotonic() - began)

    # ---- making

    def bodies(self, choose: random.Random) -> tuple[str, Request]:
        [endpoint] = choose.choices(ENDPOINTS, WEIGHTS)
        headers = {}
        if choose.random() < 0.05:
            name = choose.choice(
                ["Idempotency-Key", "x-request-id", "content-type", "anthropic-version", "traceparent"]
            )
            headers[name] = choose.choice(["", "x", "1" * 300, "application/xml", "00-0-0-00", "text/plain; charset=x"])
        return "tenant", ("POST", endpoint.path, a_body(choose, endpoint), headers)

    def admin(self, choose: random.Random, operations: list[Operation]) -> tuple[str, Request]:
        operation = choose.choice(operations)
        path = re.sub(r"\{[^}]+\}", lambda _: _quoted(choose.choice(self.names)), operation.path)
        query = {name: self._value(choose, schema, operation) for name, schema in operation.query.items()}
        query = {name: value for name, value in query.items() if choose.random() < 0.4}
        if choose.random() < 0.05:
            query[choose.choice(["page", "limit", "sort", "search", "x"])] = choose.choice(["", "-1", "\x00", "9" * 30])
        data = b""
        if operation.body is not None:
            made = self._value(choose, operation.body, operation)
            data = json.dumps(made).encode("utf-8", "surrogatepass")
            if choose.random() < 0.05:
                data = data[: choose.randrange(len(data) + 1)]
        target = str(httpx.URL(path, params={name: str(value)[:2000] for name, value in query.items()}))
        return choose.choice(ROLES), (operation.method, target, data, {})

    def _value(self, choose: random.Random, schema: Any, operation: Operation, depth: int = 0) -> Any:
        """A value for a JSON schema, valid more often than not."""
        if choose.random() < 0.06:
            return choose.choice([None, *WRONG])
        schema = operation.resolve(schema)
        for union in ("oneOf", "anyOf", "allOf"):
            if schema.get(union):
                return self._value(choose, choose.choice(schema[union]), operation, depth)
        if "enum" in schema:
            return choose.choice(schema["enum"])
        kind = schema.get("type")
        kind = choose.choice(kind) if isinstance(kind, list) else kind
        if kind == "object" or "properties" in schema:
            known, required = schema.get("properties", {}), schema.get("required", [])
            wanted = [name for name in known if name in required or choose.random() < 0.4]
            return (
                {name: self._value(choose, known[name], operation, depth + 1) for name in wanted} if depth < 5 else {}
            )
        if kind == "array":
            return [
                self._value(choose, schema.get("items", {}), operation, depth + 1) for _ in range(choose.randrange(3))
            ]
        if kind == "integer":
            return choose.choice([0, 1, 2, 60, 1_000_000, 1_795_000_000, schema.get("maximum", 2**31), -1])
        if kind == "number":
            return choose.choice([0, 0.5, 1, 1.5, 1e12, -1, schema.get("maximum", 1)])
        if kind == "boolean":
            return choose.random() < 0.5
        return choose.choice(
            [*self.names, "2026-10", "USD", "UTC", "month", "tokens", "standard", "live", MODEL, "=1+1", "\x1b]0;x\x07"]
        )

    def paths(self, choose: random.Random) -> tuple[str, Request]:
        parts = ["v1", "t", "acme", "globex", "admin", "..", ".", "", "%2e%2e", "%2f", "chat", "completions", "health"]
        parts += [
            "live",
            "ready",
            "metrics",
            "schema",
            "models",
            "keys",
            "assets",
            "index.html",
            "etc",
            "passwd",
            "%00",
        ]
        parts += ["organization", "usage", "é", "a" * 3000, "console", "engine", "overview", "%c0%ae", ";", "*"]
        target = "/" + "/".join(choose.choices(parts, k=choose.randrange(1, 7)))
        if choose.random() < 0.2:
            target += "?" + "&".join(choose.choices(["a=1", "page=x", "%00", "=", "a" * 1000, "limit=-1"], k=2))
        method = choose.choice(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "PROPFIND", "get"])
        data = choose.choice([b"", b"{}", b"[]", b"\x00", b"x" * 5000])
        return choose.choice(["tenant", *ROLES]), (method, target, data, {})

    def raw(self, choose: random.Random) -> bytes:
        """Bytes of one connection: a valid request with one to three changes."""
        sent = json.dumps({"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]}).encode()
        head = [b"POST /v1/chat/completions HTTP/1.1", b"host: x", b"content-type: application/json"]
        head += [b"authorization: Bearer " + self.stack.keys["acme"].encode(), b"content-length: %d" % len(sent)]
        end = b"\r\n"
        for _ in range(choose.randrange(1, 4)):
            match choose.randrange(12):
                case 0:
                    head[0] = choose.choice(RAW_LINES)
                case 1:
                    head.insert(choose.randrange(1, len(head) + 1), choose.choice(RAW_FIELDS))
                case 2:
                    head[-1] = b"content-length: " + choose.choice(
                        [b"-1", b"+5", b"0", b"1e3", b"9" * 30, b"5, 5", b""]
                    )
                case 3:
                    head[-1] = b"transfer-encoding: " + choose.choice([b"chunked", b"gzip", b"chunked, chunked", b"x"])
                    sent = choose.choice(RAW_CHUNKS)
                case 4:
                    end = choose.choice([b"\n", b"\r", b"\r\r\n", b"\r\n\r\n"])
                case 5:
                    head.pop(choose.randrange(len(head)))
                    head = head or [b""]
                case 6:
                    head += [b"x-%d: y" % number for number in range(choose.choice([10, 200, 2000]))]
                case 7:
                    head.append(b"x-long: " + b"a" * choose.choice([100, 9_000, 70_000]))
                case 8:
                    sent = sent[: choose.randrange(len(sent))]
                case 9:
                    sent += choose.choice([b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 20, b"\r\n\r\n", b"0\r\n\r\n"])
        data = end.join(head) + end + end + sent
        if choose.random() < 0.3:
            at = choose.randrange(len(data))
            data = data[:at] + bytes(choose.randrange(256) for _ in range(choose.randrange(1, 9))) + data[at + 1 :]
        return data[: choose.randrange(len(data))] if choose.random() < 0.1 else data

    def send_raw(self, data: bytes) -> None:
        """Send, close the sending half, and read until the end."""
        began, received = time.monotonic(), b""
        with socket.create_connection(("127.0.0.1", self.stack.port), timeout=ANSWER_S_MAX) as connection:
            connection.settimeout(RAW_WAIT_S)
            with contextlib.suppress(OSError):  # refused before everything was sent
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(OSError):
                while more := connection.recv(65536):
                    received += more
        statuses = [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]
        # Each of several answers on one connection counts; a connection without any answer counts too.
        for status in statuses or [0]:
            body = received.partition(b"\r\n\r\n")[2]
            self.check("raw", "tenant", repr(data[:600]), status, body, time.monotonic() - began)

    def upload(self, choose: random.Random) -> Request:
        """Upload an adapter with changed files, fields or multipart form."""
        config = json.loads((EXAMPLE / CONFIG_FILE).read_bytes())
        weights = bytearray((EXAMPLE / WEIGHTS_FILE).read_bytes())
        for _ in range(choose.randrange(1, 3)):
            match choose.randrange(5):
                case 0:
                    config[choose.choice([*config, "rank_pattern", "x"])] = choose.choice([None, *WRONG])
                case 1:
                    for _ in range(choose.randrange(1, 8)):
                        weights[choose.randrange(min(len(weights), 4000))] = choose.randrange(256)
                case 2:
                    del weights[choose.randrange(len(weights)) :]
                case 3:
                    weights[:8] = choose.choice([b"\xff" * 8, b"\x00" * 8, (10**9).to_bytes(8, "little")])
                case 4:
                    config["rank_pattern"] = {choose.choice(PATTERNS): choose.choice([4, 8, -1, "x", 10**9])}
        fields: dict[str, str] = {
            "name": choose.choice(["fuzzed", "", "\x1b[31m", "a" * 300, MODEL]),
            "base_model": MODEL,
        }
        fields |= {choose.choice(["tenant", "note", "promote", "x"]): choose.choice(["prey", "true", "", "\x00"])}
        files = {CONFIG_FILE: json.dumps(config).encode("utf-8", "surrogatepass"), WEIGHTS_FILE: bytes(weights)}
        request = httpx.Request("POST", "http://x/", data=fields, files={n: (n, data) for n, data in files.items()})
        sent, kind = request.read(), request.headers["content-type"]
        if choose.random() < 0.2:
            at = choose.randrange(len(sent))
            sent = sent[:at] + choose.randbytes(5) + sent[at + 5 :]
        return "POST", "/v1/admin/adapters", sent, {"content-type": kind}


PATTERNS = [
    "(a?){30}a{30}",
    "(?=x)" + ".?" * 28 + "X",
    ".*",
    "q_proj",
    "[",
    "(?P<a>x)",
    "^.*\\.q_proj$",
    "a" * 5000,
    "\\1",
]
RAW_LINES = [
    b"GET * HTTP/1.1",
    b"OPTIONS * HTTP/1.1",
    b"CONNECT x:1 HTTP/1.1",
    b"GET http://other/v1/models HTTP/1.1",
    b"PRI * HTTP/2.0",
    b"GET /",
    b"GET / HTTP/0.9",
    b"GET / HTTP/9.9",
    b"",
    b" ",
    b"\x16\x03\x01\x02\x00",
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1",
    b"POST /v1/chat/completions HTTP/1.0",
    b"P\x00ST / HTTP/1.1",
]
RAW_FIELDS = [
    b"content-length: 5",
    b"transfer-encoding: chunked",
    b"host: y",
    b"authorization: Bearer x",
    b" folded: x",
    b"no colon",
    b": empty",
    b"x\x00y: z",
    b"expect: 100-continue",
    b"upgrade: h2c\r\nconnection: upgrade",
    b"connection: close",
    b"content-encoding: gzip",
    b"cookie: " + b"a=b; " * 500,
    b"x: \xff\xfe",
]
RAW_CHUNKS = [
    b"5\r\nhello\r\n0\r\n\r\n",
    b"-5\r\nhello",
    b"fffffffff\r\nx",
    b"5;a=b\r\nhello\r\n0\r\n\r\n",
    b"0\r\nx: y\r\n\r\n",
    b"5\nhello\n0\n\n",
]


@dataclass(frozen=True)
class Operation:
    """One operation of the OpenAPI description."""

    method: str
    path: str
    query: dict[str, Any]
    body: Any
    components: dict[str, Any]

    def resolve(self, schema: Any) -> dict[str, Any]:
        while isinstance(schema, dict) and "$ref" in schema:
            schema = self.components[schema["$ref"].rpartition("/")[2]]
        return schema if isinstance(schema, dict) else {}


def admin_operations(stack: Stack) -> list[Operation]:
    described = httpx.get(f"{stack.url}/schema/openapi.json", timeout=ANSWER_S_MAX).json()
    found = []
    for path, item in described["paths"].items():
        if not path.startswith(("/v1/admin", "/v1/organization")) or path.startswith(LEFT_OUT):
            continue
        for method, operation in item.items():
            query = {p["name"]: p["schema"] for p in operation.get("parameters", []) if p["in"] == "query"}
            sent = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            found.append(Operation(method.upper(), path, query, sent, described["components"]["schemas"]))
        # A method that is not in the description.
        found.append(Operation("OPTIONS", path, {}, None, {}))
    return found


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _flat(inner)
    else:
        yield value


def _quoted(name: str) -> str:
    return name if "%" in name else httpx.URL("http://x/", params={"a": name}).query.decode()[2:]


def _is_error(content: bytes) -> bool:
    """Whether it is the documented error body, OpenAI's or Anthropic's."""
    try:
        return isinstance(msgspec.json.decode(content)["error"]["message"], str)
    except (msgspec.MsgspecError, KeyError, TypeError):
        return False


def play(stack: Stack, requests: int, uploads: int, seed: int) -> Seen:
    """Send `requests` in all groups, and `uploads`. Raises Broken."""
    fuzzer = Fuzzer(stack, seed)
    gateway, engine = stack.gateway, stack.engine
    assert gateway is not None
    assert engine is not None
    operations = admin_operations(stack)
    makers: dict[str, Callable[[random.Random], tuple[str, Request]]] = {
        "bodies": fuzzer.bodies,
        "admin": lambda choose: fuzzer.admin(choose, operations),
        "paths": fuzzer.paths,
    }
    with httpx.Client(base_url=stack.url, timeout=2 * ANSWER_S_MAX) as client, ThreadPoolExecutor(CLIENTS) as pool:

        def one(group: str, number: int) -> None:
            choose = random.Random(f"{seed} {group} {number}")
            if group == "raw":
                fuzzer.send_raw(fuzzer.raw(choose))
            elif group == "uploads":
                fuzzer.send(client, group, "tenant_admin", fuzzer.upload(choose))
            else:
                caller, request = makers[group](choose)
                fuzzer.send(client, group, caller, request)

        wanted = {group: round(share * requests) for group, share in SHARES.items()} | {"uploads": uploads}
        for group, count in wanted.items():
            for _ in pool.map(lambda number, group=group: one(group, number), range(count)):
                pass
    if fuzzer.seen.faults:
        raise Broken("\n".join([f"{len(fuzzer.seen.faults)} faults", *fuzzer.seen.faults[:FAULTS_SHOWN]]))
    if (gateway.poll(), engine.poll()) != (None, None):
        raise Broken(f"the gateway's exit status is {gateway.poll()}, the engine's {engine.poll()}")
    if "Traceback" in stack.log_file.read_text():
        raise Broken("the gateway logged a traceback")
    eventually(lambda: stack.open_holds() == 0)
    if (answer := stack.chat()).status_code != 200:
        raise Broken(f"an ordinary request: {answer.status_code} {answer.text}")
    return fuzzer.seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=47_500)
    parser.add_argument("--uploads", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", type=Path, default=Path(".laneway/models/smollm2-135m-instruct"))
    arguments = parser.parse_args()
    if not (arguments.model / "model.safetensors").exists():
        convert_demo_model(arguments.model)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        url = f"sqlite:///{directory}/laneway.db"
        # Delays would only make the run longer.
        stack = Stack(
            directory, url, arguments.model.resolve(), fake=FAKE, toml=TOML, gateway_toml="refusals_per_s = 0.0\n"
        )
        try:
            stack.start()
            began = time.monotonic()
            seen = play(stack, arguments.requests, arguments.uploads, arguments.seed)
        finally:
            stack.stop()
    for group, counts in seen.statuses.items():
        print(f"{group:8} {sum(counts.values()):6}  " + "  ".join(f"{s}: {n}" for s, n in sorted(counts.items())))
    took_s = time.monotonic() - began
    print(f"seed {arguments.seed}: {seen.total} answers in {took_s:.0f} s, no fault; slowest {seen.slowest_s:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
