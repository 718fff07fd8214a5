"""A stack with a scripted engine and a model that knows tools, and the SDKs that speak to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai

from engine.protocol.frames import Submit
from engine.text.tokenizer import Tokenizer
from support.gateway.scripted_engine import Said, ScriptedStack
from support.gateway.tool_model import make_tool_model, says_text

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": CITY}}
NOW: Any = {"type": "function", "function": {"name": "now"}}
ASK: Any = [{"role": "user", "content": "Weather in Paris?"}]
ONE = 'I look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Pärís \\"1\\""}}\n</tool_call>'
TWO = ONE + '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
THOUGHT = "<think>\nParis is in France.\n</think>\n\n"


class Speaking:
    """A stack with a model that knows tools, and clients of it."""

    def __init__(self, stack: ScriptedStack, tokenizer: Tokenizer) -> None:
        self.stack = stack
        self.tokenizer = tokenizer
        self.openai = openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.keys["acme"], max_retries=0)
        self.anthropic = anthropic.Anthropic(base_url=stack.url, api_key=stack.keys["acme"], max_retries=0)

    def says(self, text: str, *, reason: str = "stop") -> None:
        self.stack.says(says_text(self.tokenizer, text, reason=reason))

    def says_in_turn(self, *texts: str) -> None:
        scripts: list[Callable[[Submit], Said]] = [says_text(self.tokenizer, text) for text in texts]
        self.stack.says(lambda submit: scripts.pop(0)(submit))

    def prompt(self) -> str:
        """The prompt of the last request, as the model reads it."""
        return self.tokenizer.decode(self.stack.scripted.submits[-1].prompt_ids, skip_special_tokens=False)

    def guide(self) -> Any:
        return self.stack.scripted.submits[-1].guide


def start_speaking(directory: Path) -> Iterator[Speaking]:
    """Start a stack for a fixture; checks at its end that no hold is open."""
    model = make_tool_model(directory / "model")
    stack = ScriptedStack(directory, f"sqlite:///{directory}/laneway.db", model)
    try:
        stack.start()
        speaking = Speaking(stack, Tokenizer.load(model))
        # Without the block the garbage collector would find open sockets of the SDKs in another test, and fail it.
        with speaking.openai, speaking.anthropic:
            yield speaking
        assert stack.open_holds() == 0
    finally:
        stack.stop()
