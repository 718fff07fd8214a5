"""Plain text by frameworks over the `openai` package: instructor, pydantic-ai, openai-agents with Chat Completions."""

from __future__ import annotations

import asyncio

import instructor
import speak
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI, OpenAI
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from speak import MODEL

set_tracing_disabled(True)  # it would be sent to OpenAI
ASKED = "Say hello in one word."


def later(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key=speak.KEY, max_retries=0)


def instructor_plain(url: str) -> object:
    api = instructor.from_openai(OpenAI(base_url=f"{url}/v1", api_key=speak.KEY, max_retries=0))
    messages = [{"role": "user", "content": ASKED}]
    answer = api.chat.completions.create(model=MODEL, messages=messages, max_tokens=8, response_model=None)
    return answer.choices[0].message.content


def pydantic_agent(url: str) -> PydanticAgent:
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=later(url)))
    return PydanticAgent(model, instructions="You are terse.", model_settings={"max_tokens": 8})


def pydantic_plain(url: str) -> object:
    async def talk() -> str:
        agent = pydantic_agent(url)
        first = await agent.run(ASKED)
        second = await agent.run("Again.", message_history=first.all_messages())
        return second.output

    return asyncio.run(talk())


def pydantic_stream(url: str) -> object:
    async def talk() -> str:
        async with pydantic_agent(url).run_stream(ASKED) as answer:
            return "".join([piece async for piece in answer.stream_text(delta=True)])

    return asyncio.run(talk())


def agents_agent(url: str) -> Agent:
    model = OpenAIChatCompletionsModel(model=MODEL, openai_client=later(url))
    settings = ModelSettings(max_tokens=8)
    return Agent(name="writer", instructions="You are terse.", model=model, model_settings=settings)


def agents_plain(url: str) -> object:
    async def talk() -> str:
        agent = agents_agent(url)
        first = await Runner.run(agent, ASKED)
        asked = [*first.to_input_list(), {"role": "user", "content": "Again."}]
        return str((await Runner.run(agent, asked)).final_output)

    return asyncio.run(talk())


def agents_stream(url: str) -> object:
    async def talk() -> str:
        result = Runner.run_streamed(agents_agent(url), ASKED)
        async for _ in result.stream_events():
            pass
        return str(result.final_output)

    return asyncio.run(talk())


CASES: list[speak.Case] = [
    instructor_plain, pydantic_plain, pydantic_stream, agents_plain, agents_stream,
]  # fmt: skip

if __name__ == "__main__":
    speak.run("openai-agents", CASES, {}, also=("instructor", "pydantic-ai-slim", "openai"))
