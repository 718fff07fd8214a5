"""How models write calls. Each format is one definition: it yields the grammar that the engine enforces, the reader of
the model's output, and the text of calls in a history for a template that knows no tools."""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from engine.text.grammars import regex_literal
from gateway.tools.definitions import OutputFormat, ToolSpec
from gateway.tools.grammar import (
    ANY_TEXT,
    CallMode,
    Rules,
    add_arguments,
    add_input,
    add_output,
    any_of,
    json_of,
    lark,
    lazy_calls,
    quote,
    text_with,
)
from gateway.tools.json_calls import JsonCallReader, JsonFraming
from gateway.tools.named_calls import ARGUMENTS, CALL_ID, OPEN, NamedCallReader
from gateway.tools.readers import CallReader
from gateway.tools.scanning import AnswerMarkers
from gateway.tools.xml_calls import XmlCallReader, is_text

CALL_ID_CHARS = 24
MISTRAL_ID_CHARS = 9  # Mistral's templates accept no other ids
# A regular expression of the texts that begin as a call without a marker.
CALL_OBJECT = r'\s*\{\s*"name"(.|\n)*'
_ID_ALPHABET = string.ascii_letters + string.digits


class ToolFormat(Protocol):
    """One format of calls."""

    @property
    def name(self) -> str: ...

    @property
    def markers(self) -> tuple[str, ...]:
        """The marker that opens a call first; empty: calls begin an answer."""
        ...

    def grammar(
        self, tools: Sequence[ToolSpec], markers: AnswerMarkers, mode: CallMode, output: OutputFormat | None
    ) -> str:
        """The llguidance grammar of an answer that may or must call `tools`."""
        ...

    def reader(self, tools: Mapping[str, ToolSpec], markers: AnswerMarkers) -> CallReader:
        """A reader of one section of calls."""
        ...

    def new_id(self, prefix: str) -> str:
        """The id of a new call."""
        ...

    def spell_calls(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
        """Calls as the model writes them: names and arguments."""
        ...


class JsonFormat:
    """Calls are JSON objects with a name and the arguments."""

    def __init__(self, name: str, framing: JsonFraming, *, id_chars: int | None = None) -> None:
        """`id_chars`: the length of ids that the model's template accepts; None: any."""
        self.name = name
        self.framing = framing
        self.markers = tuple(one for one in (framing.open, framing.close) if one)
        self.id_chars = id_chars

    def grammar(
        self, tools: Sequence[ToolSpec], markers: AnswerMarkers, mode: CallMode, output: OutputFormat | None
    ) -> str:
        framing = self.framing
        rules: Rules = {}
        for index, tool in enumerate(tools):
            tokens = ["{", '"name"', ":", " ", json.dumps(tool.name), ",", " ", f'"{framing.arguments_key}"', ":", " "]
            if framing.open or output is None or output.kind != "json":
                tokens = ["".join(tokens)]
            # llguidance's lexer takes the longest lexeme: beside a JSON output each token must be a separate lexeme.
            arguments = add_arguments(rules, f"input_{index}", tool, mode)
            rules[f"call_{index}"] = f'{" ".join(map(quote, tokens))} {arguments} "}}"'
        rules["call"] = any_of([f"call_{index}" for index in range(len(tools))])
        one = "call"
        if framing.separator and mode.parallel:
            one = f"call ({quote(framing.separator + ' ')} call)*"
        body = f"{quote(framing.list_open)} " if framing.list_open else ""
        body += one
        if framing.list_close:
            body += f" {quote(framing.list_close)}"
        if framing.close:
            body += f" {markers.terminal(framing.close)}"
        return lark(self._start(rules, markers, body, mode, output), rules)

    def _start(
        self, rules: Rules, markers: AnswerMarkers, body: str, mode: CallMode, output: OutputFormat | None
    ) -> str:
        framing = self.framing
        whole = f"{markers.terminal(framing.open)} {body}" if framing.open else body
        if framing.open and framing.close and mode.parallel and (mode.required or output is not None):
            whole = f'{whole} ("\\n" {whole})*'
        if mode.required:
            return whole
        if output is not None:
            add_output(rules, output, mode, self._call_text(markers))
            return f"output | {whole}"
        if framing.open:
            return lazy_calls(rules, markers, framing.open, body, parallel=mode.parallel and bool(framing.close))
        rules["TEXT"] = f"{ANY_TEXT} & ~/{CALL_OBJECT}/"
        return f"{whole} | TEXT"

    def _call_text(self, markers: AnswerMarkers) -> str | None:
        opened = self.framing.open
        if not opened:
            return CALL_OBJECT
        return None if markers.is_id(opened) else text_with(opened)

    def reader(self, tools: Mapping[str, ToolSpec], markers: AnswerMarkers) -> CallReader:
        return JsonCallReader(self.framing, tools, markers)

    def new_id(self, prefix: str) -> str:
        return new_id(prefix) if self.id_chars is None else _random(self.id_chars)

    def spell_calls(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
        framing = self.framing
        objects = [json.dumps({"name": name, framing.arguments_key: arguments}) for name, arguments in calls]
        if framing.close:
            return "\n".join([f"{framing.open}{framing.list_open}{one}\n{framing.close}" for one in objects])
        return framing.open + framing.list_open + f"{framing.separator} ".join(objects) + framing.list_close


class NamedFormat:
    """Calls are a name and a JSON object behind it. The model may write its own id between them."""

    name = "mistral_args"
    markers = (OPEN, ARGUMENTS, CALL_ID)
    id_chars = MISTRAL_ID_CHARS

    def grammar(
        self, tools: Sequence[ToolSpec], markers: AnswerMarkers, mode: CallMode, output: OutputFormat | None
    ) -> str:
        opened, ended, own_id = (markers.terminal(one) for one in self.markers)
        rules: Rules = {"own_id": f"{own_id} /[a-zA-Z0-9]{{{self.id_chars}}}/"}
        for index, tool in enumerate(tools):
            arguments = add_arguments(rules, f"input_{index}", tool, mode)
            rules[f"call_{index}"] = f"{quote(tool.name)} own_id? {ended} {arguments}"
        rules["call"] = any_of([f"call_{index}" for index in range(len(tools))])
        if not mode.required and output is None:
            return lark(lazy_calls(rules, markers, OPEN, "call", parallel=mode.parallel), rules)
        whole = f"({opened} call)+" if mode.parallel else f"{opened} call"
        if mode.required:
            return lark(whole, rules)
        assert output is not None
        add_output(rules, output, mode, None if markers.is_id(OPEN) else text_with(OPEN))
        return lark(f"output | {whole}", rules)

    def reader(self, tools: Mapping[str, ToolSpec], markers: AnswerMarkers) -> CallReader:
        return NamedCallReader(markers)

    def new_id(self, prefix: str) -> str:
        return _random(self.id_chars)

    def spell_calls(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
        return "".join([f"{OPEN}{name}{ARGUMENTS}{json.dumps(arguments)}" for name, arguments in calls])


class XmlFormat:
    """Calls are elements: `<function=name>` with a `<parameter=key>` for each argument. The value of a parameter whose
    schema is a string is its text; every other value is JSON, and so is an input that follows a Lark grammar."""

    name = "qwen3_coder"
    markers = ("<tool_call>", "</tool_call>")

    def grammar(
        self, tools: Sequence[ToolSpec], markers: AnswerMarkers, mode: CallMode, output: OutputFormat | None
    ) -> str:
        rules: Rules = {}
        for index, tool in enumerate(tools):
            parameters = self._parameters(rules, f"p_{index}", tool, mode)
            rules[f"call_{index}"] = f'{quote(f"<function={tool.name}>")} "\\n" {parameters} "</function>"'
        rules["call"] = any_of([f"call_{index}" for index in range(len(tools))])
        opened, closed = (markers.terminal(one) for one in self.markers)
        body = f'"\\n" call "\\n" {closed}'
        if not mode.required and output is None:
            return lark(lazy_calls(rules, markers, self.markers[0], body, parallel=mode.parallel), rules)
        whole = f"{opened} {body}"
        if mode.parallel:
            whole = f'{whole} ("\\n" {whole})*'
        if mode.required:
            return lark(whole, rules)
        assert output is not None
        add_output(rules, output, mode, None if markers.is_id(self.markers[0]) else text_with(self.markers[0]))
        return lark(f"output | {whole}", rules)

    def _parameters(self, rules: Rules, prefix: str, tool: ToolSpec, mode: CallMode) -> str:
        """The elements of all parameters, in the order of the schema. Optional parameters may be left out."""
        schema = tool.schema()
        properties, required = schema.get("properties"), schema.get("required")
        said = []
        for index, (key, value) in enumerate(properties.items() if isinstance(properties, dict) else ()):
            rule = f"{prefix}_{index}"
            value = value if isinstance(value, dict) else {}
            head = quote(f"<parameter={key}>\n")
            if tool.lark is not None:
                # An escaped `<` begins no closing tag.
                text = add_input(rules, f"input_{prefix}", tool.lark, also="<")
                rules[rule] = f'{head} {text} "\\n</parameter>\\n"'
            elif is_text(value):
                ending = quote("\n</parameter>\n")
                if tool.custom and tool.pattern is not None:
                    rules[rule] = f"{head} {regex_literal(tool.pattern)} {ending}"
                elif options := _text_options(value):
                    rules[rule] = f"{head} {any_of([quote(one) for one in options])} {ending}"
                else:
                    rules[f"{rule}_text[lazy]"] = rf"/(.|\n)*/ {ending}"
                    rules[rule] = f"{head} {rule}_text"
            else:
                definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
                content = json_of({} if tool.name in mode.loose else value | definitions, mode.whitespace_max)
                rules[rule] = f'{head} {content} "\\n</parameter>\\n"'
            optional = not (isinstance(required, list) and key in required)
            said.append(f"{rule}?" if optional else rule)
        return " ".join(said)

    def reader(self, tools: Mapping[str, ToolSpec], markers: AnswerMarkers) -> CallReader:
        return XmlCallReader(tools, markers, *self.markers)

    def new_id(self, prefix: str) -> str:
        return new_id(prefix)

    def spell_calls(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
        said = []
        for name, arguments in calls:
            values = [
                f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
                for key, value in arguments.items()
            ]
            said.append(f"<tool_call>\n<function={name}>\n{''.join(values)}</function>\n</tool_call>")
        return "\n".join(said)


def _text_options(schema: Mapping[str, Any]) -> list[str]:
    options = [schema["const"]] if "const" in schema else schema.get("enum", [])
    return [one for one in options if isinstance(one, str)] if isinstance(options, list) else []


def new_id(prefix: str) -> str:
    return prefix + _random(CALL_ID_CHARS)


def _random(chars: int) -> str:
    return "".join([secrets.choice(_ID_ALPHABET) for _ in range(chars)])


HERMES = JsonFormat("hermes", JsonFraming(open="<tool_call>", close="</tool_call>", list_open="\n", list_close="\n"))
LLAMA3_JSON = JsonFormat("llama3_json", JsonFraming(separator=";", arguments_key="parameters"))
MISTRAL = JsonFormat(
    "mistral",
    JsonFraming(open="[TOOL_CALLS]", list_open=" [", separator=",", list_close="]"),
    id_chars=MISTRAL_ID_CHARS,
)
MISTRAL_ARGS = NamedFormat()
QWEN3_CODER = XmlFormat()
FORMATS: Mapping[str, ToolFormat] = {one.name: one for one in (HERMES, QWEN3_CODER, LLAMA3_JSON, MISTRAL, MISTRAL_ARGS)}
