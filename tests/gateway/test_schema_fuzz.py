"""Requests that nobody thought of: schemathesis makes some from the OpenAPI description, and 2,000 bodies are our own.
Whatever is sent, the answer is one of those described, nothing fails inside, and nothing is left held."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
import pytest
import schemathesis
from gateway_stack import MODEL, Stack, eventually
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from gateway import completions_wire, keys, messages_wire, wire

EXAMPLES_MAX = 15  # of each operation
BODIES = 2000
CLIENTS = 4
TAKE_NOTHING = ("/health", "/health/live", "/health/ready", "/metrics", "/version")
ERROR_KEYS = {"message", "type", "param", "code"}
ANTHROPIC_KEYS = {"type", "message"}


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory, model_dir: Any) -> Iterator[Stack]:
    """A stack of its own, because an operator's requests change it. It answers at once and ends most texts early."""
    directory = tmp_path_factory.mktemp("fuzzed")
    stack = Stack(directory, f"sqlite:///{directory}/laneway.db", model_dir, fake={"step_ms": 0.0, "stop_after": 5})
    try:
        stack.start()
        yield stack
        assert stack.open_holds() == 0
    finally:
        stack.stop()


@pytest.fixture(scope="module")
def api(fuzzed: Stack) -> Any:
    return schemathesis.openapi.from_url(f"{fuzzed.url}/schema/openapi.json")


@pytest.fixture(scope="module")
def operator(fuzzed: Stack) -> str:
    return fuzzed.write(lambda c: keys.create(c, tenant_id=None, name="operator", kind="admin")).secret


BOUNDED = settings(
    max_examples=EXAMPLES_MAX,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["as described", "otherwise"])
def test_what_is_described(fuzzed: Stack, operator: str, api: Any, mode: GenerationMode) -> None:
    for result in api.get_all_operations():
        operation = result.ok()
        # The same handlers; and a stream that never ends by itself, which test_live has.
        if operation.path.startswith("/t/") or operation.path == "/v1/admin/engine/live":
            continue
        if mode.is_negative and operation.path in TAKE_NOTHING:
            continue

        @BOUNDED
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case: schemathesis.Case) -> None:
            check_case(fuzzed, operator, case)

        check()
    assert internal_errors(fuzzed) == 0


def check_case(stack: Stack, operator: str, case: schemathesis.Case) -> None:
    secret = operator if case.operation.path.startswith("/v1/admin") else stack.keys["acme"]
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = MODEL  # another is only ever not found
    answer = case.call(headers={"Authorization": f"Bearer {secret}"}, timeout=60)
    assert answer.status_code < 500 or is_refusal(answer.status_code, answer.content), answer.text
    checks: list[Any] = [content_type_conformance, status_code_conformance]
    if not answer.headers["content-type"][0].startswith("text/event-stream"):
        checks.append(response_schema_conformance)  # of an event it would check the envelope, not the data
    case.validate_response(answer, checks=checks)


def internal_errors(stack: Stack) -> float:
    metrics = stack.metrics()
    return sum(
        float(line.split()[-1]) for line in metrics.splitlines() if line.startswith("laneway_internal_errors_total")
    )


def is_refusal(status: int, content: bytes) -> bool:
    return status == 503 and set(msgspec.json.decode(content)["error"]) in (ERROR_KEYS, ANTHROPIC_KEYS)


# ---- bodies of our own making

WRONG: list[Any] = [
    "",
    "x",
    -1,
    0,
    10**40,
    1e308,
    -0.0,
    True,
    [],
    {},
    [[]],
    [None],
    {"a": {"b": []}},
    "\u0000",
    "é" * 3000,
]
# By field: values that are right, or nearly. Those of one request may contradict each other.
PLAUSIBLE: dict[str, list[Any]] = {
    "max_tokens": [1, 2, 8, 8192, 2**31 - 1],
    "max_completion_tokens": [1, 8, 16],
    "n": [1, 2, 8, 9],
    "temperature": [0, 0.0, 0.3, 1, 1.5, 2, 2.1],
    "top_p": [0, 0.01, 0.5, 1, 1.01],
    "top_k": [-1, 0, 1, 40, 49151, 2**31],
    "min_p": [0, 0.1, 1],
    "presence_penalty": [-2, 0, 2, 2.5],
    "frequency_penalty": [-2, 0.5, 2],
    "repetition_penalty": [0, 0.01, 1, 1.3, 10],
    "logit_bias": [{}, {"5": -100}, {"49151": 100}, {"49152": 1}, {"-1": 1}, {str(i): 1 for i in range(1024)}],
    "seed": [0, -(2**63), 2**63 - 1, 2**63],
    "stop": ["a", "\n", ["e", "é"], ["a", "b", "c", "d"], ["a", "b", "c", "d", "e"], ""],
    "stop_sequences": [[], ["e"], ["the", " "]],
    "stop_token_ids": [[], [2], [0, 1, 2], [49152]],
    "min_tokens": [0, 1, 8, 9000],
    "ignore_eos": [True, False],
    "skip_special_tokens": [True, False],
    "stream": [True, False],
    "stream_options": [None, {}, {"include_usage": True}, {"include_usage": None}, {"x": 1}],
    "logprobs": [True, False, None, 0, 3, 20, 21],
    "top_logprobs": [0, 1, 20, 21],
    "echo": [True, False],
    "best_of": [1, 2],
    "service_tier": ["auto", "default", "priority", "flex", "standard_only", "gold"],
    "add_generation_prompt": [True, False],
    "continue_final_message": [True, False],
    "system": ["", "Be brief.", [{"type": "text", "text": "Be brief."}], [], [{"type": "image"}]],
    "prompt": ["", "Once", ["a", "b"], [1, 2, 3], [[1], [2, 3]], [], [[]], ["a", 1], [49152], ["x"] * 17, "é☃🙂" * 50],
    "tools": [None, [], [{"type": "function"}]],
    "response_format": [None, {"type": "text"}, {"type": "json_object"}],
    "model": [MODEL, "acme-style", "globex-style", "nobody", ""],
}  # fmt: skip
TEXTS = ["", "Hi", "Hi", "Say it.", "\u0000", "<|im_end|>", "é☃🙂\u200d", "a" * 3000, "\n\n"]
ROLES = ["system", "developer", "user", "assistant", "tool", ""]


@dataclass(frozen=True)
class Endpoint:
    path: str
    request: type[msgspec.Struct]
    required: tuple[str, ...]


ENDPOINTS = (
    Endpoint("/v1/chat/completions", wire.ChatRequest, ("messages",)),
    Endpoint("/v1/completions", completions_wire.CompletionRequest, ("prompt",)),
    Endpoint("/v1/messages", messages_wire.MessagesRequest, ("messages", "max_tokens")),
    Endpoint("/v1/messages/count_tokens", messages_wire.CountRequest, ("messages",)),
)


def a_message(choose: random.Random) -> Any:
    text: Any = choose.choice(TEXTS)
    if choose.random() < 0.3:
        text = [{"type": choose.choice(["text"] * 9 + ["image_url"]), "text": choose.choice(TEXTS)}]
    message = {"role": choose.choice(ROLES if choose.random() < 0.2 else ["user", "assistant"]), "content": text}
    if choose.random() < 0.1:
        message[choose.choice(["name", "tool_calls", "content", "x"])] = choose.choice([None, *WRONG])
    return message


def a_body(choose: random.Random, endpoint: Endpoint) -> bytes:
    """Fields that are known with values that may be right; one in five has something that cannot be."""
    fields: dict[str, Any] = {"model": MODEL, "max_tokens": 4, "prompt": "Once upon a time"}
    fields["messages"] = [a_message(choose) for _ in range(choose.randrange(1, 4))]
    known = endpoint.request.__struct_fields__
    fields = {name: value for name, value in fields.items() if name in known}
    usual = [name for name in known if name in PLAUSIBLE]
    for name in choose.sample(usual, choose.randrange(min(5, len(usual)))):
        fields[name] = choose.choice(PLAUSIBLE[name])
    if choose.random() < 0.2:
        fields[choose.choice([*known, "unknown"])] = choose.choice([None, *WRONG])
    if choose.random() < 0.05:
        fields.pop(choose.choice([*endpoint.required, "model"]), None)
    if choose.random() < 0.03:
        fields["user"] = "\ud83d"  # half a character
    data = json.dumps(fields, ensure_ascii=choose.random() < 0.5).encode("utf-8", "surrogatepass")
    return data[: choose.randrange(len(data))] if choose.random() < 0.03 else data


def test_2000_bodies(fuzzed: Stack) -> None:
    choose = random.Random(2027)
    asked = [(endpoint, a_body(choose, endpoint)) for endpoint in choose.choices(ENDPOINTS, (5, 4, 3, 1), k=BODIES)]
    began = internal_errors(fuzzed)
    with httpx.Client(base_url=fuzzed.url, headers=fuzzed.headers(), timeout=60) as client:

        def send(one: tuple[Endpoint, bytes]) -> httpx.Response:
            return client.post(one[0].path, content=one[1], headers={"content-type": "application/json"})

        with ThreadPoolExecutor(CLIENTS) as pool:
            answers = list(pool.map(send, asked))
    for (endpoint, data), answer in zip(asked, answers, strict=True):
        check_answer(endpoint, answer, f"{endpoint.path} {data[:600]!r}: {answer.status_code} {answer.text[:300]}")
    statuses = Counter(answer.status_code for answer in answers)
    assert statuses[200] > BODIES / 4, statuses  # else they would prove little
    assert statuses[400] > BODIES / 10, statuses
    assert internal_errors(fuzzed) == began
    eventually(lambda: fuzzed.open_holds() == 0)
    assert fuzzed.chat().status_code == 200


def check_answer(endpoint: Endpoint, answer: httpx.Response, told: str) -> None:
    assert answer.headers["x-request-id"].startswith("req_"), told
    if answer.status_code == 200:
        assert '"error"' not in answer.text, told  # nor in a stream
        return
    assert answer.status_code in (400, 404), told
    assert answer.headers["content-type"] == "application/json", told
    error = answer.json()["error"]
    assert isinstance(error["message"], str), told
    if endpoint.path.startswith("/v1/messages"):
        assert set(error) == ANTHROPIC_KEYS, told
    else:
        assert set(error) == ERROR_KEYS, told
        assert error["type"] == "invalid_request_error", told
