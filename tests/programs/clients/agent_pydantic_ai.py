"""pydantic-ai's agents with its chat-completions model: tools, streams, and the three kinds of structured output."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import speak
import weather
from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, NativeOutput, PromptedOutput, Tool, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from speak import MODEL
from weather import MAX_TOKENS_CUT, ask, check


class Forecast(BaseModel):
    """A forecast."""

    city: str
    sky: Literal["clear", "grey"]


WANTED = Forecast(**weather.FORECAST)
MODEL_CLASS: Any = OpenAIChatModel  # agent_pydantic_ai_responses.py runs the cases with another


def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: The city's name.
    """
    try:
        return weather.get_weather(city)
    except ValueError as error:
        raise ModelRetry(str(error)) from error


def agent(
    url: str, *, strict: bool | None = None, output: Any = str, tools: Any = (get_weather, weather.now), **settings: Any
) -> Agent[None, Any]:
    api = AsyncOpenAI(base_url=f"{url}/v1", api_key=speak.KEY, max_retries=0)
    return Agent(
        MODEL_CLASS(MODEL, provider=OpenAIProvider(openai_client=api)),
        instructions="You are terse.",
        tools=[Tool(tool, strict=strict) for tool in tools],
        output_type=output,
        model_settings={"max_tokens": 200, **settings},
    )


def talk(url: str, case: str, calls: list[str], **settings: Any) -> object:
    return check(case, asyncio.run(agent(url, **settings).run(ask(case))).output, calls)


def single(url: str) -> object:
    return talk(url, "single", ["Paris"])


def parallel(url: str) -> object:
    return talk(url, "parallel", ["Paris", "Rome"])


def no_arguments(url: str) -> object:
    return talk(url, "no_arguments", ["now"])


def loop(url: str) -> object:
    return talk(url, "loop", ["Paris", "now"], parallel_tool_calls=False)


def failing(url: str) -> object:
    return talk(url, "failing", ["Nowhere", "Paris"])


def thinking(url: str) -> object:
    return talk(url, "thinking", ["Paris"])


def strict(url: str) -> object:
    return talk(url, "strict", ["Paris"], strict=True)


def none(url: str) -> object:
    return talk(url, "none", [], tool_choice="none")


def streamed(url: str) -> object:
    """`run_stream` ends at the first text, although calls follow it."""

    async def run() -> str:
        async with agent(url).run_stream(ask("streamed")) as answer:
            return "".join([piece async for piece in answer.stream_text(delta=True)])

    said = asyncio.run(run())
    assert said.strip() == "I look."
    return said


def events(url: str) -> object:
    """A whole run, each answer as a stream."""

    async def run() -> object:
        async with agent(url).iter(ask("streamed")) as steps:
            async for node in steps:
                if Agent.is_model_request_node(node):
                    async with node.stream(steps.ctx) as stream:
                        async for _ in stream:
                            pass
        return steps.result.output

    return check("streamed", asyncio.run(run()), ["Paris", "now"])


def result_after_tool(url: str) -> object:
    """The output is a call of a tool of pydantic-ai's own, so that every answer must be a call."""
    answer = asyncio.run(agent(url, output=ToolOutput(Forecast)).run(ask("result_after_tool"))).output
    assert answer == WANTED
    return answer


def schema_after_tool(url: str) -> object:
    """Tools and a schema in one request."""
    answer = asyncio.run(agent(url, output=NativeOutput(Forecast)).run(ask("schema_after_tool"))).output
    assert answer == WANTED
    return answer


def prompted_after_tool(url: str) -> object:
    answer = asyncio.run(agent(url, output=PromptedOutput(Forecast)).run(ask("schema_after_tool"))).output
    assert answer == WANTED
    return answer


def cut(url: str) -> object:
    """The model is asked again: the arguments are no JSON."""
    said = asyncio.run(agent(url, max_tokens=MAX_TOKENS_CUT).run(ask("cut"))).output
    assert said == "It was cut."
    return said


CASES: list[speak.Case] = [
    single, parallel, streamed, events, no_arguments, none, strict, cut, loop, failing, thinking,
    result_after_tool, schema_after_tool, prompted_after_tool,
]  # fmt: skip

if __name__ == "__main__":
    speak.run("pydantic-ai-slim", CASES, {}, also=("openai",))
