"""pydantic-ai's agents with its Responses model: the cases of agent_pydantic_ai.py, and plain texts."""

from __future__ import annotations

import agent_pydantic_ai
import speak
from agent_pydantic_ai import agent
from pydantic_ai.models.openai import OpenAIResponsesModel
from weather import ask, check

agent_pydantic_ai.MODEL_CLASS = OpenAIResponsesModel


def plain(url: str) -> object:
    """Two turns without tools: the answer's items go back."""
    one = agent(url, tools=())
    first = one.run_sync(ask("talk"))
    assert first.output == "Hello."
    return check("talk", one.run_sync("Again.", message_history=first.all_messages()).output, [])


if __name__ == "__main__":
    speak.run("pydantic-ai-slim", [plain, *agent_pydantic_ai.CASES], {}, also=("openai",))
