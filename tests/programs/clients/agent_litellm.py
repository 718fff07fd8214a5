"""litellm as a client: its OpenAI-compatible provider, and its translation to Anthropic's API."""

from __future__ import annotations

import json
import os
from typing import Any, Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it is fetched from the network

import litellm
import speak
import weather
from pydantic import BaseModel
from speak import MODEL
from weather import FORECAST, MAX_TOKENS_CUT, ask, check

litellm.suppress_debug_info = True
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": CITY}},
    {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": NOTHING}},
]
FUNCTIONS = {"get_weather": weather.get_weather, "now": weather.now}


class Forecast(BaseModel):
    """A forecast."""

    city: str
    sky: Literal["clear", "grey"]


def complete(url: str, messages: list[Any], provider: str = "hosted_vllm", **settings: Any) -> Any:
    base = url if provider == "anthropic" else f"{url}/v1"
    fields = {"max_tokens": 200, "max_retries": 0, "tools": TOOLS} | settings
    return litellm.completion(
        model=f"{provider}/{MODEL}", messages=messages, api_base=base, api_key=speak.KEY, **fields
    )


def talk(url: str, case: str, calls: list[str], **settings: Any) -> object:
    """litellm has no agent: this is the loop that its documents show."""
    messages: list[Any] = [{"role": "user", "content": ask(case)}]
    while True:
        answer = complete(url, messages, **settings)
        if settings.get("stream"):
            answer = litellm.stream_chunk_builder(list(answer), messages=messages)
        message = answer.choices[0].message
        if not message.tool_calls:
            return check(case, message.content, calls)
        assert answer.choices[0].finish_reason == "tool_calls"
        messages.append(message)
        for call in message.tool_calls:
            result = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def single(url: str) -> object:
    return talk(url, "single", ["Paris"], provider="openai")


def parallel(url: str) -> object:
    return talk(url, "parallel", ["Paris", "Rome"], parallel_tool_calls=True)


def no_arguments(url: str) -> object:
    return talk(url, "no_arguments", ["now"])


def loop(url: str) -> object:
    return talk(url, "loop", ["Paris", "now"])


def streamed(url: str) -> object:
    return talk(url, "streamed", ["Paris", "now"], stream=True, stream_options={"include_usage": True})


def thinking(url: str) -> object:
    return talk(url, "thinking", ["Paris"])


def thinking_stream(url: str) -> object:
    return talk(url, "thinking", ["Paris"], stream=True)


def forced(url: str) -> object:
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        message = complete(url, [{"role": "user", "content": ask("forced")}], tool_choice=choice).choices[0].message
        assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Paris"}
    return message.tool_calls


def none(url: str) -> object:
    return talk(url, "none", [], tool_choice="none")


def strict(url: str) -> object:
    tools = [{**TOOLS[0], "function": TOOLS[0]["function"] | {"strict": True}}]
    return talk(url, "strict", ["Paris"], tools=tools)


def cut(url: str) -> object:
    answer = complete(url, [{"role": "user", "content": ask("cut")}], max_tokens=MAX_TOKENS_CUT)
    assert answer.choices[0].finish_reason == "length"
    return answer.choices[0].message.tool_calls


def schema(url: str) -> object:
    for provider in ("openai", "hosted_vllm"):
        messages = [{"role": "user", "content": ask("schema")}]
        answer = complete(url, messages, provider=provider, tools=None, response_format=Forecast)
        assert json.loads(answer.choices[0].message.content) == FORECAST
    return answer.choices[0].message.content


def anthropic_single(url: str) -> object:
    return talk(url, "single", ["Paris"], provider="anthropic")


def anthropic_parallel(url: str) -> object:
    return talk(url, "parallel", ["Paris", "Rome"], provider="anthropic")


def anthropic_no_arguments(url: str) -> object:
    return talk(url, "no_arguments", ["now"], provider="anthropic")


def anthropic_streamed(url: str) -> object:
    return talk(url, "streamed", ["Paris", "now"], provider="anthropic", stream=True)


def anthropic_loop(url: str) -> object:
    return talk(url, "loop", ["Paris", "now"], provider="anthropic")


def anthropic_forced(url: str) -> object:
    messages = [{"role": "user", "content": ask("forced")}]
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        message = complete(url, messages, provider="anthropic", tool_choice=choice).choices[0].message
        assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Paris"}
    return message.tool_calls


def anthropic_thinking(url: str) -> object:
    budget = {"type": "enabled", "budget_tokens": 1024}
    return talk(
        url,
        "thinking",
        ["Paris"],
        provider="anthropic",
        thinking=budget,
        max_tokens=2000,
        allowed_openai_params=["thinking"],
    )


CASES: list[speak.Case] = [
    single, parallel, streamed, no_arguments, forced, none, strict, cut, loop, thinking, thinking_stream, schema,
    anthropic_single, anthropic_parallel, anthropic_no_arguments, anthropic_streamed, anthropic_loop,
    anthropic_forced, anthropic_thinking,
]  # fmt: skip

if __name__ == "__main__":
    speak.run("litellm", CASES, {}, also=("openai",))
