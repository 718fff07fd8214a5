"""What a legacy completion may contain, value by value: accepted, or refused by the name of the field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.api.completions_wire import CompletionRequest, parse_completion
from gateway.api.unknown_fields import UnknownFields
from gateway.errors import InvalidRequest


def parse(**fields: Any) -> CompletionRequest:
    return parse_completion(msgspec.json.encode({"model": "m", "prompt": "Once", **fields}), UnknownFields())


ACCEPTED: list[dict[str, Any]] = [
    {"prompt": ""},
    {"prompt": ["a", "b"]},
    {"prompt": [1, 2, 3]},
    {"prompt": [[1, 2], [3]]},
    {"prompt": ["a"] * 16, "n": 4},
    {"n": 8, "best_of": 8},
    {"best_of": 1},
    {"echo": True},
    {"echo": False, "logprobs": 20},
    {"logprobs": 0},
    {"suffix": ""},
    {"prompt": ["a"] * 64},
    {"prompt": ["a"] * 20},  # LangChain's batches
    {"response_format": {"type": "text"}, "priority": 0, "return_token_ids": False},
    {"add_special_tokens": True},
    {"max_tokens": 5, "temperature": 0.5, "top_p": 0.5, "top_k": 5, "min_p": 0.1, "seed": 3},
    {"presence_penalty": 1, "frequency_penalty": 1, "repetition_penalty": 1.1, "logit_bias": {"5": 1}},
    {"stop": ["a"], "stop_token_ids": [5], "min_tokens": 1, "ignore_eos": True, "skip_special_tokens": False},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"service_tier": "flex", "user": "u"},
]

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ["a", 5]}, "prompt"),
    ({"prompt": [[5], "a"]}, "prompt"),
    ({"prompt": [[5], 5]}, "prompt"),
    ({"prompt": ["a"] * 65}, "prompt"),
    ({"prompt": [-1]}, "prompt[0]"),
    ({"prompt": [1.5]}, "prompt[0]"),
    ({"prompt": [True]}, "prompt[0]"),
    ({"prompt": [{}]}, "prompt[0]"),
    ({"prompt": [["a"]]}, "prompt[0][0]"),
    ({"prompt": ["a"] * 9, "n": 8}, "n"),
    ({"n": 9}, "n"),
    ({"best_of": 2}, "best_of"),
    ({"n": 2, "best_of": 1}, "best_of"),
    ({"echo": True, "logprobs": 1}, "echo"),
    ({"echo": "yes"}, "echo"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"suffix": "end"}, "suffix"),
    ({"add_special_tokens": False}, "add_special_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": ["Hi"]}, "messages"),
    ({"top_logprobs": 5}, "top_logprobs"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"stream_options": {}}, "stream_options"),
]


@pytest.mark.parametrize("fields", ACCEPTED, ids=str)
def test_accepted(fields: dict[str, Any]) -> None:
    parse(**fields).to_generation()


@pytest.mark.parametrize(
    "field", [name for name in CompletionRequest.__struct_fields__ if name not in ("model", "prompt")]
)
def test_null_is_neutral_for_every_field(field: str) -> None:
    parse(**{field: None}).to_generation()


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=lambda value: str(value)[:60])
def test_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(**fields)
    assert refused.value.param == param
    assert param in refused.value.message


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_the_four_forms_of_a_prompt(prompt: Any, prompts: list[Any]) -> None:
    assert parse(prompt=prompt).to_generation().prompts == prompts
