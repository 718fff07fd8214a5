"""LangGraph's ReAct agent and LangChain's models over `langchain-openai`: tools, streams, structured outputs."""

from __future__ import annotations

import speak
from langchain_cases import SHARED, TOOLS, chat
from langchain_core.messages import AIMessageChunk, HumanMessage
from langgraph.prebuilt import ToolNode, create_react_agent
from weather import MAX_TOKENS_CUT, ask, check


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


def cut(url: str) -> object:
    answer = chat(url, max_tokens=MAX_TOKENS_CUT).bind_tools(TOOLS).invoke(ask("cut"))
    assert answer.response_metadata["finish_reason"] == "length"
    assert len(answer.tool_calls) + len(answer.invalid_tool_calls) == 1
    return answer.invalid_tool_calls


CASES: list[speak.Case] = [
    single, parallel, streamed, no_arguments, cut, loop, failing, thinking, *SHARED,
]  # fmt: skip

if __name__ == "__main__":
    speak.run("langgraph", CASES, {}, also=("langchain-openai", "openai"))
