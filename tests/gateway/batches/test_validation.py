"""The input file of a batch, line by line: what is accepted, and what each refusal says."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.batches.validation import BLANK_LINES_MAX, ERRORS_MAX, LINES_MAX, LineScanner, in_order, read_line

CHAT = "/v1/chat/completions"
LINE_BYTES_MAX = 2000


def line(custom_id: str = "a", model: str = "m", content: str = "hello", **fields: Any) -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": content}]}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body} | fields).encode()


def scan(
    data: bytes, part_bytes: int = 10**9, lines_max: int = LINES_MAX, line_bytes_max: int = LINE_BYTES_MAX
) -> LineScanner:
    scanner = LineScanner(CHAT, line_bytes_max, lines_max)
    for start in range(0, len(data), part_bytes):
        scanner.scan_part(data[start : start + part_bytes])
    scanner.finish_scan()
    return scanner


def codes(scanner: LineScanner) -> list[tuple[str, int | None]]:
    return [(error.code, error.line) for error in scanner.errors]


@pytest.mark.parametrize("part_bytes", [3, 7, 64, 10**9])
@pytest.mark.parametrize(
    ("before", "between", "after"),
    [(b"", b"\n", b"\n"), (b"", b"\n", b""), (b"\xef\xbb\xbf", b"\r\n", b"\r\n"), (b"\n\n", b"\n  \n\r\n", b"\n\n")],
    ids=["LF", "no last newline", "BOM and CRLF", "blank lines"],
)
def test_each_line_is_found_at_its_place(before: bytes, between: bytes, after: bytes, part_bytes: int) -> None:
    lines = [line("a"), line("b", content="é" * 50), line("c")]
    data = before + between.join(lines) + after
    scanner = scan(data, part_bytes)
    assert scanner.errors == []
    assert [data[one.offset : one.offset + one.length] for one in scanner.lines] == lines
    assert scanner.requests == 3
    assert scanner.enqueued_tokens == -(-sum(len(read_line(one).body) for one in lines) // 4)


@pytest.mark.parametrize(
    ("wrong", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b"\xff\xfe", "invalid_json_line", None),
        (b"[" * 1000, "invalid_request_line", None),
        (b"[]", "invalid_request_line", None),
        (json.dumps({"custom_id": "b", "method": "POST", "url": CHAT}).encode(), "invalid_request_line", "body"),
        (line("b", method=3), "invalid_request_line", "method"),
        (line("b", body=[]), "invalid_request_line", "body"),
        (line("b", body={"messages": []}), "invalid_request_line", "body.model"),
        (line("b", body={"model": 3}), "invalid_request_line", "body.model"),
        (line("b", more=1), "invalid_request_line", "more"),
        (line("b", **{"x`y": "1"}), "invalid_request_line", "x`y"),
        (line("b", **{"x" * 1000: "1"}), "invalid_request_line", "x" * 128),
        (line(""), "invalid_custom_id", "custom_id"),
        (line("b" * 513), "invalid_custom_id", "custom_id"),
        (line("b", method="GET"), "invalid_method", "method"),
        (line("b", url="/v1/embeddings"), "mismatched_url", "url"),
        (line("a"), "duplicate_custom_id", "custom_id"),
        (line("b", content="x" * LINE_BYTES_MAX), "line_too_long", None),
    ],
)
def test_a_wrong_line_is_named(wrong: bytes, code: str, param: str | None) -> None:
    for part_bytes in (50, 10**9):
        scanner = scan(b"\n".join([line("a"), b"", wrong, line("c")]), part_bytes)
        assert codes(scanner) == [(code, 3)]
        [error] = scanner.errors
        assert error.param == param
        assert error.message.endswith(".")
        assert len(error.message) < 300
        assert len(scanner.lines) == 2, "the lines after it are checked too"


def test_a_long_line_is_not_kept_in_memory() -> None:
    scanner = LineScanner(CHAT, LINE_BYTES_MAX)
    for _ in range(100):
        scanner.scan_part(b"x" * 1000)
        assert len(scanner._rest) <= LINE_BYTES_MAX
    scanner.scan_part(b"\n" + line("b") + b"\n")
    scanner.finish_scan()
    assert codes(scanner) == [("line_too_long", 1)]
    assert "100000 bytes" in scanner.errors[0].message
    [found] = scanner.lines
    assert (found.line, found.offset) == (2, 100_001)


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_a_file_without_a_request_is_refused(data: bytes) -> None:
    assert codes(scan(data)) == [("empty_file", None)]


def test_at_most_so_many_errors_are_listed() -> None:
    scanner = scan(b"{\n" * (ERRORS_MAX + 50))
    assert len(scanner.errors) == ERRORS_MAX
    assert scanner.has_failed


def test_the_number_of_lines_is_limited() -> None:
    assert scan(b"\n".join(line(str(number)) for number in range(3)), lines_max=3).errors == []
    scanner = scan(b"\n".join(line(str(number)) for number in range(6)), lines_max=3)
    assert codes(scanner) == [("too_many_lines", 4)]
    assert scanner.has_failed


def test_the_number_of_blank_lines_is_limited() -> None:
    assert scan(b"\n" * BLANK_LINES_MAX + line("a")).errors == []
    scanner = scan(b" \n" + b"\n" * (5 * BLANK_LINES_MAX) + b"{\n")
    assert codes(scanner) == [("too_many_blank_lines", BLANK_LINES_MAX + 1)]
    assert scanner.has_failed
    assert scanner._number == BLANK_LINES_MAX + 1, "no line after it is checked"


LONG = "You are a careful clerk of the department of water. Answer in one sentence. " * 3
MANUAL = "Rule 1: be brief. " * 200


@pytest.mark.parametrize(
    "body",
    [
        lambda group, number: {
            "messages": [
                {"role": "system", "content": f"{LONG}{group}{LONG}"},
                {"role": "user", "content": f"Question {number}"},
            ]
        },
        lambda group, number: {"messages": [{"role": "user", "content": f"{MANUAL}{group}{MANUAL}Question {number}"}]},
        lambda group, number: {"instructions": f"{LONG}{group}{MANUAL}", "input": f"Question {number}"},
        lambda group, number: {"prompt": f"{MANUAL}{group}{MANUAL}Question {number}"},
        lambda group, number: {"tools": [{"name": f"tool-{group}", "description": LONG}], "input": f"{LONG}{number}"},
    ],
    ids=["system prompt", "one message", "instructions", "prompt", "tools"],
)
def test_lines_with_a_long_common_prefix_run_one_after_another(body: Callable[[str, int], dict[str, Any]]) -> None:
    groups = [number % 3 for number in range(9)]
    assert len(LONG) > 215
    lines = [line(str(at), body={"model": "m"} | body("ABC"[group], at)) for at, group in enumerate(groups)]
    scanner = scan(b"\n".join(lines), line_bytes_max=10_000)
    assert scanner.errors == []
    ordered = [groups[one.line - 1] for one, _ in in_order(scanner.lines, {"m": "m"})]
    runs = tuple(group for group, _ in itertools.groupby(ordered))
    assert runs in set(itertools.permutations(range(3))), ordered


def test_lines_run_by_target_and_prefix() -> None:
    contents = [("1", "m", "zebra"), ("2", "n", "apple"), ("3", "m", "apple"), ("4", "alias", "apples")]
    scanner = scan(b"\n".join(line(custom_id, model, content) for custom_id, model, content in contents))
    assert scanner.models == {"m": 1, "n": 2, "alias": 4}
    ordered = in_order(scanner.lines, {"m": "m", "n": "n", "alias": "m"})
    assert [(one.line, target) for one, target in ordered] == [(3, "m"), (4, "m"), (1, "m"), (2, "n")]
