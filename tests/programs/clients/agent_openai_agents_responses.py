"""openai-agents with its Responses model, which is its default: the cases of agent_openai_agents.py, and guardrails."""

from __future__ import annotations

import asyncio
from typing import Any

import agent_openai_agents
import speak
import weather
from agent_openai_agents import Forecast, agent, talk
from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    ModelBehaviorError,
    OpenAIResponsesModel,
    OutputGuardrailTripwireTriggered,
    Runner,
    input_guardrail,
    output_guardrail,
)
from weather import MAX_TOKENS_CUT, ask

agent_openai_agents.MODEL_CLASS = OpenAIResponsesModel


def guarded(url: str, allowed: str, *, at_once: bool = True) -> Agent:
    """An agent whose input and output another agent checks, which answers with a grey sky. `at_once`: the input is
    checked while the agent answers."""
    checker = agent(url, name="checker", tools=[], output_type=Forecast)

    async def check(_context: Any, _agent: Any, _checked: Any) -> GuardrailFunctionOutput:
        found = (await Runner.run(checker, "Case schema. Is this about the weather?")).final_output
        return GuardrailFunctionOutput(found, tripwire_triggered=found.sky != allowed)

    checks = [input_guardrail(check, run_in_parallel=at_once)]
    return agent(url, input_guardrails=checks, output_guardrails=[output_guardrail(check)])


def plain(url: str) -> object:
    """Two turns without tools: the answer's items go back."""

    async def run() -> object:
        one = agent(url, tools=[])
        first = await Runner.run(one, ask("talk"))
        assert first.final_output == "Hello."
        return (await Runner.run(one, [*first.to_input_list(), {"role": "user", "content": "Again."}])).final_output

    return weather.check("talk", asyncio.run(run()), [])


def guardrail(url: str) -> object:
    """Both checks pass."""
    return talk("parallel", ["Paris", "Rome"], guarded(url, "grey"))


def guardrail_input(url: str) -> object:
    try:
        asyncio.run(Runner.run(guarded(url, "clear", at_once=False), ask("single")))
    except InputGuardrailTripwireTriggered as stopped:
        found = stopped.guardrail_result.output.output_info
        assert found == Forecast(**weather.FORECAST)
        return found
    raise AssertionError("the input passed")


def guardrail_output(url: str) -> object:
    one = guarded(url, "clear")
    one.input_guardrails = []
    try:
        asyncio.run(Runner.run(one, ask("single")))
    except OutputGuardrailTripwireTriggered as stopped:
        return stopped.guardrail_result.output.output_info
    raise AssertionError("the output passed")


def cut(url: str) -> object:
    """A response that is incomplete is an error here, which the chat-completions model does not raise."""
    try:
        asyncio.run(Runner.run(agent(url, settings={"max_tokens": MAX_TOKENS_CUT}), ask("cut")))
    except ModelBehaviorError as error:
        return error
    raise AssertionError("the call was carried out")


def handoff_streamed(url: str) -> object:
    """A handoff after a guardrail, as a stream, with the items of the whole run."""
    clock = agent(url, name="clock", handoff_description="Knows the time.")
    one = guarded(url, "grey")
    one.handoffs = [clock]

    async def run() -> Any:
        result = Runner.run_streamed(one, ask("handoff"))
        async for _ in result.stream_events():
            pass
        return result

    result = asyncio.run(run())
    assert result.last_agent is clock
    assert "handoff_output_item" in [item.type for item in result.new_items]
    return weather.check("handoff", result.final_output, ["now"])


SHARED = [case for case in agent_openai_agents.CASES if case is not agent_openai_agents.cut]
CASES: list[speak.Case] = [plain, *SHARED, cut, guardrail, guardrail_input, guardrail_output, handoff_streamed]

if __name__ == "__main__":
    speak.run("openai-agents", CASES, {}, also=("openai",))
