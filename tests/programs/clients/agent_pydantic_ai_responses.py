"""pydantic-ai's agents with its Responses model: the cases of agent_pydantic_ai.py."""

from __future__ import annotations

import agent_pydantic_ai
import speak
from pydantic_ai.models.openai import OpenAIResponsesModel

agent_pydantic_ai.MODEL_CLASS = OpenAIResponsesModel

if __name__ == "__main__":
    speak.run("pydantic-ai-slim", agent_pydantic_ai.CASES, {}, also=("openai",))
