"""LangChain's OpenAI model over `langchain-openai`: the cases that need no agent. Shared by agent_langgraph.py and
agent_langchain_responses.py."""

from __future__ import annotations

from typing import Any, Literal

import speak
import weather
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from speak import MODEL
from weather import ask, check

get_weather = tool(weather.get_weather)
now = tool(weather.now)
TOOLS = [get_weather, now]
SETTINGS: dict[str, Any] = {}  # of each model


class Forecast(BaseModel):
    """A forecast."""

    city: str
    sky: Literal["clear", "grey"]


def chat(url: str, **settings: object) -> ChatOpenAI:
    return ChatOpenAI(
        **{"base_url": f"{url}/v1", "api_key": speak.KEY, "model": MODEL, "max_tokens": 200, "max_retries": 0}
        | SETTINGS
        | settings
    )


def forced(url: str) -> object:
    """By name, then any."""
    for choice in ("get_weather", "any", {"type": "function", "function": {"name": "get_weather"}}):
        answer = chat(url).bind_tools(TOOLS, tool_choice=choice, parallel_tool_calls=False).invoke(ask("forced"))
        [call] = answer.tool_calls
        assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    return answer.tool_calls


def none(url: str) -> object:
    answer = chat(url).bind_tools(TOOLS, tool_choice="none").invoke(ask("none"))
    return check("none", answer.text, [])


def strict(url: str) -> object:
    answer = chat(url).bind_tools(TOOLS, strict=True).invoke(ask("strict"))
    assert [call["args"] for call in answer.tool_calls] == [{"city": "Paris"}]
    return answer.tool_calls


def schema(url: str) -> object:
    """json_schema with a pydantic class is parsed by the openai package; json_mode by LangChain."""
    for method in ("json_schema", "json_mode"):
        answer = chat(url).with_structured_output(Forecast, method=method).invoke(ask("schema"))
        assert answer == Forecast(**weather.FORECAST)
    return answer


def schema_stream(url: str) -> object:
    pieces = list(chat(url).with_structured_output(Forecast, method="json_schema").stream(ask("schema")))
    assert pieces[-1] == Forecast(**weather.FORECAST)
    return pieces[-1]


def forecast(url: str) -> object:
    for strict in (None, True):
        model = chat(url).with_structured_output(Forecast, method="function_calling", strict=strict)
        assert model.invoke(ask("forecast")) == Forecast(**weather.FORECAST)
    return "twice"


def schema_after_tool(url: str) -> object:
    """A tool, or an answer by a schema, in one request."""
    model = chat(url).bind_tools([get_weather], response_format=Forecast, strict=True)
    messages = [HumanMessage(ask("schema_after_tool"))]
    answer = model.invoke(messages)
    [call] = answer.tool_calls
    last = model.invoke([*messages, answer, get_weather.invoke(call)])
    assert last.additional_kwargs["parsed"] == Forecast(**weather.FORECAST)
    return last.text


SHARED: list[speak.Case] = [forced, none, strict, schema, schema_stream, forecast, schema_after_tool]
