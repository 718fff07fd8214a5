"""Pieces of llguidance grammars in its Lark dialect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from engine.text.json_schemas import guided_schema, json_schema_grammar
from gateway.tools.definitions import CUSTOM_ARGUMENT, OutputFormat, ToolSpec
from gateway.tools.scanning import AnswerMarkers

ANY_TEXT = r"/(.|\n)*/"

Rules = dict[str, str]  # by name, in Lark


def quote(text: str) -> str:
    """A Lark literal."""
    return json.dumps(text)


def json_of(schema: Mapping[str, Any]) -> str:
    """A JSON value that the schema allows. Raises GrammarRefused."""
    return "%json " + json.dumps(guided_schema(schema))


def any_object() -> str:
    return json_of({"type": "object"})


def arguments_of(tool: ToolSpec) -> str:
    """The arguments of one call: by the schema of a strict tool, else any JSON object."""
    if tool.custom:
        text: dict[str, Any] = {"type": "string"}
        if tool.pattern is not None:
            text["pattern"] = f"^(?:{tool.pattern})$"
        properties = {CUSTOM_ARGUMENT: text}
        return json_of(
            {
                "type": "object",
                "properties": properties,
                "required": [CUSTOM_ARGUMENT],
                "additionalProperties": False,
            }
        )
    return json_of(tool.schema()) if tool.strict else any_object()


def output_of(output: OutputFormat) -> str:
    """The rule of an answer in this format. Raises GrammarRefused."""
    return any_object() if output.schema is None else json_of(output.schema)


def output_grammar(output: OutputFormat) -> str:
    """The grammar of an answer in this format. Raises GrammarRefused."""
    return json_schema_grammar({"type": "object"} if output.schema is None else output.schema)


def lark(start: str, rules: Rules) -> str:
    """A whole grammar."""
    return "\n".join(["%llguidance {}", f"start: {start}", *[f"{name}: {body}" for name, body in rules.items()], ""])


def lazy_calls(rules: Rules, markers: AnswerMarkers, trigger: str, body: str, *, parallel: bool) -> str:
    """The start of an answer that is text with calls in it: any text, and `body` after each `trigger`. Without
    `parallel` one call ends the answer."""
    rules["TEXT"] = ANY_TEXT
    if markers.is_id(trigger):
        rules["triggered"] = f"TEXT {markers.terminal(trigger)}"
    else:
        rules["triggered[lazy]"] = f"TEXT {quote(trigger)}"
    rules["section"] = f"triggered {body}"
    return "section* TEXT" if parallel else "TEXT | section"


def any_of(options: Sequence[str]) -> str:
    return options[0] if len(options) == 1 else "(" + " | ".join(options) + ")"
