"""Requests of `/v1/responses`: what an answer repeats of them is bounded, and so is the number of items."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.api.bodies import ITEMS_MAX, check_item_count, read_request
from gateway.api.responses_wire import REPEATED_BYTES_MAX
from gateway.errors import InvalidRequest

TEXT = "x" * REPEATED_BYTES_MAX
TOOL = {"type": "function", "name": "f", "description": TEXT}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"metadata": {"a": TEXT}}, "metadata"),
        ({"instructions": TEXT}, "instructions"),
        ({"tools": [TOOL], "tool_choice": "none"}, "tools"),
        ({"prompt_cache_key": TEXT}, "prompt_cache_key"),
    ],
)
def test_what_an_answer_repeats_is_bounded(fields: dict[str, Any], named: str) -> None:
    """It is in memory until the answer has been sent, and in several events of a stream."""
    with pytest.raises(InvalidRequest) as refused:
        read_request("responses", body(**fields), ignore_unknown=False)
    assert refused.value.param == named
    assert len(refused.value.message) < 300


def test_a_long_input_is_no_repetition_except_in_a_compaction() -> None:
    asked = body(input=[{"role": "user", "content": TEXT}])
    assert len(read_request("responses", asked, ignore_unknown=False).asked.repeated) < 1000
    with pytest.raises(InvalidRequest) as refused:
        read_request("compact", asked, ignore_unknown=False)
    assert refused.value.param == "input"
    result = {"type": "function_call_output", "call_id": "1", "output": TEXT}
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    asked = body(input=[{"role": "user", "content": "a"}, call, result])
    assert len(read_request("compact", asked, ignore_unknown=False).asked.repeated) < 1000


def test_items_are_counted() -> None:
    for items in ([0] * (ITEMS_MAX + 1), [{"type": "web_search_call"}] * (ITEMS_MAX + 1)):
        with pytest.raises(InvalidRequest) as refused:
            check_item_count(body(input=items))
        assert refused.value.param == "input"
    for passed in (body(input=[{}] * ITEMS_MAX), body(input="a"), body(input=5), b"", b"{", b"[" * 9000):
        check_item_count(passed)


def body(**fields: Any) -> bytes:
    return msgspec.json.encode({"model": "m", "input": "a", **fields})
