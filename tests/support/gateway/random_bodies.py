"""Random bodies for the inference endpoints: most values may be right, some cannot be."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.api import chat_wire, compact_wire, completions_wire, messages_wire, responses_wire, tokenize_wire
from support.stack import MODEL

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


# By field: valid values, and nearly valid ones. The values of one request may contradict each other.
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
    "input": ["", "Hi", [{"role": "user", "content": "Hi"}], [{"type": "compaction", "encrypted_content": "AA"}], [{}]],
    "max_output_tokens": [0, 1, 16, 10**9],
    "include": [[], ["reasoning.encrypted_content"], ["x"]],
    "reasoning": [None, {"effort": "low"}, {"summary": "auto"}, {"effort": 1}],
    "text": [{"format": {"type": "text"}}, {"verbosity": "low"}, {"format": {"type": "json_object"}}, {"format": 1}],
    "instructions": ["", "Be brief.", None],
    "previous_response_id": [None, "resp_1"],
    "system": ["", "Be brief.", [{"type": "text", "text": "Be brief."}], [], [{"type": "image"}]],
    "prompt": ["", "Once", ["a", "b"], [1, 2, 3], [[1], [2, 3]], [], [[]], ["a", 1], [49152], ["x"] * 17, "é☃🙂" * 50],
    "tools": [None, [], [{"type": "function"}]],
    "tokens": [[], [0], [49151], [49152], [1] * 9000, [-1], ["a"], [[1]]],
    "add_special_tokens": [True, False],
    "return_token_strs": [True, False],
    "response_format": [None, {"type": "text"}, {"type": "json_object"}],
    "guided_choice": [None, ["yes", "no"], []],
    "structured_outputs": [None, {}, {"regex": "[a-c]{1,3}"}, {"json": {"contains": {}}}, {"grammar": "start: ("}],
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
    Endpoint("/v1/chat/completions", chat_wire.ChatRequest, ("messages",)),
    Endpoint("/v1/completions", completions_wire.CompletionRequest, ("prompt",)),
    Endpoint("/v1/messages", messages_wire.MessagesRequest, ("messages", "max_tokens")),
    Endpoint("/v1/messages/count_tokens", messages_wire.CountRequest, ("messages",)),
    Endpoint("/v1/responses", responses_wire.ResponsesRequest, ("input",)),
    Endpoint("/v1/responses/input_tokens", responses_wire.ResponsesRequest, ("input",)),
    Endpoint("/v1/responses/compact", compact_wire.CompactRequest, ("input",)),
    Endpoint("/v1/tokenize", tokenize_wire.TokenizeRequest, ("messages",)),
    Endpoint("/v1/detokenize", tokenize_wire.DetokenizeRequest, ("tokens",)),
)


WEIGHTS = (10, 8, 6, 2, 5, 2, 2, 3, 2)  # of ENDPOINTS


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
    fields: dict[str, Any] = {"model": MODEL, "max_tokens": 4, "prompt": "Once upon a time", "tokens": [1, 2, 3]}
    fields["messages"] = [a_message(choose) for _ in range(choose.randrange(1, 4))]
    known = endpoint.request.__struct_fields__
    fields = {name: value for name, value in fields.items() if name in known}
    if {"prompt", "messages"} <= fields.keys():  # each excludes the other
        del fields[choose.choice(["prompt", "messages"])]
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
