"""Semantic Kernel's agents, as their users write them: each agent's name is in its messages."""

from __future__ import annotations

import asyncio

import speak
from openai import AsyncOpenAI
from semantic_kernel.agents import ChatCompletionAgent, GroupChatOrchestration, RoundRobinGroupChatManager
from semantic_kernel.agents.runtime import InProcessRuntime
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.functions import KernelArguments
from speak import MODEL

TASK = "Say hello in one word."


def agent(url: str, name: str) -> ChatCompletionAgent:
    api = AsyncOpenAI(base_url=f"{url}/v1", api_key=speak.KEY, max_retries=0)
    return ChatCompletionAgent(
        service=OpenAIChatCompletion(ai_model_id=MODEL, async_client=api),
        name=name,
        description=f"The {name}.",
        instructions="You are terse.",
        arguments=KernelArguments(OpenAIChatPromptExecutionSettings(max_tokens=8)),
    )


def plain(url: str) -> object:
    """Three turns of one thread."""

    async def talk() -> str:
        one, thread, answer = agent(url, "writer"), None, None
        for said in (TASK, "Again.", "And again."):
            answer = await one.get_response(messages=said, thread=thread)
            thread = answer.thread
        return str(answer)

    return asyncio.run(talk())


def stream(url: str) -> object:
    async def talk() -> str:
        one, thread, text = agent(url, "writer"), None, ""
        for said in (TASK, "Again."):
            async for piece in one.invoke_stream(messages=said, thread=thread):
                thread = piece.thread
                text += str(piece)
        return text

    text = asyncio.run(talk())
    assert text
    return text


def group(url: str) -> object:
    """Two agents hear each other, two turns each."""

    async def talk() -> str:
        manager = RoundRobinGroupChatManager(max_rounds=4)
        orchestration = GroupChatOrchestration(members=[agent(url, "writer"), agent(url, "critic")], manager=manager)
        runtime = InProcessRuntime()
        runtime.start()
        try:
            return str(await (await orchestration.invoke(task=TASK, runtime=runtime)).get(timeout=60))
        finally:
            await runtime.stop_when_idle()

    return asyncio.run(talk())


CASES: list[speak.Case] = [plain, stream, group]

if __name__ == "__main__":
    speak.run("semantic-kernel", CASES, {})
