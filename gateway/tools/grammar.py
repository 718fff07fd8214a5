"""Pieces of llguidance grammars in its Lark dialect."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from engine.text.grammars import choice_grammar, choice_terminal, lark_grammar, regex_grammar, regex_literal
from engine.text.json_schemas import GrammarRefused, guided_schema, json_schema_grammar
from gateway.tools.definitions import CUSTOM_ARGUMENT, OutputFormat, ToolSpec
from gateway.tools.escaped_lark import escaped_lark
from gateway.tools.scanning import AnswerMarkers

# 20 schemas of an agent's tools have some 10,000 characters and compile in 5 to 15 ms, LOOSE_SCHEMA_CHARS_MAX in under
# 50 ms.
LOOSE_SCHEMA_CHARS_MAX = 48 * 1024
ANY_OBJECT: dict[str, Any] = {"type": "object"}
ANY_TEXT = r"/(.|\n)*/"

Rules = dict[str, str]  # by name, in Lark


def quote(text: str) -> str:
    """A Lark literal."""
    return json.dumps(text)


class CallMode:
    """`required`: the answer is calls and nothing else. `parallel`: more than one call. `whitespace_max`: white space
    characters between two JSON tokens. `loose`: names of tools whose arguments are any JSON object."""

    __slots__ = ("loose", "parallel", "required", "whitespace_max")

    def __init__(self, *, required: bool, parallel: bool, whitespace_max: int = 1, loose: Collection[str] = ()) -> None:
        self.required = required
        self.parallel = parallel
        self.whitespace_max = whitespace_max
        self.loose = loose


def json_of(schema: Mapping[str, Any], whitespace_max: int) -> str:
    """A JSON value that the schema allows. Raises GrammarRefused."""
    return "%json " + json.dumps(guided_schema(schema, whitespace_max=whitespace_max))


def arguments_schema(tool: ToolSpec) -> dict[str, Any]:
    """The JSON Schema of one call's arguments."""
    if not tool.custom:
        return {"type": "object", **tool.schema()}
    text: dict[str, Any] = {"type": "string"}
    if tool.pattern is not None:
        text["pattern"] = f"^(?:{tool.pattern})$"
    properties = {CUSTOM_ARGUMENT: text}
    return {
        "type": "object",
        "properties": properties,
        "required": [CUSTOM_ARGUMENT],
        "additionalProperties": False,
    }


def add_arguments(rules: Rules, name: str, tool: ToolSpec, mode: CallMode) -> str:
    """The arguments of one call. `name`: of a grammar that is added where it is needed. Raises GrammarRefused."""
    if tool.lark is not None:
        head = quote(f'{{"{CUSTOM_ARGUMENT}": ')
        return f'{head} {add_input(rules, name, tool.lark)} "}}"'
    return json_of(ANY_OBJECT if tool.name in mode.loose else arguments_schema(tool), mode.whitespace_max)


def add_input(rules: Rules, name: str, text: str, *, also: str = "") -> str:
    """The JSON string of an input that follows the Lark grammar `text`, which is added as the grammar `name`. `also`:
    characters that are escaped though JSON does not ask for it. Raises GrammarRefused."""
    rules[f"@{name}"] = escaped_lark(text, also=also)
    mark = quote('"')
    return f"{mark} @{name} {mark}"


def loose_tools(tools: Sequence[ToolSpec], refused: Collection[str]) -> frozenset[str]:
    """The names of tools that are not strict and whose schema is not followed: the tool is in `refused`, the schema is
    no object's or has an unsupported keyword, or it exceeds LOOSE_SCHEMA_CHARS_MAX together with the schemas before
    it."""
    found = set()
    chars = 0
    for tool in tools:
        if tool.strict or tool.custom:
            continue
        size = 0
        schema = arguments_schema(tool)
        if tool.name not in refused and schema["type"] == "object":
            with contextlib.suppress(GrammarRefused):
                size = len(json_of(schema, 1))
        if size and chars + size <= LOOSE_SCHEMA_CHARS_MAX:
            chars += size
        else:
            found.add(tool.name)
    return frozenset(found)


def output_grammar(output: OutputFormat, whitespace_max: int) -> str:
    """The grammar of an answer that is this output. Raises GrammarRefused."""
    match output.kind:
        case "regex":
            return regex_grammar(output.text)
        case "choice":
            return choice_grammar(output.choices)
        case "lark":
            return lark_grammar(output.text)
    schema = ANY_OBJECT if output.schema is None else output.schema
    return json_schema_grammar(schema, whitespace_max=0 if output.compact else whitespace_max)


def add_output(rules: Rules, output: OutputFormat, mode: CallMode, call_text: str | None) -> None:
    """Add the rule `output`. `call_text`: a regular expression of the texts that the parser would read as calls; None:
    calls begin with an id that no text contains. Raises GrammarRefused."""
    match output.kind:
        case "lark" if call_text is None:
            lark_grammar(output.text)
            rules["@output"] = output.text
            rules["output"] = "@output"
        case "lark":
            raise GrammarRefused(
                f"{output.param!r} beside 'tools' needs a model that opens a call by a token of its own; leave one of "
                "them out"
            )
        case "regex" | "choice":
            terminal = regex_literal(output.text) if output.kind == "regex" else choice_terminal(output.choices)
            rules["OUTPUT"] = terminal if call_text is None else f"{terminal} & ~/{call_text}/"
            rules["output"] = "OUTPUT"
        case _:
            schema = ANY_OBJECT if output.schema is None else output.schema
            rules["output"] = json_of(schema, 0 if output.compact else mode.whitespace_max)


def text_with(marker: str) -> str:
    """A regular expression, as Lark writes it, of the texts that contain the marker."""
    return r"(.|\n)*" + re.escape(marker).replace("/", r"\/") + r"(.|\n)*"


def lark(start: str, rules: Rules) -> str:
    """A whole grammar. A rule whose name begins with @ is a separate grammar, with separate names."""
    own = {name: body for name, body in rules.items() if name[0] != "@"}
    text = "\n".join(["%llguidance {}", f"start: {start}", *[f"{name}: {body}" for name, body in own.items()], ""])
    if len(own) == len(rules):
        return text
    nested = [{"name": name[1:], "lark_grammar": body} for name, body in rules.items() if name[0] == "@"]
    return json.dumps({"grammars": [{"lark_grammar": text}, *nested]})


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
