"""Sends hostile schemas, tools and regular expressions to a gateway with a real engine on a CPU.

    python tests/programs/hostile_grammars.py [--requests 10000] [--seed 1]

Several clients of three tenants send them as output formats and tools of chat completions and messages, streamed or
not. Some clients leave before the end. `play` raises Broken unless

- each answer is 200, a 400 that names a field or a place, 429, or 503 with Retry-After, within ANSWER_S_MAX;
- a stream that an error ends names the field whose grammar exceeded a limit;
- an answer that ends "stop" is JSON, and an instance of its schema where a validator can read the schema;
- a plain request beside them is answered 200, PLAIN_EVERY requests after the last one;
- gateway and engine are the processes that they were at the start, and the gateway is ready and logged no traceback;
- at the end no hold is open, and made = billed + discarded + lost.

The same seed makes the same requests. Each answer is judged alone: the order in which threads send does not matter.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # beside support/, and beside the packages where those are not installed
    sys.path[:0] = [str(directory) for directory in Path(__file__).resolve().parents[1:3]]

import httpx
import jsonschema_rs

from billing import tables
from billing.proofs.ledger_audit import audit_ledger
from support.gateway.engine_books import column_sum, engine_status, metric
from support.gateway.hostile_schemas import make_schema, pattern
from support.paths import EXAMPLES
from support.stack import MODEL, TIERS, Stack, events
from support.waiting import eventually

TINY = EXAMPLES / "models" / "laneway-tiny"
CLIENTS = 9
ANSWER_S_MAX = 60.0
PLAIN_EVERY = 50
FAULTS_SHOWN = 12
# Of a stream that has begun when the grammar exceeds a limit, or its masks are late.
GUIDE_FAULTS = tuple(
    f"error: '{field}' {what}"
    for field in ("response_format.json_schema.schema", "output_config.format.schema", "tools")
    for what in ("cannot be followed further", "takes too long")
)
UNLIMITED = "requests_per_minute = 100000000\ntokens_per_minute = 1000000000\nconcurrency = 100000\n"
# The model's template knows no tools: calls are written as text. The section of the model comes first.
TOML = f'tools = "hermes"\n[limits]\n{UNLIMITED}[tenant_limits]\n{UNLIMITED}'


class Broken(AssertionError):
    """A condition of this module's docstring is violated."""


class TinyStack(Stack):
    """A Stack whose engine serves laneway-tiny on the CPU."""

    def start_engine(self) -> None:
        file = self.directory / "engine.json"
        model = {"name": MODEL, "path": str(self.model_dir)}
        file.write_text(json.dumps({"models": [model], "device": "cpu", "arena_bytes": 64 * 2**20, "threads": 1}))
        argv = [sys.executable, "-m", "engine", "--socket", str(self.config.socket_path), "--config", str(file)]
        with (self.directory / "engine.log").open("ab") as log:
            self.engine = subprocess.Popen([*argv, "--raise-targets"], stdout=log, stderr=log)


@contextlib.contextmanager
def running_stack(directory: Path, database_url: str = "") -> Iterator[Stack]:
    stack = TinyStack(directory, database_url or f"sqlite:///{directory}/laneway.db", TINY, toml=TOML)
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()


@dataclass(frozen=True)
class Request:
    """`schema`: of the answer's text, or of the arguments of its calls; None: any JSON object is valid. `leaves`: the
    number of lines after which the client disconnects; None: it reads the whole answer."""

    family: str
    path: str
    body: bytes
    schema: Any
    leaves: int | None

    @property
    def may_be_text(self) -> bool:
        """Whether the model may answer without a call."""
        return b'"tool_choice": "auto"' in self.body

    @property
    def is_stream(self) -> bool:
        return b'"stream": true' in self.body


@dataclass
class Seen:
    """Statistics of the answers. `endings`: of answers 200; "left": the client disconnected."""

    statuses: Counter[int] = field(default_factory=Counter)
    families: dict[str, Counter[int]] = field(default_factory=dict)
    endings: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)  # by the beginning of the message
    instances: int = 0  # answers that a validator accepted
    plain: int = 0
    slowest_s: float = 0.0
    faults: list[str] = field(default_factory=list)


# ---- requests


def make_request(seed: int, number: int) -> Request:
    choose = random.Random(f"{seed} {number}")
    kind = choose.choices(["format", "tool", "custom", "message_format", "message_tool", "object"], (9, 5, 2, 3, 2, 1))[
        0
    ]
    family, text = ("custom", "") if kind == "custom" else make_schema(choose)
    fields: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": f"Answer. {number % 7}"}]}
    fields["max_tokens"] = choose.choice([1, 8, 16, 32, 64])
    fields["stream"] = choose.random() < 0.35
    fields["temperature"] = choose.choice([0, 0.7, 1.0, 1.0])
    if not kind.startswith("message"):
        fields |= choose.choice([{}, {}, {}, {"seed": number}, {"n": 2}, {"logprobs": True}, {"presence_penalty": 1.5}])
        fields |= choose.choice([{}, {}, {}, {"min_tokens": 3}, {"stop": ["}"]}, {"logit_bias": {"5": 100}}])
    body, is_schema = _with_grammar(choose, kind, fields, text)
    leaves = choose.randrange(12) if choose.random() < 0.08 else None
    return Request(family, "/v1/messages" if kind.startswith("message") else "/v1/chat/completions",
                   body, _parsed(text) if is_schema else None, leaves)  # fmt: skip


def _with_grammar(choose: random.Random, kind: str, fields: dict[str, Any], text: str) -> tuple[bytes, bool]:
    """The body, and whether the schema constrains the answer. The schema's text is put in as it is."""
    strict, place = choose.random() < 0.25, "\ue000schema\ue000"
    forced, tool = choose.choice(["auto", "required", "required", "named"]), "do_it"
    match kind:
        case "object":
            fields["response_format"] = {"type": "json_object"}
        case "format":
            own = {"name": "x", "schema": place, "strict": strict}
            fields["response_format"] = {"type": "json_schema", "json_schema": own}
        case "message_format":
            fields["output_config"] = {"format": {"type": "json_schema", "schema": place}}
        case "message_tool":
            fields["tools"] = [{"name": tool, "input_schema": place, "strict": strict}]
            fields["tool_choice"] = {"type": "tool", "name": tool} if forced == "named" else {"type": "any"}
        case "tool":
            function = {"name": tool, "parameters": place, "strict": strict}
            fields["tools"] = [{"type": "function", "function": function}, *choose.choice([[], [OTHER_TOOL]])]
            fields["tool_choice"] = {"type": "function", "function": {"name": tool}} if forced == "named" else forced
        case "custom":
            lark = choose.random() < 0.2
            definition = choose.choice(LARK) if lark else pattern(choose)
            grammar = {"syntax": "lark" if lark else "regex", "definition": definition}
            format_ = {"type": "grammar", "grammar": grammar}
            fields["tools"] = [{"type": "custom", "custom": {"name": tool, "format": format_}}]
            fields["tool_choice"] = "required"
    body = json.dumps(fields).replace(json.dumps(place), text)
    return body.encode("utf-8", "surrogatepass"), kind in ("format", "message_format") or (strict and "tool" in kind)


OTHER_TOOL = {"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}}
LARK = [
    "start: start", "start: start 'a' | 'a'", "start: a\na: b\nb: a", 'start: ("a"|"b"){100000}', "start: /(a+)+/",
    "%json {}", "", "start", "\n".join(["start: r0", *[f"r{i}: r{i + 1} r{i + 1}" for i in range(2000)], 'r2000: "x"']),
    "%llguidance {}\nstart: /x/", "start: " + "(" * 5000,
]  # fmt: skip


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


# ---- judging


class Player:
    def __init__(self, stack: Stack, seed: int) -> None:
        self.stack = stack
        self.seed = seed
        self.seen = Seen()
        self.client = httpx.Client(base_url=stack.url, timeout=2 * ANSWER_S_MAX)

    def play_one(self, number: int) -> None:
        request, began = make_request(self.seed, number), time.monotonic()
        headers = self.stack.headers(list(TIERS)[number % len(TIERS)])
        fault = f"request {number}, {request.family}: {request.body[:600]!r}"
        try:
            with self.client.stream("POST", request.path, content=request.body, headers=headers) as answer:
                if request.leaves is not None and answer.status_code == 200:
                    for at, _ in enumerate(answer.iter_lines()):
                        if at >= request.leaves:
                            break
                    self._count(request, 200)
                    self.seen.endings["left"] += 1
                    return
                content = answer.read().decode()
            if why := self.judge(request, answer, content):
                self.seen.faults.append(f"{why}: {fault}: {answer.status_code} {content[:600]}")
        except httpx.TransportError as error:
            self.seen.faults.append(f"{error!r}: {fault}")
        took_s = time.monotonic() - began
        self.seen.slowest_s = max(self.seen.slowest_s, took_s)
        if took_s > ANSWER_S_MAX:
            self.seen.faults.append(f"answered after {took_s:.1f} s: {fault}")
        if number % PLAIN_EVERY == 0:
            plain = self.stack.chat("acme", max_tokens=4)
            self.seen.plain += 1
            if plain.status_code != 200:
                self.seen.faults.append(f"a plain request: {plain.status_code} {plain.text}")

    def _count(self, request: Request, status: int) -> None:
        self.seen.statuses[status] += 1
        self.seen.families.setdefault(request.family, Counter())[status] += 1

    def judge(self, request: Request, answer: httpx.Response, content: str) -> str:
        """What is wrong; empty: nothing."""
        self._count(request, answer.status_code)
        if answer.status_code == 200:
            return self._judge_texts(request, content)
        error = json.loads(content)["error"]
        self.seen.refusals[f"{answer.status_code} {error['message'][:70]}"] += 1
        match answer.status_code:
            case 400:
                return "" if names_something(error) else "it names nothing"
            case 429 | 503:
                return "" if "retry-after" in answer.headers else "no Retry-After"
        return "a status that is not documented for schemas"

    def _judge_texts(self, request: Request, content: str) -> str:
        for ending, texts in read_answer(request, content):
            if ending.startswith(GUIDE_FAULTS):
                self.seen.endings["its grammar's limit"] += 1
                continue
            self.seen.endings[ending] += 1
            if ending not in ("stop", "length"):
                return f"it ends {ending!r}"
            if ending == "stop" and b'"stop": [' not in request.body:
                for text in texts:
                    if why := self._judge_text(request, text):
                        return why
        return ""

    def _judge_text(self, request: Request, text: str) -> str:
        if request.family == "custom":
            return ""
        try:
            value = json.loads(text)
            json.dumps(value, allow_nan=False)
        except (ValueError, RecursionError) as error:
            if "Out of range float" in str(error):  # 1e999 is a number of JSON, and not of the validator
                return ""
            return f"no JSON ({error}): {text!r}"
        if request.schema is None:
            return "" if isinstance(value, dict) else f"no object: {text!r}"
        try:
            validator = jsonschema_rs.validator_for(request.schema, validate_formats=True)
            valid = validator.is_valid(value)
        except (
            ValueError,
            jsonschema_rs.ValidationError,
        ):  # no schema of the validator: there is nothing to compare with
            return ""
        self.seen.instances += valid
        return "" if valid else f"no instance: {text!r}"

    def check_end(self, epoch: str) -> None:
        """Raises Broken."""
        stack, seen = self.stack, self.seen
        if seen.faults:
            raise Broken("\n".join([f"{len(seen.faults)} faults", *seen.faults[:FAULTS_SHOWN]]))
        assert stack.gateway is not None
        assert stack.engine is not None
        if (stack.gateway.poll(), stack.engine.poll()) != (None, None):
            raise Broken(f"the gateway's exit status is {stack.gateway.poll()}, the engine's {stack.engine.poll()}")
        if "Traceback" in stack.log_file.read_text():
            raise Broken("the gateway logged a traceback")
        eventually(lambda: stack.open_holds() == 0)
        eventually(lambda: engine_status(stack).running == 0)
        stack.wait_ready()
        report = engine_status(stack)
        if report.epoch != epoch:
            raise Broken("the engine was started again")
        lost, overrun = (metric(report, f"laneway_tokens_{name}_total") for name in ("lost", "overrun"))
        usage = tables.usage.c
        billed, discarded = (column_sum(stack, column) for column in (usage.completion_tokens, usage.discarded_tokens))
        if report.tokens_made != billed + discarded + overrun + lost:
            raise Broken(
                f"{report.tokens_made} tokens made, {billed} billed, {discarded} discarded, {overrun=}, {lost=}"
            )
        audit = stack.read(audit_ledger)
        if not audit.sound:
            raise Broken(f"the books: {audit}")


def names_something(error: dict[str, Any]) -> bool:
    """Whether the message names the body or a field of the request, or has a JSON pointer or a quotation."""
    return bool(error.get("param")) or any(mark in error["message"] for mark in ("'", '"', "/", "The body"))


def read_answer(request: Request, content: str) -> list[tuple[str, list[str]]]:
    """Of each choice its ending, "stop", "length" or another word, and its JSON texts: its text, or the arguments of
    its calls."""
    if request.path == "/v1/messages":
        return [_read_message(request, content)]
    if not request.is_stream:
        return [
            _ended(request, one["finish_reason"], one["message"]["content"],
                   [call.get("function", {}).get("arguments", "{}") for call in one["message"].get("tool_calls") or ()])
            for one in json.loads(content)["choices"]
        ]  # fmt: skip
    texts: dict[int, str] = {}
    calls: dict[tuple[int, int], str] = {}
    endings: dict[int, str] = {}
    for event in events(content):
        if isinstance(event, dict) and "error" in event:
            return [(f"error: {event['error']['message']}", [])]
        for choice in event.get("choices", ()) if isinstance(event, dict) else ():
            index, delta = choice["index"], choice["delta"]
            texts[index] = texts.get(index, "") + (delta.get("content") or "")
            for call in delta.get("tool_calls") or ():
                key = (index, call["index"])
                calls[key] = calls.get(key, "") + call.get("function", {}).get("arguments", "")
            if choice["finish_reason"]:
                endings[index] = choice["finish_reason"]
    if not endings:
        return [("unended", [])]
    return [
        _ended(request, ending, texts[index], [text for (of, _), text in calls.items() if of == index])
        for index, ending in endings.items()
    ]


def _ended(request: Request, reason: str, text: str | None, calls: list[str]) -> tuple[str, list[str]]:
    if reason == "tool_calls":
        return "stop", calls
    if calls or not request.may_be_text:
        return reason, calls or [text or ""]
    return reason, []


def _read_message(request: Request, content: str) -> tuple[str, list[str]]:
    blocks: dict[int, tuple[str, str]] = {}  # type and text, by index
    reason = "unended"
    if not request.is_stream:
        answer = json.loads(content)
        reason = answer["stop_reason"]
        blocks = {
            i: (b["type"], b["text"] if b["type"] == "text" else json.dumps(b["input"]))
            for i, b in enumerate(answer["content"])
        }
    else:
        for line in content.split("\n"):  # a string may have U+2028, a line end to splitlines
            event = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
            match event.get("type"):
                case "error":
                    return f"error: {event['error']['message']}", []
                case "content_block_start":
                    blocks[event["index"]] = event["content_block"]["type"], ""
                case "content_block_delta":
                    kind, text = blocks[event["index"]]
                    delta = event["delta"]
                    blocks[event["index"]] = kind, text + (delta.get("text") or delta.get("partial_json") or "")
                case "message_delta":
                    reason = event["delta"]["stop_reason"]
    reason = {"end_turn": "stop", "tool_use": "stop", "stop_sequence": "stop", "max_tokens": "length"}.get(
        reason, reason
    )
    calls = [text or "{}" for kind, text in blocks.values() if kind == "tool_use"]
    return reason, calls or ["".join([text for kind, text in blocks.values() if kind == "text"])]


def play(stack: Stack, requests: int, seed: int) -> Seen:
    """Raises Broken."""
    player, epoch, began = Player(stack, seed), engine_status(stack).epoch, time.monotonic()
    with player.client, ThreadPoolExecutor(CLIENTS) as pool:
        for done, _ in enumerate(pool.map(player.play_one, range(requests)), 1):
            if done % 500 == 0:
                print(f"{done} after {time.monotonic() - began:.0f} s, {len(player.seen.faults)} faults", flush=True)
    player.check_end(epoch)
    return player.seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lw") as scratch, running_stack(Path(scratch)) as stack:
        began = time.monotonic()
        seen = play(stack, arguments.requests, arguments.seed)
    for family, counts in sorted(seen.families.items()):
        print(f"{family:16} {sum(counts.values()):6}  " + "  ".join(f"{s}: {n}" for s, n in sorted(counts.items())))
    for message, count in seen.refusals.most_common(30):
        print(f"{count:6}  {message}")
    print(f"statuses {dict(seen.statuses)}, endings {dict(seen.endings)}")
    print(f"{seen.instances} instances of their schemas, {seen.plain} plain requests; slowest {seen.slowest_s:.1f} s")
    print(f"seed {arguments.seed}: {arguments.requests} requests in {time.monotonic() - began:.0f} s, no fault")
    return 0


if __name__ == "__main__":
    sys.exit(main())
