"""Generated bodies, wrong in every way that a seed can think of: refused in one shape, and nothing is left behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import httpx
import msgspec

from gateway.access.keys import make_secret
from gateway.api import chat_wire
from gateway.api.unknown_fields import UnknownFields, is_empty
from support.stack import Stack, body

COUNT = 500
ERROR_KEYS = {"message", "type", "param", "code"}
WRONG: list[Any] = [
    "",
    "x",
    -1,
    0,
    10**40,
    1e308,
    1.5,
    True,
    [],
    {},
    [[]],
    [None],
    {"a": {"b": []}},
    "\u0000",
    "é" * 5000,
]

Bad = tuple[bytes, dict[str, str], set[int]]  # body, headers to change, statuses that are right


def encoded(fields: dict[str, Any]) -> bytes:
    return msgspec.json.encode(fields)


def refused_by_the_parser(data: bytes) -> bool:
    try:
        chat_wire.parse_chat(data, UnknownFields())
    except chat_wire.InvalidRequest:
        return True
    return False


def wrong_type(choose: random.Random) -> Bad:
    """A known field with a value that the parser, which has tests of its own, refuses."""
    while True:
        field = choose.choice(chat_wire.ChatRequest.__struct_fields__)
        data = encoded(body(**{field: choose.choice(WRONG)}))
        if refused_by_the_parser(data):
            return data, {}, {400}


def unknown_field(choose: random.Random) -> Bad:
    value = choose.choice(WRONG)
    return encoded(body(**{"x" + str(choose.randrange(10**6)): value})), {}, {200 if is_empty(value) else 400}


def wrong_message(choose: random.Random) -> Bad:
    message: dict[str, Any] = {"role": "user", "content": "Hi"}
    message[choose.choice(["role", "content", "name", "extra"])] = choose.choice(
        [-1, 1.5, True, {}, [[]], "robot\u0000"]
    )
    data = encoded(body(messages=[message]))
    return data, {}, {400} if refused_by_the_parser(data) else {200}


def cut(choose: random.Random) -> Bad:
    data = encoded(body())
    return data[: choose.randrange(len(data))], {}, {400}


def bad_utf8(choose: random.Random) -> Bad:
    data = bytearray(encoded(body(messages=[{"role": "user", "content": "Hi there, how are you?"}])))
    at = data.index(b"Hi there") + choose.randrange(20)
    data[at] = choose.choice([0xFF, 0xC0, 0xED, 0x80, 0xFE])
    return bytes(data), {}, {400}


def noise(choose: random.Random) -> Bad:
    return choose.randbytes(choose.randrange(1, 4000)), {}, {400}


def deep(choose: random.Random) -> Bad:
    depth = choose.randrange(2_000, 300_000)
    opening, closing = choose.choice([(b"[", b"]"), (b'{"a":', b"}")])
    field = choose.choice([b"tools", b"messages", b"metadata", b"logit_bias", b"response_format"])
    inner = opening * depth + (b"0" if choose.random() < 0.5 else b"") + closing * choose.choice([0, depth])
    data = b'{"model":"m","' + field + b'":' + inner + b"}"
    return data, {}, {413} if len(data) > 2 * 1024 * 1024 else {400}


def large(choose: random.Random) -> Bad:
    text = choose.choice(["a", " ", "é", '"']) * 10_000_000
    return encoded(body(messages=[{"role": "user", "content": text}])), {}, {413}


def too_long(choose: random.Random) -> Bad:
    words = choose.choice(["word ", "x", "\n", "☃"]) * choose.randrange(300_000, 400_000)
    return encoded(body(messages=[{"role": "user", "content": words}])), {}, {400}


def bad_key(choose: random.Random) -> Bad:
    secret = make_secret("live")
    wrong = choose.choice(
        [
            secret,  # well formed, and nobody's
            secret[:-1],
            secret.swapcase(),
            secret + secret,
            "sk-proj-abc",
            "lw_live_" + "~" * 38,
            "x" * 5000,
            "",
            "null",
        ]
    )
    scheme = choose.choice(["Bearer ", "bearer  ", "Basic ", "", "Bearer\t"])
    return encoded(body()), {"Authorization": (scheme + wrong).strip()}, {401}


def unseen_model(choose: random.Random) -> Bad:
    name = choose.choice(["globex-style", "gpt-4o", "acme-style ", "../acme-style", "ACME-STYLE", "\u0000"])
    return encoded(body(model=name)), {}, {404}


KINDS: list[tuple[Callable[[random.Random], Bad], int]] = [
    (wrong_type, 12),
    (unknown_field, 5),
    (wrong_message, 6),
    (cut, 5),
    (bad_utf8, 4),
    (noise, 4),
    (deep, 3),
    (large, 1),
    (too_long, 1),
    (bad_key, 6),
    (unseen_model, 3),
]


def test_500_bad_bodies(stack: Stack) -> None:
    choose = random.Random(2026)
    kinds, weights = zip(*KINDS, strict=True)
    assert stack.engine is not None
    assert stack.gateway is not None
    engine, gateway, holds = stack.engine.pid, stack.gateway.pid, stack.holds()
    good = 0
    with httpx.Client(base_url=stack.url, timeout=60) as client:
        for number in range(COUNT):
            kind = choose.choices(kinds, weights)[0]
            data, headers, statuses = kind(choose)
            sent = {"content-type": "application/json", **stack.headers(), **headers}
            answer = client.post("/v1/chat/completions", content=data, headers=sent)
            told = f"body {number}, {kind.__name__}: {answer.status_code} {answer.text[:300]}"
            assert answer.status_code in statuses, told
            if answer.status_code == 200:
                good += 1
                continue
            assert answer.headers["content-type"] == "application/json", told
            assert answer.headers["x-request-id"].startswith("req_"), told
            error = answer.json()["error"]
            assert set(error) == ERROR_KEYS, told
            assert error["type"] == "invalid_request_error", told
            assert isinstance(error["message"], str), told
    assert stack.holds() == holds + good
    assert stack.open_holds() == 0
    assert stack.engine.poll() is None
    assert stack.gateway.poll() is None
    assert (stack.engine.pid, stack.gateway.pid) == (engine, gateway)
    assert stack.chat().status_code == 200
