"""AutoGen's agents (`autogen-agentchat`, `autogen-ext[openai]`), as their users write them: each message has a name."""

from __future__ import annotations

import asyncio

import speak
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import ModelClientStreamingChunkEvent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import ModelFamily, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient
from speak import MODEL

TASK = "Say hello in one word."


def client(url: str) -> OpenAIChatCompletionClient:
    info = ModelInfo(
        vision=False, function_calling=False, json_output=False, family=ModelFamily.UNKNOWN, structured_output=False
    )
    return OpenAIChatCompletionClient(
        model=MODEL, base_url=f"{url}/v1", api_key=speak.KEY, model_info=info, max_tokens=8, max_retries=0
    )


def agent(url: str, name: str, *, stream: bool = False) -> AssistantAgent:
    return AssistantAgent(
        name,
        model_client=client(url),
        system_message="You are terse.",
        description=f"The {name}.",
        model_client_stream=stream,
    )


def plain(url: str) -> object:
    """One agent, asked twice: its own answer goes back."""

    async def talk() -> str:
        one = agent(url, "writer")
        await one.run(task=TASK)
        return (await one.run(task="Again.")).messages[-1].to_text()

    return asyncio.run(talk())


def stream(url: str) -> object:
    async def listen() -> object:
        pieces, result = [], None
        async for event in agent(url, "writer", stream=True).run_stream(task=TASK):
            if isinstance(event, ModelClientStreamingChunkEvent):
                pieces.append(event.content)
            elif isinstance(event, TaskResult):
                result = event
        assert result.messages[-1].to_text() == "".join(pieces)
        return "".join(pieces)

    return asyncio.run(listen())


def team(url: str) -> object:
    """Two agents hear each other, two turns each."""
    both = RoundRobinGroupChat(
        [agent(url, "writer"), agent(url, "critic")], termination_condition=MaxMessageTermination(5)
    )
    messages = asyncio.run(both.run(task=TASK)).messages
    assert [message.source for message in messages] == ["user", "writer", "critic", "writer", "critic"]
    return messages[-1].to_text()


CASES: list[speak.Case] = [plain, stream, team]

if __name__ == "__main__":
    speak.run("autogen-agentchat", CASES, {})
