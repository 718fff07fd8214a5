"""LangChain's OpenAI model with `use_responses_api`: the loop that its documents show, streams, structured outputs."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

import langchain_cases
import speak
from langchain_cases import SHARED, TOOLS, chat
from langchain_core.messages import HumanMessage, SystemMessage
from weather import MAX_TOKENS_CUT, ask, check

langchain_cases.SETTINGS = {"use_responses_api": True}
BY_NAME = {tool.name: tool for tool in TOOLS}


def talk(url: str, case: str, calls: list[str], *, streamed: bool = False, **settings: Any) -> object:
    model = chat(url, **settings).bind_tools(TOOLS)
    messages: list[Any] = [SystemMessage("You are terse."), HumanMessage(ask(case))]
    while True:
        answer = reduce(add, model.stream(messages)) if streamed else model.invoke(messages)
        assert answer.usage_metadata["output_tokens"] > 0
        if not answer.tool_calls:
            return check(case, answer.text, calls)
        messages += [answer, *[BY_NAME[call["name"]].invoke(call) for call in answer.tool_calls]]


def plain(url: str) -> object:
    return check("none", chat(url).invoke(ask("none")).text, [])


def single(url: str) -> object:
    return talk(url, "single", ["Paris"])


def parallel(url: str) -> object:
    return talk(url, "parallel", ["Paris", "Rome"])


def streamed(url: str) -> object:
    return talk(url, "streamed", ["Paris", "now"], streamed=True)


def no_arguments(url: str) -> object:
    return talk(url, "no_arguments", ["now"])


def loop(url: str) -> object:
    return talk(url, "loop", ["Paris", "now"], store=False)


def thinking(url: str) -> object:
    return talk(url, "thinking", ["Paris"], reasoning={"effort": "low", "summary": "auto"})


def thinking_stream(url: str) -> object:
    return talk(url, "thinking", ["Paris"], streamed=True, include=["reasoning.encrypted_content"])


def cut(url: str) -> object:
    answer = chat(url, max_tokens=MAX_TOKENS_CUT).bind_tools(TOOLS).invoke(ask("cut"))
    assert answer.response_metadata["incomplete_details"]["reason"] == "max_output_tokens"
    assert len(answer.tool_calls) + len(answer.invalid_tool_calls) == 1
    return answer.invalid_tool_calls


CASES: list[speak.Case] = [
    plain, single, parallel, streamed, no_arguments, cut, loop, thinking, thinking_stream, *SHARED,
]  # fmt: skip

if __name__ == "__main__":
    speak.run("langchain-openai", CASES, {}, also=("openai",))
