"""The body of a new Message Batch, split into lines wherever its parts end."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from gateway.batches.inline_requests import RequestSplitter
from gateway.errors import InvalidRequest, RequestTooLarge

TEXTS = ["", "plain", 'a "quoted" text', "back\\slash\\", "{[]}", '\\"}', "é\u2028😀", "]}", "line\nbreak"]


def body_of(count: int, indent: int | None) -> tuple[bytes, list[Any]]:
    chosen = random.Random(count)
    requests = [
        {"custom_id": f"r{number}", "params": {"model": "m", "x": [chosen.choice(TEXTS), {"y": chosen.choice(TEXTS)}]}}
        for number in range(count)
    ]
    return json.dumps({"requests": requests}, indent=indent, ensure_ascii=count % 2 == 0).encode(), requests


def split(body: bytes, size: int) -> bytes:
    splitter = RequestSplitter(10_000)
    lines = b"".join([splitter.split_part(body[at : at + size]) for at in range(0, len(body), size)])
    splitter.finish_body()
    return lines


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_parts_of_any_size_give_the_same_lines(indent: int | None, size: int) -> None:
    for count in (1, 2, 30, 31):
        body, requests = body_of(count, indent)
        lines = split(body, size)
        found = [json.loads(line) for line in lines.splitlines() if line]
        assert lines.count(b"\n") == count, "no line of a request is broken"
        assert [(line["custom_id"], line["body"]) for line in found] == [
            (request["custom_id"], request["params"]) for request in requests
        ]
        assert {(line["method"], line["url"]) for line in found} == {("POST", "/v1/messages")}


@pytest.mark.parametrize(
    "body",
    [
        b'{"requests": [{"custom_id": "a", "params": {"model": "m"}},]}',
        b'{"requests": [{"custom_id": "a", "params": {"model": "m"}}{}]}',
        b'{"requests": [,]}',
        b'{"requests": [1]}',
        b'{"requests": [{"custom_id": "a", "params": {"model": "m"}}]} x',
        b'{"requests": [{"custom_id": "a", "params": {"model": "m"}}]',
        b'{"requests": [{"custom_id": "a", "params": {"model": "m"}}]} }',
        b'{"other": 1, "requests": []}',
        b'{"requests": [{"custom_id": "a", "params": {"model": "m"]}]}',
        b'{"requests": [{"custom_id": "a", "params": []}]}',
    ],
)
def test_a_wrong_body_is_refused(body: bytes) -> None:
    for size in (1, len(body)):
        with pytest.raises(InvalidRequest):
            split(body, size)


def test_a_request_over_the_limit_is_refused_before_it_has_arrived() -> None:
    splitter = RequestSplitter(100)
    with pytest.raises(RequestTooLarge, match=r"requests\.0 is over the limit of 100 bytes"):
        splitter.split_part(b'{"requests": [{"custom_id": "' + b"a" * 200)


def test_no_space_after_the_requests_is_retained() -> None:
    splitter = RequestSplitter(10_000)
    splitter.split_part(b'{"requests": [{"custom_id": "a", "params": {"model": "m"}}]')
    for part in (b" \r\n\t" * 1000, b" } ", b"\n" * 1000):
        splitter.split_part(part)
        assert not splitter._rest
    splitter.finish_body()
