"""LangGraph's ReAct agent and LangChain's models over `langchain-anthropic`."""

from __future__ import annotations

from typing import Literal

import speak
import weather
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.tools import tool
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


def chat(url: str, **settings: object) -> ChatAnthropic:
    return ChatAnthropic(
        **{"base_url": url, "api_key": speak.KEY, "model": MODEL, "max_tokens": 200, "max_retries": 0} | settings
    )


def talk(url: str, case: str, calls: list[str], **settings: object) -> object:
    agent = create_react_agent(chat(url, **settings), ToolNode(TOOLS, handle_tool_errors=True), prompt="You are terse.")
    state = agent.invoke({"messages": [HumanMessage(ask(case))]})
    return check(case, state["messages"][-1].text, calls)


def single(url: str) -> object:
    return talk(url, "single", ["Paris"])


def parallel(url: str) -> object:
    return talk(url, "parallel", ["Paris", "Rome"])


def no_arguments(url: str) -> object:
    return talk(url, "no_arguments", ["now"])


def loop(url: str) -> object:
    return talk(url, "loop", ["Paris", "now"])


def failing(url: str) -> object:
    return talk(url, "failing", ["Nowhere", "Paris"])


def thinking(url: str) -> object:
    return talk(url, "thinking", ["Paris"], thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000)


def streamed(url: str) -> object:
    agent = create_react_agent(chat(url), TOOLS)
    said: dict[str, str] = {}
    for piece, _ in agent.stream({"messages": [HumanMessage(ask("streamed"))]}, stream_mode="messages"):
        if isinstance(piece, AIMessageChunk):
            said[piece.id] = said.get(piece.id, "") + piece.text
    first, last = said.values()
    assert first.strip() == "I look."
    return check("streamed", last, ["Paris", "now"])


def forced(url: str) -> object:
    for choice in ("get_weather", "any"):
        answer = chat(url).bind_tools(TOOLS, tool_choice=choice, parallel_tool_calls=False).invoke(ask("forced"))
        [call] = answer.tool_calls
        assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    return answer.tool_calls


def none(url: str) -> object:
    answer = chat(url).bind_tools(TOOLS, tool_choice={"type": "none"}).invoke(ask("none"))
    return check("none", answer.content, [])


def strict(url: str) -> object:
    answer = chat(url).bind_tools(TOOLS, strict=True).invoke(ask("strict"))
    assert [call["args"] for call in answer.tool_calls] == [{"city": "Paris"}]
    return answer.tool_calls


def cut(url: str) -> object:
    answer = chat(url, max_tokens=MAX_TOKENS_CUT).bind_tools(TOOLS).invoke(ask("cut"))
    assert answer.response_metadata["stop_reason"] == "max_tokens"
    return answer.tool_calls


def forecast(url: str) -> object:
    model = chat(url).with_structured_output(Forecast)
    assert model.invoke(ask("forecast")) == Forecast(**weather.FORECAST)
    return "parsed"


def schema(url: str) -> object:
    model = chat(url).with_structured_output(Forecast, method="json_schema")
    assert model.invoke(ask("schema")) == Forecast(**weather.FORECAST)
    return "parsed"


CASES: list[speak.Case] = [
    single, parallel, streamed, no_arguments, forced, none, strict, cut, loop, failing, thinking, forecast, schema,
]  # fmt: skip

if __name__ == "__main__":
    speak.run("langchain-anthropic", CASES, {}, also=("langgraph", "anthropic"))
