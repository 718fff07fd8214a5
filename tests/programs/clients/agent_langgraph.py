"""LangGraph's ReAct agent and LangChain's models over `langchain-openai`: tools, streams, structured outputs."""

from __future__ import annotations

from typing import Literal

import speak
import weather
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import ToolNode, create_react_agent
from pydantic import BaseModel
from speak import MODEL
from weather import MAX_TOKENS_CUT, ask, check

get_weather = tool(weather.get_weather)
now = tool(weather.now)
TOOLS = [get_weather, now]


class Forecast(BaseModel):
    """A forecast."""

    city: str
    sky: Literal["clear", "grey"]


def chat(url: str, **settings: object) -> ChatOpenAI:
    return ChatOpenAI(
        **{"base_url": f"{url}/v1", "api_key": speak.KEY, "model": MODEL, "max_tokens": 200, "max_retries": 0}
        | settings
    )


def talk(url: str, case: str, calls: list[str]) -> object:
    agent = create_react_agent(chat(url), ToolNode(TOOLS, handle_tool_errors=True), prompt="You are terse.")
    state = agent.invoke({"messages": [HumanMessage(ask(case))]})
    return check(case, state["messages"][-1].content, calls)


def single(url: str) -> object:
    return talk(url, "single", ["Paris"])


def parallel(url: str) -> object:
    return talk(url, "parallel", ["Paris", "Rome"])


def no_arguments(url: str) -> object:
    return talk(url, "no_arguments", ["now"])


def loop(url: str) -> object:
    return talk(url, "loop", ["Paris", "now"])


def failing(url: str) -> object:
    """The result of the first call is an error."""
    return talk(url, "failing", ["Nowhere", "Paris"])


def thinking(url: str) -> object:
    return talk(url, "thinking", ["Paris"])


def streamed(url: str) -> object:
    agent = create_react_agent(chat(url, stream_usage=True), TOOLS)
    pieces = agent.stream({"messages": [HumanMessage(ask("streamed"))]}, stream_mode="messages")
    said: dict[str, str] = {}
    for piece, _ in pieces:
        if isinstance(piece, AIMessageChunk):
            said[piece.id] = said.get(piece.id, "") + piece.text
    first, last = said.values()
    assert first.strip() == "I look."
    return check("streamed", last, ["Paris", "now"])


def forced(url: str) -> object:
    """By name, then any."""
    for choice in ("get_weather", "any", {"type": "function", "function": {"name": "get_weather"}}):
        answer = chat(url).bind_tools(TOOLS, tool_choice=choice, parallel_tool_calls=False).invoke(ask("forced"))
        [call] = answer.tool_calls
        assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    return answer.tool_calls


def none(url: str) -> object:
    answer = chat(url).bind_tools(TOOLS, tool_choice="none").invoke(ask("none"))
    return check("none", answer.content, [])


def strict(url: str) -> object:
    answer = chat(url).bind_tools(TOOLS, strict=True).invoke(ask("strict"))
    assert [call["args"] for call in answer.tool_calls] == [{"city": "Paris"}]
    return answer.tool_calls


def cut(url: str) -> object:
    answer = chat(url, max_tokens=MAX_TOKENS_CUT).bind_tools(TOOLS).invoke(ask("cut"))
    assert answer.response_metadata["finish_reason"] == "length"
    assert len(answer.tool_calls) + len(answer.invalid_tool_calls) == 1
    return answer.invalid_tool_calls


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
    return last.content


CASES: list[speak.Case] = [
    single, parallel, streamed, no_arguments, forced, none, strict, cut, loop, failing, thinking, schema,
    schema_stream, forecast, schema_after_tool,
]  # fmt: skip

if __name__ == "__main__":
    speak.run("langgraph", CASES, {}, also=("langchain-openai", "openai"))
