"""Shared by the agents' scripts: two tools, a question for each case, and the answer that each case must end with. Each
client's own interpreter imports it, so it needs nothing but the standard library."""

from __future__ import annotations

MAX_TOKENS_CUT = 24  # ends inside the arguments of the case `cut`
LAST = {
    "single": "It is 12 degrees in Paris.",
    "parallel": "It is 12 degrees in Paris and in Rome.",
    "streamed": "It is 12 degrees in Paris at noon.",
    "no_arguments": "It is noon.",
    "forced": "It is 12 degrees in Paris.",
    "none": "I call nothing.",
    "talk": "Hello again.",
    "strict": "It is 12 degrees in Paris.",
    "loop": "It is 12 degrees in Paris at noon.",
    "failing": "It is 12 degrees in Paris.",
    "thinking": "It is 12 degrees in Paris.",
    "smol_tools": "It is 12 degrees in Paris.",
    "smol_loop": "It is 12 degrees in Paris at noon.",
    "smol_parallel": "It is 12 degrees in Paris and in Rome.",
    "smol_code": "12 degrees",
    "handoff": "It is noon.",
}
FORECAST = {"city": "Paris", "sky": "grey"}
called: list[str] = []  # calls of the tools since the last `ask`


def ask(case: str) -> str:
    """The user's message of a case."""
    called.clear()
    return f"Case {case}. What is the weather?"


def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: The city's name.
    """
    called.append(city)
    if city == "Nowhere":
        raise ValueError("There is no such city.")
    return "12 degrees"


def now() -> str:
    """The time of day."""
    called.append("now")
    return "noon"


def check(case: str, said: object, calls: list[str]) -> object:
    """Raises AssertionError unless the case ended with its answer after these calls of tools, in any order."""
    assert str(said) == LAST[case], said
    assert sorted(called) == sorted(calls), called
    return said
