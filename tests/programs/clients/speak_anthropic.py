"""The official `anthropic` package, as its users write it."""

from __future__ import annotations

import speak
from anthropic import Anthropic
from speak import MODEL

ASKED = {"role": "user", "content": "Say hello in one word."}


def client(url: str) -> Anthropic:
    return Anthropic(base_url=url, api_key=speak.KEY, auth_token=None, max_retries=0)


def plain(url: str) -> object:
    answer = client(url).messages.create(model=MODEL, max_tokens=8, messages=[ASKED])
    assert answer.type == "message"
    assert answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0) >= 1
    assert answer.stop_reason in ("end_turn", "max_tokens")
    return answer.content[0].text


def bearer(url: str) -> object:
    api = Anthropic(base_url=url, auth_token=speak.KEY, api_key=None, max_retries=0)
    return api.messages.create(model=MODEL, max_tokens=8, messages=[ASKED]).content[0].text


def stream(url: str) -> object:
    """The events as they come."""
    events = list(client(url).messages.create(model=MODEL, max_tokens=8, messages=[ASKED], stream=True))
    kinds = [event.type for event in events if event.type != "ping"]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    return "".join(event.delta.text for event in events if event.type == "content_block_delta")


def helper(url: str) -> object:
    """The package's own accumulator."""
    with client(url).messages.stream(
        model=MODEL, max_tokens=8, system="You are terse.", messages=[ASKED], extra_body={"temperature": 0.5}
    ) as events:
        text = "".join(events.text_stream)
        message = events.get_final_message()
    assert message.content[0].text == text
    assert message.usage.output_tokens >= 1
    return text


def turns(url: str) -> object:
    """The answer's content goes back as the objects that came."""
    api = client(url).messages
    messages = [ASKED]
    for said in ("Again.", "And again."):
        answer = api.create(model=MODEL, max_tokens=8, system="You are terse.", messages=messages)
        messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": said}]
    dumped = [block.model_dump() for block in messages[1]["content"]]
    messages[1] = {"role": "assistant", "content": dumped}
    return api.create(model=MODEL, max_tokens=8, messages=messages).content[0].text


def cached(url: str) -> object:
    """`cache_control` wherever it may be."""
    answer = client(url).messages.create(
        model=MODEL,
        max_tokens=8,
        cache_control={"type": "ephemeral"},
        system=[
            {"type": "text", "text": "You are terse."},
            {"type": "text", "text": "You know tides.", "cache_control": {"type": "ephemeral"}},
        ],
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Long context.", "cache_control": {"type": "ephemeral", "ttl": "5m"}},
                    {"type": "text", "text": "Say hello."},
                ],
            }
        ],
    )
    return answer.usage.cache_read_input_tokens


def parameters(url: str) -> object:
    answer = client(url).messages.create(
        model=MODEL,
        max_tokens=12,
        messages=[ASKED],
        stop_sequences=["\n\n", "END"],
        metadata={"user_id": "u-1"},
        service_tier="auto",
        extra_body={"temperature": 0.7, "top_p": 0.9, "top_k": 40},  # arguments of their own before 2.0
    )
    return answer.stop_reason


def neutral(url: str) -> object:
    answer = client(url).messages.create(
        model=MODEL,
        max_tokens=8,
        messages=[ASKED],
        thinking={"type": "disabled"},
        tools=[],
        stop_sequences=[],
        stream=False,
        system="",
    )
    return answer.content[0].text


def prefill(url: str) -> object:
    messages = [ASKED, {"role": "assistant", "content": "Hel"}]
    return client(url).messages.create(model=MODEL, max_tokens=8, messages=messages).content[0].text


def beta(url: str) -> object:
    answer = client(url).beta.messages.create(
        model=MODEL, max_tokens=8, messages=[ASKED], betas=["prompt-caching-2024-07-31"]
    )
    return answer.content[0].text


def count(url: str) -> object:
    counted = client(url).messages.count_tokens(model=MODEL, system="You are terse.", messages=[ASKED])
    assert counted.input_tokens >= 5
    return counted.input_tokens


def models(url: str) -> object:
    found = client(url).models
    names = [model.id for model in found.list()]
    assert found.retrieve(MODEL).id == MODEL
    return names


def tools(url: str) -> object:
    tool = {"name": "f", "input_schema": {"type": "object", "properties": {}}}
    return client(url).messages.create(model=MODEL, max_tokens=8, messages=[ASKED], tools=[tool])


CASES: list[speak.Case] = [
    plain, bearer, stream, helper, turns, cached, parameters, neutral, prefill, beta, count, models, tools,
]  # fmt: skip

if __name__ == "__main__":
    speak.run("anthropic", CASES, {"tools": 400})
