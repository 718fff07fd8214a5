"""The openai package over its Responses API: create, stream and parse, in loops with tools."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import openai
import speak
import weather
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel
from responses_loop import NOW, WEATHER, Loop
from speak import MODEL
from weather import ask


class Forecast(BaseModel):
    """A forecast."""

    city: str
    sky: Literal["clear", "grey"]


class get_weather(BaseModel):
    """The weather in a city."""

    city: str


WANTED = Forecast(**weather.FORECAST)


def api(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key=speak.KEY, max_retries=0)


def create(url: str, **fields: Any) -> dict[str, Any]:
    return api(url).responses.create(model=MODEL, **fields).model_dump(exclude_none=True)


def stream(url: str, **fields: Any) -> dict[str, Any]:
    """By the package's own accumulator."""
    with api(url).responses.stream(model=MODEL, **fields) as events:
        numbers = [event.sequence_number for event in events]
        assert numbers == list(range(len(numbers)))
        return events.get_final_response().model_dump(exclude_none=True)


def events(url: str) -> object:
    """The events as they come."""
    found = list(api(url).responses.create(model=MODEL, input=ask("streamed"), tools=[WEATHER, NOW], stream=True))
    assert [event.type for event in found[:2]] == ["response.created", "response.in_progress"]
    assert found[-1].type == "response.completed"
    texts = [event.delta for event in found if event.type == "response.output_text.delta"]
    assert "".join(texts).strip() == "I look."
    return [item.type for item in found[-1].response.output]


def later(url: str) -> object:
    """The asynchronous client."""

    async def run() -> str:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key=speak.KEY, max_retries=0) as client:
            return (await client.responses.create(model=MODEL, input=ask("none"))).output_text

    return weather.check("none", asyncio.run(run()), [])


def parse(url: str) -> object:
    response = api(url).responses.parse(model=MODEL, input=ask("schema"), text_format=Forecast)
    assert response.output_parsed == WANTED
    return response.output_parsed


def parse_stream(url: str) -> object:
    with api(url).responses.stream(model=MODEL, input=ask("schema"), text_format=Forecast) as found:
        parsed = found.until_done().get_final_response().output_parsed
    assert parsed == WANTED
    return parsed


def parse_after_tool(url: str) -> object:
    """A parsed call of a strict tool, and then a parsed text, in one conversation. The parsed items are sent back."""
    tools = [openai.pydantic_function_tool(get_weather)["function"] | {"type": "function"}]
    items: list[Any] = [{"role": "user", "content": ask("schema_after_tool")}]
    fields: dict[str, Any] = {"model": MODEL, "tools": tools, "text_format": Forecast}
    first = api(url).responses.parse(input=items, **fields)
    [call] = [item for item in first.output if item.type == "function_call"]
    items += [*first.output, {"type": "function_call_output", "call_id": call.call_id, "output": "12 degrees"}]
    last = api(url).responses.parse(input=items, **fields)
    assert last.output_parsed == WANTED
    return last.output_parsed


CASES: list[speak.Case] = [
    *Loop(create, stream).cases(), events, later, parse, parse_stream, parse_after_tool,
]  # fmt: skip

if __name__ == "__main__":
    speak.run("openai", CASES, {})
