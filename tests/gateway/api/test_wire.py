"""Chat requests: bytes that do not parse, the messages that the template gets, bounds."""

from __future__ import annotations

import pytest

from gateway.api import chat_wire
from gateway.api.parsing import MESSAGE_PART_CHARS
from gateway.api.unknown_fields import UnknownFields
from gateway.errors import InvalidRequest
from support.gateway.dialect_requests import CHAT_RETURNED, USER, chat


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b'{"model":"m","messages":[{"role":"user","content":"\xff"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"temperature":NaN}',
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"temperature":1e999}',
        b'{"model":"m","messages":[{"role":"user","content":"x"}]} trailing',
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"model":"m","messages":' + b"[" * 200_000,
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"metadata":' + b'{"a":' * 200_000,
    ],
    ids=lambda body: repr(body[-20:]),
)
def test_bytes_that_are_no_request(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        chat_wire.parse_chat(body, UnknownFields())


def test_what_the_template_gets() -> None:
    request = chat(
        messages=[
            {"role": "developer", "content": "S"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            CHAT_RETURNED,
        ]
    )
    assert chat_wire.chat_messages(request) == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "Hello."},
    ]


def test_a_long_name_or_value_is_cut_in_the_refusal() -> None:
    """Matched whole, the second and third take minutes."""
    nested = "unknown field `" * 33_000 + "x - at `$"
    for fields in ({"messages": [USER | {"x" * 200_000: 1}]}, {nested: 1}, {"messages": [USER | {"role": nested}]}):
        with pytest.raises(InvalidRequest) as refused:
            chat(**fields)
        assert len(refused.value.message) < 2 * MESSAGE_PART_CHARS + 100
        assert "…" in refused.value.message


def test_biases_are_numbers_in_their_bounds() -> None:
    biases = chat(logit_bias={"1": 1, "2": -100, "3": 1e-320}).to_generation().sampling.logit_bias
    assert biases == {1: 1.0, 2: -100.0, 3: 1e-320}
    for wrong in (True, "1", None, [1], 100.5, 10**30):
        with pytest.raises(InvalidRequest) as refused:
            chat(logit_bias={"5": 1, "6": wrong})
        assert refused.value.param == "logit_bias"
