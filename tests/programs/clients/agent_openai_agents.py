"""openai-agents with its chat-completions model: tools, a handoff, streams, an output type."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import speak
import weather
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    StopAtTools,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel
from speak import MODEL
from weather import MAX_TOKENS_CUT, ask, check

set_tracing_disabled(True)  # it would be sent to OpenAI
MODEL_CLASS: Any = OpenAIChatCompletionsModel  # agent_openai_agents_responses.py runs the cases with another


class Forecast(BaseModel):
    """A forecast."""

    city: str
    sky: Literal["clear", "grey"]


def agent(url: str, *, strict: bool = False, settings: dict[str, Any] | None = None, **more: Any) -> Agent:
    api = AsyncOpenAI(base_url=f"{url}/v1", api_key=speak.KEY, max_retries=0)
    tools = [function_tool(tool, strict_mode=strict) for tool in (weather.get_weather, weather.now)]
    fields: dict[str, Any] = {
        "name": "reporter",
        "instructions": "You are terse.",
        "model": MODEL_CLASS(model=MODEL, openai_client=api),
        "model_settings": ModelSettings(**{"max_tokens": 200} | (settings or {})),
        "tools": tools,
    }
    return Agent(**fields | more)


def talk(case: str, calls: list[str], one: Agent) -> object:
    return check(case, asyncio.run(Runner.run(one, ask(case))).final_output, calls)


def single(url: str) -> object:
    return talk("single", ["Paris"], agent(url))


def parallel(url: str) -> object:
    return talk("parallel", ["Paris", "Rome"], agent(url, settings={"parallel_tool_calls": True}))


def no_arguments(url: str) -> object:
    return talk("no_arguments", ["now"], agent(url))


def loop(url: str) -> object:
    return talk("loop", ["Paris", "now"], agent(url, settings={"parallel_tool_calls": False}))


def failing(url: str) -> object:
    return talk("failing", ["Nowhere", "Paris"], agent(url))


def thinking(url: str) -> object:
    return talk("thinking", ["Paris"], agent(url))


def strict(url: str) -> object:
    return talk("strict", ["Paris"], agent(url, strict=True))


def forced(url: str) -> object:
    """The first answer must be a call; the agent leaves the choice free after it."""
    for choice in ("required", "get_weather"):
        talk("forced", ["Paris"], agent(url, settings={"tool_choice": choice}))
    return "twice"


def forced_once(url: str) -> object:
    """The call's result is the answer."""
    one = agent(
        url,
        settings={"tool_choice": "required"},
        tool_use_behavior=StopAtTools(stop_at_tool_names=["get_weather"]),
    )
    said = asyncio.run(Runner.run(one, ask("forced"))).final_output
    assert said == "12 degrees"
    return said


def none(url: str) -> object:
    return talk("none", [], agent(url, settings={"tool_choice": "none"}))


def streamed(url: str) -> object:
    async def run() -> object:
        result = Runner.run_streamed(agent(url, settings={"include_usage": True}), ask("streamed"))
        async for _ in result.stream_events():
            pass
        return result.final_output

    return check("streamed", asyncio.run(run()), ["Paris", "now"])


def handoff(url: str) -> object:
    """A call of a tool that stands for another agent."""
    clock = agent(url, name="clock", handoff_description="Knows the time.")
    return talk("handoff", ["now"], agent(url, handoffs=[clock]))


def schema_after_tool(url: str) -> object:
    answer = asyncio.run(Runner.run(agent(url, strict=True, output_type=Forecast), ask("schema_after_tool")))
    assert answer.final_output == Forecast(**weather.FORECAST)
    return answer.final_output


def cut(url: str) -> object:
    """The model is asked again: the arguments are no JSON."""
    said = asyncio.run(Runner.run(agent(url, settings={"max_tokens": MAX_TOKENS_CUT}), ask("cut"))).final_output
    assert said == "It was cut."
    return said


CASES: list[speak.Case] = [
    single, parallel, streamed, no_arguments, forced, forced_once, none, strict, cut, loop, failing, thinking,
    handoff, schema_after_tool,
]  # fmt: skip

if __name__ == "__main__":
    speak.run("openai-agents", CASES, {}, also=("openai",))
