"""Random requests: schemathesis makes some from the OpenAPI description, and BODIES are our own.
Whatever is sent, the answer is one of those described, nothing fails inside, and nothing is left held."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from gateway.access import keys
from support.gateway.random_bodies import ENDPOINTS, WEIGHTS, Endpoint, a_body
from support.stack import MODEL, Stack
from support.waiting import eventually

EXAMPLES_MAX = int(os.environ.get("LANEWAY_FUZZ_EXAMPLES", "7"))  # of each operation; `make long` has more
BODIES = int(os.environ.get("LANEWAY_FUZZ_BODIES", "1000"))
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
    return fuzzed.write(lambda c: keys.create_key(c, tenant_id=None, name="operator", kind="admin")).secret


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


def test_2000_bodies(fuzzed: Stack) -> None:
    choose = random.Random(2027)
    asked = [(endpoint, a_body(choose, endpoint)) for endpoint in choose.choices(ENDPOINTS, WEIGHTS, k=BODIES)]
    began = internal_errors(fuzzed)
    with httpx.Client(base_url=fuzzed.url, headers=fuzzed.headers(), timeout=60) as client:

        def send(one: tuple[Endpoint, bytes]) -> httpx.Response:
            try:
                return client.post(one[0].path, content=one[1], headers={"content-type": "application/json"})
            except httpx.ReadTimeout:
                raise AssertionError(one) from None

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
        assert set(error) - {"errors"} == ERROR_KEYS, told
        assert error["type"] == "invalid_request_error", told
