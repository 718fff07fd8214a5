"""The form of an answer's text: OpenAI's `response_format`, and vLLM's `structured_outputs` and `guided_*`.

A request has at most one constraint. Whether a grammar can be compiled is checked later, with the model's tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from engine.text.grammars import CHOICES_MAX
from gateway.api.parsing import UnsupportedField, check_value
from gateway.errors import InvalidRequest
from gateway.tools.definitions import OutputFormat, ToolChoice
from gateway.tools.strict_schema import NotStrict, check_strict

NAME_PATTERN = r"^[a-zA-Z0-9_-]{1,64}$"
GRAMMAR_CHARS_MAX = 64 * 1024

GrammarText = Annotated[str, Meta(min_length=1, max_length=GRAMMAR_CHARS_MAX)]
LarkText = Annotated[GrammarText, Meta(description="A Lark grammar in llguidance's dialect")]
RegexText = Annotated[GrammarText, Meta(description="A regular expression (Rust's syntax) that the whole text matches")]
SchemaOrText = Annotated[dict[str, Any] | str, Meta(description="A JSON Schema, or its JSON as a text")]
Choices = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=GRAMMAR_CHARS_MAX)]],
    Meta(min_length=1, max_length=CHOICES_MAX, description="The text is one of them"),
]


class TextFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """The answer is text."""


class JsonObjectFormat(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="json_object"
):
    """The answer is a JSON object."""


class SchemaSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`name` and `description` are hints. The answer follows the schema; with `strict` it must have OpenAI's limits."""

    name: Annotated[str, Meta(pattern=NAME_PATTERN)]
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class JsonSchemaFormat(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="json_schema"
):
    """The answer is JSON that the schema allows."""

    json_schema: SchemaSpec


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """vLLM's constraints of the answer's text; at most one of them. A field without a type is not served: only its
    neutral values are accepted."""

    json: SchemaOrText | None = None
    regex: RegexText | None = None
    choice: Choices | None = None
    grammar: LarkText | None = None
    json_object: bool | None = None
    disable_any_whitespace: (
        Annotated[bool, Meta(description="No white space between JSON tokens; with json or json_object")] | None
    ) = None
    disable_fallback: bool | None = None  # in HINTS_OUTPUT
    # In UNSERVED_OUTPUT.
    disable_additional_properties: Any = None
    structural_tag: Any = None
    whitespace_pattern: Any = None


# By path in the body: accepted without effect on the answer, and named in `laneway-ignored`.
HINTS_OUTPUT: dict[str, str] = {
    "guided_decoding_backend": "One library makes the grammars",
    "structured_outputs.disable_fallback": "One library makes the grammars",
    "response_format.json_schema.name": "The schema alone counts",
    "response_format.json_schema.description": "The schema alone counts",
}
_WHITESPACE = "'disable_any_whitespace' or the operator's setting bounds white space between JSON tokens"
UNSERVED_STRUCTURED = {
    "disable_additional_properties": UnsupportedField(
        "A schema says it itself, with additionalProperties: false", (False,)
    ),
    "structural_tag": UnsupportedField("Tags are not served; 'tools' are"),
    "whitespace_pattern": UnsupportedField(_WHITESPACE),
}


def check_schema(schema: dict[str, Any], param: str) -> None:
    """Raises InvalidRequest unless the schema has the limits of a strict one."""
    try:
        check_strict(schema)
    except NotStrict as error:
        raise InvalidRequest(f"{param!r} is wrong: {error}.", param=param) from None


class OutputFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields on the form of the answer's text that chat completions and completions share."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaOrText | None = None
    guided_regex: RegexText | None = None
    guided_choice: Choices | None = None
    guided_grammar: LarkText | None = None
    guided_decoding_backend: str | None = None  # in HINTS_OUTPUT

    def output_format(self) -> OutputFormat | None:
        """None: the answer is any text. Raises InvalidRequest for more than one constraint, and for a schema that is
        no object."""
        found = _constraints(self)
        if len(found) > 1:
            first, second = found[0].param, found[1].param
            message = f"{first!r} and {second!r} both set the form of the answer; leave one of them out."
            raise InvalidRequest(message, param=second)
        return found[0] if found else None

    def ignored_output_hints(self) -> list[str]:
        """The hints of HINTS_OUTPUT in the request that another server would have followed."""
        ignored = [] if self.guided_decoding_backend is None else ["guided_decoding_backend"]
        if self.structured_outputs is not None and self.structured_outputs.disable_fallback:
            ignored.append("structured_outputs.disable_fallback")
        return ignored


def check_output(request: OutputFields) -> None:
    """Check the fields of `structured_outputs`, and that there is one constraint. Raises InvalidRequest."""
    if request.structured_outputs is not None:
        for field, entry in UNSERVED_STRUCTURED.items():
            check_value(f"structured_outputs.{field}", getattr(request.structured_outputs, field), entry)
    request.output_format()


def check_output_beside_tools(output: OutputFormat | None, choice: ToolChoice) -> None:
    """Raises InvalidRequest if the answer must be calls and has no text. OpenAI's own service accepts
    `response_format` and `text.format` there."""
    if output is not None and choice.mode == "required" and not output.param.startswith(("response_format", "text.")):
        message = (
            f"{output.param!r} and 'tool_choice' contradict each other: the choice asks for calls alone; leave one of "
            "them out."
        )
        raise InvalidRequest(message, param=output.param)


def _constraints(request: OutputFields) -> list[OutputFormat]:
    found: list[OutputFormat] = []
    if (format_ := _response_format(request.response_format)) is not None:
        found.append(format_)
    kinds: Sequence[tuple[str, Literal["json", "regex", "choice", "lark"]]] = (
        ("json", "json"),
        ("regex", "regex"),
        ("choice", "choice"),
        ("grammar", "lark"),
    )
    structured = request.structured_outputs
    if structured is not None:
        compact = bool(structured.disable_any_whitespace)
        for name, kind in kinds:
            if (value := getattr(structured, name)) is not None:
                found.append(_constraint(f"structured_outputs.{name}", kind, value, compact=compact))
        if structured.json_object:
            found.append(OutputFormat("structured_outputs.json_object", compact=compact))
    for name, kind in kinds:
        if (value := getattr(request, f"guided_{name}")) is not None:
            found.append(_constraint(f"guided_{name}", kind, value))
    return found


def _constraint(
    param: str, kind: Literal["json", "regex", "choice", "lark"], value: Any, *, compact: bool = False
) -> OutputFormat:
    match kind:
        case "json":
            return OutputFormat(param, _schema_of(value, param), compact=compact)
        case "choice":
            return OutputFormat(param, kind=kind, choices=tuple(value))
    return OutputFormat(param, kind=kind, text=value)


def _schema_of(value: dict[str, Any] | str, param: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    try:
        schema = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{param!r} is wrong: the text is not valid JSON: {error}.", param=param) from None
    if not isinstance(schema, dict):
        raise InvalidRequest(f"{param!r} is wrong: a JSON Schema is an object.", param=param)
    return schema


def _response_format(format_: ResponseFormat | None) -> OutputFormat | None:
    match format_:
        case JsonObjectFormat():
            return OutputFormat("response_format")
        case JsonSchemaFormat(json_schema=spec):
            param = "response_format.json_schema.schema"
            if spec.schema is None:
                raise InvalidRequest(f"Missing required field {param!r}.", param=param)
            if spec.strict:
                check_schema(spec.schema, param)
            return OutputFormat(param, spec.schema)
    return None
