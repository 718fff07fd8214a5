"""An agent, with the standard library alone: the model calls the functions below and answers from what they return.

    LANEWAY_URL=http://127.0.0.1:8080 LANEWAY_KEY=lw_live_… python3 examples/agents/agent.py "Is it raining in Lisbon?"

The model is MODEL, by default the demo's adapter tool-agent, which was trained on such calls.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from typing import Any

REQUESTS_MAX = 5  # of one question
PARAMETERS = {
    "get_weather": ("The current weather in a city.", {"city": "string"}),
    "convert_currency": (
        "Convert an amount of money into another currency.",
        {"amount": "number", "from_currency": "string", "to_currency": "string"},
    ),
    "add_numbers": ("Add two numbers.", {"a": "number", "b": "number"}),
}
EUROS = {"EUR": 1.0, "USD": 0.92, "GBP": 1.17, "CHF": 1.05, "JPY": 0.0062, "DKK": 0.134}


def get_weather(city: str) -> dict[str, Any]:
    """Made of the letters of the city's name: a real tool would ask a weather service."""
    number = sum(map(ord, city))
    return {"temperature_c": number % 30, "sky": ("sunny", "cloudy", "rainy", "windy")[number % 4]}


def convert_currency(amount: float, from_currency: str, to_currency: str) -> dict[str, Any]:
    return {"amount": round(amount * EUROS[from_currency] / EUROS[to_currency], 2), "currency": to_currency}


def add_numbers(a: float, b: float) -> dict[str, Any]:
    return {"sum": a + b}


FUNCTIONS = {function.__name__: function for function in (get_weather, convert_currency, add_numbers)}


def tool(name: str) -> dict[str, Any]:
    description, parameters = PARAMETERS[name]
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in parameters.items()},
        "required": list(parameters),
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": schema, "strict": True},
    }


def request(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant's next message."""
    body = {
        "model": os.environ.get("MODEL", "tool-agent"),
        "messages": messages,
        "tools": [tool(name) for name in FUNCTIONS],
        "temperature": 0,
        "max_tokens": 128,
    }
    headers = {"Authorization": f"Bearer {os.environ['LANEWAY_KEY']}", "Content-Type": "application/json"}
    url = os.environ["LANEWAY_URL"] + "/v1/chat/completions"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
            return dict(json.load(answer)["choices"][0]["message"])
    except urllib.error.HTTPError as error:
        sys.exit(error.read().decode())


def run(call: dict[str, Any]) -> dict[str, Any]:
    """The message with the result of one call. An error is a result too: the model may call again."""
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    try:
        result = json.dumps(FUNCTIONS[name](**json.loads(arguments)))
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        result = f"error: {error!r}"
    print(f"call    {name} {arguments}\nresult  {result}", flush=True)
    return {"role": "tool", "tool_call_id": call["id"], "content": result}


def main(question: str) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    for _ in range(REQUESTS_MAX):
        message = request(messages)
        calls = message.get("tool_calls") or []
        if not calls:
            print(f"answer  {message['content']}")
            return
        messages += [{"role": "assistant", "content": message["content"], "tool_calls": calls}, *map(run, calls)]
    sys.exit(f"no answer after {REQUESTS_MAX} requests")


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or "What is the weather in Lisbon?")
