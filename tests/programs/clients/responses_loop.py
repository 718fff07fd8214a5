"""The loop with tools over `/v1/responses`, for clients that have no agent of their own. Read by each client's own
interpreter; nothing but the standard library."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import speak
import weather
from weather import MAX_TOKENS_CUT, ask, check

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}}
WEATHER = {"type": "function", "name": "get_weather", "description": "The weather.", "parameters": CITY}
NOW = {"type": "function", "name": "now", "description": "The time.", "parameters": NOTHING}
FUNCTIONS = {"get_weather": weather.get_weather, "now": weather.now}
# Takes the base URL and the fields of a request; returns the response object as data.
Create = Callable[..., dict[str, Any]]


def calls_of(response: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for item in response["output"] if item["type"] == "function_call"]


def text_of(response: dict[str, Any]) -> str:
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join([part["text"] for part in parts])


class Loop:
    """`create` returns a whole response; `stream` reads one as a stream and returns the final response."""

    def __init__(self, create: Create, stream: Create) -> None:
        self._create, self._stream = create, stream

    def _ask(self, url: str, case: str, **settings: Any) -> dict[str, Any]:
        fields = {"max_output_tokens": 200, "tools": [WEATHER, NOW], "input": ask(case)} | settings
        return self._create(url, **fields)

    def _talk(self, url: str, case: str, calls: list[str], *, streamed: bool = False, **settings: Any) -> object:
        items: list[Any] = [{"role": "user", "content": ask(case)}]
        ask_again = self._stream if streamed else self._create
        fields = {"max_output_tokens": 200, "instructions": "You are terse.", "tools": [WEATHER, NOW]} | settings
        while True:
            response = ask_again(url, input=items, **fields)
            assert response["status"] == "completed", response
            if not (wanted := calls_of(response)):
                return check(case, text_of(response), calls)
            items += response["output"]
            for call in wanted:
                result = FUNCTIONS[call["name"]](**json.loads(call["arguments"]))
                items.append({"type": "function_call_output", "call_id": call["call_id"], "output": result})

    def single(self, url: str) -> object:
        return self._talk(url, "single", ["Paris"])

    def parallel(self, url: str) -> object:
        return self._talk(url, "parallel", ["Paris", "Rome"], parallel_tool_calls=True)

    def streamed(self, url: str) -> object:
        return self._talk(url, "streamed", ["Paris", "now"], streamed=True)

    def no_arguments(self, url: str) -> object:
        return self._talk(url, "no_arguments", ["now"])

    def loop(self, url: str) -> object:
        return self._talk(url, "loop", ["Paris", "now"], parallel_tool_calls=False)

    def thinking(self, url: str) -> object:
        return self._talk(url, "thinking", ["Paris"], reasoning={"effort": "low", "summary": "auto"})

    def thinking_stream(self, url: str) -> object:
        return self._talk(url, "thinking", ["Paris"], streamed=True, include=["reasoning.encrypted_content"])

    def none(self, url: str) -> object:
        return self._talk(url, "none", [], tool_choice="none")

    def plain(self, url: str) -> object:
        """A text for a text, without tools."""
        return self._talk(url, "none", [], tools=[])

    def strict(self, url: str) -> object:
        return self._talk(url, "strict", ["Paris"], tools=[{**WEATHER, "strict": True}])

    def forced(self, url: str) -> object:
        allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}
        for choice in ("required", {"type": "function", "name": "get_weather"}, allowed):
            [call] = calls_of(self._ask(url, "forced", tool_choice=choice))
            assert (call["name"], json.loads(call["arguments"])) == ("get_weather", {"city": "Paris"})
        return "thrice"

    def cut(self, url: str) -> object:
        response = self._ask(url, "cut", max_output_tokens=MAX_TOKENS_CUT)
        assert response["status"] == "incomplete"
        assert response["incomplete_details"]["reason"] == "max_output_tokens"
        [call] = calls_of(response)
        return call["arguments"]

    def cases(self) -> list[speak.Case]:
        return [
            self.plain, self.single, self.parallel, self.streamed, self.no_arguments, self.forced, self.none,
            self.strict, self.cut, self.loop, self.thinking, self.thinking_stream,
        ]  # fmt: skip
