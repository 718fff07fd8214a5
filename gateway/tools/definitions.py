"""Tools, output formats and reasoning of a request, in neutral types."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

ChoiceMode = Literal["none", "auto", "required"]
# The one argument of a custom tool, as the model's template and its calls have it.
CUSTOM_ARGUMENT = "input"
# Between the name of a namespace and the name of its tool, in the name that the model sees.
NAMESPACE_SEPARATOR = "__"


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool that the model may call. `parameters`: the JSON Schema of its arguments. `strict`: the arguments follow
    the schema, or the request is refused; otherwise they follow it where that is possible. `param`: the field of the
    schema, for messages. `custom`: the argument is one text, which matches the regular
    expression `pattern` as a whole, or follows the Lark grammar `lark`, where that is set. `namespace`: the name begins
    with it (`/v1/responses`)."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False
    custom: bool = False
    pattern: str | None = None
    lark: str | None = None
    param: str = ""
    namespace: str = ""

    @property
    def plain_name(self) -> str:
        """The name without the namespace."""
        return self.name.removeprefix(self.namespace).removeprefix(NAMESPACE_SEPARATOR) if self.namespace else self.name

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments as a template shows it."""
        if self.custom:
            text: dict[str, Any] = {"type": "string"}
            return {"type": "object", "properties": {CUSTOM_ARGUMENT: text}, "required": [CUSTOM_ARGUMENT]}
        return self.parameters or {"type": "object", "properties": {}}

    def definition(self) -> dict[str, Any]:
        """The tool in the form that chat templates read."""
        function = {"name": self.name, "description": self.description or "", "parameters": self.schema()}
        return {"type": "function", "function": function}


class ToolChoice(msgspec.Struct, frozen=True):
    """Which tools the answer may or must call. `names`: the allowed tools; empty: all. `parallel`: it may have
    more than one call."""

    mode: ChoiceMode = "auto"
    names: tuple[str, ...] = ()
    parallel: bool = True


class OutputFormat(msgspec.Struct, frozen=True):
    """The required form of the answer's text. `param`: the field of the request, for messages. `schema`: a JSON Schema;
    None: any JSON object. `text`: a regular expression or a Lark grammar. `compact`: JSON without white space between
    its tokens."""

    param: str
    schema: dict[str, Any] | None = None
    kind: Literal["json", "regex", "choice", "lark"] = "json"
    text: str = ""
    choices: tuple[str, ...] = ()
    compact: bool = False


class ReasoningRequest(msgspec.Struct, frozen=True):
    """The requested reasoning before the answer. `enabled`: None leaves it to the model's template. `tokens_max`:
    ids of reasoning after which the engine ends it. `effort`: the caller's word. `shown`: the answer has the reasoning.
    `summarized`: the answer has it as its own summary.
    `field`, `effort_field`: the request's fields, named in `laneway-ignored` where the model cannot follow them."""

    enabled: bool | None = None
    tokens_max: int | None = None
    effort: str | None = None
    shown: bool = True
    summarized: bool = False
    field: str = "reasoning_effort"
    effort_field: str = "reasoning_effort"


class Tooling(msgspec.Struct, frozen=True):
    """A request's tools, form of the answer, and reasoning. `text_only`: the endpoint answers with
    text, without calls and without reasoning apart from it; a grammar begins with the answer."""

    tools: list[ToolSpec] = []
    choice: ToolChoice = ToolChoice()
    output: OutputFormat | None = None
    reasoning: ReasoningRequest = ReasoningRequest()
    id_prefix: str = "call_"  # of the ids of calls
    param: str = "tools"  # the field of the tools, for messages
    text_only: bool = False

    @property
    def callable(self) -> list[ToolSpec]:
        """The tools that the answer may call."""
        if self.choice.mode == "none":
            return []
        names = self.choice.names
        return [tool for tool in self.tools if not names or tool.name in names]
