"""smolagents over OpenAIServerModel: agents that call tools, and an agent that writes code."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout

import speak
import weather
from smolagents import CodeAgent, LogLevel, OpenAIServerModel, ToolCallingAgent, tool
from speak import MODEL
from weather import ask, check

get_weather = tool(weather.get_weather)
now = tool(weather.now)


def model(url: str) -> OpenAIServerModel:
    return OpenAIServerModel(
        MODEL, api_base=f"{url}/v1", api_key=speak.KEY, max_tokens=300, client_kwargs={"max_retries": 0}
    )


def agent(url: str, **settings: object) -> ToolCallingAgent:
    return ToolCallingAgent([get_weather, now], model(url), verbosity_level=LogLevel.OFF, **settings)


def tools(url: str) -> object:
    """Every answer must be a call; the last is of smolagents' own tool final_answer."""
    return check("smol_tools", agent(url).run(ask("smol_tools"), max_steps=4), ["Paris"])


def loop(url: str) -> object:
    return check("smol_loop", agent(url).run(ask("smol_loop"), max_steps=4), ["Paris", "now"])


def parallel(url: str) -> object:
    return check("smol_parallel", agent(url).run(ask("smol_parallel"), max_steps=4), ["Paris", "Rome"])


def streamed(url: str) -> object:
    with redirect_stdout(sys.stderr):  # standard output is for the results
        said = agent(url, stream_outputs=True).run(ask("smol_loop"), max_steps=4)
    return check("smol_loop", said, ["Paris", "now"])


def code(url: str) -> object:
    """No tools on the wire: the answer is Python that calls them, up to a stop sequence."""
    coder = CodeAgent([get_weather, now], model(url), verbosity_level=LogLevel.OFF)
    return check("smol_code", coder.run(ask("smol_code"), max_steps=2), ["Paris"])


CASES: list[speak.Case] = [tools, parallel, streamed, loop, code]

if __name__ == "__main__":
    speak.run("smolagents", CASES, {}, also=("openai",))
